"""`stateroom demo`: what Stateroom does, in a few seconds, without any setup."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from stateroom.cli.options import default_store, new_path
from stateroom.cli.output import console, number, table
from stateroom.cli.run import collect
from stateroom.cli.sessions import print_log, read_log
from stateroom.environment import Environment, find_environment
from stateroom.model import open_model
from stateroom.rollout import Report, Run, RunFiles, example_file, read_tasks
from stateroom.session import Sessions
from stateroom.store import open_store

REPEATS = 4
ENVIRONMENTS = ("counter", "extraction", "weather")


def demo(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The folder to write to; by default a new one in rollouts/.")
    ] = None,
) -> None:
    """Run episodes of three environments, then inspect, fork and reopen their sessions.

    Example: stateroom demo
    """
    where = output or new_path("demo")
    _heading("1. Episodes")
    _say(
        "Three environments, eight tasks each, every task four times. No model is needed: a scripted policy plays, and "
        "errs in about 40% of the episodes. pass@k is the chance that at least one of k episodes is solved.\n"
    )
    runs = [_run(name, where) for name in ENVIRONMENTS]
    _show_metrics(runs)
    _say("In weather every episode gets reward 1; there an error shows as a tool call that was not made.\n")
    plan, report = runs[0]
    _show_tasks(plan, report)

    shown = next(row for row in report.rows if row["reward"] >= 1 and row["tool_calls"] > 3)
    session = shown["_stateroom_session"]
    _heading("2. History")
    _say(f"Each episode is a session with a log. One of task {shown['_ng_task_index']}, and what each step changed:")
    _show_command("log", session, plan.store)
    print_log(asyncio.run(read_log(plan.store, session)))

    _heading("3. Forks")
    _say("A fork of the same episode at revision 3, which continues otherwise: 100 is added.\n")
    twin = asyncio.run(_fork(plan, session))
    _say("\nBoth share revisions 1 to 3. The episode itself is unchanged.")

    _heading("4. Durability")
    _say("Both sessions again, read by a new process from their file.")
    _show_in_new_process(session, plan.store)
    _show_in_new_process(twin, plan.store)

    _heading("Next")
    for command in (
        f"sessions list --store {plan.store}",
        "run extraction --model noisy --repeats 4",
        "environments",
    ):
        console.print(f"$ stateroom {command}", style="dim", soft_wrap=True)
    console.print(f"Rollouts, metrics and sessions of this demo are in {where}.", soft_wrap=True)


def _heading(text: str) -> None:
    console.print(f"\n{text}", style="bold cyan")


def _say(text: str) -> None:
    console.print(text)


def _run(name: str, where: Path) -> tuple[Run, Report]:
    found: type[Environment[Any, Any]] = find_environment(name)
    environment = found()
    files = RunFiles(where / f"{name}.jsonl")
    examples = example_file(found)
    assert examples is not None
    plan = Run(
        environment=environment,
        model=open_model("noisy", found.policies),
        tasks=read_tasks(examples, environment),
        files=files,
        store=default_store(environment, files),
        repeats=REPEATS,
    )
    return plan, collect(plan)


def _show_metrics(runs: list[tuple[Run, Report]]) -> None:
    made = table("environment", "episodes#", "failed#", "reward#", "pass@1#", "pass@2#", "pass@4#", "tool calls#")
    for plan, report in runs:
        metrics = report.metrics["agent_metrics"]
        names = ("mean/reward", "pass@1", "pass@2", "pass@4", "mean/tool_calls")
        figures = (number(metrics[name]) for name in names)
        made.add_row(plan.environment.name, str(report.episodes), str(report.failed), *figures)
    console.print(made)


def _show_tasks(plan: Run, report: Report) -> None:
    made = table("task#", "from#", "to#", "rewards", "solved#", title=f"{plan.environment.name}, task by task:")
    for index, task in enumerate(plan.tasks):
        rewards = [
            row["reward"]
            for row in sorted(report.rows, key=lambda row: row["_ng_rollout_index"])
            if row["_ng_task_index"] == index
        ]
        solved = f"{sum(reward >= 1 for reward in rewards)}/{len(rewards)}"
        marks = " ".join(number(reward) for reward in rewards)
        made.add_row(str(index), str(task["initial_count"]), str(task["expected_count"]), marks, solved)
    console.print(made)


async def _fork(plan: Run, session_id: str) -> str:
    """Fork a finished episode, and continue the fork."""
    async with open_store(plan.store) as store:
        sessions = Sessions[Any](plan.environment, store)
        session = await sessions.open(session_id, closed_too=True)
        fork = await session.fork(at=3)
        await fork.call("increment_counter", {"count": 100})
        made = table("", "session!", "revision#", "state", "reward#")
        verdict = await fork.verify()
        for name, shown, reward in (("episode", session, 1.0), ("fork", fork, verdict.reward)):
            made.add_row(name, shown.id, str(shown.revision), json.dumps(shown.state.model_dump()), number(reward))
        console.print(made)
        return fork.id


def _show_command(name: str, session: str, store: str) -> None:
    console.print(f"$ stateroom sessions {name} {session} --store {store}", style="dim", soft_wrap=True)


def _show_in_new_process(session: str, store: str) -> None:
    _show_command("show", session, store)
    command = [sys.executable, "-m", "stateroom.cli", "sessions", "show", session, "--store", store]
    shown = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True).stdout
    console.print(shown.rstrip(), soft_wrap=True)

"""`stateroom demo`: what Stateroom does, in a few seconds, on embedded defaults."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from stateroom.cli.environments import example_file
from stateroom.cli.output import console, number, table
from stateroom.cli.run import collect, find_policy
from stateroom.cli.sessions import print_log, read_log
from stateroom.environment import Environment, find_environment
from stateroom.rollout import Report, Run, RunFiles, read_tasks
from stateroom.session import Sessions
from stateroom.store import open_store

REPEATS = 4
ENVIRONMENTS = ("counter", "extraction", "weather")


def demo(
    folder: Annotated[
        Path | None, typer.Option(help="Where to write; by default a new folder under rollouts/.")
    ] = None,
) -> None:
    """Run episodes of three environments, then look into, fork and reopen their sessions.

    Example: stateroom demo
    """
    where = folder or Path("rollouts") / f"demo-{datetime.now():%Y%m%d-%H%M%S}"
    _heading("1. Episodes: three environments, a policy that errs in some of them, each task four times")
    runs = [_run(name, where) for name in ENVIRONMENTS]
    _show_metrics(runs)
    plan, report = runs[0]
    _show_tasks(plan, report)

    session = next(row["_stateroom_session"] for row in report.rows if row["reward"] >= 1 and row["tool_calls"] > 3)
    _heading("2. History: one episode's log, with what each call did to the state")
    print_log(asyncio.run(read_log(plan.store, session)))

    _heading("3. Forks: two futures from the second revision of that episode")
    twin = asyncio.run(_fork(plan, session))

    _heading("4. Durability: the same sessions, read by a new process from the same file")
    _show_in_new_process(plan.store, session)
    _show_in_new_process(plan.store, twin)
    console.print(
        f"\nEverything is in {where}. Go on with: stateroom sessions list --store {plan.store}", soft_wrap=True
    )


def _heading(text: str) -> None:
    console.print(f"\n[bold cyan]{text}[/bold cyan]")


def _run(name: str, where: Path) -> tuple[Run, Report]:
    found: type[Environment[Any, Any]] = find_environment(name)
    environment = found()
    files = RunFiles(where / f"{name}.jsonl")
    examples = example_file(found)
    assert examples is not None
    plan = Run(
        environment=environment,
        policy=find_policy(found, "faltering"),
        policy_name="faltering",
        tasks=read_tasks(examples, environment),
        files=files,
        store=f"sqlite:///{files.sessions}",
        repeats=REPEATS,
    )
    return plan, collect(plan)


def _show_metrics(runs: list[tuple[Run, Report]]) -> None:
    made = table("environment", "episodes#", "failed#", "mean reward#", "pass@1#", "pass@2#", "pass@4#", "tool calls#")
    for plan, report in runs:
        metrics = report.metrics["agent_metrics"]
        names = ("mean/reward", "pass@1", "pass@2", "pass@4", "mean/tool_calls")
        figures = (number(metrics[name]) for name in names)
        made.add_row(plan.environment.name, str(report.episodes), str(report.failed), *figures)
    console.print(made)


def _show_tasks(plan: Run, report: Report) -> None:
    made = table("task#", "from#", "to#", "rewards", "solved#", title=f"{plan.environment.name}, task by task")
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
    """Branch off a finished episode, and go another way."""
    async with open_store(plan.store) as store:
        sessions = Sessions[Any](plan.environment, store)
        session = await sessions.open(session_id, closed_too=True)
        fork = await session.fork(at=2)
        await fork.call("increment_counter", {"count": 100})
        made = table("session", "revision#", "state", "reward#")
        verdict = await fork.verify()
        for shown, reward in ((session, 1.0), (fork, verdict.reward)):
            made.add_row(shown.id, str(shown.revision), json.dumps(shown.state.model_dump()), number(reward))
        console.print(made)
        console.print(f"The fork shares revisions 1 and 2 with its parent, {session.id}, and differs from there.")
        return fork.id


def _show_in_new_process(store: str, session: str) -> None:
    command = [sys.executable, "-m", "stateroom.cli", "sessions", "show", session, "--store", store]
    console.print(f"[dim]$ stateroom {' '.join(command[3:])}[/dim]", soft_wrap=True)
    console.print(subprocess.run(command, capture_output=True, text=True, check=True).stdout.rstrip(), markup=False)

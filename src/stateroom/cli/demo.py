"""`stateroom demo`: shows what Stateroom does, in a few seconds and without setup."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from shlex import join
from shutil import which
from typing import Annotated, Any

import typer

from stateroom.cli.output import console, number, print_table, say
from stateroom.cli.run import collect, measured, show_metrics
from stateroom.cli.sessions import SessionOptions, print_log, read_log
from stateroom.rollout import Report, RunPlan, new_path, plan_run
from stateroom.session import Sessions
from stateroom.store import open_store

REPEATS = 4
ENVIRONMENTS = ("refund", "extraction", "counter")
"""A simulated customer, several steps to one answer, and the smallest state."""


def demo(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The output folder; by default a new one in rollouts/.")
    ] = None,
) -> None:
    """Run episodes of three environments, then inspect, fork and reopen their sessions.

    Example: stateroom demo
    """
    where = output or new_path("demo")
    _heading("1. Episodes")
    console.print(
        "Three environments, eight tasks each, four episodes per task. In refund, an agent handles returns for a "
        "customer of a shop. In extraction, it looks up several values and submits them. In counter, it adds numbers "
        "and reads the sum. You need no model: a scripted policy acts, and makes mistakes in about 40% of the "
        "episodes. pass@k is the probability that at least one of k episodes is solved.\n"
    )
    runs = [_run(name, where) for name in ENVIRONMENTS]
    show_metrics({plan.environment.name: measured(report) for plan, report in runs})
    plan, report = runs[0]
    console.print()
    _show_tasks(plan, report)

    solved = [row for row in report.rows if row["reward"] >= 1]
    shown = min(solved, key=lambda row: (row["_ng_task_index"], row["_ng_rollout_index"]))
    session = shown["_stateroom_session"]
    _heading("2. History")
    console.print(
        f"Each episode is a session with a log of messages, calls and state changes. This one is for task "
        f"{shown['_ng_task_index']}:"
    )
    _show_command("sessions", "log", session, "--store", plan.store)
    steps = asyncio.run(read_log(SessionOptions(session, store=plan.store)))
    print_log(steps)

    _heading("3. Forks")
    before = next(entry.revision for entry, _ in steps if entry.name == "refund") - 1
    console.print(
        f"This fork of the episode starts at revision {before}, before the refund. Here the agent pays only 10.\n"
    )
    twin = asyncio.run(_fork(plan, session, before))
    console.print(f"\nBoth share revisions 1 to {before}. The episode itself is unchanged.")

    _heading("4. Durability")
    console.print("A new process reads both sessions from their file.")
    _show_in_new_process(session, plan.store)
    _show_in_new_process(twin, plan.store)

    _heading("Next")
    _show_command("sessions", "transcript", session, "--store", plan.store)
    _show_command("sessions", "list", "--store", plan.store)
    _show_command("run", "extraction", "--model", "noisy", "--repeats", "4")
    _show_command("environments")
    say(f"Rollouts, metrics and sessions of this demo are in {where}. To browse them in Studio:")
    _show_command("studio", *ENVIRONMENTS, "--store", plan.store, "--runs", str(where))


def _heading(text: str) -> None:
    console.print(f"\n{text}", style="bold cyan")


def _run(name: str, where: Path) -> tuple[RunPlan, Report]:
    plan = plan_run(name, model="noisy", repeats=REPEATS, output=where / f"{name}.jsonl")
    return plan, collect(plan)


def _show_tasks(plan: RunPlan, report: Report) -> None:
    rows = []
    for task in range(len(plan.tasks)):
        episodes = [row for row in report.rows if row["_ng_task_index"] == task]
        rewards = [row["reward"] for row in sorted(episodes, key=lambda row: row["_ng_rollout_index"])]
        solved = f"{sum(reward >= 1 for reward in rewards)}/{len(rewards)}"
        rows.append((str(task), " ".join(map(number, rewards)), solved))
    print_table(("task#", "rewards", "solved#"), rows, title=f"{plan.environment.name}, task by task:")


async def _fork(plan: RunPlan, session_id: str, at: int) -> str:
    """Fork a finished episode before its refund, and refund another amount."""
    async with open_store(plan.store) as store:
        sessions = Sessions[Any](plan.environment, store)
        session = await sessions.open(session_id, include_closed=True)
        fork = await session.fork(at=at)
        order = next(iter(session.state.settled))
        await fork.call("refund", {"order_id": order, "amount": 10})
        verdict = await fork.verify()
        rows = [
            (name, shown.id, str(shown.revision), float(shown.state.settled[order].paid), reward)
            for name, shown, reward in (("episode", session, 1.0), ("fork", fork, verdict.reward))
        ]
        print_table(("", "session!", "revision#", f"paid for order {order}#", "reward#"), rows)
        return fork.id


def _show_command(*words: str) -> None:
    """Print a command that the reader can paste."""
    say(f"$ {join([*_program(), *words])}", "dim")


def _program() -> list[str]:
    """The command for this program: its name if that is on the PATH, otherwise the path that the user called."""
    called, installed = Path(sys.argv[0]), which("stateroom")
    if installed is not None and Path(installed).resolve() == called.resolve():
        return ["stateroom"]
    return [str(called)] if called.name == "stateroom" else [sys.executable, "-m", "stateroom.cli"]


def _show_in_new_process(session: str, store: str) -> None:
    words = ("sessions", "show", session, "--store", store)
    _show_command(*words)
    command = [sys.executable, "-m", "stateroom.cli", *words]
    shown = subprocess.run(command, capture_output=True, text=True, encoding="utf-8", check=True).stdout
    say(shown.rstrip())

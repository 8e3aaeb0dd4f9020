"""A policy that errs in 40% of its episodes, and what branching makes of it.

Run it with `python examples/branching.py`. Best-of looks at the true rewards of finished episodes and takes the best:
it tells what a perfect judge of ends would gain, and that this costs less when the branches share a beginning. The beam
uses the rewards of continuations to tell what states in the middle of episodes are worth, goes on from the best,
and of its two ends takes the better. Here that is dear, since an error shows only at the very end.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from stateroom.gallery import ExtractionEnvironment
from stateroom.rollout import Beam, BestOf, Rule, branch, generate_tasks, plan_branches, plan_run, run

TASKS = generate_tasks(ExtractionEnvironment, 60, seed=1)

RULES: dict[str, Rule] = {
    "best of 4 episodes": BestOf(4),
    "best of 4 from the second step on": BestOf(4, at=2),
    "beam, 2 of 4 at each step": Beam(n=2, width=2, continuations=1),
}


class Figures(NamedTuple):
    """What a task got and took, on average."""

    reward: float
    branches: float
    tool_calls: float


async def plain(folder: Path) -> Figures:
    """Each task four times, with nothing chosen: as much as the first rule takes."""
    plan = plan_run("extraction", model="noisy", input=TASKS, output=folder / "plain.jsonl", repeats=4)
    report = await run(plan)
    found = report.metrics["agent_metrics"]
    return Figures(found["mean/reward"], 4, 4 * found["mean/tool_calls"])


async def branching(folder: Path, rule: Rule) -> Figures:
    """Each task by a rule."""
    plan = plan_branches("extraction", model="noisy", input=TASKS, output=folder / "tree.jsonl", rule=rule)
    report = await branch(plan)
    found = report.metrics["agent_metrics"]
    return Figures(found["mean/reward"], found["mean/tree_branches"], found["mean/tree_tool_calls"])


async def compare() -> dict[str, Figures]:
    """The figures of the plain policy and of each rule."""
    figures = {}
    with TemporaryDirectory() as folder:
        figures["plain, 4 episodes"] = await plain(Path(folder))
    for name, rule in RULES.items():
        with TemporaryDirectory() as folder:
            figures[name] = await branching(Path(folder), rule)
    return figures


def main() -> None:
    """Print the figures."""
    made = Table("60 tasks of extraction", "reward", "branches", "tool calls")
    for name, found in asyncio.run(compare()).items():
        made.add_row(name, f"{found.reward:.2f}", f"{found.branches:.1f}", f"{found.tool_calls:.1f}")
    Console().print(made)


if __name__ == "__main__":
    main()

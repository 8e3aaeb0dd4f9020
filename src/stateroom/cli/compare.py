"""`stateroom compare`: what differs between two runs of the same tasks."""

from __future__ import annotations

from sys import maxsize
from typing import Any

from rich.text import Text

from stateroom.cli.options import AsJSON
from stateroom.cli.output import console, counted, errors, number, print_json, table
from stateroom.cli.show import RunPath
from stateroom.model import Item
from stateroom.rollout import RunComparison, StoredRun, TaskComparison, compare_runs
from stateroom.session import item_lines
from stateroom.state import cut_pair

MAX_ROWS = 20
"""Tasks that are shown; --json has all."""

LONGEST = 120
"""Characters of an item that are shown."""

STYLES = {"won": "green", "lost": "red", "tied": ""}


def compare(first: RunPath, second: RunPath, json_output: AsJSON = False) -> None:
    """Compare two runs of the same tasks: which the second has won and lost, by how much, and where they part.

    The reward of a task is the mean over its episodes. The difference is the mean over the tasks; its interval is a
    bootstrap by task. Of each task that changed, the first two episodes with different rewards are compared.

    Example: stateroom compare rollouts/before.jsonl rollouts/after.jsonl
    """
    runs = {"A": StoredRun.find(first), "B": StoredRun.find(second)}
    found = compare_runs(*runs.values())
    if json_output:
        print_json(_data(found))
        return
    for letter, run in runs.items():
        by = f", by {run.description.model}" if run.description is not None else ""
        console.print(f"{letter}: {run.files.rollouts}{by}", soft_wrap=True)
    changed = [task for task in found.tasks if task.outcome != "tied"]
    _print_summary(found)
    if changed:
        made = table("task#", "A#", "B#", "B - A#", "where they part")
        for task in changed[:MAX_ROWS]:
            difference = Text(f"{task.difference:+.3g}", STYLES[task.outcome])
            made.add_row(str(task.task), number(task.first), number(task.second), difference, _parting(task))
        console.print(made)
        if len(changed) > MAX_ROWS:
            console.print(f"and {len(changed) - MAX_ROWS:,} more; --json lists them all", style="dim")
        worst = changed[0]
        where = "" if worst.rollout is None else f" --rollout {worst.rollout}"
        for path in (first, second):
            console.print(f"$ stateroom show {path} --task {worst.task}{where}", style="dim", soft_wrap=True)
    for warning in _warnings(found):
        errors.print(warning, style="yellow", soft_wrap=True)


def _print_summary(found: RunComparison) -> None:
    won, lost, tied = (found.count(outcome) for outcome in ("won", "lost", "tied"))
    interval = found.interval()
    sure = "" if interval is None else f" (95% from {interval[0]:+.3f} to {interval[1]:+.3f})"
    console.print(
        Text.assemble(
            (f"{counted(len(found.tasks), 'task', 'tasks')}: ", "bold"),
            (f"B won {won}", STYLES["won"]),
            ", ",
            (f"lost {lost}", STYLES["lost"]),
            f", tied {tied}",
        )
    )
    first, second = (sum(getattr(task, run) for task in found.tasks) / len(found.tasks) for run in ("first", "second"))
    console.print(f"mean reward: A {number(first)}, B {number(second)}, difference {found.difference:+.3f}{sure}")


def _parting(task: TaskComparison) -> str:
    if task.divergence is None:
        return "no two episodes of the same rollout index differ" if task.rollout is None else "not in what was said"
    _, first, second = task.divergence
    one, other = cut_pair(_line(first), _line(second), LONGEST)
    return f"rollout {task.rollout}, item {task.divergence.item}\nA {one}\nB {other}"


def _line(item: Item | None) -> str:
    if item is None:
        return "ends"
    (speaker, first), *others = item_lines(item, width=maxsize)  # what differs may be far behind
    return " ".join([f"{speaker}: {first}", *(line for _, line in others)])


def _warnings(found: RunComparison) -> list[str]:
    lists = {
        "left out, since these tasks differ": found.different,
        "only A has a reward for": found.only_first,
        "only B has a reward for": found.only_second,
    }
    warnings = [f"{words}: {_listed(tasks)}" for words, tasks in lists.items() if tasks]
    if found.edited:
        tasks = sorted({task for task, _ in found.edited})
        what = counted(len(found.edited), "episode that a person edited is", "episodes that people edited are")
        warnings.append(f"left out, since {what} not comparable: {_listed(tasks)}")
    return warnings


def _listed(tasks: list[int]) -> str:
    more = f" and {len(tasks) - 10:,} more" if len(tasks) > 10 else ""
    return f"task {', '.join(map(str, tasks[:10]))}{more}"


def _data(found: RunComparison) -> dict[str, Any]:
    return {
        "won": found.count("won"),
        "lost": found.count("lost"),
        "tied": found.count("tied"),
        "difference": found.difference,
        "interval": found.interval(),
        "tasks": [
            {
                "task": task.task,
                "outcome": task.outcome,
                "first": task.first,
                "second": task.second,
                "difference": task.difference,
                "episodes": task.episodes,
                "rollout": task.rollout,
                "divergence": None if task.divergence is None else task.divergence._asdict(),
            }
            for task in found.tasks
        ],
        "different": found.different,
        "only_first": found.only_first,
        "only_second": found.only_second,
        "edited": found.edited,
    }

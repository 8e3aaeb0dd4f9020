"""`stateroom branch` and `stateroom tree`: episodes that branch."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich.text import Text
from rich.tree import Tree

from stateroom.cli.command import Output
from stateroom.cli.options import warn_of_missing_prompts
from stateroom.cli.output import (
    MAX_ROWS,
    console,
    counted,
    failure_lines,
    interruptible,
    number,
    progress_bar,
    say,
    show_files,
    some,
    table,
)
from stateroom.errors import NotFound
from stateroom.model import text_of
from stateroom.rollout import (
    NODE,
    BranchOptions,
    BranchPlan,
    Row,
    TreeReport,
    branch as grow_trees,
    read_trees,
)
from stateroom.session import result_of, written_arguments
from stateroom.state import brief

COLUMNS = ("reward", "tree_reward", "tree_branches", "tree_steps", "tree_tool_calls")


def branch(options: BranchOptions) -> Output:
    """Branch episodes: a model continues in several ways from one state, and a rule chooses the best.

    The rule decides where episodes branch. best-of: at one step; the best end is the answer. beam: at each step; the
    nodes with the highest value continue. monte-carlo: at each state of one episode, to estimate its value.

    Example: stateroom branch extraction --model noisy --rule best-of --n 4 --at 2

    Example: stateroom branch extraction --model noisy --rule beam --width 2 --continuations 2

    On a server: stateroom branch counter --rule monte-carlo --server http://127.0.0.1:8000
    """
    plan = BranchPlan.of(options)
    warn_of_missing_prompts(plan.environment, plan.tasks)
    report = _grow(plan)
    return Output(
        lambda: _report_data(plan, report),
        lambda: _print_report(plan, report),
        1 if report.failed or report.broken else 0,
    )


def _grow(plan: BranchPlan) -> TreeReport:
    """Grow the trees with a progress bar."""
    name = plan.environment.name
    branches = count(1)
    with (
        progress_bar(name, len(plan.tasks[: plan.options.limit])) as bar,
        interruptible(lambda: f"finished trees are in {plan.files.tree}"),
    ):

        def grown(_: Any) -> None:
            bar.what = f"{name}, {counted(next(branches), 'branch', 'branches')}"
            bar.start()  # not earlier: a refused run shows no bar

        return asyncio.run(grow_trees(plan, grown, lambda _: bar.advance()))


def _report_data(plan: BranchPlan, report: TreeReport) -> dict[str, Any]:
    return {
        "tasks": report.tasks,
        "failed": report.failed,
        "branches": report.branches,
        "broken": report.broken,
        "elapsed": round(report.elapsed, 3),
        "tool_failures": report.tool_failures.counts,
        "metrics": report.metrics["agent_metrics"],
        "files": plan.files.as_dict(),
    }


def _print_report(plan: BranchPlan, report: TreeReport) -> None:
    """Print a report as a table: the answers, and the size of their trees."""
    who = f"{plan.environment.name}, by {plan.model.name}, {plan.options.rule}"
    what = f"{counted(report.tasks, 'task', 'tasks')} of {who}"
    failed = f", {report.failed} without an answer" if report.failed else ""
    broken = f", {counted(report.broken, 'branch', 'branches')} failed" if report.broken else ""
    say(Text.assemble((what, "bold"), (failed + broken, "red")))
    for line in failure_lines(report):
        say(line)
    if report.rows:
        made = table("task#", "answer", "reward#", "all ends#", "branches#", "steps#", "tool calls#")
        rows = sorted(report.rows, key=lambda row: row["_ng_task_index"])
        for row in rows[:MAX_ROWS]:
            figures = (number(row[name]) for name in COLUMNS)
            made.add_row(str(row["_ng_task_index"]), row[NODE], *figures)
        if len(rows) > MAX_ROWS:
            made.add_row("…", f"and {len(rows) - MAX_ROWS} more", style="dim")
        made.add_section()
        made.add_row("all", "mean", *(number(fmean(row[name] for row in rows)) for name in COLUMNS), style="bold")
        console.print(made)
    console.print(f"{report.elapsed:,.1f} s")
    show_files(plan.files)
    say(f"$ stateroom tree {plan.files.tree}", "dim")


def tree(
    file: Annotated[Path, typer.Argument(help="A tree file written by `stateroom branch`.")],
    task: Annotated[int | None, typer.Option(min=0, help="Show only the tree of this task.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show at most N trees.")] = 5,
    depth: Annotated[int, typer.Option(min=1, help="Show at most N levels of branches.")] = 10,
    children: Annotated[int, typer.Option(min=1, help="Show at most N branches per node.")] = 8,
    steps: Annotated[int, typer.Option(min=2, help="Show at most N steps per branch.")] = 8,
) -> Output:
    """Show trees of episodes: their calls, where they branch, and the value of each branch.

    Example: stateroom tree rollouts/extraction_tree.jsonl

    Example: stateroom tree rollouts/extraction_tree.jsonl --task 3 --children 100
    """
    trees = read_trees(file)
    if task is not None:
        if task not in trees:
            raise NotFound(f"{file} has no tree for task {task}; available: tasks {some(sorted(trees))}")
        trees = {task: trees[task]}

    def draw() -> None:
        drawing = _Drawing(depth, children, steps)
        for index in sorted(trees)[:limit]:
            console.print(drawing.tree(index, trees[index]))
        if len(trees) > limit:
            console.print(f"and {counted(len(trees) - limit, 'tree', 'trees')} more: --limit, or --task", style="dim")

    return Output(lambda: [_tree_data(index, trees[index]) for index in sorted(trees)], draw)


def _tree_data(task: int, nodes: list[Row]) -> Row:
    """A tree as JSON data."""
    answer = next((node for node in nodes if node.get("chosen")), None)
    return {
        "task": task,
        "ends": sum(node["reward"] is not None for node in nodes),
        "answer": None if answer is None else {"id": answer["id"], "reward": answer["reward"]},
        "nodes": nodes,
    }


class _Drawing:
    """Draws trees within limits. Steps of a branch without further branches form one block of lines."""

    def __init__(self, depth: int, children: int, steps: int) -> None:
        self._depth = depth
        self._children = children
        self._steps = steps

    def tree(self, task: int, nodes: list[Row]) -> Tree:
        below: dict[str | None, list[Row]] = defaultdict(list)
        for node in nodes:
            below[node["parent"]].append(node)
        root = below[None][0]
        drawn = Tree(self._title(task, nodes), guide_style="dim")
        waiting = [(drawn, root, 0)]
        while waiting:
            place, node, level = waiting.pop()
            branches = below[node["id"]]
            if level == self._depth and branches:
                place.add(Text("and more below: --depth", "dim"))
                continue
            for first in branches[: self._children]:
                line = [first]
                while len(following := below[line[-1]["id"]]) == 1:
                    line += following
                waiting.append((place.add(self._line(line)), line[-1], level + 1))
            if len(branches) > self._children:
                place.add(Text(f"and {len(branches) - self._children} more: --children", "dim"))
        return drawn

    def _title(self, task: int, nodes: list[Row]) -> Text:
        ends = sum(node["reward"] is not None for node in nodes)
        size = f"{counted(len(nodes), 'node', 'nodes')}, {counted(ends, 'end', 'ends')}"
        return Text.assemble((f"task {task} ", "bold"), *_worth(nodes[0]), size)

    def _line(self, line: list[Row]) -> Text:
        """The steps of a branch, one per line."""
        hidden = max(0, len(line) - self._steps)
        shown = line if not hidden else [*line[: self._steps - 1], line[-1]]
        texts = [_step(node, node["id"] if node is line[0] else _name(node)) for node in shown]
        if hidden:
            texts.insert(-1, Text(f"… {counted(hidden, 'step', 'steps')} more: --steps", "dim"))
        joined = Text("\n").join(texts)
        joined.no_wrap, joined.overflow = True, "ellipsis"
        return joined


def _name(node: Row) -> str:
    """The name of a node relative to the previous one: further steps of a branch are `+1`, `+2` and so on."""
    name: str = node["id"]
    _, plus, steps = name.rpartition("+")
    return plus + steps if steps.isdecimal() else name


def _step(node: Row, name: str) -> Text:
    return Text.assemble((f"{name} ", "dim"), *_worth(node), "; ".join(_calls_and_words(node)) or "nothing")


def _calls_and_words(node: Row) -> list[str]:
    """The calls of a step with their results, and its messages."""
    outputs = {item.get("call_id"): result_of(item) for item in node["items"] if item["type"] == "function_call_output"}
    texts = []
    for item in node["items"]:
        if item["type"] == "function_call":
            result = brief(outputs.get(item["call_id"]))
            texts.append(f"{item['name']}({written_arguments(item['arguments'])}) → {result}")
        elif item["type"] == "message":
            texts.append(brief(text_of(item)))
    return [*texts, *([f"failed: {node['error']}"] if "error" in node else [])]


def _worth(node: Row) -> list[str | tuple[str, str]]:
    """The reward of an end, or the value of a branching node."""
    if node["reward"] is not None:
        mark = ", the answer" if node.get("chosen") else ""
        return [(f"reward {number(node['reward'])}{mark}", "bold green" if node.get("chosen") else "green"), "  "]
    if node["value"] is not None:
        return [(f"value {number(node['value'])} of {node['visits']}", "cyan"), "  "]
    return []

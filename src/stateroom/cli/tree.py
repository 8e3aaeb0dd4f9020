"""`stateroom tree`: show the trees of episodes that branch."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text
from rich.tree import Tree

from stateroom.cli.options import AsJSON
from stateroom.cli.output import console, counted, number, print_json
from stateroom.errors import NotFound
from stateroom.model import text_of
from stateroom.rollout import Row, read_trees
from stateroom.session import result_of, written_arguments
from stateroom.state import brief


def tree(
    file: Annotated[Path, typer.Argument(help="The tree file that `stateroom branch` has written.")],
    task: Annotated[int | None, typer.Option(min=0, help="Show only the tree of this task.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Show N trees.")] = 5,
    depth: Annotated[int, typer.Option(min=1, help="Show N levels of branches.")] = 10,
    children: Annotated[int, typer.Option(min=1, help="Show N branches of a node.")] = 8,
    steps: Annotated[int, typer.Option(min=2, help="Show N steps of a branch.")] = 8,
    json_output: AsJSON = False,
) -> None:
    """Show trees of episodes: what was called, where they branched, and the value of each branch.

    Example: stateroom tree rollouts/extraction_tree.jsonl

    Example: stateroom tree rollouts/extraction_tree.jsonl --task 3 --children 100
    """
    found = read_trees(file)
    if task is not None:
        if task not in found:
            raise NotFound(f"{file} has no tree of task {task}; it has tasks {_some(sorted(found))}")
        found = {task: found[task]}
    if json_output:
        print_json([_tree_data(index, found[index]) for index in sorted(found)])
        return
    drawing = _Drawing(depth, children, steps)
    for index in sorted(found)[:limit]:
        console.print(drawing.tree(index, found[index]))
    if len(found) > limit:
        console.print(f"and {counted(len(found) - limit, 'tree', 'trees')} more: --limit, or --task", style="dim")


def _some(tasks: list[int]) -> str:
    shown = ", ".join(map(str, tasks[:10]))
    return f"{shown} and {len(tasks) - 10} more" if len(tasks) > 10 else shown


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
    """Draws trees up to some limits. Steps of a branch without further branches are one block of lines."""

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
    """The name of a node below the one before it: the next steps of the same branch are `+1`, `+2` and so on."""
    name: str = node["id"]
    _, plus, steps = name.rpartition("+")
    return plus + steps if steps.isdecimal() else name


def _step(node: Row, name: str) -> Text:
    return Text.assemble((f"{name} ", "dim"), *_worth(node), "; ".join(_said(node)) or "nothing")


def _said(node: Row) -> list[str]:
    """The calls of a step with their results, and what was said."""
    outputs = {item.get("call_id"): result_of(item) for item in node["items"] if item["type"] == "function_call_output"}
    told = []
    for item in node["items"]:
        if item["type"] == "function_call":
            told.append(
                f"{item['name']}({written_arguments(item['arguments'])}) → {brief(outputs.get(item['call_id']))}"
            )
        elif item["type"] == "message":
            told.append(brief(text_of(item)))
    return [*told, *([f"broke down: {node['error']}"] if "error" in node else [])]


def _worth(node: Row) -> list[str | tuple[str, str]]:
    """The reward of an end, or the value of a node where branches began."""
    if node["reward"] is not None:
        mark = ", the answer" if node.get("chosen") else ""
        return [(f"reward {number(node['reward'])}{mark}", "bold green" if node.get("chosen") else "green"), "  "]
    if node["value"] is not None:
        return [(f"value {number(node['value'])} of {node['visits']}", "cyan"), "  "]
    return []

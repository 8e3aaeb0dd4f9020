"""The file of a run's trees: one node per line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stateroom.errors import BadData, NotFound
from stateroom.jsonl import parse_object, read_lines
from stateroom.rollout.files import RunFiles
from stateroom.rollout.rows import Row
from stateroom.rollout.trees.tree import Node


@dataclass(frozen=True)
class TreeFiles(RunFiles):
    """Where a run that branches writes."""

    @property
    def tree(self) -> Path:
        """The nodes of all trees, each after its parent."""
        return self._beside("_tree.jsonl")

    @property
    def all(self) -> tuple[Path, ...]:
        return (self.tree, *super().all)

    def as_dict(self) -> dict[str, str]:
        return super().as_dict() | ({"tree": str(self.tree)} if self.tree.exists() else {})


def node_row(node: Node, *, chosen: bool) -> Row:
    """A node as a row of the file."""
    return {
        "id": node.id,
        "parent": None if node.parent is None else node.parent.id,
        "session": node.session.id,
        "revision": node.revision,
        "depth": node.depth,
        "status": node.status,
        "reward": node.reward,
        "value": node.value,
        "visits": node.visits,
        "chosen": chosen,
        "items": node.items,
        **({"error": node.failure["error"]} if node.failure is not None else {}),
    }


class _Part(msgspec.Struct):
    text: str | None = None


class _Item(msgspec.Struct):
    type: str
    name: str | None = None
    call_id: str | None = None
    arguments: Any = msgspec.UNSET
    content: str | list[_Part] | None = None

    def __post_init__(self) -> None:
        is_whole = None not in (self.name, self.call_id) and self.arguments is not msgspec.UNSET
        if self.type == "function_call" and not is_whole:
            raise ValueError("a function_call without name, call_id or arguments")


class _NodeRow(msgspec.Struct):
    """The fields that a row must have."""

    task: int = msgspec.field(name="_ng_task_index")
    id: str
    parent: str | None
    depth: int
    status: str
    reward: float | None
    value: float | None
    visits: int
    items: list[_Item]


def read_trees(path: Path) -> dict[int, list[Row]]:
    """The nodes in a file, in their order, by the index of their task."""
    if not path.exists():
        raise NotFound(f"there is no file {path}")
    trees: dict[int, list[Row]] = {}
    known: set[tuple[int, str | None]] = set()
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        row, node = _read(where, line)
        if (node.task, node.id) in known:
            raise BadData(f"{where}: there is a node {node.id} of task {node.task} before")
        if node.parent is None and node.task in trees:
            raise BadData(f"{where}: node {node.id} is a second root of task {node.task}")
        if node.parent is not None and (node.task, node.parent) not in known:
            raise BadData(f"{where}: node {node.id} comes before its parent {node.parent}, or without it")
        known.add((node.task, node.id))
        trees.setdefault(node.task, []).append(row)
    if not trees:
        raise BadData(f"{path} has no nodes")
    return trees


def _read(where: str, line: bytes) -> tuple[Row, _NodeRow]:
    try:
        row = parse_object(line)
    except ValueError as error:
        raise BadData(f"{where}: {error}") from None
    try:
        return row, msgspec.convert(row, _NodeRow)
    except msgspec.ValidationError as error:
        wrong = f"not a node of a tree; `stateroom branch` writes them to X_tree.jsonl ({error})"
        raise BadData(f"{where}: {wrong}") from None

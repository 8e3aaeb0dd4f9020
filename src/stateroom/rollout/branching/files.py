"""The file of a tree: one node a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stateroom.errors import BadData, CannotWrite, NotFound
from stateroom.rollout.files import RunFiles
from stateroom.rollout.world import Row


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


class _Node(msgspec.Struct):
    """What a line must say."""

    task: int = msgspec.field(name="_ng_task_index")
    id: str
    parent: str | None
    depth: int
    status: str
    reward: float | None
    value: float | None
    visits: int
    items: list[_Item]


@dataclass(frozen=True)
class TreeFiles(RunFiles):
    """Where a run that branches writes."""

    @property
    def tree(self) -> Path:
        """The nodes of all trees, each after its parent."""
        return self._beside("_tree.jsonl")

    def prepare(self) -> None:
        if self.tree.exists():
            raise CannotWrite(f"{self.tree} is there already; give another --output, or remove it")
        super().prepare()

    def as_dict(self) -> dict[str, str]:
        return super().as_dict() | ({"tree": str(self.tree)} if self.tree.exists() else {})


def read_trees(path: Path) -> dict[int, list[Row]]:
    """The nodes in a file, in their order, by the index of their task."""
    trees: dict[int, list[Row]] = {}
    known: set[tuple[int, str | None]] = set()
    for number, line in _lines(path):
        row, node = _read(path, number, line)
        if (node.task, node.id) in known:
            raise BadData(f"{path}, line {number}: there is a node {node.id} of task {node.task} before")
        if node.parent is None and node.task in trees:
            raise BadData(f"{path}, line {number}: node {node.id} is a second root of task {node.task}")
        if node.parent is not None and (node.task, node.parent) not in known:
            raise BadData(f"{path}, line {number}: node {node.id} comes before its parent {node.parent}, or without it")
        known.add((node.task, node.id))
        trees.setdefault(node.task, []).append(row)
    if not trees:
        raise BadData(f"{path} has no nodes")
    return trees


def _read(path: Path, number: int, line: str) -> tuple[Row, _Node]:
    try:
        row: Row = json.loads(line)
        return row, msgspec.convert(row, _Node)
    except msgspec.ValidationError as error:
        wrong = f"not a node of a tree; `stateroom branch` writes them to X_tree.jsonl ({error})"
        raise BadData(f"{path}, line {number}: {wrong}") from None
    except (ValueError, RecursionError) as error:
        raise BadData(f"{path}, line {number}: not a JSON object: {error} (is the line cut short?)") from None


def _lines(path: Path) -> list[tuple[int, str]]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
        return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    except UnicodeDecodeError as error:
        raise BadData(f"{path} is not UTF-8 text: {error}") from error
    except FileNotFoundError:
        raise NotFound(f"there is no file {path}") from None
    except OSError as error:
        raise NotFound(f"cannot read {path}: {error.strerror}") from error

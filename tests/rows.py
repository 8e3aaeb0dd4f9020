"""The rows of a run's files, as tests read and compare them."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from stateroom.jsonl import Appender

OWN = ("_stateroom_session", "_stateroom_parent", "_stateroom_times")
"""Fields that differ from one run to the next."""


def rows(path: Path | str) -> list[dict[str, Any]]:
    """The rows of a file by task and rollout, as episodes end in any order; a file that is not there has none."""
    file = Path(path)
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []  # the last may not be whole
    found: list[dict[str, Any]] = [json.loads(line) for line in lines]
    return sorted(found, key=lambda row: (row.get("_ng_task_index", 0), row.get("_ng_rollout_index", 0)))


def write_rows(path: Path, written: Iterable[Mapping[str, Any]]) -> None:
    """Append rows to a file, as a run does."""
    with Appender(path) as appender:
        for row in written:
            appender.append(row)


def without(row: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A row without some of its fields."""
    return {name: value for name, value in row.items() if name not in names}


def comparable(path: Path | str) -> list[dict[str, Any]]:
    """The rows of a file without what differs from one run to the next."""
    return [without(row, *OWN) for row in rows(path)]

"""The row of an episode, and the lines that rows are read from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from stateroom.errors import BadTask, NotFound
from stateroom.rollout.files import RunFiles
from stateroom.rollout.world import Row
from stateroom.session import Verdict

Key = tuple[int, int]
"""Which episode it is: the numbers of its task and of the rollout."""


REVERIFIED = "_stateroom_reverified"
"""Where a row with a new verdict says what it was made from: the `reward` before, the `revision` whose state was
judged, the names of the new verdict's `fields`, and `of`, a digest of the old row."""

USUAL = frozenset({"reward", "reward_components", "reason"})
"""Fields that are a verdict's in any row."""


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    """What a verdict adds to the row: details and metrics at the top, and the reward with its parts."""
    fields: dict[str, Any] = {**verdict.details}
    fields.update((name, float(value)) for name, value in verdict.metrics.items())
    fields["reward"] = verdict.reward
    if verdict.components:
        fields["reward_components"] = verdict.components
    if verdict.reason:
        fields["reason"] = verdict.reason
    return fields


def old_fields(row: Row) -> frozenset[str]:
    """The fields of the verdict in a row that was judged again before; none if it was not."""
    return frozenset(row.get(REVERIFIED, {}).get("fields", ()))


def task_of(row: Row, inputs: Mapping[Key, Row]) -> Row:
    """The row as it was before it had a verdict; where that is not known, without what must be a verdict's."""
    added = {*USUAL, *old_fields(row), REVERIFIED, "response"}
    return inputs.get(key_of(row)) or {name: value for name, value in row.items() if name not in added}


def inputs_of(rollouts: Path) -> dict[Key, Row]:
    """The rows as they were before they had a verdict, if the run has left them beside its rollouts."""
    path = RunFiles(rollouts).inputs
    found = (row_of(line, number) for number, line in lines_of(path)) if path.exists() else ()
    return {key_of(row): row for row in found}


def lines_of(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a rollouts file that are not blank, with their numbers."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if stripped := line.strip():
                    yield number, stripped
    except OSError as error:
        raise NotFound(f"cannot read {path}: {error.strerror}") from error


def row_of(line: bytes, number: int) -> Row:
    """The row in a line; `BadTask` says what is wrong with it."""
    try:
        row = _parsed(line)
    except (ValueError, RecursionError) as error:
        raise BadTask(f"line {number}: not a JSON object: {error} (is the line cut short?)") from None
    if not isinstance(row, dict):
        raise BadTask(f"line {number}: not a JSON object, but {type(row).__name__}")
    for name in ("_ng_task_index", "_ng_rollout_index"):
        if type(row.get(name)) is not int:
            raise BadTask(f"line {number}: {name} should be a whole number")
    return row


def _parsed(line: bytes) -> Any:
    try:
        return from_json(line)  # three times as fast
    except ValueError:
        return json.loads(line)  # which also knows what half a surrogate pair is


def key_of(row: Row) -> Key:
    """Which episode a row is of."""
    return row["_ng_task_index"], row["_ng_rollout_index"]

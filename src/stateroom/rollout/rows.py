"""Rows: the data of each episode in the files of a run."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from stateroom.errors import BadTask, EnvironmentFailed, ModelFailed, StateroomError
from stateroom.jsonl import parse_object, read_lines
from stateroom.session import Verdict, cause_of

logger = logging.getLogger(__name__)

T = TypeVar("T")

Row = dict[str, Any]

MAX_NUMBER = 1e300
"""The largest number that is measured, which keeps sums finite."""

Key = tuple[int, int]
"""Identifies the episode of a row: the indices of its task and rollout."""

INDICES = ("_ng_task_index", "_ng_rollout_index")
"""The fields with these indices."""

SESSION = "_stateroom_session"
"""The field with the id of the episode's session."""

PARENT = "_stateroom_parent"
"""The field with the `session` and `revision` from which the episode's session was forked."""

CHOSEN = "_stateroom_chosen"
"""The field of an end of a tree: whether it is the answer."""

NODE = "_stateroom_node"
"""The field with the tree node of a row."""

REVERIFIED = "_stateroom_reverified"
"""The field of a rescored row: the `reward` before, the `revision` of the scored state, the names of the `fields` of
the new verdict, and `of`, a digest of the old row."""

EDITED = "_stateroom_edited"
"""The field that is true if a person edited the state, so the episode cannot be compared with others."""

TIMES = "_stateroom_times"
"""The field with the times of the episode in seconds: `wall`, `model` and `tool`. It is the only field that changes if
a run with a deterministic model is repeated. Its name begins with `_` to exclude it from metrics."""

COST = "cost"
"""The field with the cost of the model's tokens, if the run has a price."""

VERDICT = frozenset({"reward", "reward_components", "reason"})
"""Fields that always belong to a verdict."""

TOKENS = ("input_tokens", "output_tokens", "total_tokens")

FAILURE = frozenset({"_ng_failure_class", "_ng_failure_terminal", "error", "cause"})
"""Fields that say why an episode failed."""

WRAPPERS = (EnvironmentFailed, ModelFailed)
"""Errors whose cause may be an error in user code."""


def key_of(row: Row) -> Key:
    """The key of a row's episode."""
    return row["_ng_task_index"], row["_ng_rollout_index"]


def parse_row(line: bytes, number: int) -> Row:
    """Parse the row in a line. Without indices, it is a separate task. Raises `BadTask` if it is invalid."""
    try:
        row = parse_object(line)
    except ValueError as error:
        raise BadTask(f"line {number}: {error}") from None
    complete_row(row, number)
    return row


@dataclass(frozen=True)
class RowsOf:
    """The rows of a file, read again on each iteration."""

    path: Path

    def __iter__(self) -> Iterator[Row]:
        return (parse_row(line, number) for number, line in read_lines(self.path))


def complete_row(row: Row, number: int) -> None:
    """Add missing indices to the row in a line. Raises `BadTask` if the indices or rescoring fields are invalid."""
    for name, default in zip(INDICES, (number - 1, 0), strict=True):
        value = row.setdefault(name, default)
        if type(value) is not int or abs(value) >= 1 << 63:
            raise BadTask(f"line {number}: {name} must be a whole number")
    try:
        if REVERIFIED in row:
            msgspec.convert(row[REVERIFIED], _Rescored)
    except ValueError as error:
        raise BadTask(f"line {number}: {REVERIFIED}: {error}") from None


# The required fields of rows.


class _Rescored(msgspec.Struct):
    fields: list[str] = []


Finite = Annotated[float, msgspec.Meta(ge=-MAX_NUMBER, le=MAX_NUMBER)]


class _Part(msgspec.Struct):
    type: str | None = None
    text: str | None = None
    refusal: str | None = None


class _Item(msgspec.Struct):
    type: str | None = None
    role: str | None = None
    name: str | None = None
    call_id: str | None = None
    content: str | list[_Part] | None = None
    summary: list[_Part] | None = None
    prompt_is_delta: bool | None = None


class _Request(msgspec.Struct):
    input: str | list[_Item] | None = None
    instructions: str | None = None


class _Response(msgspec.Struct):
    output: list[_Item] | None = None
    instructions: str | None = None
    tools: list[dict[str, Any]] | None = None
    model: str | None = None


class _Parent(msgspec.Struct):
    session: str
    revision: int


class _Given(msgspec.Struct):
    responses_create_params: _Request | None = None


class _Episode(_Given):
    reward: Finite | bool | None = None
    reward_components: dict[str, Finite | bool | None] | None = None
    reason: str | None = None
    response: _Response | None = None
    cost: Finite | None = None
    session: str | None = msgspec.field(name=SESSION, default=None)
    parent: _Parent | None = msgspec.field(name=PARENT, default=None)
    times: dict[str, Finite] | None = msgspec.field(name=TIMES, default=None)


def check_given(row: Row, number: int) -> None:
    """Check the row of a task in a line, and add missing indices. Raises `BadTask` with the invalid field."""
    complete_row(row, number)
    _convert(row, number, _Given)


def check_episode(row: Row, number: int) -> None:
    """Check the row of an episode in a line, and add missing indices. Raises `BadTask` with the invalid field."""
    complete_row(row, number)
    episode = _convert(row, number, _Episode)
    if "_ng_failure_class" not in row and (episode.reward is None or episode.response is None):
        raise BadTask(f"line {number}: an episode must have a reward and a response, or _ng_failure_class")


def _convert(row: Row, number: int, kind: type[T]) -> T:
    try:
        return msgspec.convert(row, kind)
    except (ValueError, RecursionError) as error:
        raise BadTask(f"line {number}: {error}") from None


def given_row(row: Row) -> Row:
    """A row as the environment receives it, without the fields that name sessions."""
    return {name: value for name, value in row.items() if name not in (SESSION, PARENT)}


def task_fields(row: Row) -> Row:
    """The fields of a row's task, without the indices and the sessions of an episode."""
    return {name: value for name, value in given_row(row).items() if name not in INDICES}


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    """The fields of a verdict in a row: details and metrics at the top level, the reward and its components."""
    fields: dict[str, Any] = {**verdict.details}
    fields.update((name, float(value)) for name, value in verdict.metrics.items())
    fields["reward"] = verdict.reward
    if verdict.components:
        fields["reward_components"] = verdict.components
    if verdict.reason:
        fields["reason"] = verdict.reason
    return fields


def response_fields(response: Any) -> Row:
    """The measurements of a response: tool calls, tokens, and whether it was cut off."""
    if not isinstance(response, dict):
        return {}
    usage = response.get("usage") or {}
    return {
        "tool_calls": sum(item.get("type") == "function_call" for item in response.get("output", ())),
        "truncated": int(response.get("status") == "incomplete"),
        **{name: usage[name] for name in TOKENS if name in usage},
    }


def failure_fields(error: BaseException, otherwise: str = "environment") -> Row:
    """The fields of a failed episode. `otherwise` is the failure class of errors without one."""
    fields: Row = {
        "_ng_failure_class": (error.failure or otherwise) if isinstance(error, StateroomError) else "environment",
        "_ng_failure_terminal": not is_transient(error),
        "error": f"{type(error).__name__}: {error}",
    }
    if not isinstance(error, StateroomError) or (isinstance(error, WRAPPERS) and error.__cause__ is not None):
        cause = cause_of(error)
        logger.warning("an episode failed: %s\n%s", fields["error"], cause.traceback)
        fields["cause"] = cause.plain()
    return fields


def is_transient(error: BaseException) -> bool:
    """Whether an episode that failed with this error can be resumed later."""
    return isinstance(error, StateroomError) and error.transient


# Rescored rows.


def rescored_fields(row: Row) -> frozenset[str]:
    """The fields of the verdict in a rescored row; empty if the row is not rescored."""
    return frozenset(row.get(REVERIFIED, {}).get("fields", ()))


def task_of(row: Row, inputs: Mapping[Key, Row]) -> Row:
    """The row without a verdict, from the inputs or, if unknown, by removing the fields of the verdict."""
    added = {*VERDICT, *rescored_fields(row), REVERIFIED, "response"}
    return inputs.get(key_of(row)) or {name: value for name, value in row.items() if name not in added}


def changed_fields(given: Row, row: Row) -> frozenset[str]:
    """The fields of a row that differ from its task."""
    return frozenset(name for name in row if name not in given or row[name] != given[name])

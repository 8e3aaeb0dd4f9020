"""Rows: what the files of a run say of each episode."""

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
"""The largest number that is measured: sums of many, too, are finite."""

Key = tuple[int, int]
"""Which episode a row is of: the indices of its task and of its rollout."""

INDICES = ("_ng_task_index", "_ng_rollout_index")
"""The fields with these indices."""

SESSION = "_stateroom_session"
"""The field with the id of the episode's session."""

PARENT = "_stateroom_parent"
"""The field with the `session` and `revision` that the episode's session is a fork of."""

CHOSEN = "_stateroom_chosen"
"""The field that an end of a tree has: whether it is the answer."""

NODE = "_stateroom_node"
"""The field with the node of a tree that a row is of."""

REVERIFIED = "_stateroom_reverified"
"""The field that a rescored row has: the `reward` before, the `revision` whose state was scored, the names of the new
verdict's `fields`, and `of`, a digest of the old row."""

EDITED = "_stateroom_edited"
"""The field that is true where a person has changed the state: the episode is not comparable with others."""

TIMES = "_stateroom_times"
"""The field with the seconds that the episode took: `wall`, `model` and `tool`. Alone it differs when a run with a
deterministic model is repeated; its name begins with `_`, so that it is no metric."""

COST = "cost"
"""The field with what the model's tokens have cost, if the run knows their price."""

VERDICT = frozenset({"reward", "reward_components", "reason"})
"""Fields that belong to a verdict in any row."""

TOKENS = ("input_tokens", "output_tokens", "total_tokens")

FAILURE = frozenset({"_ng_failure_class", "_ng_failure_terminal", "error", "cause"})
"""Fields that say why an episode failed."""

WRAPPERS = (EnvironmentFailed, ModelFailed)
"""Errors of ours whose cause may be one of the author's."""


def key_of(row: Row) -> Key:
    """Which episode a row is of."""
    return row["_ng_task_index"], row["_ng_rollout_index"]


def parse_row(line: bytes, number: int) -> Row:
    """The row in a line; `BadTask` says what is wrong with it. Without indices it is of a task of its own."""
    try:
        row = parse_object(line)
    except ValueError as error:
        raise BadTask(f"line {number}: {error}") from None
    complete_row(row, number)
    return row


@dataclass(frozen=True)
class RowsOf:
    """The rows of a file, which is read each time that they are."""

    path: Path

    def __iter__(self) -> Iterator[Row]:
        return (parse_row(line, number) for number, line in read_lines(self.path))


def complete_row(row: Row, number: int) -> None:
    """Add the indices that the row in a line lacks; `BadTask` if they, or the fields of a rescored one, are wrong."""
    for name, default in zip(INDICES, (number - 1, 0), strict=True):
        value = row.setdefault(name, default)
        if type(value) is not int or abs(value) >= 1 << 63:
            raise BadTask(f"line {number}: {name} should be a whole number")
    try:
        if REVERIFIED in row:
            msgspec.convert(row[REVERIFIED], _Rescored)
    except ValueError as error:
        raise BadTask(f"line {number}: {REVERIFIED}: {error}") from None


# What the fields of rows have to hold.


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
    """Check the row of a task in a line, and add indices that it lacks; `BadTask` says which field is wrong."""
    complete_row(row, number)
    _convert(row, number, _Given)


def check_episode(row: Row, number: int) -> None:
    """The same for the row of an episode."""
    complete_row(row, number)
    episode = _convert(row, number, _Episode)
    if "_ng_failure_class" not in row and (episode.reward is None or episode.response is None):
        raise BadTask(f"line {number}: an episode has a reward and a response, or else _ng_failure_class")


def _convert(row: Row, number: int, kind: type[T]) -> T:
    try:
        return msgspec.convert(row, kind)
    except (ValueError, RecursionError) as error:
        raise BadTask(f"line {number}: {error}") from None


def given_row(row: Row) -> Row:
    """A row as the environment receives it: without the fields that name sessions."""
    return {name: value for name, value in row.items() if name not in (SESSION, PARENT)}


def task_fields(row: Row) -> Row:
    """What a row says of its task: without the indices and the sessions of an episode."""
    return {name: value for name, value in given_row(row).items() if name not in INDICES}


def verdict_fields(verdict: Verdict) -> dict[str, Any]:
    """What a verdict adds to the row: details and metrics at the top level, the reward and its components."""
    fields: dict[str, Any] = {**verdict.details}
    fields.update((name, float(value)) for name, value in verdict.metrics.items())
    fields["reward"] = verdict.reward
    if verdict.components:
        fields["reward_components"] = verdict.components
    if verdict.reason:
        fields["reason"] = verdict.reason
    return fields


def response_fields(response: Any) -> Row:
    """What the runner measures in a response: tool calls, tokens, and whether it was cut off."""
    if not isinstance(response, dict):
        return {}
    usage = response.get("usage") or {}
    return {
        "tool_calls": sum(item.get("type") == "function_call" for item in response.get("output", ())),
        "truncated": int(response.get("status") == "incomplete"),
        **{name: usage[name] for name in TOKENS if name in usage},
    }


def failure_fields(error: BaseException, otherwise: str = "environment") -> Row:
    """Why an episode failed. `otherwise` is the class of an error of ours that has none of its own."""
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
    """Whether a failure is not the episode's own: it can be resumed later."""
    return isinstance(error, StateroomError) and error.transient


# Rows that are scored again.


def rescored_fields(row: Row) -> frozenset[str]:
    """The fields of the verdict in a row that was rescored; none if it was not."""
    return frozenset(row.get(REVERIFIED, {}).get("fields", ()))


def task_of(row: Row, inputs: Mapping[Key, Row]) -> Row:
    """The row before it had a verdict; where that is not known, the row without the fields of a verdict."""
    added = {*VERDICT, *rescored_fields(row), REVERIFIED, "response"}
    return inputs.get(key_of(row)) or {name: value for name, value in row.items() if name not in added}


def changed_fields(given: Row, row: Row) -> frozenset[str]:
    """The fields of a row that are not as its task gave them."""
    return frozenset(name for name in row if name not in given or row[name] != given[name])

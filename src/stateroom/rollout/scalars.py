"""The scalars of a row in the index of a run, and the numbers that can be metrics."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise
from typing import Any

import msgspec
from msgspec import Raw

from stateroom.errors import BadData, BadTask
from stateroom.jsonl import BOM, parse_object
from stateroom.rollout.metrics import ALWAYS
from stateroom.rollout.rows import (
    CHOSEN,
    COST,
    EDITED,
    INDICES,
    MAX_NUMBER,
    NODE,
    REVERIFIED,
    SESSION,
    TIMES,
    Row,
    complete_row,
    key_of,
    rescored_fields,
)


class _Item(msgspec.Struct):
    type: str | None = None
    role: str | None = None

    @property
    def answers(self) -> bool:
        """Whether it is a reply to the model: the result of a call, or a message of the user."""
        return self.type == "function_call_output" or (self.type == "message" and self.role != "assistant")


class _Response(msgspec.Struct):
    model: str | None = None
    output: list[_Item] | None = None

    @property
    def turns(self) -> int:
        """The number of turns of the model."""
        answers = [True, *(item.answers for item in self.output or ())]
        return sum(before and not now for before, now in pairwise(answers))


_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_response = msgspec.json.Decoder(_Response).decode
_value = msgspec.json.Decoder().decode
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(dict[str, float | dict[str, float]]).decode

NUMERIC = frozenset(b"-0123456789tf")
NAMED = {
    *(*INDICES, SESSION, TIMES, CHOSEN, NODE, REVERIFIED, EDITED),
    *("_ng_failure_class", "_ng_failure_terminal", "reward_components", "tool"),
}


def scalars_of(line: bytes, number: int) -> tuple[Any, ...]:
    """The indexed part of a row. Raises `BadTask` if the line is not a row."""
    row, response = _parse(line.removeprefix(BOM), number)
    complete_row(row, number)
    times, failure = row.get(TIMES), row.get("_ng_failure_class")
    failed = "_ng_failure_class" in row
    return (
        *key_of(row),
        None if failed else _float(row.get("reward")),
        _text(str(failure)) if failed else None,
        _text(row.get(SESSION)),
        _float(row.get("tool_calls")),
        response.turns,
        _float(row.get("total_tokens")),
        _float(times.get("wall")) if isinstance(times, dict) else None,
        _float(row.get(COST)),
        bool(row.get(CHOSEN, True)),
        _text(row.get(NODE)),
        _text(row.get("tool")),
        _text(response.model),
        row.get("_ng_failure_terminal", True) is not False,
        REVERIFIED in row,
        _float(row[REVERIFIED].get("reward")) if REVERIFIED in row else None,
        row.get(EDITED) is True,
        _pack(_numbers(row)),
    )


def _parse(line: bytes, number: int) -> tuple[Row, _Response]:
    """The fields of a row that are indexed, and its response.

    Conversations are skipped, which is many times faster than parsing them.
    """
    try:
        fields = _fields(line)
        conversation = fields.pop("response", None)
        row = {name: _value(raw) for name, raw in fields.items() if name in NAMED or memoryview(raw)[0] in NUMERIC}
        return row, _Response() if conversation is None else _response(conversation)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # it may be NaN, or a response of another shape
        pass
    try:
        row = parse_object(line)
    except ValueError as error:
        raise BadTask(f"line {number}: {error}") from None
    response = _Response()
    with suppress(msgspec.ValidationError):
        response = msgspec.convert(row.get("response"), _Response)
    return row, response


def _numbers(row: Row) -> dict[str, Any]:
    """The numbers in a row that can be metrics; in a rescored row, those of its verdict and the runner."""
    names = {*rescored_fields(row), *ALWAYS} if REVERIFIED in row else row.keys()
    numbers = _floats({name: value for name, value in row.items() if name in names and name[:1] != "_"})
    parts = row.get("reward_components")
    return {**numbers, "reward_components": _floats(parts)} if isinstance(parts, dict) else numbers


def _floats(fields: Row) -> dict[str, float]:
    return {_text(name) or "": number for name, value in fields.items() if (number := _float(value)) is not None}


def _float(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) <= MAX_NUMBER else None


def unpack(numbers: bytes) -> dict[str, Any]:
    """The numbers of a row, from the index."""
    try:
        return _unpack(numbers)
    except msgspec.MsgspecError:
        raise BadData("the index of the run is damaged; remove its _index.db file") from None


def _text(value: Any) -> str | None:
    """A text that can be stored, which half of a surrogate pair cannot."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else None

from __future__ import annotations

import math
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel

from stateroom.errors import BadData
from stateroom.state import References, decode, encode, long_texts
from tests.messages import raises
from tests.state.classes import Color, Level, exact


class Item(BaseModel):
    name: str = "a"
    tags: set[str] = {"x"}


EXACT: list[Any] = [
    *(None, True, False, 0, -1, 2**63 - 1, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 10**40, 0.5, -0.0, math.inf),
    math.nan,
    *("", "é\x00", "half a pair: \ud83d", b"", b"\xff\x00", [], {}, (), set(), frozenset()),
    *(datetime(2024, 2, 29, 1, 2, 3, 4), datetime(2024, 1, 1, tzinfo=UTC), date(1, 1, 1), timedelta.min, timedelta.max),
    datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-3, minutes=-30))),
    *(UUID(int=1), Decimal("1.10"), Decimal("-0"), Decimal("1E+500"), Decimal("Infinity")),
    [1, (2, [3, {4}]), {"a": frozenset({b"b"})}],
    {1: "one", "1": "text", 2**70: "big", (1, 2): "pair", b"raw": 0, "\ud83d": 1},
    {(1, 2), (3, 4)},
    {"z": 1, "a": 2, "m": 3},
]


@pytest.mark.parametrize("value", EXACT, ids=ascii)
def test_a_value_comes_back_exactly(value: Any) -> None:
    assert exact(decode(encode(value))) == exact(value)


def test_a_time_zone_comes_back_by_its_name() -> None:
    twice = datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Paris"))
    for progress in (twice, twice.replace(fold=1)):
        back = decode(encode(progress))
        assert (back.tzinfo, back.fold, back.utcoffset()) == (progress.tzinfo, progress.fold, progress.utcoffset())


def test_models_become_dicts_and_enums_their_values() -> None:
    data = decode(encode({"item": Item(), Color.RED: [Color.RED, Level.LOW]}))
    assert data == {"item": {"name": "a", "tags": {"x"}}, "red": ["red", 1]}
    assert type(data["red"][1]) is int


def test_the_bytes_name_no_class() -> None:
    data = encode([Item(), Color.RED, Decimal(1), UUID(int=0)])
    assert not any(word in data for word in (b"Item", b"Color", b"Decimal", b"UUID"))


def test_a_subclass_of_a_plain_type_is_stored_as_that_type() -> None:
    class Shouted(str):
        __slots__ = ()

        def __str__(self) -> str:
            return self.upper()

    assert decode(encode(Shouted("quiet"))) == "quiet"


def test_a_value_of_another_type_is_refused() -> None:
    with raises(TypeError):
        encode([1j])


def test_a_long_text_that_is_known_is_written_as_a_reference() -> None:
    text, other = "x" * 1000, "y" * 1000
    texts = list(long_texts({"body": text, "more": ["short", {"a": other}]}))
    assert texts == [text, other]
    value = {"note": text, "set": {other}, "pair": (text,), text: 1, "short": "short"}
    references = References()
    references.number(texts)
    data = encode(value, references)
    assert len(data) < 1200  # the key is written out
    assert decode(data, texts) == value


def test_a_reference_to_an_unknown_text_is_bad_data() -> None:
    references = References()
    references.number(["y" * 100, "x" * 100])
    with pytest.raises(BadData):
        decode(encode("x" * 100, references), ["only one"])


@given(st.binary(max_size=40))
def test_any_bytes_decode_or_are_bad_data(data: bytes) -> None:
    with suppress(BadData):
        decode(data)


@given(st.integers(0, 15), st.binary(max_size=12))
def test_any_extension_decodes_or_is_bad_data(code: int, payload: bytes) -> None:
    with suppress(BadData):
        decode(bytes([0xC7, len(payload), code]) + payload)

"""Values in parts: nothing is lost, and what is written is what differs."""

from typing import Any

import pytest
from hypothesis import given, strategies as st
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from stateroom.adapters.langgraph.chunks import changes, cut, joined

serde = JsonPlusSerializer()

texts = st.text(max_size=8) | st.text(min_size=60, max_size=90)
scalars = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | texts | st.binary()
values = st.recursive(scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=40)
items = st.integers(0, 20) | st.sampled_from(["a" * 70, "b" * 300, {"role": "user", "content": "c" * 80}])


def parts_of(value: Any) -> list[bytes]:
    return cut(*serde.dumps_typed(value))


def changed(old: list[bytes], value: Any) -> tuple[list[bytes], int]:
    """The parts after a change to a value, and how many bytes the change has."""
    now, size = list(old), 0
    for start, stop, parts in changes(old, *serde.dumps_typed(value)):
        now[start:stop] = parts
        size += sum(map(len, parts))
    return now, size


@given(values)
def test_a_value_in_parts_is_the_value(value: Any) -> None:
    assert joined(parts_of(value)) == serde.dumps_typed(value)


@given(st.lists(values, min_size=2, max_size=5))
def test_any_value_can_become_any_other(line: list[Any]) -> None:
    parts = parts_of(line[0])
    for value in line[1:]:
        parts, _ = changed(parts, value)
        assert joined(parts) == serde.dumps_typed(value)


@given(st.lists(items, max_size=120), st.data())
def test_a_list_that_is_edited_anywhere_is_what_it_became(before: list[Any], data: st.DataObject) -> None:
    parts = parts_of(before)
    for _ in range(3):
        start = data.draw(st.integers(0, len(before)))
        stop = data.draw(st.integers(start, len(before)))
        before = [*before[:start], *data.draw(st.lists(items, max_size=20)), *before[stop:]]
        parts, _ = changed(parts, before)
        assert joined(parts) == serde.dumps_typed(before)


def messages(*numbers: int) -> list[str]:
    return [f"{number:04d}" * 30 for number in numbers]


def test_a_window_that_slides_costs_what_comes_in() -> None:
    parts = parts_of(messages(0, *range(1, 50)))
    for first in range(2, 20):
        parts, size = changed(parts, messages(0, *range(first, first + 49)))
        assert size < 200


def test_an_item_that_changes_amid_others_costs_itself() -> None:
    lines = messages(*range(200))
    parts = parts_of(lines)
    lines[100] = "new" * 40
    lines.append("last" * 30)
    _, size = changed(parts, lines)
    assert size < 400


def test_a_key_that_changes_costs_itself() -> None:
    files = {f"file-{number}": "x" * 1000 for number in range(100)}
    parts = parts_of(files)
    files["file-50"] = "y" * 1000
    files["file-100"] = "z" * 1000
    _, size = changed(parts, files)
    assert size < 2500


def test_numbers_that_are_added_to_many_cost_little() -> None:
    numbers = list(range(10_000))
    parts = parts_of(numbers)
    numbers.append(7)
    parts, size = changed(parts, numbers)
    assert size < 20
    numbers[5000] = -1
    _, size = changed(parts, numbers)
    assert size < 2000


@pytest.mark.parametrize("odd", [b"", b"\xdc", b"\xdc\xff\xff" + b"no" * 200, b"\x93" + b"\x01" * 400])
def test_bytes_that_are_not_msgpack_though_they_say_so_are_kept_as_they_are(odd: bytes) -> None:
    assert joined(cut("msgpack", odd)) == ("msgpack", odd)
    for before in (parts_of(messages(1, 2, 3)), [b"msgpack", b"odd"], [b"bytes", odd]):
        parts = list(before)
        for start, stop, inserted in changes(before, "msgpack", odd):
            parts[start:stop] = inserted
        assert joined(parts) == ("msgpack", odd)

"""Large values: what is stored of them, and that they come back as what they were."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel

from stateroom.errors import BadData
from stateroom.state import Large, References, decode, digest_of, encode, encode_json, encode_patch, large_in, put_in
from tests.messages import raises
from tests.state.classes import exact

LEAST = 8


class Page(BaseModel):
    text: str
    image: bytes = b""


def there_and_back(value: Any, least: int = LEAST) -> tuple[Any, References]:
    """The value as it is read again, and what was written elsewhere."""
    references = References(least)
    return read(encode(value, references), references), references


def read(data: bytes, references: References) -> Any:
    large: list[Large] = []
    found = decode(data, (), large)
    assert sorted(large_in(found), key=repr) == sorted(large, key=repr)
    assert {value.digest for value in large} == set(references.blobs)
    assert sum(value.size for value in large) == references.size
    return put_in(found, {value: value.value(references.blobs[value.digest]) for value in large})


@pytest.mark.parametrize("unit", ["x", "é", "🌍", "\ud83d", "a\x00", b"\xff"], ids=ascii)
def test_a_text_or_bytes_are_large_from_so_many_characters_on(unit: Any) -> None:
    for length in (LEAST - 1, LEAST, LEAST + 1):
        value = (unit * LEAST)[:length]
        back, references = there_and_back(value)
        assert (type(back), back) == (type(unit), value)
        assert bool(references.blobs) == (length >= LEAST)


def test_a_content_is_stored_once_under_its_digest() -> None:
    text = "once and for all"
    value = {"a": text, "b": [text, (text, text.encode())], "page": Page(text=text, image=text.encode())}
    back, references = there_and_back(value)
    assert back == {**value, "page": {"text": text, "image": text.encode()}}
    assert references.blobs == {digest_of(text.encode()): text.encode()}
    assert references.size == 6 * len(text)


def test_json_data_without_large_values_is_packed_as_it_is() -> None:
    for value in ({"a": ["1234567", 1.5, None]}, ["1234567"] * 100, {"a long name": 2**70}):
        references = References(LEAST)
        assert encode_json(value, references) == encode(value)
        assert not references.blobs


@pytest.mark.parametrize("least", [1000, 2**15, 2**16 - 1, 2**16])
def test_large_texts_of_json_data_are_found_among_others(least: int) -> None:
    for text in ("x" * least, "é" * least, "\x00" * least):
        for value in ({"a": ["small" * 100, {"b": text}]}, [0.1] * 100 + [text]):
            references = References(least)
            assert read(encode_json(value, references), references) == value
            assert list(references.blobs.values()) == [text.encode()]


def test_a_patch_has_no_large_values_in_its_paths() -> None:
    name, text = "a long name", "a long text"
    references = References(LEAST)
    data = encode_patch([("set", (name,), text), ("set", ("\ud83d" * LEAST,), [text, 1])], references)
    assert read(data, references) == [["set", [name], text], ["set", ["\ud83d" * LEAST], [text, 1]]]
    assert list(references.blobs.values()) == [text.encode()]


def test_a_value_that_is_missing_is_bad_data_for_who_does_not_expect_it() -> None:
    with raises(BadData):
        decode(encode("long enough", References(LEAST)))


@pytest.mark.parametrize("code", [13, 14])
def test_a_reference_of_another_length_is_bad_data(code: int) -> None:
    with pytest.raises(BadData):
        decode(bytes([0xC7, 3, code]) + b"abc", (), [])


texts = st.text(max_size=20) | st.text(
    st.characters(categories=["Cs", "L", "Nd"]), max_size=20
)  # with halves of surrogate pairs
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts | st.binary(max_size=20)
keys = st.integers() | texts | st.binary(max_size=20) | st.tuples(texts)


def containers(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(parts, max_size=4)
        | st.dictionaries(keys, parts, max_size=4)
        | st.tuples(parts, parts)
        | st.sets(keys, max_size=4)
        | st.builds(Page, text=texts, image=st.binary(max_size=20))
    )


@given(st.recursive(leaves, containers, max_leaves=20), st.integers(1, 30))
def test_any_mix_of_values_comes_back(value: Any, least: int) -> None:
    back, references = there_and_back(value, least)
    assert exact(back) == exact(decode(encode(value)))
    assert all(len(content) >= least for content in references.blobs.values())
    assert all(digest_of(content) == digest for digest, content in references.blobs.items())


json = st.recursive(
    st.none() | st.integers() | texts,
    lambda parts: st.lists(parts, max_size=4) | st.dictionaries(texts, parts, max_size=4),
    max_leaves=20,
)


@given(json, st.integers(1, 30))
def test_any_json_data_comes_back(value: Any, least: int) -> None:
    references = References(least)
    before = deepcopy(value)
    assert exact(read(encode_json(value, references), references)) == exact(value) == exact(before)
    long = {text.encode("utf-8", "surrogatepass") for text in texts_in(value) if len(text) >= least}
    assert set(references.blobs.values()) == long


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for part in value.values() if isinstance(value, dict) else value:
            yield from texts_in(part)

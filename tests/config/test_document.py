"""Documents: YAML in which each value knows where it is from."""

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from stateroom.config import Node, Origin, merged, overrides_of, read_document
from stateroom.errors import BadConfig, NotFound
from tests.messages import raises


def document(folder: Path, *texts: str, **variables: str) -> Node:
    """What files with these texts say together."""
    paths = [folder / f"{name}.yaml" for name in "abcdef"[: len(texts)]]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return read_document(paths, variables)


def origin(node: Node, *path: str | int) -> str:
    found = node.at(path)
    assert found is not None
    return Path(str(found.origin)).name


def test_each_value_has_its_file_and_line(tmp_path: Path) -> None:
    found = document(tmp_path, "a:\n  b: 1\n  c: [x, y]\n", "a:\n\n  b: 2\n")
    assert found.plain() == {"a": {"b": 2, "c": ["x", "y"]}}
    assert (origin(found, "a", "b"), origin(found, "a", "c", 1)) == ("b.yaml:3", "a.yaml:3")
    assert found.at(["a", "c", 2]) is None
    assert found.at(["a", "b", "c"]) is None


def test_a_file_changes_what_it_includes(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "base.yaml").write_text("include: deep.yaml\na: 1\nb: 1")
    (tmp_path / "parts" / "deep.yaml").write_text("a: 0\nc: 0")
    (tmp_path / "other.yaml").write_text("c: 3")
    found = document(tmp_path, "include: [parts/base.yaml, other.yaml]\nb: 2")
    assert found.plain() == {"a": 1, "b": 2, "c": 3}
    assert origin(found, "a") == "base.yaml:2"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${env:N}", 8),
        ('"${env:N}"', "8"),
        ("${env:NONE,5}", 5),
        ("${env:NONE,}", None),
        ("a${env:N}b${env:N}", "a8b8"),
        ("$${env:N}", "${env:N}"),
        ("${env:T}", True),
        ("${env:Y}", "{a: 1}"),
        ("$5 {x}", "$5 {x}"),
    ],
)
def test_a_variable_is_read_as_if_its_text_were_in_the_file(tmp_path: Path, text: str, value: Any) -> None:
    assert document(tmp_path, f"a: {text}", N="8", T="true", Y="{a: 1}").plain() == {"a": value}


def test_the_origin_names_the_variables(tmp_path: Path) -> None:
    found = document(tmp_path, "a: x${env:N}\nb: ${env:NONE,1}", N="8")
    assert origin(found, "a") == "a.yaml:1, variable N"
    assert origin(found, "b") == "a.yaml:2"


def test_an_anchor_is_used_again_and_its_keys_can_be_changed(tmp_path: Path) -> None:
    found = document(tmp_path, "a: &one {x: 1, y: 1}\nb:\n  <<: *one\n  y: 2\n")
    assert found.plain()["b"] == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "a: 1\na: 2",
        "\n- a",
        "a:\n  b: ${env:NONE}",
        "a: ${NONE}",
        "a: &x [*x]",
        "include: a.yaml",
        "a: !!python/name:os.system x",
        "? [a]\n: 1",
        "a: 1\nb: \0",
        "a: 1\nb: " + "7" * 5000,
        "a: !!bool x",
        "a: !!timestamp x",
        "a: 2026-99-99",
        "a: {<<: 3}",
        "a: " + "[" * 5000 + "]" * 5000,
        "a: " + "x" * (1 << 20),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, text: str) -> None:
    with raises(BadConfig):
        document(tmp_path, text)


BOMBS = {
    "lists": [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)],
    "mappings": [f"a{n}: &a{n} {{{', '.join(f'k{m}: *a{n - 1}' for m in range(10))}}}" for n in range(1, 12)],
    "merged": [f"a{n}: &a{n} {{b{n}: 1, <<: [{', '.join([f'*a{n - 1}'] * 500)}]}}" for n in range(1, 99)],
}


@pytest.mark.parametrize("kind", BOMBS)
def test_aliases_that_multiply_come_to_an_end(tmp_path: Path, kind: str) -> None:
    with raises(BadConfig):
        document(tmp_path, "\n".join(["a0: &a0 {x: 1}", *BOMBS[kind]]))


def test_includes_that_multiply_come_to_an_end(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.yaml").write_text(f"include: [{number + 1}.yaml, {number + 1}.yaml]\n")
    (tmp_path / "30.yaml").write_text("a: 1\n")
    with raises(BadConfig):
        document(tmp_path, "include: 0.yaml")


@pytest.mark.parametrize("name", ["pipe", "none"])
def test_what_is_not_a_file_is_not_read(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe.yaml")
    with raises(NotFound):
        document(tmp_path, f"include: {name}.yaml")


def test_overrides_are_yaml_below_a_path() -> None:
    found = overrides_of(["a.b=8", "a.c=[x, 1]", "a.b=9", "d=", "e=${env:N}"], {"N": "7"})
    assert found.plain() == {"a": {"b": 9, "c": ["x", 1]}, "d": None, "e": 7}
    assert origin(found, "a", "b") == "command line"


VALUES = st.recursive(st.integers(), lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3))
NODES = st.dictionaries(st.sampled_from("abc"), VALUES, max_size=3)


def noded(value: Any, place: str) -> Node:
    inner = {name: noded(each, place) for name, each in value.items()} if isinstance(value, dict) else value
    return Node(inner, Origin(place))


@given(NODES, NODES)
def test_merging_keeps_what_only_one_says_and_the_later_wins(one: Any, two: Any) -> None:
    first, second = noded(one, "1"), noded(two, "2")
    found = merged(first, second)
    assert merged(found, second) == found
    assert merged(first, first).plain() == one
    for name, value in two.items():
        if isinstance(value, dict) and isinstance(one.get(name), dict):
            assert found.at([name]) == merged(first.value[name], second.value[name])
        else:
            assert found.at([name]) == second.at([name])
    for name in one.keys() - two.keys():
        assert found.at([name]) == first.at([name])

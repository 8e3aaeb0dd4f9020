"""Task files: every bad row is named before anything runs."""

import json
from pathlib import Path

import pytest

from stateroom.errors import BadTask, NotFound
from stateroom.gallery import CounterEnvironment
from stateroom.rollout import read_tasks
from tests.messages import raises

GOOD = '{"responses_create_params": {"input": "add 1"}, "initial_count": 1, "expected_count": 2}'


def complaint(path: Path, *lines: str) -> str:
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(BadTask) as caught:
        read_tasks(path, CounterEnvironment())
    return str(caught.value)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tasks.jsonl"


@pytest.mark.parametrize(
    ("line", "field", "words"),
    [
        ('{"initial_count": 1}', "expected_count", "required"),
        ('{"initial_count": "one", "expected_count": 2}', "initial_count", "integer"),
        ('{"initial_count": null, "expected_count": 2}', "initial_count", "integer"),
        (GOOD.replace('{"input": "add 1"}', "7"), "responses_create_params", "dictionary"),
        (GOOD.replace('"add 1"', "7"), "responses_create_params.input", "a text or a list of items"),
        (GOOD.replace('"add 1"', '["add 1"]'), "responses_create_params.input", "a text or a list of items"),
        (GOOD.replace('"add 1"', '"add 1", "tools": "all"'), "responses_create_params.tools", "a list of tools"),
        *((line, "", "not a JSON object") for line in (GOOD[:-20], "[1]", "null", "hello", "[" * 100_000)),
    ],
)
def test_a_bad_row_is_named_by_file_line_and_field(path: Path, line: str, field: str, words: str) -> None:
    told = complaint(path, GOOD, "", line, GOOD)
    assert told.startswith(f"{path}, line 3: {field}")
    assert words in told
    assert "\n" not in told


def test_all_bad_rows_are_told_at_once_but_not_too_many(path: Path) -> None:
    told = complaint(path, GOOD, *["{}"] * 25).splitlines()
    assert len(told) == 11
    assert told[0].startswith(f"{path}, line 2: initial_count")
    assert told[-1] == "and 15 more"


def test_a_file_that_is_not_there_not_text_or_without_tasks(path: Path, tmp_path: Path) -> None:
    for missing in (path, tmp_path):
        with raises(NotFound):
            read_tasks(missing, CounterEnvironment())
    for content in (b"\xff\xfe{}", b"", b"\n \n"):
        path.write_bytes(content)
        with raises(BadTask):
            read_tasks(path, CounterEnvironment())


def test_lines_end_where_json_lines_do(path: Path) -> None:
    odd = "\u2028, \u2029, \x85, and a tab"
    row = {"responses_create_params": {"input": odd}, "initial_count": 1, "expected_count": 2}
    lines = [json.dumps(row, ensure_ascii=False)] * 2
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())  # with a mark and line ends, as on Windows
    assert read_tasks(path, CounterEnvironment()) == [row, row]

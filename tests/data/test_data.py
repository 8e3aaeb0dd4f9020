"""Rows from any file: checked, measured, split and rendered, one after another."""

import json
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st
from pyarrow import parquet

from stateroom.data import Part, TaskTemplate, TemplateProcess, check_rows, measure_rows, split_rows
from stateroom.errors import BadData, BadTask, InvalidArguments, NotFound, TimedOut
from stateroom.gallery import CounterEnvironment
from stateroom.rollout import SourceRow, read_source, read_tasks
from tests.messages import raises

ROWS: list[dict[str, Any]] = [
    {"responses_create_params": {"input": "add 2"}, "initial_count": 3, "expected_count": 5},
    {"responses_create_params": {"input": "add 4"}, "initial_count": 1, "expected_count": 5},
]


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A file, or a folder as `datasets.save_to_disk` makes it, with some rows."""
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif path.suffix == ".csv":
        cells = [[json.dumps(row["responses_create_params"]).replace('"', '""'), *[*row.values()][1:]] for row in rows]
        lines = [",".join(rows[0]), *(f'"{first}",{",".join(map(str, rest))}' for first, *rest in cells)]
        path.write_text("\ufeff" + "\r\n".join(lines))
    elif path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.mkdir()
        table = pa.Table.from_pylist(rows)
        names = [f"data-{number:05}-of-00002.arrow" for number in range(2)]
        for number, name in enumerate(names):
            with pa.OSFile(str(path / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
                stream.write_table(table.slice(number, 1 if number == 0 else None))
        (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    return path


def rows_of(*rows: Any) -> Iterator[SourceRow]:
    return (SourceRow(f"row {number}", row) for number, row in enumerate(rows, 1))


@pytest.mark.parametrize("name", ["tasks.jsonl", "tasks.csv", "tasks.parquet", "tasks"])
def test_the_same_tasks_are_read_from_every_kind_of_file(tmp_path: Path, name: str) -> None:
    path = written(tmp_path / name, ROWS)
    task = CounterEnvironment().parse_task
    assert [task(each.row()) for each in read_source(path)] == [task(row) for row in ROWS]
    assert check_rows(read_source(path), CounterEnvironment()).problems == 0
    assert [task(row) for row in read_tasks(path, CounterEnvironment())] == [task(row) for row in ROWS]
    assert [task(json.loads(each.line())) for each in read_source(path)] == [task(row) for row in ROWS]


@pytest.mark.parametrize(
    ("name", "where"), [("a.jsonl", "line 2"), ("a.csv", "line 3"), ("a.parquet", "row 2"), ("a", "row 2")]
)
def test_a_problem_has_its_place(tmp_path: Path, name: str, where: str) -> None:
    path = written(tmp_path / name, [ROWS[0], {**ROWS[1], "expected_count": -1}])
    [_, second] = read_source(path)
    assert second.where == f"{path}, {where}"


def test_a_null_is_a_field_that_a_row_does_not_have(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", [{"a": 1, "b": None}, {"a": None, "b": "x"}])
    assert [each.row() for each in read_source(path)] == [{"a": 1}, {"b": "x"}]


def test_what_json_does_not_have_is_a_text(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"at": pa.array([0], pa.timestamp("s")), "image": [b"\xff"]}), path)
    assert [each.row() for each in read_source(path)] == [{"at": "1970-01-01T00:00:00", "image": "_w=="}]


@pytest.mark.parametrize(
    ("name", "content", "error", "told"),
    [
        ("a.csv", "x,y\n1,2,3\n", BadData, "line 2: more cells"),
        ("a.csv", 'x\n"1\n', BadData, "after line 1"),
        ("a.parquet", "x", BadData, "is not a Parquet file"),
        ("a.txt", "x", InvalidArguments, "must end with .jsonl, .csv"),
        ("a.jsonl", "{}\n{\n", BadTask, "line 2: not a JSON object"),
    ],
)
def test_what_cannot_be_read_is_refused(tmp_path: Path, name: str, content: str, error: Any, told: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(error, match=told):
        [each.row() for each in read_source(tmp_path / name)]


def test_of_a_dataset_with_splits_one_is_to_be_named(tmp_path: Path) -> None:
    written(tmp_path / "train", ROWS)
    with raises(NotFound):
        read_source(tmp_path)


@pytest.mark.more("TRL")
def test_what_datasets_saves_to_disk_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    made = datasets.Dataset.from_list([{"n": number} for number in range(2500)]).shuffle(seed=1)
    made.save_to_disk(tmp_path / "d", num_shards=3)
    assert [each.row() for each in read_source(tmp_path / "d")] == made.to_list()


def test_all_problems_are_counted_and_the_first_are_told() -> None:
    bare = {"initial_count": 0, "expected_count": 1}
    report = check_rows(rows_of(ROWS[0], b"{", {}, {"initial_count": 1}, bare), CounterEnvironment(), most=2)
    assert (report.rows, report.problems, report.without_prompt) == (5, 3, 1)
    assert [problem.partition(":")[0] for problem in report.first] == ["row 2", "row 3"]
    assert "expected_count: Field required" in report.first[1]


def test_a_large_file_is_checked_in_little_memory(tmp_path: Path) -> None:
    path, row = tmp_path / "tasks.jsonl", {**ROWS[0], "text": "x" * 2000}
    written(path, [row] * 2000)
    check_rows(read_source(path), CounterEnvironment())  # what is loaded on first use
    tracemalloc.start()
    try:
        assert check_rows(read_source(path), CounterEnvironment()).rows == 2000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert path.stat().st_size > 4_000_000
    assert peak < 400_000


class Words:
    """Counts words as tokens."""

    name = "words"

    def count(self, item: dict[str, Any]) -> int:
        return len(item["content"].split())


def test_prompts_and_fields_are_measured() -> None:
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is it?"}]
    rows = [{"responses_create_params": {"input": asked}, "level": 1, "tags": ["a"]}, {"level": 2, "tags": []}, {}]
    found = measure_rows(rows_of(*rows), Words())
    assert (found.rows, found.without_prompt) == (3, 2)
    assert found.characters.figures() == dict.fromkeys(("min", "median", "mean", "p95", "max"), 20)
    assert found.tokens.figures()["max"] == 5
    level, tags = found.fields["level"], found.fields["tags"]
    assert (level.rows, level.values, level.least, level.most) == (2, {"1": 1, "2": 1}, 1, 2)
    assert (tags.values, tags.kinds, tags.least, tags.most) == (None, {"list": 2}, 0, 1)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30))
def test_lengths_have_the_figures_of_a_list(lengths: list[int]) -> None:
    rows = [{"responses_create_params": {"input": "x" * (length + 1)}} for length in lengths]
    figures = measure_rows(rows_of(*rows)).characters.figures()
    in_order = sorted(length + 1 for length in lengths)
    assert (figures["min"], figures["max"]) == (in_order[0], in_order[-1])
    assert figures["mean"] == pytest.approx(sum(in_order) / len(in_order))
    assert figures["median"] == in_order[(len(in_order) - 1) // 2]


def test_instructions_are_a_part_of_the_prompt_and_many_different_values_are_not_kept() -> None:
    request = {"instructions": "Be brief.", "input": "What is it?"}
    rows = [{"responses_create_params": request}, {"responses_create_params": {"instructions": "Be brief."}}]
    found = measure_rows(rows_of(*rows, *({"id": number} for number in range(1000))), Words())
    assert (found.without_prompt, found.characters.figures()["max"], found.tokens.figures()["max"]) == (1001, 20, 5)
    assert (found.fields["id"].values, found.fields["id"].most) == (None, 999)


def test_rows_that_are_no_tasks_are_measured_too() -> None:
    odd = [{"responses_create_params": value} for value in (None, 5, {"input": 5}, {"input": [5, {"content": 5}]})]
    assert measure_rows(rows_of(*odd)).without_prompt == 4


PARTS = [Part("train", 8), Part("test", 1), Part("rest", 1)]


@given(st.integers(0, 200), st.integers(0, 5))
def test_a_split_has_the_ratio_of_its_parts(number: int, seed: int) -> None:
    rows = [{"n": place} for place in range(number)]
    found = split_rows(rows_of(*rows), PARTS, seed=seed)
    assert found == split_rows(rows_of(*rows), PARTS, seed=seed)
    assert len(found) == number
    if number > 60:
        assert found != split_rows(rows_of(*rows), PARTS, seed=seed + 1)
    for place, part in enumerate(PARTS):
        assert abs(found.count(place) - number * part.ratio / 10) <= 1


@given(st.lists(st.sampled_from(["a", "b", "c", 1, [2], None]), max_size=60), st.integers(0, 5))
def test_a_group_is_never_split(groups: list[Any], seed: int) -> None:
    found = split_rows(rows_of(*({"g": group} for group in groups)), PARTS, by="g", seed=seed)
    parts = defaultdict(set)
    for group, part in zip(groups, found, strict=True):
        parts[json.dumps(group)].add(part)
    assert all(len(own) == 1 for own in parts.values())


def test_a_row_without_its_group_is_refused() -> None:
    with raises(BadTask):
        split_rows(rows_of({"g": 1}, {"h": 1}), PARTS, by="g")


def test_a_template_makes_a_task_of_a_raw_row() -> None:
    template = TaskTemplate("Capital of {{ country }}?", "Be brief.", {"answer": "capital | lower", "n": "row.n + 1"})
    assert template.row({"country": "Peru", "capital": "Lima", "n": 1}) == {
        "answer": "lima",
        "n": 2,
        "responses_create_params": {
            "input": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Capital of Peru?"}]
        },
    }


def test_without_fields_a_task_has_those_of_the_raw_row() -> None:
    raw = {"x": 1, "responses_create_params": {"tools": []}}
    assert TaskTemplate("{{ x }}").row(raw) == {"x": 1, "responses_create_params": {"tools": [], "input": "1"}}


@pytest.mark.parametrize(
    ("prompt", "fields"),
    [
        ("{{ y }}", {}),
        ("{{ x.y.z }}", {}),
        ("-", {"a": "y"}),
        ("-", {"a": "1 / 0"}),
        ("{{ x.__class__.__mro__ }}", {}),
        ("{{ row.clear() }}", {}),
    ],
)
def test_what_a_template_lacks_or_may_not_do_is_told(prompt: str, fields: dict[str, str]) -> None:
    with raises(BadTask):
        TaskTemplate(prompt, None, fields).row({"x": 1})


LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"


def test_a_template_that_loops_for_ever_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateroom.data.template.MAX_SECONDS", 0.5)
    with TemplateProcess(LOOPS + "{% endfor %}{% endfor %}{% endfor %}") as template, pytest.raises(TimedOut):
        template.line({})


@pytest.mark.parametrize("prompt", ["{{ 'x' * 10 ** 11 }}", "{{ 'x' * 40000000 }}", "{{ y }}"])
def test_what_a_template_makes_is_bounded(prompt: str) -> None:
    with TemplateProcess(prompt) as template, pytest.raises(BadTask):
        template.line({"x": 99})


def test_a_template_that_cannot_be_read_is_refused_with_its_line() -> None:
    with raises(InvalidArguments), TemplateProcess("a\n{{ b"):
        pass
    with raises(InvalidArguments):
        TaskTemplate("a\n{{ b")
    with raises(InvalidArguments):
        TaskTemplate("a", None, {"answer": "1 +"})

"""`stateroom data`: files of rows checked, measured, split and rendered."""

from pathlib import Path

import pytest

from stateroom.cli import output
from tests.cli.conftest import Command


@pytest.fixture(autouse=True)
def tasks(stateroom: Command) -> None:
    """A file of 20 tasks."""
    Path("tasks.jsonl").write_text(stateroom("tasks", "counter", "--number", 20).out)


def test_problems_are_counted_and_some_are_shown(stateroom: Command) -> None:
    assert stateroom("data", "check", "counter", "tasks.jsonl") == (0, "20 rows, 0 problems\n", "")
    with Path("tasks.jsonl").open("a") as file:
        file.write('{"initial_count": "many"}\n' * 3)
    told = stateroom("data", "check", "counter", "tasks.jsonl", "--show", 1)
    assert told.code == 1
    lines = told.out.splitlines()
    assert lines[0] == "23 rows, 3 problems"
    assert lines[1].startswith("tasks.jsonl, line 21: initial_count: Input should be a valid integer")
    assert lines[2].startswith("and 2 more")
    found = stateroom("data", "check", "counter", "tasks.jsonl", "--json").json
    assert (found["rows"], found["problems"], len(found["first"])) == (23, 3, 3)


def test_a_row_without_a_prompt_is_a_warning(stateroom: Command) -> None:
    Path("bare.jsonl").write_text('{"initial_count": 1, "expected_count": 2}\n')
    told = stateroom("data", "check", "counter", "bare.jsonl")
    assert (told.code, "1 row has no prompt" in told.err) == (0, True)


def test_tokens_are_counted_by_a_tokenizer(stateroom: Command) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers  # noqa: PLC0415 - this takes a while

    made = Tokenizer(models.WordLevel({"add": 0, "?": 1}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save("words.json")
    Path("t.jsonl").write_text('{"responses_create_params": {"input": "add 1 and 2"}}\n')
    found = stateroom("data", "stats", "t.jsonl", "--tokenizer", "words.json", "--json").json
    assert found["prompts"]["tokens"]["max"] == 4 + 4  # words, and what a message takes besides
    assert stateroom("data", "stats", "t.jsonl", "--tokenizer", "nothing").code == 2


def test_the_parts_of_a_split_are_the_lines_of_the_file(stateroom: Command) -> None:
    done = stateroom("data", "split", "tasks.jsonl", "train=0.8", "test=0.2", "--output", "parts", "--seed", 3)
    assert done.out.splitlines() == ["16 rows in parts/tasks_train.jsonl", "4 rows in parts/tasks_test.jsonl"]
    parts = [Path(f"parts/tasks_{name}.jsonl").read_bytes().splitlines() for name in ("train", "test")]
    assert sorted(line for part in parts for line in part) == sorted(Path("tasks.jsonl").read_bytes().splitlines())


@pytest.mark.parametrize("parts", [["train=1"], ["a=1", "a=2"], ["a=1", "b=0"], ["a=1", "b=x"], ["a", "b"]])
def test_parts_that_make_no_split_are_refused(stateroom: Command, parts: list[str]) -> None:
    assert stateroom("data", "split", "tasks.jsonl", *parts).code == 2
    assert [*Path().glob("tasks_*")] == []


def test_if_a_row_cannot_be_rendered_nothing_is_written(stateroom: Command) -> None:
    Path("raw.jsonl").write_text('{"a": 1}\n{}\n{"a": 2}\n')
    Path("prompt.jinja").write_text("{{ a }}")
    done = stateroom("data", "render", "raw.jsonl", "--prompt", "prompt.jinja", "--output", "made.jsonl")
    assert done.code == 1
    assert "1 row of 3 cannot be rendered" in done.err
    assert "raw.jsonl, line 2: prompt: 'a' is undefined" in done.out
    assert [*Path().glob("made*")] == []


def test_what_takes_long_shows_its_progress(stateroom: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "BAR_DELAY_SECONDS", 0.0)
    assert "checking tasks.jsonl: 20" in stateroom("data", "check", "counter", "tasks.jsonl").err

"""`stateroom export`: files for trainers."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command


@pytest.fixture(autouse=True)
def group(stateroom: Command) -> None:
    """A run with groups of forks."""
    stateroom("run", "extraction", "--model", "noisy", "--group", 4, "--output", "r.jsonl")


def test_the_file_is_named_after_the_run(stateroom: Command) -> None:
    said = stateroom("export", "r", "--to", "sft")
    lines = Path("r_sft.jsonl").read_text().splitlines()
    assert said.out == f"{len(lines)} rows in r_sft.jsonl\n"
    assert json.loads(lines[0])["messages"][0]["role"] == "user"


def test_json_says_how_many_rows_are_where(stateroom: Command) -> None:
    told = stateroom("export", "r", "--to", "dpo", "--output", "pairs.parquet", "--json").json
    assert told["file"] == "pairs.parquet"
    assert told["rows"] > 0


def test_nothing_to_export_is_a_failure(stateroom: Command) -> None:
    failed = stateroom("export", "r", "--to", "sft", "--min-reward", 2)
    assert failed.code == 1
    assert "--min-reward" in failed.err
    assert not Path("r_sft.jsonl").exists()


def test_a_run_without_tokens_is_refused(stateroom: Command) -> None:
    failed = stateroom("export", "r", "--to", "grpo")
    assert (failed.code, "record_tokens" in failed.err) == (2, True)

"""A run that is played again from its own rollouts comes to the same."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stateroom.cli.app import app


def run(*words: str) -> None:
    done = CliRunner().invoke(app, ["run", *words, "--json"])
    assert done.exit_code == 0, done.output


def rows(path: Path) -> dict[tuple[int, int], Any]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return {
        (row["_ng_task_index"], row["_ng_rollout_index"]): (row["reward"], row["response"]["output"]) for row in found
    }


@pytest.mark.parametrize("environment", ["counter", "extraction", "weather"])
def test_a_run_is_played_again(environment: str, tmp_path: Path) -> None:
    first, again = tmp_path / "first.jsonl", tmp_path / "again.jsonl"
    options = ("--repeats", "3", "--store", "memory://")
    run(environment, "--model", "noisy", *options, "--output", str(first))
    run(environment, "--model", f"replay:{first}", *options, "--output", str(again))
    assert rows(again) == rows(first)
    assert {reward for reward, _ in rows(first).values()} == {0.0, 1.0}

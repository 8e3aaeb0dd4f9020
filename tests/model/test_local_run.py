"""Episodes of a real model: it acts, and what it does is on record."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stateroom.cli.app import app


def run(environment: str, output: Path) -> list[dict[str, Any]]:
    words = [environment, "--model", "local", "--limit", "1", "--max-steps", "2", "--set", "max_output_tokens=24"]
    done = CliRunner().invoke(app, ["run", *words, "--store", "memory://", "--output", str(output), "--json"])
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in output.read_text().splitlines()]


@pytest.mark.more("a local model")
def test_it_acts_and_is_judged(tmp_path: Path) -> None:
    (row,) = run("counter", tmp_path / "a.jsonl")
    output = row["response"]["output"]
    assert row["reward"] in (0.0, 1.0)
    assert output
    assert row["response"]["usage"]["output_tokens"] > 0
    calls = [item["call_id"] for item in output if item["type"] == "function_call"]
    assert [item["call_id"] for item in output if item["type"] == "function_call_output"] == calls

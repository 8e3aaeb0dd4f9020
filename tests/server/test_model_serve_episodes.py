"""Whole episodes by a model behind a served endpoint: they come to what they come to without one."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from stateroom.cli.app import app
from tests.server.serving_models import serving


def run(environment: str, model: str, output: Path) -> dict[tuple[int, int], tuple[float, int]]:
    """The reward of each episode, and how many items it took."""
    words = [environment, "--model", model, "--repeats", "3", "--store", "memory://", "--output", str(output)]
    done = CliRunner().invoke(app, ["run", *words, "--json"])
    assert done.exit_code == 0, done.output
    rows: list[Any] = [json.loads(line) for line in output.read_text().splitlines()]
    return {
        (row["_ng_task_index"], row["_ng_rollout_index"]): (row["reward"], len(row["response"]["output"]))
        for row in rows
    }


@pytest.mark.parametrize(("api", "environment"), [("chat", "counter"), ("responses", "extraction")])
def test_a_policy_acts_as_it_does_without_a_server_luck_and_all(api: str, environment: str, tmp_path: Path) -> None:
    here = run(environment, "noisy", tmp_path / "here.jsonl")
    with serving(f"noisy:{environment}", tmp_path) as served:
        assert run(environment, f"{api}:{served.name}@{served.url}", tmp_path / "there.jsonl") == here
    assert {reward for reward, _ in here.values()} == {0.0, 1.0}


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_rollouts_are_served_again(api: str, tmp_path: Path) -> None:
    first = run("counter", "noisy", tmp_path / "first.jsonl")
    with serving("replay:first.jsonl", tmp_path) as served:
        assert run("counter", f"{api}:{served.name}@{served.url}", tmp_path / "again.jsonl") == first


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_to_stop_when_told_so_is_a_success(how: signal.Signals, tmp_path: Path) -> None:
    with serving("reference:counter", tmp_path) as served:
        assert served.stop(how) == (0, "")

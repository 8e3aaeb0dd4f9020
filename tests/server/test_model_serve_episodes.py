"""Whole episodes by a model behind a served endpoint: they come to what they come to without one."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Command, stateroom
from tests.rows import rows
from tests.server.serving_models import serving

__all__ = ["stateroom"]  # a fixture

Run = Callable[[str, str, str], list[tuple[float, int]]]


@pytest.fixture
def run(stateroom: Command) -> Run:
    """Runs an environment with a model; gives the reward of each episode, and how many items it took."""

    def run(environment: str, model: str, name: str) -> list[tuple[float, int]]:
        options = ("--model", model, "--repeats", 3, "--store", "memory://", "--output", f"{name}.jsonl")
        done = stateroom("run", environment, *options)
        assert done.code == 0, done.err
        return [(row["reward"], len(row["response"]["output"])) for row in rows(f"{name}.jsonl")]

    return run


@pytest.mark.parametrize(("api", "environment"), [("chat", "counter"), ("responses", "extraction")])
def test_a_policy_acts_as_it_does_without_a_server_luck_and_all(
    run: Run, api: str, environment: str, tmp_path: Path
) -> None:
    here = run(environment, "noisy", "here")
    with serving(f"noisy:{environment}", tmp_path) as served:
        assert run(environment, f"{api}:{served.name}@{served.url}", "there") == here
    assert {reward for reward, _ in here} == {0.0, 1.0}


@pytest.mark.parametrize(("api", "how"), [("chat", signal.SIGINT), ("responses", signal.SIGTERM)])
def test_rollouts_are_served_again_until_a_signal(run: Run, api: str, how: signal.Signals, tmp_path: Path) -> None:
    first = run("counter", "noisy", "first")
    with serving("replay:first.jsonl", tmp_path) as served:
        assert run("counter", f"{api}:{served.name}@{served.url}", "again") == first
        assert served.stop(how) == (0, "")

"""A run that is played again from its own rollouts comes to the same."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from stateroom.rollout import plan_run, run


def episodes(environment: str, model: str, output: Path) -> dict[tuple[int, int], Any]:
    """The rewards and the items of a run's episodes."""
    asyncio.run(run(plan_run(environment, model=model, repeats=3, store="memory://", output=output)))
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    return {
        (row["_ng_task_index"], row["_ng_rollout_index"]): (row["reward"], row["response"]["output"]) for row in rows
    }


@pytest.mark.parametrize("environment", ["counter", "extraction", "weather"])
def test_a_run_is_played_again(environment: str, tmp_path: Path) -> None:
    first = tmp_path / "first.jsonl"
    played = episodes(environment, "noisy", first)
    assert episodes(environment, f"replay:{first}", tmp_path / "again.jsonl") == played
    assert {reward for reward, _ in played.values()} == {0.0, 1.0}

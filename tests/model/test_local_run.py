"""Episodes of a real model: it acts, and what it does is on record."""

import json
from pathlib import Path

import pytest

from stateroom.rollout import plan_run, run


@pytest.mark.more("a local model")
async def test_it_acts_and_is_judged(tmp_path: Path) -> None:
    plan = plan_run(
        "counter",
        model="local",
        limit=1,
        max_steps=2,
        settings={"max_output_tokens": 24},
        store="memory://",
        output=tmp_path / "a.jsonl",
    )
    await run(plan)
    row = json.loads(plan.files.rollouts.read_text())
    output = row["response"]["output"]
    assert row["reward"] in (0.0, 1.0)
    assert output
    assert row["response"]["usage"]["output_tokens"] > 0
    calls = [item["call_id"] for item in output if item["type"] == "function_call"]
    assert [item["call_id"] for item in output if item["type"] == "function_call_output"] == calls

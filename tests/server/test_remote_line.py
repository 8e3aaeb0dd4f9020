"""Our runner and our server, and between them a bad network: nothing is lost, or done twice."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stateroom.gallery import CounterEnvironment
from stateroom.model import open_model
from stateroom.pauses import Pauses
from stateroom.rollout import Run, RunFiles, client, generate_tasks, run
from tests.plans import make_run
from tests.rows import comparable, rows
from tests.servers.proxy import FAULTS, Fault, Proxy

TASKS = generate_tasks(CounterEnvironment, 8, seed=1)


def plan(folder: Path, name: str, policy: str, **more: Any) -> Run:
    files = RunFiles(folder / f"{name}.jsonl")
    model = open_model(policy, CounterEnvironment.policies)
    return make_run(CounterEnvironment(), model, TASKS, files, repeats=3, **more)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_bad_network_changes_nothing(serve: Any, tmp_path: Path, fault: Fault) -> None:
    served = await serve()
    here = plan(tmp_path, "here", "noisy")
    await run(here)
    with Proxy(served.url) as proxy:
        proxy.fail(*[Fault.NONE, Fault.NONE, Fault.NONE, Fault.NONE, fault] * 20)
        there = plan(tmp_path, "there", "noisy", server=proxy.url)
        report = await run(there)
    assert proxy.faults == 20
    assert report.first_error is None
    assert comparable(there.files.rollouts) == comparable(here.files.rollouts)
    assert 0 < report.metrics["agent_metrics"]["mean/reward"] < 1


async def test_a_server_that_goes_away_fails_the_episodes_that_are_left(
    serve: Any, until: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSES", Pauses(0.0, 0.0))
    served = await serve()
    with Proxy(served.url) as proxy:
        proxy.delay = 0.005
        there = plan(tmp_path, "there", "reference", server=proxy.url, concurrency=4)
        running = asyncio.create_task(run(there))
        await until(lambda: there.files.rollouts.exists() and len(rows(there.files.rollouts)) >= 4)
        proxy.refuse()
        report = await running
    finished, failed = rows(there.files.rollouts), rows(there.files.failures)
    assert (len(finished), len(failed)) == (24 - report.failed, report.failed)
    assert failed
    assert {row["reward"] for row in finished} == {1.0}
    for row in failed:
        assert (row["_ng_failure_class"], row["_ng_failure_terminal"]) == ("server", False)
        assert row["error"].startswith(f"ServerUnavailable: no answer from {proxy.url}/")
    begun = [row for row in failed if "_stateroom_session" in row]
    assert 0 < len(begun) <= 4

"""Engines: whichever runs the episodes, the rows are the same, and what goes wrong is told."""

import asyncio
import os
from asyncio.subprocess import Process
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stateroom import Environment, State
from stateroom.errors import EngineFailed, InvalidOption, StoreUnavailable
from stateroom.model import message
from stateroom.pauses import Pauses
from stateroom.rollout import Report, RunPlan, plan_run, run
from tests.messages import raises
from tests.rows import comparable, rows
from tests.servers.vllm import VLLM, Limits, by_policy, serving

FLAKY = Path(__file__).with_name("flaky.py")


async def run_on(engine: str, folder: Path, environment: Any, **options: Any) -> tuple[RunPlan, Report]:
    output = folder / f"{engine.partition(':')[0]}.jsonl"
    plan = plan_run(environment, engine=engine, output=output, **options)
    return plan, await run(plan)


@pytest.mark.parametrize(
    ("environment", "options"),
    [
        ("counter", {"model": "noisy", "repeats": 3}),
        ("extraction", {"model": "noisy", "group": 3, "limit": 3}),
        ("refund", {"model": "noisy", "limit": 4}),
        ("weather", {"repeats": 2}),
    ],
)
async def test_rows_and_metrics_are_the_same_on_any_engine(
    tmp_path: Path, environment: str, options: dict[str, Any]
) -> None:
    local, report = await run_on("local", tmp_path, environment, **options)
    spread, other = await run_on("processes:2", tmp_path, environment, **options)
    assert (report.failed, other.failed) == (0, 0)
    assert comparable(spread.files.rollouts) == comparable(local.files.rollouts)
    assert other.metrics == report.metrics


async def test_a_run_goes_on_with_another_engine(tmp_path: Path) -> None:
    plan, _ = await run_on("processes:2", tmp_path, "counter", model="noisy", repeats=4)
    whole = plan.files.rollouts.read_bytes().splitlines(keepends=True)
    sessions = {row["_stateroom_session"] for row in rows(plan.files.rollouts)}
    for engine in ("local", "processes:2"):
        plan.files.rollouts.write_bytes(b"".join(whole[:9]) + whole[9][:40])
        again = plan_run("counter", model="noisy", repeats=4, engine=engine, output=plan.files.rollouts, resume=True)
        report = await run(again)
        assert (report.earlier, len(report.rows)) == (9, 32)
        assert {row["_stateroom_session"] for row in rows(plan.files.rollouts)} == sessions


async def test_tool_failures_of_all_workers_are_in_one_file(tmp_path: Path) -> None:
    environment = f"{FLAKY}:FlakyEnvironment"
    plan, report = await run_on("processes:2", tmp_path, environment, model=f"{FLAKY}:Caller", input=[{}] * 4)
    assert report.tool_failures.counts == {"fall": 4}
    assert "flaky.py" in (report.tool_failures.first or "")
    assert len(plan.files.tool_failures.read_bytes().splitlines()) == 4


async def test_a_worker_that_dies_again_and_again_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateroom.rollout.engines.worker_pool.PAUSES", Pauses(0.0, 0.0))
    plan = plan_run("weather", model=f"{FLAKY}:Killer", limit=1, engine="processes:1", output=tmp_path / "a")
    with pytest.raises(EngineFailed):
        await run(plan)


async def test_a_worker_that_is_cancelled_while_it_starts_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = asyncio.create_subprocess_exec
    started: list[Process] = []

    async def cancel(turns: int) -> None:
        for _ in range(turns):  # of the event loop, since the process began to start
            await asyncio.sleep(0)
        running.cancel()

    async def recorded(*arguments: Any, **options: Any) -> Process:
        cancelling.append(asyncio.create_task(cancel(len(cancelling))))
        started.append(await execute(*arguments, **options))
        return started[-1]

    cancelling: list[asyncio.Task[None]] = []
    monkeypatch.setattr(asyncio, "create_subprocess_exec", recorded)
    while len(cancelling) < 12:
        plan = plan_run("counter", engine="processes:1", output=tmp_path / f"{len(cancelling)}.jsonl")
        running = asyncio.create_task(run(plan))
        with pytest.raises(asyncio.CancelledError):
            await running
        assert None not in [process.returncode for process in started]
    assert started


async def test_a_store_that_cannot_be_opened_is_told_before_anything_is_written(tmp_path: Path) -> None:
    plan = plan_run("counter", store="redis://127.0.0.1:1/0", engine="processes:2", output=tmp_path / "a.jsonl")
    with raises((EngineFailed, StoreUnavailable)):
        await run(plan)
    assert os.listdir(tmp_path) == []


class Unreachable(State):
    value: int = 0


async def test_what_another_process_cannot_have_is_told(tmp_path: Path) -> None:
    class Inner(Environment[Unreachable]):
        """Cannot be imported."""

        def verify(self) -> float:
            return 1.0

    plan = plan_run(Inner, input=[{}], model="gold", engine="processes", output=tmp_path / "a.jsonl")
    with raises(InvalidOption):
        await run(replace(plan, tasks=[{"gold": []}]))


@pytest.mark.parametrize("engine", ["threads", "processes:0", "processes:two", "local:2"])
async def test_an_unknown_engine_is_refused(tmp_path: Path, engine: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        await run(plan_run("counter", engine=engine, output=tmp_path / "a.jsonl"))
    assert refused.value.option == "engine"


async def test_the_workers_share_the_limits_of_a_models_server(tmp_path: Path) -> None:
    server = VLLM(by_policy("counter:reference"), Limits(concurrency=3), latency=0.01)
    async with serving(server) as url:
        model = f"chat:m@{url}"
        options = {"model": model, "repeats": 3, "model_concurrency": 3, "concurrency": 12}
        _, report = await run_on("processes:2", tmp_path, "counter", **options)
    assert report.failed == 0
    assert {told.status for told in server.recorded} == {200}  # it refuses a fourth request
    assert max(told.running for told in server.recorded) == 3
    assert report.metrics["agent_metrics"]["mean/reward"] == 1


async def test_a_worker_that_is_lost_gives_back_its_permits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateroom.rollout.engines.worker_pool.PAUSES", Pauses(0.0, 0.0))

    async def answers(seed: int, conversation: Any, tools: Any) -> list[Any]:
        return [message("done")]

    server = VLLM(answers, latency=0.01)
    async with serving(server) as url:
        mark = tmp_path / "died"
        options = {"model": f"chat:m@{url}", "input": [{"mark": str(mark)}] * 6, "model_concurrency": 1}
        _, report = await run_on("processes:2", tmp_path, f"{FLAKY}:DyingEnvironment", **options)
    assert mark.exists()
    assert (report.failed, len(report.rows)) == (0, 6)

"""Runs on several workers, of which some die, sleep or lose their store: as if nothing had happened."""

import asyncio
import json
import os
import random
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stateroom.rollout import RunFiles, plan_run, run
from stateroom.session import read_entry
from stateroom.store import open_store
from tests.patience import PATIENCE
from tests.servers.ray import ray_cluster
from tests.servers.redis import RedisServer
from tests.servers.vllm import VLLM, by_policy, serving

ERRANDS = Path(__file__).parents[1] / "rollout" / "errands.py"
EPISODES = 300
LEASE = 10.0
"""Seconds after which a silent worker is given up."""


def errands(episodes: int = EPISODES, seed: int = 7) -> dict[str, Any]:
    """The options of a run of errands."""
    return {
        "environment": f"{ERRANDS}:ErrandEnvironment",
        "input": [{"purse": number} for number in range(episodes // 2)],
        "model": f"{ERRANDS}:Runner",
        "repeats": 2,
        "seed": seed,
        "max_steps": 6,
    }


OWN = ("_stateroom_session", "_stateroom_times")
"""What is another one in every run."""


def rows(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return sorted(found, key=lambda row: (row["_ng_task_index"], row["_ng_rollout_index"]))


def comparable(path: Path) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in OWN} for row in rows(path)]


def children_of(process: int) -> list[int]:
    try:
        return [
            int(child)
            for thread in Path(f"/proc/{process}/task").iterdir()
            for child in (thread / "children").read_text().split()
        ]
    except OSError:  # it has gone
        return []


def is_actor(process: int) -> bool:
    with suppress(OSError):
        return b"_Actor" in Path(f"/proc/{process}/cmdline").read_bytes()
    return False


class Disturbed:
    """A run whose driver and workers can be harmed."""

    def __init__(
        self, folder: Path, store: str, engine: str, options: dict[str, Any], episodes: int = EPISODES
    ) -> None:
        self.files = RunFiles(folder / "disturbed.jsonl")
        self.store = store
        self.trace = folder / "trace"
        self._engine = engine
        self._options = {**options, "concurrency": 12}
        self.episodes = episodes
        """About how many there are."""
        self.harms = 0
        self.driver: Process | None = None
        self.done = 0
        self.stopped: list[int] = []
        """Workers that were stopped for longer than their lease."""

    async def start(self) -> None:
        """Start a driver, which continues what there is."""
        options = {**self._options, "output": str(self.files.rollouts), "store": self.store, "engine": self._engine}
        environment = {name: value for name, value in os.environ.items() if name != "ERRANDS_LIFE"}
        self.driver = await asyncio.create_subprocess_exec(
            sys.executable,
            str(Path(__file__).with_name("driver.py")),
            str(LEASE),
            json.dumps(options),
            env=environment | {"ERRANDS_TRACE": str(self.trace)},
            stdout=PIPE,
            cwd=Path(__file__).parents[2],
        )

    def workers(self) -> list[int]:
        """The processes of the workers: the driver's children, or actors on the test's own cluster."""
        assert self.driver is not None
        if not self._engine.startswith("ray"):
            return children_of(self.driver.pid)
        return [each for node in children_of(os.getpid()) for each in children_of(node) if is_actor(each)]

    async def reach(self, episodes: int) -> bool:
        """Wait until as many more episodes are done; False if the run has ended before."""
        assert self.driver is not None
        assert self.driver.stdout is not None
        for _ in range(episodes):
            if not await asyncio.wait_for(self.driver.stdout.readline(), PATIENCE):
                return False
            self.done += 1
        return True

    async def end(self) -> int:
        """Wait until the run has ended; its code."""
        assert self.driver is not None
        await self.reach(10**6)
        return await self.driver.wait()

    async def refuse_repetition(self) -> None:
        """Nothing was done whose outcome was on record already.

        But a worker that is stopped just before it acts does this one thing when it wakes up.
        """
        session_of = {int(row["response"]["id"].removeprefix("resp_"), 16): row for row in rows(self.files.rollouts)}
        recorded = {row["_stateroom_session"]: await self._recorded(row) for row in session_of.values()}
        again = []
        for line in self.trace.read_text().splitlines():
            at, what, who, *more = line.split()
            session = session_of[int(who)]["_stateroom_session"] if what == "asked" else who
            before = recorded[session].get((what, *more))
            if before is not None and before < float(at):
                again.append(line)
        assert len(again) <= len(self.stopped), again

    async def _recorded(self, row: dict[str, Any]) -> dict[tuple[str, ...], float]:
        """When the outcome of each act in a session was recorded."""
        async with open_store(self.store) as store:
            entries = [read_entry(entry) for entry in await store.entries(row["_stateroom_session"])]
        found: dict[tuple[str, ...], float] = {}
        counts = Counter[str]()
        for entry in entries:
            if entry.kind == "message" and entry.facts["by"] == "model":
                found["asked", str(counts["asked"])] = entry.at
                counts["asked"] += 1
            for item in entry.facts["items"] if entry.kind == "message" else ():
                if item["type"] == "function_call_output":
                    found.setdefault(("tool", item["call_id"]), entry.at)
            if entry.kind == "call" and entry.name == "reply":
                found["reply", str(counts["reply"])] = entry.at
                counts["reply"] += 1
            elif entry.kind == "call":
                found.setdefault(("tool", entry.input["ref"]), entry.at)
            if entry.kind == "verdict":
                found["verify",] = entry.at
        return found


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunFiles:
    """The files of the run of errands that the tests disturb."""
    return asyncio.run(run_undisturbed(tmp_path_factory.mktemp("undisturbed"), errands()))


async def run_undisturbed(folder: Path, options: dict[str, Any]) -> RunFiles:
    """The files of a run in one piece and in one process."""
    plan = plan_run(**options, output=folder / "whole.jsonl")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ERRANDS_TRACE", os.devnull)
        assert (await run(plan)).failed == 0
    return plan.files


def harm(process: int, what: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(process, what)


async def disturb(run: Disturbed, luck: random.Random, faults: dict[str, Callable[[], object]]) -> None:
    """Harm a run about every 25 episodes, until it is nearly done."""
    names = ["kill", "stop", "driver", "kill", *faults]
    luck.shuffle(names)
    while run.done < run.episodes - 60 and await run.reach(luck.randrange(10, 40)):
        fault, workers = names[0], run.workers()
        names.append(names.pop(0))
        run.harms += 1
        match fault:
            case "kill" if workers:
                harm(luck.choice(workers), signal.SIGKILL)
            case "stop" if workers:
                sleeper = luck.choice(workers)
                harm(sleeper, signal.SIGSTOP)
                run.stopped.append(sleeper)
                asyncio.get_running_loop().call_later(1.5 * LEASE, harm, sleeper, signal.SIGCONT)
            case "driver":
                assert run.driver is not None
                run.driver.kill()
                await run.end()
                await run.start()
            case _ if fault in faults:
                await asyncio.to_thread(faults[fault])


async def survive(disturbed: Disturbed, luck: random.Random, faults: dict[str, Callable[[], object]]) -> None:
    """Harm a run in all ways, until it is done."""
    try:
        await disturbed.start()
        await disturb(disturbed, luck, faults)
        assert await disturbed.end() == 0
    finally:
        assert disturbed.driver is not None
        if disturbed.driver.returncode is None:
            disturbed.driver.kill()
            await disturbed.driver.wait()
        for sleeper in disturbed.stopped:  # its driver may be gone, and then nobody else wakes it
            harm(sleeper, signal.SIGCONT)


async def come_to_the_same(
    disturbed: Disturbed, undisturbed: RunFiles, luck: random.Random, faults: dict[str, Callable[[], object]]
) -> None:
    """Harm a run of errands, and compare it with one that nothing has harmed."""
    await survive(disturbed, luck, faults)
    assert comparable(disturbed.files.rollouts) == comparable(undisturbed.rollouts)
    assert not disturbed.files.failures.exists()
    await disturbed.refuse_repetition()


@pytest.mark.more("time")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
async def test_a_run_whose_workers_and_driver_are_harmed_comes_to_the_same(
    kind: str, fresh_url: Callable[[str], str], tmp_path: Path, undisturbed: RunFiles
) -> None:
    disturbed = Disturbed(tmp_path, fresh_url(kind), "processes:3", errands())
    await come_to_the_same(disturbed, undisturbed, random.Random(kind), {})


@pytest.mark.more("time")
async def test_a_run_whose_redis_is_restarted_comes_to_the_same(tmp_path: Path, undisturbed: RunFiles) -> None:
    with RedisServer(durable=True) as redis:
        disturbed = Disturbed(tmp_path, f"{redis.url}?timeout=60", "processes:3", errands())
        await come_to_the_same(disturbed, undisturbed, random.Random("redis"), {"redis": redis.restart})


@pytest.mark.more("time")
async def test_no_answer_of_a_model_is_paid_twice(tmp_path: Path, fresh_url: Callable[[str], str]) -> None:
    server = VLLM(by_policy("extraction:reference"), honours_keys=True)
    async with serving(server) as url:
        options: dict[str, Any] = {"environment": "extraction", "model": f"chat:m@{url}", "repeats": -(-EPISODES // 8)}
        disturbed = Disturbed(tmp_path, fresh_url("redis"), "processes:3", options)
        await survive(disturbed, random.Random("paid"), {})
    done = rows(disturbed.files.rollouts)
    assert (len(done), {row["reward"] for row in done}) == (8 * options["repeats"], {1.0})
    answers = sum(item["type"] in ("function_call", "message") for row in done for item in row["response"]["output"])
    assert server.paid == answers  # one call, or a message, is one answer
    assert len(server.recorded) >= server.paid


@pytest.mark.more("Ray")
async def test_a_run_on_a_cluster_that_loses_actors_and_a_node_comes_to_the_same(
    tmp_path: Path, undisturbed: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ERRANDS_TRACE", str(tmp_path / "trace"))  # the nodes start the workers
    with RedisServer(durable=True) as redis, ray_cluster(nodes=3) as cluster:
        disturbed = Disturbed(tmp_path, f"{redis.url}?timeout=60", f"ray:{cluster.address}", errands())

        def lose_node() -> None:
            others = [node for node in cluster.list_all_nodes() if node is not cluster.head_node]
            if len(others) > 1:
                cluster.remove_node(others[0])

        faults: dict[str, Callable[[], object]] = {"redis": redis.restart, "node": lose_node}
        await come_to_the_same(disturbed, undisturbed, random.Random("ray"), faults)
        assert len(cluster.list_all_nodes()) == 2

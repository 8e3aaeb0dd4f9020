"""What is counted, by whom, and what a scrape tells of it."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from stateroom.errors import Conflict, StoreUnavailable, UnknownSession
from stateroom.server.metrics import BOUNDS, OUTCOMES, MeasuredStore, Metrics
from stateroom.store import Commit, Entry, Head, Store, WrappedStore
from tests.patience import PATIENCE
from tests.server.test_remote import MishapEnvironment

ROW = {"responses_create_params": {"input": "count"}, "initial_count": 0, "expected_count": 0}
TOOLS = {"counter": ["increment", "read"], "weather": ["read"]}


class Samples:
    """What a scrape tells: `found(name, *labels)` is a value, by the name and the values of its labels."""

    def __init__(self, text: bytes, parse: Any = parse_plain) -> None:
        self.values = {
            (sample.name, frozenset(sample.labels.values())): sample.value
            for family in parse(text.decode())
            for sample in family.samples
        }

    def __call__(self, name: str, *labels: str) -> float:
        return self.values[name, frozenset(labels)]

    def above_zero(self, name: str) -> dict[frozenset[str], float]:
        return {labels: value for (known, labels), value in self.values.items() if known == name and value}


def scrape(metrics: Metrics, live: int = 0) -> Samples:
    return Samples(metrics.exposition(b"", live)[0])


async def scraped(served: Any, **headers: str) -> tuple[str, bytes]:
    async with served.client.get(f"{served.url}/metrics", headers=headers) as reply:
        assert reply.status == 200
        return reply.headers["content-type"], await reply.read()


async def test_a_scrape_tells_what_came_of_calls(serve: Any) -> None:
    served = await serve(MishapEnvironment())
    await served.post("/work", {"text": "a"})  # without a session
    await served.post("/seed_session", ROW)
    called: list[tuple[str, dict[str, Any]]] = [("work", {"text": "a"}), ("work", {"text": "b"}), ("work", {})]
    for name, arguments in [*called, ("refuse", {"why": "not today"}), ("crash", {})]:
        await served.post(f"/{name}", arguments)
    content_type, text = await scraped(served)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    found = Samples(text)
    assert found.above_zero("stateroom_calls_total") == {
        frozenset(("mishap", "work", "ok")): 2,
        frozenset(("mishap", "work", "error")): 1,
        frozenset(("mishap", "work", "invalid_arguments")): 1,
        frozenset(("mishap", "refuse", "tool_error")): 1,
        frozenset(("mishap", "crash", "tool_failed")): 1,
    }
    assert found("stateroom_call_duration_seconds_count", "mishap", "work") == 4
    assert 0 < found("stateroom_call_duration_seconds_sum", "mishap", "work") < 60
    assert found("stateroom_sessions_seeded_total", "mishap") == 1
    assert found("stateroom_store_operations_total", "create", "ok") == 1
    assert found("stateroom_store_operations_total", "append", "ok") == 2
    assert found("stateroom_store_operation_duration_seconds_count", "append") == 2
    assert found("process_resident_memory_bytes") > 0


async def test_openmetrics_for_those_who_ask_for_it(served: Any) -> None:
    await served.post("/seed_session", ROW)
    await served.post("/increment_counter", {"count": 1})
    content_type, text = await scraped(
        served, accept="application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
    )
    assert content_type == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    found = Samples(text, parse_openmetrics)
    assert found("stateroom_calls_total", "counter", "increment_counter", "ok") == 1


async def test_sessions_that_live_and_that_expire_are_counted(serve: Any, shared_url: str) -> None:
    before = await serve(store=shared_url, ttl=100.0, now=lambda: 1_000.0)
    await before.post("/seed_session", ROW)
    _, text = await scraped(before)
    assert Samples(text)("stateroom_sessions_live") == 1
    after = await serve(store=shared_url, ttl=100.0, now=lambda: 2_000.0)  # which sweeps when it has started
    expired = 0.0
    async with asyncio.timeout(PATIENCE):
        while not expired:
            _, text = await scraped(after)
            expired = Samples(text)("stateroom_sessions_expired_total")
    assert (expired, Samples(text)("stateroom_sessions_live")) == (1, 0)


TIMES = st.floats(0, 100) | st.sampled_from(BOUNDS)
CALLS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from([(environment, name) for environment, names in TOOLS.items() for name in names]),
        st.sampled_from(OUTCOMES),
        TIMES,
    )
)


def check(found: Samples, calls: list[Any]) -> None:
    """A scrape tells exactly of these calls."""
    for environment, names in TOOLS.items():
        for name in names:
            mine = [(outcome, seconds) for _, tool_, outcome, seconds in calls if tool_ == (environment, name)]
            for outcome in OUTCOMES:
                times = sum(outcome == other for other, _ in mine)
                assert found("stateroom_calls_total", environment, name, outcome) == times
            times = [seconds for _, seconds in mine]
            histogram = "stateroom_call_duration_seconds"
            assert found(f"{histogram}_count", environment, name) == len(times)
            assert found(f"{histogram}_sum", environment, name) == pytest.approx(sum(times))
            for bound in BOUNDS:
                within = sum(seconds <= bound for seconds in times)
                assert found(f"{histogram}_bucket", environment, name, str(bound)) == within
            assert found(f"{histogram}_bucket", environment, name, "+Inf") == len(times)


@given(CALLS)
def test_every_call_is_counted_once_by_one_process(calls: list[Any]) -> None:
    metrics = Metrics(TOOLS)
    for _, labels, outcome, seconds in calls:
        metrics.tool(*labels).count(outcome, seconds)
    check(scrape(metrics), calls)


@given(CALLS)
def test_any_worker_tells_of_the_calls_of_all(calls: list[Any]) -> None:
    with TemporaryDirectory() as folder:
        workers = [Metrics(TOOLS, Path(folder)) for _ in range(3)]
        assert len(list(Path(folder).iterdir())) == 3
        for worker, labels, outcome, seconds in calls:
            workers[worker].tool(*labels).count(outcome, seconds)
        for worker in workers:
            check(scrape(worker), calls)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes as Linux shows them")
def test_any_worker_tells_of_the_processes_of_all(worker: Any, tmp_path: Path) -> None:
    first, second = worker(), worker()
    for each in (first, second):
        each.count(0)
    found = scrape(Metrics({"counter": ["increment"]}, tmp_path)).above_zero("process_resident_memory_bytes")
    assert found.keys() == {frozenset((number,)) for number in "012"}


async def test_the_live_sessions_of_all_workers_are_one_figure(serve: Any, shared_url: str) -> None:
    time = [1_000.0]
    workers = [await serve(store=shared_url, now=lambda: time[0]) for _ in range(2)]
    for _ in range(3):
        await workers[0].post("/seed_session", ROW)
        workers[0].client.cookie_jar.clear()
    time[0] += 2
    for worker in workers:
        assert Samples((await scraped(worker))[1])("stateroom_sessions_live") == 3


async def test_requests_are_counted_by_route_and_status(serve: Any) -> None:
    served = await serve(MishapEnvironment())
    await served.post("/seed_session", ROW)
    await served.post("/ng-rollout/a/work", {"text": "a"})
    await served.post("/refuse", {"why": "not today"})
    for made_up in ("made_up", "made_up_too"):
        await served.post(f"/{made_up}")
    await served.post("/verify", {**ROW, "response": {"output": []}})
    served.client.cookie_jar.clear()
    await served.get("/admin/sessions")
    await served.get("/admin/sessions/nothing")
    async with served.client.put(f"{served.url}/verify") as reply:
        assert reply.status == 405
    found = Samples((await scraped(served))[1])
    assert found.above_zero("stateroom_requests_total") == {
        frozenset(("/seed_session", "200")): 1,
        frozenset(("/TOOL", "200")): 1,
        frozenset(("/TOOL", "400")): 1,
        frozenset(("other", "404")): 2,
        frozenset(("/verify", "200")): 1,
        frozenset(("/admin", "200")): 1,
        frozenset(("/admin", "410")): 1,
        frozenset(("other", "405")): 1,
    }
    assert found("stateroom_calls_total", "mishap", "(unknown)", "unknown_tool") == 2
    assert found("stateroom_verdicts_total", "mishap", "ok") == 1
    assert found("stateroom_verdict_duration_seconds_count", "mishap") == 1


async def test_the_tokens_of_an_agents_model_are_counted(serve: Any) -> None:
    served = await serve(agent=f"{Path(__file__).with_name('agent_models.py')}:Reporting")
    for _ in range(2):
        assert (await served.good("/run", ROW))["response"]["usage"]["output_tokens"] == 5
    found = Samples((await scraped(served))[1])
    assert found("stateroom_model_tokens_total", "counter", "input") == 14
    assert found("stateroom_model_tokens_total", "counter", "output") == 10
    assert found("stateroom_verdicts_total", "counter", "ok") == 2


def test_workers_with_other_tools_do_not_mix_their_metrics(tmp_path: Path) -> None:
    before = Metrics({"counter": ["increment", "read"]}, tmp_path)
    after = Metrics({"counter": ["decrement", "read"]}, tmp_path)
    before.tool("counter", "increment").count("ok", 1)
    after.tool("counter", "read").count("ok", 1)
    found = scrape(after)
    assert found("stateroom_calls_total", "counter", "decrement", "ok") == 0
    assert found("stateroom_calls_total", "counter", "read", "ok") == 1


def test_a_row_that_was_only_half_made_is_made_whole(tmp_path: Path) -> None:
    whole = Metrics(TOOLS, tmp_path)
    row = next(tmp_path.iterdir())
    row.with_suffix(".1").write_bytes(bytes(24))
    assert scrape(whole)("stateroom_sessions_expired_total") == 0
    second = Metrics(TOOLS, tmp_path)
    second.expired(2)
    assert scrape(whole)("stateroom_sessions_expired_total") == 2
    assert row.with_suffix(".1").stat().st_size == row.stat().st_size


WORKER = """
import sys
from pathlib import Path
from stateroom.server.metrics import Metrics

metrics = Metrics({"counter": ["increment"]}, Path(sys.argv[1]))
for line in sys.stdin:
    for _ in range(int(line)):
        metrics.tool("counter", "increment").count("ok", 0.001)
    text = metrics.exposition(b"", 0)[0].decode()
    print(next(line for line in text.splitlines() if "stateroom_calls_total" in line and "ok" in line), flush=True)
"""


class Worker:
    """A process that counts as many calls as it is told, and then tells the sum of all."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def count(self, calls: int) -> float:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{calls}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline().split()[-1])

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Any]:
    workers: list[Worker] = []

    def start() -> Worker:
        workers.append(Worker(tmp_path))
        return workers[-1]

    yield start
    for each in workers:
        each.kill()


def test_a_worker_that_is_killed_leaves_its_metrics_to_the_next(worker: Any, tmp_path: Path) -> None:
    first, second = worker(), worker()
    told = [first.count(1000), second.count(200), first.count(0)]
    first.kill()
    told.append(second.count(30))
    third = worker()
    told += [third.count(4), second.count(0)]
    assert told == [1000, 1200, 1200, 1230, 1234, 1234]
    assert all(earlier <= later for earlier, later in pairwise(told))
    assert len(list(tmp_path.iterdir())) == 2  # the third took over the first's


class Faulty(WrappedStore):
    async def head(self, session: str) -> Head:
        raise StoreUnavailable("gone fishing")


async def test_what_comes_of_a_stores_operations(store: Store) -> None:
    metrics = Metrics(TOOLS)
    measured = MeasuredStore(Faulty(store), metrics)
    await measured.create(Head("room", "counter", "", 0.0, 10.0, 0))
    await measured.append(Commit("room", Entry(1, "call", 1.0, b""), expires=None))
    with pytest.raises(Conflict):
        await measured.append(Commit("room", Entry(1, "call", 1.0, b""), expires=None))
    with pytest.raises(UnknownSession):
        await measured.load("nowhere")
    with pytest.raises(StoreUnavailable):
        await measured.head("room")
    assert await measured.sweep(20.0) == 1
    found = scrape(metrics)
    assert found.above_zero("stateroom_store_operations_total") == {
        frozenset(("create", "ok")): 1,
        frozenset(("append", "ok")): 1,
        frozenset(("append", "conflict")): 1,
        frozenset(("load", "refused")): 1,
        frozenset(("head", "error")): 1,
        frozenset(("sweep", "ok")): 1,
    }
    assert found("stateroom_conflicts_total") == 1
    assert found("stateroom_store_operation_duration_seconds_count", "append") == 2

"""Pools: where an episode's requests go, where they go when a server fails, and when they are sent again."""

import asyncio
from typing import Any

import pytest

from stateroom.errors import InvalidModel, ModelUnavailable
from stateroom.model import LocalLimiter, Model, ModelLimits, Request, answer_of, input_items, open_model
from tests.messages import raises
from tests.model.endpoints import (
    EndpointPool,
    FakeEndpoint,
    FakeTime,
    Question,
    Server,
    StoppedTime,
    Timing,
    Trouble,
    asking,
    says,
)
from tests.patience import PATIENCE
from tests.servers.vllm import VLLM, serving

GONE = Trouble("cannot be reached", passing=True, health="gone")
BUSY = Trouble("is busy", passing=True)
FAILING = Trouble("answered 500", passing=True, health="failing")
DONE: dict[str, Any] = {}
Reply = dict[str, Any] | Trouble


async def ask(model: Model, seed: int, step: int = 0) -> None:
    await answer_of(model, Request(input_items("Hello."), seed=seed, step=step))


async def test_an_episode_stays_with_one_server_and_episodes_are_spread() -> None:
    servers = VLLM(), VLLM()
    async with (
        serving(servers[0]) as first,
        serving(servers[1]) as second,
        asking("chat", f"{first},{second}") as model,
        asking("chat", f"{second},{first}") as again,
    ):
        for step in range(3):
            await asyncio.gather(*(ask(each, seed, step) for seed in range(20) for each in (model, again)))
    one, two = ({each.seed for each in server.recorded} for server in servers)
    assert one.isdisjoint(two)
    assert one | two == set(range(20))
    assert min(len(one), len(two)) >= 3


async def seeds_of_the_first(*names: str) -> list[int]:
    """The seeds of the episodes whose requests go to the first of some endpoints while all are well."""
    endpoints = [FakeEndpoint(name, [DONE]) for name in names]
    pool, seeds = EndpointPool("m", endpoints, ModelLimits(), timing=FakeTime().timing), []
    for seed in range(40):
        before = len(endpoints[0].given)
        await pool.ask("chat", {}, Request([], seed=seed))
        seeds += [seed] * (len(endpoints[0].given) - before)
    return seeds


class Two:
    """A pool of two endpoints, whose first has these replies, and episodes that begin there."""

    def __init__(self, *replies: Reply) -> None:
        self.clock = FakeTime()
        self.endpoints = FakeEndpoint("one", [*replies]), FakeEndpoint("two", [DONE])
        self.pool = EndpointPool("m", self.endpoints, ModelLimits(attempts=5), timing=self.clock.timing)

    async def ask(self, episodes: int = 1) -> tuple[int, ...]:
        """Ask for some episodes at once; how often each endpoint has been asked by then."""
        seeds = (await seeds_of_the_first("one", "two"))[:episodes]
        await asyncio.gather(*(self.pool.ask("chat", {}, Request([], seed=seed)) for seed in seeds))
        return tuple(len(endpoint.given) for endpoint in self.endpoints)


async def test_what_one_server_cannot_answer_another_is_asked_at_once() -> None:
    two = Two(FAILING, DONE)
    assert await two.ask() == (1, 1)
    assert two.clock.pauses == []
    assert await two.ask() == (2, 1)  # one failure is no illness


async def test_a_busy_server_is_not_left() -> None:
    two = Two(BUSY)
    with raises(ModelUnavailable):
        await two.ask()
    assert [len(endpoint.given) for endpoint in two.endpoints] == [5, 0]


async def test_a_server_that_fails_again_and_again_is_left_and_later_tried_by_one_request() -> None:
    two = Two(FAILING, FAILING, FAILING, DONE)
    assert [await two.ask() for _ in range(5)][-1] == (3, 5)
    two.clock.time += 60
    assert await two.ask(4) == (4, 8)
    assert await two.ask(4) == (8, 8)


async def test_one_refused_connection_is_enough_to_leave_a_server(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    server.replies = [says("chat", "Hi.")]
    async with asking("chat", f"http://127.0.0.1:1/v1,{server.url}") as model:
        for seed in range(12):
            await ask(model, seed)
    assert len(server.asked) == 12
    assert sum("attempt 2 follows" in text for text in caplog.messages) == 1


async def test_who_waits_for_a_server_that_is_gone_is_sent_to_another() -> None:
    ends = asyncio.Event()
    one, two = FakeEndpoint("one", [GONE], ends), FakeEndpoint("two", [DONE])
    seeds = await seeds_of_the_first("one", "two")
    pool = EndpointPool("m", [one, two], ModelLimits(concurrency=1), timing=StoppedTime().timing)
    asked = [asyncio.create_task(pool.ask("chat", {}, Request([], seed=seed))) for seed in seeds[:5]]
    await one.asked.wait()
    ends.set()
    async with asyncio.timeout(PATIENCE):  # the clock does not move: who stays waits for ever
        assert await asyncio.gather(*asked) == [DONE] * 5
    assert (len(one.given), len(two.given)) == (1, 5)


async def test_a_server_that_a_shared_limiter_has_given_up_is_left() -> None:
    class Strict(LocalLimiter):
        async def acquire(self, endpoint: str, tokens: int) -> None:
            if "one" in endpoint:
                raise ModelUnavailable("it failed 6 times in a row")
            await super().acquire(endpoint, tokens)

    one, two = FakeEndpoint("one", [DONE]), FakeEndpoint("two", [DONE])
    limits = ModelLimits()
    pool = EndpointPool("m", [one, two], limits, Strict(limits), FakeTime().timing)
    for seed in range(20):
        await pool.ask("chat", {}, Request([], seed=seed))
    assert (len(one.given), len(two.given)) == (0, 20)


@pytest.mark.parametrize("servers", [1, 2])
async def test_when_all_are_gone_nobody_waits_for_long(servers: int) -> None:
    endpoints = [FakeEndpoint(f"s{number}", [GONE]) for number in range(servers)]
    pool = EndpointPool("m", endpoints, ModelLimits(attempts=4), timing=FakeTime().timing)
    asked = [pool.ask("chat", {}, Request([], seed=seed)) for seed in range(30)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(each) for each in found} == {ModelUnavailable}
    assert all("cannot be reached" in str(each) for each in found)
    assert sum(len(endpoint.given) for endpoint in endpoints) < 30 * 4 / 2


async def test_the_same_step_has_the_same_key_so_that_it_is_paid_once() -> None:
    server = VLLM(honours_keys=True)
    async with serving(server) as url, asking("chat", url) as one, asking("chat", url, key="other") as two:
        for model in (one, two):
            await ask(model, 1)
        assert server.paid == 1
        await ask(one, 1, step=1)
        await ask(one, 2)
        await answer_of(one, Request(input_items("Good bye."), seed=1))
    assert server.paid == 4
    assert len({each.key for each in server.recorded}) == 4


def test_episodes_have_different_keys_where_the_request_has_no_seed() -> None:
    one, two = (Question.of("responses", "m", {}, Request([], seed=seed)) for seed in (1, 2))
    assert one.key != two.key


async def asked(found: list[Reply], limits: ModelLimits, timing: Timing) -> list[float]:
    """How many seconds each attempt was given."""
    endpoint = FakeEndpoint("m", found)
    await EndpointPool("m", [endpoint], limits, timing=timing).ask("chat", {}, Request([]))
    return endpoint.given


async def test_pauses_may_be_twice_as_long_each_time_up_to_a_limit() -> None:
    clock = FakeTime()
    limits = ModelLimits(attempts=8, first_pause=1, longest_pause=10)
    with raises(ModelUnavailable):
        await asked([BUSY], limits, clock.timing)
    assert clock.pauses == [1, 2, 4, 8, 10, 10, 10]


async def test_a_pause_is_any_time_from_none_to_that() -> None:
    bounds: list[tuple[float, float]] = []

    def between(low: float, high: float) -> float:
        bounds.append((low, high))
        return high / 4

    clock = FakeTime()
    timing = Timing(clock.later, lambda: clock.time, lambda: 0.0, between)
    await asked([BUSY, BUSY, DONE], ModelLimits(first_pause=1), timing)
    assert bounds == [(0, 1), (0, 2)]
    assert clock.pauses == [0.25, 0.5]


async def test_no_attempt_may_take_longer_than_is_left() -> None:
    slow = Trouble("is busy", passing=True, after=4)
    given = await asked([slow, slow, DONE], ModelLimits(timeout=10, deadline=12), FakeTime().timing)
    assert given == [10, 8, 4]


async def test_none_begins_after_the_deadline() -> None:
    slow, clock = Trouble("is busy", passing=True, after=4), FakeTime()
    with raises(ModelUnavailable):
        await asked([slow], ModelLimits(attempts=100, deadline=12, first_pause=1), clock.timing)
    assert clock.pauses == [5, 6]


async def test_to_wait_for_ones_turn_is_no_delay_of_the_server() -> None:
    clock = FakeTime()
    limits = ModelLimits(requests_per_minute=1, deadline=30)
    assert await asked([BUSY, BUSY, DONE], limits, clock.timing) == [30, 30, 30]
    assert clock.time == 120


async def test_who_wonders_what_takes_so_long_finds_it_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    await asked([BUSY, DONE], ModelLimits(first_pause=1), FakeTime().timing)
    assert caplog.messages == ["pausing requests to http://m/v1 for 1.0 s", "m is busy; attempt 2 follows"]


async def test_the_usual_pauses_are_random() -> None:
    clock = FakeTime()
    with pytest.raises(ModelUnavailable):
        await asked(
            [BUSY],
            ModelLimits(attempts=20, first_pause=1, longest_pause=1),
            Timing(later=clock.later, now=lambda: clock.time),
        )
    assert len(set(clock.pauses)) == 19
    assert 0 <= min(clock.pauses) < max(clock.pauses) <= 1


async def test_each_host_gets_its_own_key(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY_127_0_0_1", "of-the-number")
    monkeypatch.setenv("API_KEY_LOCALHOST", "of-the-name")
    server.replies = [says("chat", "Hi.")]
    async with open_model(f"chat:m@{server.url},{server.url.replace('127.0.0.1', 'localhost')}", {}) as source:
        await asyncio.gather(*(ask(source.for_episode(seed), seed) for seed in range(20)))
    keys = {(asked.headers["host"].partition(":")[0], asked.headers["authorization"]) for asked in server.asked}
    assert keys == {("127.0.0.1", "Bearer of-the-number"), ("localhost", "Bearer of-the-name")}


@pytest.mark.parametrize("more", ["", "host/v1", "ftp://host/v1", "http://", "http://a/v1"])
def test_each_address_is_checked(more: str) -> None:
    with raises(InvalidModel):
        open_model(f"chat:m@http://a/v1,{more}", {})

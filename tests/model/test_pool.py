"""One model on several servers: where an episode's requests go, and where they go when a server fails."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from itertools import count
from typing import Any

import pytest

from stateroom.errors import ModelUnavailable, NotFound
from stateroom.model import Model, ModelLimits, Request, Scripted, answer_of, input_items, open_model
from tests.messages import raises
from tests.model.endpoints import (
    EndpointPool,
    FakeEndpoint,
    FakeTime,
    Question,
    Server,
    StoppedTime,
    Trouble,
    asking,
    says,
)
from tests.patience import PATIENCE
from tests.servers.vllm import VLLM, Recorded, VLLMProcess, serving

GONE = Trouble("cannot be reached", passing=True, health="gone")
DONE: dict[str, Any] = {}


@pytest.fixture
async def pair() -> AsyncIterator[list[tuple[VLLM, str]]]:
    """Two servers, and their URLs."""
    async with AsyncExitStack() as stack:
        servers = [VLLM(), VLLM()]
        yield [(server, await stack.enter_async_context(serving(server))) for server in servers]


def urls(pair: list[tuple[VLLM, str]]) -> str:
    return ",".join(url for _, url in pair)


async def ask(model: Model, seed: int, step: int = 0) -> None:
    await answer_of(model, Request(input_items("Hello."), seed=seed, step=step))


async def at_home(model: Model, home: VLLM) -> Iterator[int]:
    """Seeds of episodes that a server gets while all are well."""
    seeds = []
    for seed in range(40):
        await ask(model, seed)
        if home.recorded and home.recorded[-1].seed == seed:
            seeds.append(seed)
    home.recorded.clear()
    return iter(seeds)


def seeds_of(recorded: list[Recorded]) -> set[int | None]:
    return {each.seed for each in recorded}


async def test_an_episode_stays_with_one_server_and_episodes_are_spread(pair: list[tuple[VLLM, str]]) -> None:
    async with asking("chat", urls(pair)) as model, asking("chat", urls(pair[::-1])) as again:
        for step in range(3):
            await asyncio.gather(*(ask(each, seed, step) for seed in range(20) for each in (model, again)))
    one, two = (seeds_of(server.recorded) for server, _ in pair)
    assert one.isdisjoint(two)
    assert one | two == set(range(20))
    assert min(len(one), len(two)) >= 3


async def test_what_one_server_cannot_answer_another_is_asked_at_once(pair: list[tuple[VLLM, str]]) -> None:
    clock = FakeTime()
    async with asking("chat", urls(pair), clock=clock) as model:
        (one, _), (two, _) = pair
        seed = next(await at_home(model, one))
        two.recorded.clear()
        one.limits.fail = [1]
        await ask(model, seed)
        assert [len(server.recorded) for server in (one, two)] == [1, 1]
        assert clock.pauses == []
        await ask(model, seed)  # one failure is no illness
        assert [len(server.recorded) for server in (one, two)] == [2, 1]


async def test_a_busy_server_is_not_left(pair: list[tuple[VLLM, str]]) -> None:
    clock = FakeTime()
    async with asking("chat", urls(pair), ModelLimits(attempts=5), clock) as model:
        (one, _), (two, _) = pair
        seed = next(await at_home(model, one))
        two.recorded.clear()
        one.limits.per_minute = 0
        with raises(ModelUnavailable):
            await ask(model, seed)
    assert [len(server.recorded) for server in (one, two)] == [5, 0]


async def test_a_server_that_fails_again_and_again_is_left_and_later_tried_by_one_request(
    pair: list[tuple[VLLM, str]],
) -> None:
    clock = FakeTime()
    async with asking("chat", urls(pair), clock=clock) as model:
        (one, _), (two, _) = pair
        seeds = await at_home(model, one)
        two.recorded.clear()
        one.limits.fail = range(1, 4)
        for _ in range(5):
            await ask(model, next(seeds))
        assert [len(server.recorded) for server in (one, two)] == [3, 5]
        clock.time += 60
        await asyncio.gather(*(ask(model, next(seeds)) for _ in range(4)))
        assert [len(server.recorded) for server in (one, two)] == [4, 8]
        await asyncio.gather(*(ask(model, next(seeds)) for _ in range(4)))
        assert [len(server.recorded) for server in (one, two)] == [8, 8]


async def seeds_of_the_first(*names: str) -> list[int]:
    """The seeds of the episodes whose requests go to the first of some endpoints while all are well."""
    endpoints = [FakeEndpoint(name, [DONE]) for name in names]
    pool, seeds = EndpointPool("m", endpoints, ModelLimits(), timing=FakeTime().timing), []
    for seed in range(40):
        before = len(endpoints[0].given)
        await pool.ask("chat", {}, Request([], seed=seed))
        seeds += [seed] * (len(endpoints[0].given) - before)
    return seeds


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


@pytest.mark.parametrize("servers", [1, 2])
async def test_when_all_are_gone_nobody_waits_for_long(servers: int) -> None:
    endpoints = [FakeEndpoint(f"s{number}", [GONE]) for number in range(servers)]
    pool = EndpointPool("m", endpoints, ModelLimits(attempts=4), timing=FakeTime().timing)
    asked = [pool.ask("chat", {}, Request([], seed=seed)) for seed in range(30)]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert {type(each) for each in found} == {ModelUnavailable}
    assert all("cannot be reached" in str(each) for each in found)
    assert sum(len(endpoint.given) for endpoint in endpoints) < 30 * 4 / 2


async def test_episodes_leave_a_server_that_is_killed_and_come_back_when_it_is_there_again() -> None:
    clock, steps = FakeTime(), count()
    with VLLMProcess() as one, VLLMProcess() as two:

        async def seeds_of_one(model: Model) -> set[int]:
            """All episodes take a step; those that `one` has answered."""
            step = next(steps)
            for seed in range(12):
                await ask(model, seed, step)
            if one.process.poll() is not None:
                return set()
            return {each["seed"] for each in one.recorded()["requests"]}

        async with asking("chat", f"{one.url},{two.url}", clock=clock) as model:
            home = await seeds_of_one(model)
            assert 0 < len(home) < 12
            one.kill()
            assert await seeds_of_one(model) == set()
            assert {each["seed"] for each in two.recorded()["requests"]} == set(range(12))
            one.start()
            clock.time += 60
            assert await seeds_of_one(model) == home


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


# By their spec.


async def test_the_servers_are_listed_after_the_name(pair: list[tuple[VLLM, str]]) -> None:
    spec = f"chat:m@{urls(pair)}"
    async with open_model(spec, {}) as source:
        assert source.name == source.for_episode(0).name == spec
        await asyncio.gather(*(ask(source.for_episode(seed), seed) for seed in range(20)))
    assert all(server.recorded for server, _ in pair)


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
    with raises(NotFound):
        open_model(f"chat:m@http://a/v1,{more}", {})


@pytest.mark.parametrize("spec", ["replay:x.jsonl", "local", "reference", "gold", Scripted(["Hi."])])
def test_a_model_without_a_server_takes_no_limits(spec: str | Model) -> None:
    with raises(NotFound):
        open_model(spec, {"reference": Scripted}, limits=ModelLimits())

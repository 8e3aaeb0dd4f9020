"""Workers that are killed or paused at any moment: what they acknowledged is there once, and the next one goes on."""

import asyncio
import random
import signal
from typing import Any

import pytest

from stateroom import Sessions, open_store
from stateroom.environment import load_class
from stateroom.errors import SessionLeased
from stateroom.session import check_session, each_session
from stateroom.store import Store
from tests.examples import share
from tests.faults.conftest import WORKER, Nurse, Nursery
from tests.faults.worker import STEPS

pytestmark = pytest.mark.more("time")

EPISODES = share(2)


def counting(store: Any) -> Sessions[Any]:
    return Sessions(load_class(f"{WORKER}:CountingEnvironment")(), store)


async def problems(store: Store) -> list[Any]:
    """What `stateroom store check` would find, once what the dead had only begun is cleared away."""
    found = [problem async for problem in each_session(store, lambda head: check_session(store, head)) if problem[1]]
    await store.maintenance.vacuum()
    return [*found, *await store.maintenance.orphans()]


async def play(nursery: Nursery, first: int, last: int, rng: random.Random) -> int:
    """Have episodes played by one worker after another, each killed somewhere; how many were killed."""
    killed = 0
    while True:
        worker = await nursery.start("play", first, last)
        for _ in range(rng.randrange(1, 12)):
            number, reward = await nursery.hear("played")
            assert float(reward) == STEPS
            first = int(number) + 1
            if first == last:
                return killed
        await asyncio.sleep(rng.random() * 0.02)  # anywhere within an episode
        nursery.signal(worker, signal.SIGKILL)
        killed += 1


async def test_episodes_whose_workers_are_killed_at_random_are_played_to_their_end(url: str, nurse: Nurse) -> None:
    rng = random.Random(4)
    middle = EPISODES // 2
    sides = [play(await nurse(url), *half, rng) for half in ((0, middle), (middle, EPISODES))]
    assert sum(await asyncio.gather(*sides)) > EPISODES / 20
    async with open_store(url) as store:
        sessions = counting(store)
        for number in range(EPISODES):
            session = await sessions.open(f"episode {number}")
            calls = [entry.call_id async for entry in session.log() if entry.kind == "call"]
            assert calls == [f"call {step}" for step in range(STEPS)], "each call once"
            assert session.state.value == STEPS
        assert not await problems(store)


async def test_a_holder_that_is_paused_past_its_lease_is_refused_and_goes_on(url: str, nurse: Nurse) -> None:
    nursery = await nurse(url)
    async with open_store(url) as store:
        sessions = counting(store)
        session = await sessions.seed({}, session_id="room")
        worker = await nursery.start("hold", "room", 1)
        await nursery.hear("added")
        nursery.signal(worker, signal.SIGSTOP)
        mine = 0
        while True:
            try:
                async with session.lease(5):  # as soon as the lease has run out
                    for _ in range(5):
                        mine += (await session.call("increment")).ok
                    nursery.signal(worker, signal.SIGCONT)  # it wakes up, and thinks that it holds the session
                    for _ in range(5):
                        mine += (await session.call("increment")).ok
                break
            except SessionLeased:
                await asyncio.sleep(0.05)
        assert mine == 10
        theirs = [int((await nursery.hear("added"))[0]) for _ in range(3)][-1]  # it has gone on
        nursery.signal(worker, signal.SIGKILL)
        log = [entry async for entry in session.log() if entry.kind == "call"]
        held = [entry for entry in log if str(entry.call_id).startswith("held")]
        assert [entry.output for entry in log] == [*range(1, len(log) + 1)], "nobody's update was lost"
        assert len(log) - len(held) == mine
        assert [entry.call_id for entry in held] == [f"held {number}" for number in range(len(held))]
        assert len(held) > theirs

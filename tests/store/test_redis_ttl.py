"""The time to live of sessions in Redis: where nobody sweeps, sessions go by themselves, and no fork loses its past."""

import asyncio
import time
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings, strategies as st

from stateroom import SessionLimits, Sessions
from stateroom.errors import UnknownSession
from stateroom.session import Session
from stateroom.store import Commit, Record, Snapshot, Store
from stateroom.store.redis.scripts import GRACE_SECONDS
from tests.examples import share
from tests.servers.redis import RedisCluster, RedisKeys
from tests.session.stored_sessions import Notes, NotesEnvironment, problems
from tests.store.rooms import bare, entry, head

HOUR = 3600.0
LARGE = "large " * 20_000


@pytest.fixture
def url(redis_url: str) -> str:
    return f"{redis_url}?prefix={uuid4().hex}:"


def pass_time(keys: RedisKeys, seconds: float) -> None:
    """Let time pass for the server's keys of sessions."""
    for key in keys.all("{/"):
        if key.endswith((":snapshots", ":forks")):
            continue
        name = keys.prefix + key
        left, held = keys.client.pttl(name), keys.client.hget(name, "held")
        assert left > 0
        if held:
            keys.client.hset(name, "held", str(int(held) - round(seconds * 1000)))
        keys.client.pexpire(name, round(left - seconds * 1000))


# What each step does.


async def test_a_session_lives_a_little_longer_than_its_expiry(store: Store, keys: RedisKeys) -> None:
    now = time.time()
    await store.create(head(expires=now + 60, created=now), [entry(1)], Snapshot(1, b"state"), {"aa": b"1"})
    assert keys.seconds_left("room") == pytest.approx(60 + GRACE_SECONDS, abs=2)
    await store.touch("room", now=now, expires=now + 600)
    assert keys.seconds_left("room") == pytest.approx(600 + GRACE_SECONDS, abs=2)
    await store.append(Commit("room", entry(2, at=now), expires=now + 6000))
    assert keys.seconds_left("room") == pytest.approx(6000 + GRACE_SECONDS, abs=2)
    await store.append(Commit("room", entry(3, at=now), snapshot=Snapshot(3, b"state")))
    assert keys.seconds_left("room") == pytest.approx(6000 + GRACE_SECONDS, abs=2)


@pytest.mark.parametrize("now", [1000.0, "ahead", "behind"])
async def test_a_clock_that_is_wrong_does_not_end_a_session(store: Store, keys: RedisKeys, now: Any) -> None:
    now = {"ahead": time.time() + 1e7, "behind": time.time() - 1e7}.get(now, now)
    await store.create(head(expires=now + 60, created=now), [entry(1, at=now)])
    assert keys.seconds_left("room") >= 60 + GRACE_SECONDS - 1
    if now > time.time():  # others, whose clocks are right, do not renew it for long
        assert keys.seconds_left("room") >= 1e7


@pytest.mark.parametrize("expires", [1e300, float("inf"), -1e300])
async def test_an_expiry_beyond_all_time_is_stored(store: Store, keys: RedisKeys, expires: float) -> None:
    await store.create(head(expires=expires), [entry(1)], Snapshot(1, b"state"))
    assert (await store.head("room")).expires == expires
    assert keys.seconds_left("room") >= GRACE_SECONDS - 1


async def test_an_earlier_expiry_takes_no_time_from_the_forks(store: Store, keys: RedisKeys) -> None:
    await store.create(head(expires=60.0), [entry(1)])
    await store.create(head("fork", expires=6000.0, parent="room"))
    await store.touch("room", now=0.0, expires=10.0)
    await store.delete("room")  # the fork reads it
    assert keys.seconds_left("room") > keys.seconds_left("fork") > 6000
    assert (await store.head("room")).expires == 0.0


async def test_a_fork_whose_parent_was_lost_goes_on(store: Store, keys: RedisKeys) -> None:
    await store.create(head(expires=60.0), [entry(1)])
    await store.create(head("fork", expires=60.0, parent="room"))
    keys.remove("{/room}")
    await store.append(Commit("fork", entry(2), expires=1e9))
    await store.touch("fork", now=0.0, expires=2e9)
    assert (await store.head("fork")).expires == 2e9


@pytest.mark.parametrize("renew", ["touch", "append", "put"])
async def test_a_renewed_fork_holds_all_its_ancestors(store: Store, keys: RedisKeys, renew: str) -> None:
    await store.create(head("0", expires=60.0), [entry(1)])
    for number in range(1, 6):
        await store.create(head(str(number), expires=60.0, parent=str(number - 1)))
    assert [head.id for head in await store.children("0")] == ["1"]
    if renew == "touch":
        await store.touch("5", now=0.0, expires=1e6)
    elif renew == "append":
        await store.append(Commit("5", entry(2), expires=1e6))
    else:
        await store.put(Record(head("5", expires=1e6, parent="4"), [], [], {}))
    left = [keys.seconds_left(str(number)) for number in range(6)]
    assert left == sorted(left, reverse=True)
    assert left[5] == pytest.approx(1e6 + GRACE_SECONDS, abs=2)
    assert left[4] > left[5] + GRACE_SECONDS


async def test_a_cluster_holds_ancestors_on_other_servers(cluster: RedisCluster) -> None:
    url = f"{cluster.url}?prefix={uuid4().hex}:"
    async with bare(url) as store:
        await store.create(head("0", expires=60.0), [entry(1)], Snapshot(1, b"state"))
        for number in range(1, 8):
            await store.create(head(str(number), expires=60.0, parent=str(number - 1)))
        await store.touch("7", now=0.0, expires=1e6)
        with RedisKeys(url) as keys:
            left = [keys.seconds_left(str(number)) for number in range(8)]
    assert left == sorted(left, reverse=True)
    assert left[-1] > 1e6


# Against a model.

TTL = 10 * HOUR

which = st.sampled_from([-1, -1, -1, 0, 1, 2])
"""The number of a session: the newest is used most."""
operations = st.one_of(
    st.tuples(st.sampled_from(["call", "call", "fork", "large", "rewind", "delete"]), which),
    st.tuples(st.just("pass"), st.sampled_from([0.05, 4.0, 9.0, 9.0])),
)
"""What is done in which session, and for how many hours nothing is."""


class Run:
    """Sessions in a store that nobody sweeps."""

    def __init__(self, store: Store, keys: RedisKeys) -> None:
        self.store = store
        self.keys = keys
        self.now = 1000.0
        self.expected: dict[str, tuple[float, list[str]]] = {}
        """The expiry of each session at least, and its notes."""

    def sessions(self) -> Sessions[Notes]:
        return Sessions(NotesEnvironment(), self.store, SessionLimits(ttl=TTL, now=lambda: self.now))

    async def step(self, name: str, more: Any) -> None:
        live = [session for session, (expires, _) in self.expected.items() if expires > self.now]
        if name == "pass":
            pass_time(self.keys, more * HOUR)
            self.now += more * HOUR
        elif not live:
            await self.keep(await self.sessions().seed({"user": "ann"}))
        elif name == "delete":
            await self.store.delete(live[more % len(live)])
            del self.expected[live[more % len(live)]]
        else:
            session = await self.sessions().open(live[more % len(live)])
            if name == "fork":
                await self.keep(await session.fork())
            elif name == "rewind":
                await session.rewind(1)
            else:
                text = LARGE if name == "large" else f"note {self.now} {session.revision}"
                assert (await session.call("add", {"text": text})).ok
            await self.keep(session)

    async def keep(self, session: Session[Notes]) -> None:
        self.expected[session.id] = self.now + TTL * 0.98, list((await session.state_at()).notes)

    async def check(self) -> None:
        """Every session that lives is whole, with what it has of its ancestors."""
        for session, (expires, notes) in self.expected.items():
            if expires > self.now:
                opened = await self.sessions().open(session)
                assert list(opened.state.notes) == notes
                assert [entry.revision async for entry in opened.log()] == list(range(1, opened.revision + 1))


@settings(max_examples=share(0.5))
@given(st.lists(operations, min_size=10, max_size=40))
def test_a_live_session_is_whole_and_in_the_end_nothing_is_left(redis_url: str, program: list[Any]) -> None:
    async def carry_out() -> None:
        url = f"{redis_url}?prefix={uuid4().hex}:"
        async with bare(url) as store:
            with RedisKeys(url) as keys:
                run = Run(store, keys)
                for operation in program:
                    await run.step(*operation)
                    await run.check()
                for _ in range(4):  # a parent is held for twice as long as its fork, and its own a little longer
                    pass_time(keys, TTL)
                assert [key for key in keys.all("{/") if not key.endswith((":snapshots", ":forks"))] == []
                assert await store.sweep(run.now + 1e6) == 0  # no session is left, but lines of the index are
                assert (keys.all(), await problems(store)) == ([], {})

    asyncio.run(carry_out())


async def test_keys_that_are_gone_are_an_unknown_session(store: Store, keys: RedisKeys) -> None:
    await store.create(head(expires=0.05), [entry(1)], Snapshot(1, b"state"))
    pass_time(keys, GRACE_SECONDS + 1)
    with pytest.raises(UnknownSession):
        await store.head("room")
    assert (await store.count(0.0), await store.heads()) == (1, [])  # the index has not heard of it
    assert await store.count(1.0) == 0
    await store.create(head(expires=10.0), [entry(1)])  # of the same id, which finds nothing of the first one
    assert (await store.load("room")).snapshot is None
    assert await store.sweep(1.0) == 0
    assert [head.id for head in await store.heads()] == ["room"]
    assert await store.maintenance.orphans() == []

"""A session that one worker has for itself: what it may rely on, and what happens when it has lost the session."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import time
from typing import Any

import pytest

from stateroom import Environment, SessionLimits, Sessions, State, open_store, tool
from stateroom.errors import SessionLeased, StoreUnavailable
from stateroom.session import Session, lease
from stateroom.store import Head, Store
from tests.patience import PATIENCE

pytestmark = pytest.mark.every_store


class Counter(State):
    value: int = 0


class CountingEnvironment(Environment[Counter]):
    """Counts."""

    @tool
    def increment(self, state: Counter) -> int:
        """Add one."""
        state.value += 1
        return state.value

    @tool(effect="read")
    def look(self, state: Counter) -> int:
        """The value."""
        return state.value

    @tool(effect="external")
    async def send(self, state: Counter) -> int:
        """Reach outside, slowly."""
        state.value += 100
        self.outside.set()
        await self.back.wait()
        return state.value

    def __init__(self) -> None:
        self.outside, self.back = asyncio.Event(), asyncio.Event()

    def verify(self, state: Counter) -> float:
        return float(state.value)


class Clock:
    """A worker's clock, which a test may put ahead."""

    ahead = 0.0

    def __call__(self) -> float:
        return time() + self.ahead


@pytest.fixture
def mine(store: Store) -> Sessions[Counter]:
    return Sessions(CountingEnvironment(), store, SessionLimits(now=Clock()))


@pytest.fixture
def theirs(store: Store) -> Sessions[Counter]:
    """Another worker on the same store."""
    return Sessions(CountingEnvironment(), store, SessionLimits(now=Clock()))


def put_ahead(seconds: float, *workers: Sessions[Counter]) -> None:
    for worker in workers:
        clock: Any = worker.runtime.now
        clock.ahead = seconds


async def test_others_can_read_but_not_change_what_is_held(mine: Sessions[Counter], theirs: Sessions[Counter]) -> None:
    session = await mine.seed({})
    other = await theirs.open(session.id)
    async with session.lease():
        assert (await session.call("increment")).output == 1
        assert (await other.call("look")).output == 1
        for change in (other.call("increment"), other.checkpoint("x"), other.rewind(1), other.verify(), other.close()):
            with pytest.raises(SessionLeased):
                await change
    assert (await other.call("increment")).output == 2
    assert (await session.call("look")).output == 2


@pytest.mark.parametrize(
    "change", [partial(Session.call, name="increment"), partial(Session.rewind, to=1), Session.verify]
)
async def test_a_writer_that_did_not_know_of_the_lease_is_refused(
    mine: Sessions[Counter], theirs: Sessions[Counter], change: Callable[[Session[Counter]], Awaitable[object]]
) -> None:
    session = await mine.seed({})
    other = await theirs.open(session.id)  # and nothing tells it what happens from here on
    async with session.lease():
        with pytest.raises(SessionLeased):
            await change(other)
    assert (await session.call("look")).output == 0


async def test_only_one_can_hold_a_session(mine: Sessions[Counter], theirs: Sessions[Counter]) -> None:
    session = await mine.seed({})
    async with session.lease():
        with pytest.raises(SessionLeased):
            async with (await theirs.open(session.id)).lease():
                raise AssertionError
    async with (await theirs.open(session.id)).lease():
        assert (await theirs.open(session.id)).revision == 1


async def test_what_is_held_is_read_without_asking_the_store(
    mine: Sessions[Counter], theirs: Sessions[Counter], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await mine.seed({})
    asked = []
    ask = mine.store.head

    async def head(session_id: str) -> Head:
        asked.append(session_id)
        return await ask(session_id)

    monkeypatch.setattr(mine.store, "head", head)
    async with session.lease():
        await session.call("increment")
        asked.clear()
        assert (await session.call("look")).output == 1
        assert not asked
    await (await theirs.open(session.id)).call("increment")
    assert (await session.call("look")).output == 2, "without the lease it must look"


async def test_a_holder_that_comes_too_late_is_refused_and_goes_on_from_what_is_there(
    mine: Sessions[Counter], theirs: Sessions[Counter]
) -> None:
    session = await mine.seed({})
    async with session.lease(seconds=30) as held:
        await session.call("increment")
        put_ahead(31, mine, theirs)  # it was paused: others may think that it is gone
        other = await theirs.open(session.id)
        async with other.lease():
            assert (await other.call("increment")).output == 2
        assert not held.lost, "it does not know yet"
        assert (await session.call("increment")).output == 3, "and its commit is made again on what is there"


async def test_a_lease_is_renewed_in_the_background(
    mine: Sessions[Counter], theirs: Sessions[Counter], monkeypatch: pytest.MonkeyPatch
) -> None:
    renewed = asyncio.Event()
    take = mine.store.lease

    async def taken(session_id: str, holder: str, *, now: float, until: float) -> Head:
        head = await take(session_id, holder, now=now, until=until)
        renewed.set()
        return head

    monkeypatch.setattr(mine.store, "lease", taken)
    session = await mine.seed({})
    async with session.lease(seconds=1.5) as held:
        for _ in range(2):
            renewed.clear()
            await asyncio.wait_for(renewed.wait(), PATIENCE)
        assert not held.lost
        head = await theirs.store.head(session.id)
        assert head.leased(theirs.runtime.now())
    assert not (await theirs.store.head(session.id)).leased(theirs.runtime.now())


async def test_a_lease_that_went_to_somebody_else_is_noticed(
    mine: Sessions[Counter], theirs: Sessions[Counter]
) -> None:
    session = await mine.seed({})
    async with session.lease(seconds=0.3) as held:
        other = await theirs.open(session.id)
        put_ahead(3600, theirs)
        async with other.lease():
            assert held._renewing is not None
            await asyncio.wait_for(held._renewing, PATIENCE)
            assert held.lost
            assert (await other.call("increment")).output == 1
        assert (await session.call("look")).output == 1


async def test_the_rest_of_a_lease_is_not_relied_on() -> None:
    async with open_store("memory://") as store:
        session = await Sessions(CountingEnvironment(), store).seed({})
        async with session.lease(seconds=0):
            assert lease.SURE < 1
            assert not session._open.cached.is_fresh


async def test_a_session_that_was_deleted_and_seeded_again_refuses_the_old_ones_writer(
    mine: Sessions[Counter], theirs: Sessions[Counter], store: Store
) -> None:
    session = await mine.seed({}, session_id="room")
    await session.call("increment")
    await store.delete("room")
    other = await theirs.seed({}, session_id="room")
    await other.call("increment")
    with pytest.raises(Exception, match="no session"):  # at an equal revision
        await session.call("increment")
    assert (await other.call("look")).output == 1


async def test_a_late_holder_writes_nothing_while_another_holds_the_session(
    mine: Sessions[Counter], theirs: Sessions[Counter]
) -> None:
    session = await mine.seed({})
    async with session.lease(seconds=30):
        put_ahead(31, mine, theirs)
        other = await theirs.open(session.id)
        async with other.lease():
            await other.call("increment")
            with pytest.raises(SessionLeased):
                await session.call("increment")
            assert (await other.call("look")).output == 1


async def test_an_external_call_that_ends_while_another_holds_the_session_is_not_entered(
    mine: Sessions[Counter], theirs: Sessions[Counter]
) -> None:
    session = await mine.seed({})
    other = await theirs.open(session.id)
    sending = asyncio.create_task(session.call("send", call_id="c"))
    environment = mine.environment
    assert isinstance(environment, CountingEnvironment)
    await environment.outside.wait()
    async with other.lease():
        environment.back.set()
        with pytest.raises(SessionLeased):
            await sending
        assert (await other.call("look")).output == 0
    assert (await session.call("send", call_id="c")).code == "unknown_outcome"


async def test_a_hold_that_fails_at_once_leaves_nothing_behind(
    mine: Sessions[Counter], theirs: Sessions[Counter], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await mine.seed({})

    async def refresh() -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(session._open.cached, "refresh", refresh)
        with pytest.raises(StoreUnavailable):
            await session.lease().__aenter__()
    assert session._open.cached.lease is None
    assert (await (await theirs.open(session.id)).call("increment")).output == 1


async def test_a_lease_that_was_lost_and_came_back_is_given_up(
    mine: Sessions[Counter], theirs: Sessions[Counter]
) -> None:
    session = await mine.seed({})
    async with session.lease(seconds=0.6) as held:
        other = await theirs.open(session.id)
        put_ahead(3600, theirs)
        async with other.lease():
            pass  # and it is free again before the first worker looks
        put_ahead(0, theirs)
        assert held._renewing is not None
        await asyncio.wait_for(held._renewing, PATIENCE)
        assert held.lost
        assert (await session.call("increment")).output == 1
        assert (await other.call("increment")).output == 2


async def test_a_session_that_is_held_stays_at_hand() -> None:
    async with open_store("memory://") as store:
        sessions = Sessions(CountingEnvironment(), store, SessionLimits(hot=2))
        session = await sessions.seed({})
        async with session.lease():
            for _ in range(4):
                await sessions.seed({})
            again = await sessions.open(session.id)
            assert (await again.call("increment")).output == 1


async def test_a_lease_that_cannot_be_renewed_for_an_unexpected_reason_is_lost(
    mine: Sessions[Counter], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of luck")

    session = await mine.seed({})
    async with session.lease(seconds=0.03) as held:
        monkeypatch.setattr(mine.store, "lease", fail)
        assert held._renewing is not None
        await asyncio.wait_for(held._renewing, PATIENCE)
        assert held.lost

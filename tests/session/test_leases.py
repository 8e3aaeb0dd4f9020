"""A session that one worker has for itself: what it may rely on, and what happens when it has lost the session."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from time import time
from typing import Any

import pytest

from stateroom import SessionLimits, Sessions, open_store
from stateroom.errors import SessionLeased, StoreUnavailable, UnknownSession
from stateroom.session import Session
from stateroom.store import Store
from tests.environments import Tally, TallyEnvironment
from tests.patience import PATIENCE
from tests.watched import WatchedStore

pytestmark = pytest.mark.every_store


class Clock:
    """A worker's clock, which a test may put ahead."""

    ahead = 0.0

    def __call__(self) -> float:
        return time() + self.ahead


@pytest.fixture
def mine(store: Store) -> Sessions[Tally]:
    return Sessions(TallyEnvironment(), store, SessionLimits(now=Clock()))


@pytest.fixture
def theirs(store: Store) -> Sessions[Tally]:
    """Another worker on the same store."""
    return Sessions(TallyEnvironment(), store, SessionLimits(now=Clock()))


def put_ahead(seconds: float, *workers: Sessions[Tally]) -> None:
    for worker in workers:
        clock: Any = worker.runtime.now
        clock.ahead = seconds


async def test_others_can_read_but_not_change_what_is_held(mine: Sessions[Tally], theirs: Sessions[Tally]) -> None:
    session = await mine.seed({})
    other = await theirs.open(session.id)
    async with session.lease():
        assert (await session.call("add")).output == 1
        assert (await other.call("look")).output == 1
        for change in (other.call("add"), other.checkpoint("x"), other.rewind(1), other.verify(), other.close()):
            with pytest.raises(SessionLeased):
                await change
        with pytest.raises(SessionLeased):
            async with other.lease():
                raise AssertionError
    assert (await other.call("add")).output == 2
    assert (await session.call("look")).output == 2


@pytest.mark.parametrize("change", [partial(Session.call, name="add"), partial(Session.rewind, to=1), Session.verify])
async def test_a_writer_that_did_not_know_of_the_lease_is_refused(
    mine: Sessions[Tally], theirs: Sessions[Tally], change: Callable[[Session[Tally]], Awaitable[object]]
) -> None:
    session = await mine.seed({})
    other = await theirs.open(session.id)  # and nothing tells it what happens from here on
    async with session.lease():
        with pytest.raises(SessionLeased):
            await change(other)
    assert (await session.call("look")).output == 0


async def lost(held: Any) -> None:
    """Wait until a lease is lost."""
    async with asyncio.timeout(PATIENCE):
        while not held.lost:  # noqa: ASYNC110 - a task of its own finds out
            await asyncio.sleep(0.005)


@pytest.mark.parametrize(("seconds", "asked"), [(30.0, 0), (0.0, 1)])
async def test_what_is_held_is_read_without_asking_the_store_but_not_in_the_rest_of_a_lease(
    store: Store, theirs: Sessions[Tally], seconds: float, asked: int
) -> None:
    watched = WatchedStore(store)
    session = await Sessions(TallyEnvironment(), watched).seed({})
    async with session.lease(seconds=seconds):
        await session.call("add")
        watched.counts.clear()
        assert (await session.call("look")).output == 1
        assert watched.counts["head"] == asked
    await (await theirs.open(session.id)).call("add")
    assert (await session.call("look")).output == 2, "without the lease it must look"


async def test_a_holder_that_comes_too_late_is_refused_while_another_holds_and_goes_on_from_what_is_there(
    mine: Sessions[Tally], theirs: Sessions[Tally]
) -> None:
    session = await mine.seed({})
    async with session.lease(seconds=30) as held:
        await session.call("add")
        put_ahead(31, mine, theirs)  # it was paused: others may think that it is gone
        other = await theirs.open(session.id)
        async with other.lease():
            assert (await other.call("add")).output == 2
            assert not held.lost, "it does not know yet"
            with pytest.raises(SessionLeased):
                await session.call("add")
        assert (await session.call("add")).output == 3, "and its commit is made again on what is there"


async def test_a_lease_is_renewed_in_the_background(store: Store, theirs: Sessions[Tally]) -> None:
    taken = asyncio.Semaphore(0)
    watched = WatchedStore(store)
    session = await Sessions(TallyEnvironment(), watched).seed({})

    async def note(operation: str, *_: object) -> None:
        if operation == "lease":
            taken.release()

    watched.before = note
    async with session.lease(seconds=1.5) as held:
        for _ in range(3):
            await asyncio.wait_for(taken.acquire(), PATIENCE)
        assert not held.lost
        assert (await store.head(session.id)).leased(theirs.runtime.now())
    assert not (await store.head(session.id)).leased(theirs.runtime.now())


@pytest.mark.parametrize("is_free_again", [False, True])
async def test_a_lease_that_went_to_somebody_else_is_noticed_and_given_up(
    mine: Sessions[Tally], theirs: Sessions[Tally], is_free_again: bool
) -> None:
    session = await mine.seed({})
    async with session.lease(seconds=0.3) as held:
        other = await theirs.open(session.id)
        put_ahead(3600, theirs)
        async with other.lease():
            if not is_free_again:  # before the first worker looks
                await lost(held)
        put_ahead(0, theirs)
        await lost(held)
        assert (await session.call("add")).output == 1
        assert (await other.call("add")).output == 2


async def test_a_session_that_was_deleted_and_seeded_again_refuses_the_old_ones_writer(
    mine: Sessions[Tally], theirs: Sessions[Tally], store: Store
) -> None:
    session = await mine.seed({}, session_id="room")
    await session.call("add")
    await store.delete("room")
    other = await theirs.seed({}, session_id="room")
    await other.call("add")
    for use in ("add", "look"):
        with pytest.raises(UnknownSession):  # at an equal revision
            await session.call(use)
    assert (await other.call("look")).output == 1


async def test_an_external_call_that_ends_while_another_holds_the_session_is_not_entered(
    store: Store, theirs: Sessions[Tally]
) -> None:
    environment = TallyEnvironment()
    environment.go_on.clear()
    session = await Sessions(environment, store).seed({})
    other = await theirs.open(session.id)
    sending = asyncio.create_task(session.call("send", call_id="c"))
    await environment.begun.wait()
    async with other.lease():
        environment.go_on.set()
        with pytest.raises(SessionLeased):
            await sending
        assert (await other.call("look")).output == 0
    assert (await session.call("send", call_id="c")).code == "unknown_outcome"


async def test_a_hold_that_fails_at_once_leaves_nothing_behind(store: Store, theirs: Sessions[Tally]) -> None:
    watched = WatchedStore(store)
    session = await Sessions(TallyEnvironment(), watched).seed({})
    await (await theirs.open(session.id)).call("add")  # so that there is something to read

    async def fail(operation: str, *_: object) -> None:
        if operation in ("load", "entries"):
            raise StoreUnavailable("away")

    watched.before = fail
    with pytest.raises(StoreUnavailable):
        async with session.lease():
            raise AssertionError
    assert (await (await theirs.open(session.id)).call("add")).output == 2


async def test_a_session_that_is_held_stays_at_hand() -> None:
    async with open_store("memory://") as store:
        sessions = Sessions(TallyEnvironment(), store, SessionLimits(hot=2))
        session = await sessions.seed({})
        async with session.lease():
            for _ in range(4):
                await sessions.seed({})
            again = await sessions.open(session.id)
            assert (await again.call("add")).output == 1


async def test_a_lease_that_cannot_be_renewed_for_an_unexpected_reason_is_lost(store: Store) -> None:
    watched = WatchedStore(store)
    session = await Sessions(TallyEnvironment(), watched).seed({})

    async def fail(operation: str, *_: object) -> None:
        if operation == "lease":
            raise RuntimeError("out of luck")

    async with session.lease(seconds=0.03) as held:
        watched.before = fail
        await lost(held)

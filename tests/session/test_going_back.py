"""Looking back, going back and branching off, also where the state is too large to be read for it."""

import asyncio
from typing import Any

import pytest

from stateroom import Sessions, tool
from stateroom.errors import InvalidArguments, SessionError, UnknownRevision
from stateroom.state import diff
from stateroom.store import Store
from tests.messages import raises
from tests.session.shelf import ShelfEnvironment
from tests.session.stored_sessions import Notes, NotesEnvironment, Profile, go_on, sessions_of
from tests.watched import WatchedStore

pytestmark = pytest.mark.every_store


@pytest.fixture
def sessions(store: Store) -> Sessions[Notes]:
    return sessions_of(store)


async def test_two_revisions_can_be_compared(store: Store) -> None:
    session = await Sessions(ShelfEnvironment(), store).seed({})
    await session.call("put", {"key": "a", "name": "tea"})
    await session.call("put", {"key": "b", "name": "milk"})
    await session.call("drop", {"key": "a"})
    found = {each.place: each for each in await session.diff(2, 4)}
    assert {place: each.kind for place, each in found.items()} == {
        ("total",): "changed",
        ("items", "a"): "gone",
        ("items", "b"): "new",
        ("marks",): "changed",
    }
    assert (found["total",].before, found["total",].after) == (1, 2)
    assert await session.diff(3, 3) == []
    for missing in (9, 0):
        with pytest.raises(UnknownRevision):
            await session.diff(1, missing)


async def test_a_checkpoint_is_found_by_its_name(sessions: Sessions[Notes], store: Store) -> None:
    session = await sessions.seed({})
    await go_on(session, 2)
    made = await session.checkpoint("two books")
    await go_on(session, 3)
    elsewhere = await sessions_of(store).open(session.id)
    fork = await elsewhere.fork(at="two books")
    assert (len(fork.state.notes), fork.revision, fork.parent) == (2, made.revision, (session.id, made.revision))
    await elsewhere.rewind("two books")
    assert len(elsewhere.state.notes) == 2
    await fork.rewind("two books")  # the parent's, before they went apart
    for point in ("nothing", "two", "\nverdict"):
        with raises(UnknownRevision):
            await session.rewind(point)
    with raises(SessionError):
        await session.checkpoint("two books")
    with pytest.raises(InvalidArguments):
        await session.checkpoint("a\nb")
    with pytest.raises(InvalidArguments):
        await session.rewind("half \ud800")
    assert (await fork.checkpoint("two books")).revision == fork.revision
    await session.checkpoint()
    await session.checkpoint()


LARGE = {"size": 5_000}


async def test_what_needs_no_state_reads_no_large_one() -> None:
    store = WatchedStore()
    sessions = sessions_of(store)
    session = await sessions.seed(LARGE)
    await go_on(session, 30)
    store.counts.clear()
    forks = await session.fork(at=5, n=3)
    await session.rewind(10)
    await session.rewind(7)
    await session.checkpoint("here")
    await (await session.fork()).close()
    assert store.counts["load"] == 0
    with raises(SessionError):
        assert session.state
    assert len((await session.state_at()).notes) == 5_006
    assert len(session.state.notes) == 5_006
    assert store.counts["load"] == 1
    assert [(await fork.call("add", {"text": "x"})).output for fork in forks] == [5_005] * 3


class ReadingRoom(NotesEnvironment):
    """Where readers look at the notes."""

    @tool(effect="read")
    def look(self, state: Notes, user: Profile) -> list[int]:
        """Look at the notes."""
        return [user.seen, len(state.notes)]


async def test_a_read_beside_a_rewind_sees_a_state() -> None:
    store, gate = WatchedStore(), asyncio.Event()

    async def wait(operation: str, name: str, *_: object) -> None:
        if operation == "head" and ":" in name:  # of a shared state
            await gate.wait()

    session = await Sessions(ReadingRoom(), store).seed({**LARGE, "user": "ann"})
    await go_on(session, 30)
    assert (await session.call("look")).output == [0, 5_030]
    store.before = wait
    looking = asyncio.create_task(session.call("look"))
    await asyncio.sleep(0)
    await session.rewind(5)
    gate.set()
    assert (await looking).output == [0, 5_004]


@pytest.mark.parametrize(
    ("old", "new", "differs"), [(float("nan"), float("nan"), False), (1, True, True), (1, 1.0, True), ([1], [1], False)]
)
def test_a_difference_is_one_of_type_too(old: Any, new: Any, differs: bool) -> None:
    assert bool([*diff({"a": old}, {"a": new})]) is differs

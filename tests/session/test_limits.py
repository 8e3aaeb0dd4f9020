"""A state, and a session's log, may have so many bytes and no more, and a session may do so much at once."""

import asyncio
import threading
from contextlib import suppress

import pytest

from stateroom import Session, SessionLimits, Sessions, State, tool
from stateroom.errors import Busy, TooLarge
from stateroom.session import MAX_READS
from stateroom.store import Store
from tests.environments import Unjudged
from tests.messages import says
from tests.patience import PATIENCE
from tests.session.stored_sessions import prune

LIMIT = 20_000


class Heap(State):
    items: list[str] = []


class HeapEnvironment(Unjudged[Heap]):
    """Takes all that it is given."""

    def seed(self, task) -> Heap:
        return Heap(items=["x" * task.size])

    @tool
    def add(self, state: Heap, size: int) -> int:
        """Add an item."""
        state.items.append("y" * size)
        return len(state.items)

    @tool
    def repeat(self, state: Heap, text: str) -> None:
        """Add an item many times."""
        state.items.extend([text] * 100)

    @tool
    def clear(self, state: Heap) -> None:
        """Throw all away."""
        state.items.clear()

    @tool(effect="read")
    def count(self, state: Heap) -> int:
        """How many items there are."""
        return len(state.items)


@pytest.fixture
def sessions(store: Store) -> Sessions[Heap]:
    return Sessions[Heap](HeapEnvironment(), store, SessionLimits(max_state=LIMIT))


async def test_what_a_long_log_weighs_does_not_count(sessions: Sessions[Heap]) -> None:
    session = await sessions.seed({"size": 10})
    for _ in range(30):
        assert (await session.call("add", {"size": LIMIT - 5000})).ok
        assert (await session.call("clear")).ok


async def test_a_text_that_the_log_has_once_counts_as_often_as_the_state_has_it(sessions: Sessions[Heap]) -> None:
    session = await sessions.seed({"size": 10})
    assert (await session.call("repeat", {"text": "z" * 100})).ok
    assert (await session.call("repeat", {"text": "z" * 200})).code == "too_large"


# The log.


async def filled(sessions: Sessions[Heap]) -> Session[Heap]:
    """A session whose log is as long as it may be, and whose state is small."""
    session = await sessions.seed({"size": 10})
    for _ in range(200):
        if not (await session.call("repeat", {"text": "z" * 20})).ok:
            return session
        if not (await session.call("clear", call_id=f"clear {session.revision}")).ok:
            return session
    raise AssertionError


async def test_a_session_with_a_full_log_is_refused_more_and_can_be_read_verified_forked_and_closed(
    store: Store,
) -> None:
    sessions = Sessions[Heap](HeapEnvironment(), store, SessionLimits(max_log=LIMIT))
    session = await filled(sessions)
    revision = session.revision
    elsewhere = await Sessions[Heap](HeapEnvironment(), store, SessionLimits(max_log=LIMIT)).open(session.id)
    for handle in (session, elsewhere):
        refused = await handle.call("add", {"size": 1})
        assert (refused.ok, refused.code) == (False, "too_large")
        says(refused.error or "")
        with pytest.raises(TooLarge):
            await handle.checkpoint("here")
        with pytest.raises(TooLarge):
            await handle.rewind(1)
        assert (await handle.call("clear", call_id="clear 2")).ok, "a recorded result is read"
        assert (await handle.call("count")).ok
        assert (handle.revision, len([entry async for entry in handle.log()])) == (revision, revision)
    assert LIMIT <= (await store.size(session.id)).bytes < 1.5 * LIMIT
    fork = await elsewhere.fork()
    assert (await fork.call("add", {"size": 1})).ok
    assert (await elsewhere.verify()).reward == 0.0
    await session.close()


async def test_a_full_log_that_is_pruned_goes_on(store: Store) -> None:
    session = await filled(Sessions[Heap](HeapEnvironment(), store, SessionLimits(max_log=LIMIT)))
    assert await prune(store, keep=0)
    elsewhere = await Sessions[Heap](HeapEnvironment(), store, SessionLimits(max_log=LIMIT)).open(session.id)
    assert (await elsewhere.call("clear")).ok
    assert (await session.call("clear")).ok


async def test_what_a_rewind_has_undone_counts(store: Store) -> None:
    session = await Sessions[Heap](HeapEnvironment(), store, SessionLimits(max_log=LIMIT)).seed({"size": 10})
    while (await session.call("add", {"size": 500})).ok:
        with suppress(TooLarge):
            await session.rewind(1)
        assert session.revision < 100
        session = await Sessions[Heap](HeapEnvironment(), store, SessionLimits(max_log=LIMIT)).open(session.id)
    assert (await store.size(session.id)).bytes < 1.5 * LIMIT


# Calls at the same time.


class Library(Unjudged[State]):
    """Reading takes until it is let go."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.reading = self.most = 0
        self.full, self.release = threading.Event(), threading.Event()

    @tool(effect="read")
    def read(self, state: State) -> str:
        """Read until told to stop."""
        with self.lock:
            self.reading += 1
            self.most = max(self.most, self.reading)
            if self.reading == MAX_READS:
                self.full.set()
        assert self.release.wait(PATIENCE)
        with self.lock:
            self.reading -= 1
        return "read"

    @tool(effect="read")
    def glance(self, state: State) -> str:
        """Read at once."""
        return "seen"

    @tool
    def write(self, state: State) -> str:
        """Write."""
        return "written"


async def test_a_session_reads_a_few_things_at_once_lets_some_wait_and_is_refused_more(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateroom.session.runner.MAX_THREADS", MAX_READS + 1)
    library = Library()
    sessions = Sessions[State](library, store, SessionLimits(max_calls=2 * MAX_READS))
    greedy, honest = await sessions.seed({}), await sessions.seed({})
    reads = [asyncio.create_task(greedy.call("read")) for _ in range(2 * MAX_READS - 1)]
    assert await asyncio.to_thread(library.full.wait, PATIENCE)
    assert (await honest.call("glance")).output == "seen"
    assert (await greedy.call("write")).output == "written"
    reads.append(asyncio.create_task(greedy.call("read")))
    await asyncio.sleep(0)
    for name in ("read", "write"):
        with pytest.raises(Busy):
            await greedy.call(name)
    assert (await honest.call("glance")).ok
    library.release.set()
    assert [result.output for result in await asyncio.gather(*reads)] == ["read"] * len(reads)
    assert library.most == MAX_READS
    assert (await greedy.call("write")).ok

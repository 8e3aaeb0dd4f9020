"""Looking back, going back and branching off, also where the state is too large to be read for it."""

import asyncio
from typing import Any

import pytest

from stateroom import Environment, Sessions, State, Task, tool
from stateroom.errors import InvalidArguments, SessionError, UnknownRevision
from stateroom.session import Session
from stateroom.state import diff
from stateroom.store import Store
from tests.messages import raises
from tests.watched import WatchedStore

pytestmark = pytest.mark.every_store


class Shelf(State):
    books: list[str] = []
    count: int = 0
    lent: dict[str, str] = {}


class Library(Environment[Shelf]):
    """Lends books."""

    def seed(self, task: Task) -> Shelf:
        return Shelf(books=[f"{number:0100d}" for number in range(getattr(task, "books", 0))])

    @tool
    def lend(self, state: Shelf, book: str, to: str) -> int:
        """Lend a book."""
        state.lent[book] = to
        state.count += 1
        return state.count

    @tool
    def bring_back(self, state: Shelf, book: str) -> None:
        """Take a book back."""
        del state.lent[book]

    def verify(self, state: Shelf) -> float:
        return float(state.count)


@pytest.fixture
def sessions(store: Store) -> Sessions[Shelf]:
    return Sessions(Library(), store)


async def lend(session: Session[Shelf], times: int) -> None:
    for number in range(times):
        assert (await session.call("lend", {"book": f"b{number}", "to": "ann"})).ok


async def test_two_revisions_can_be_compared(sessions: Sessions[Shelf]) -> None:
    session = await sessions.seed({})
    await session.call("lend", {"book": "a", "to": "ann"})
    await session.call("lend", {"book": "b", "to": "bob"})
    await session.call("bring_back", {"book": "a"})
    assert [str(each) for each in await session.diff(2, 4)] == [
        "count: 1 → 2",
        'lent.a: "ann" → gone',
        'lent.b: new, "bob"',
    ]
    [first, *_] = await session.diff(1)
    assert (first.place, first.kind, first.before, first.after) == (("count",), "changed", 0, 2)
    assert await session.diff(3, 3) == []
    for missing in (9, 0):
        with pytest.raises(UnknownRevision):
            await session.diff(1, missing)


async def test_a_checkpoint_is_found_by_its_name(sessions: Sessions[Shelf], store: Store) -> None:
    session = await sessions.seed({})
    await lend(session, 2)
    made = await session.checkpoint("two books")
    await lend(session, 3)
    elsewhere = await Sessions(Library(), store).open(session.id)
    fork = await elsewhere.fork(at="two books")
    assert (fork.state.count, fork.revision, fork.parent) == (2, made.revision, (session.id, made.revision))
    await elsewhere.rewind("two books")
    assert elsewhere.state.count == 2
    await fork.rewind("two books")  # the parent's, before they went apart
    for point in ("nothing", "two", "\nverdict"):
        with raises(UnknownRevision):
            await session.rewind(point)
    with raises(SessionError):
        await session.checkpoint("two books")
    assert (await fork.checkpoint("two books")).revision == fork.revision
    await session.checkpoint()
    await session.checkpoint()


LARGE = {"books": 5_000}


async def test_to_go_back_reads_no_large_state() -> None:
    store = WatchedStore()
    sessions = Sessions(Library(), store)
    session = await sessions.seed(LARGE)
    await lend(session, 30)
    store.counts.clear()
    forks = await session.fork(at=5, n=3)
    await session.rewind(10)
    await session.rewind(7)
    assert store.counts["load"] == 0
    with raises(SessionError):
        assert session.state
    assert (await session.state_at()).count == 6
    assert session.state.count == 6
    assert store.counts["load"] == 1
    assert [(await fork.call("lend", {"book": "x", "to": "bob"})).output for fork in forks] == [5, 5, 5]


async def test_a_checkpoints_name_can_be_printed(sessions: Sessions[Shelf]) -> None:
    session = await sessions.seed({})
    for name in ("\ud800", "a\nb"):
        with pytest.raises(InvalidArguments):
            await session.checkpoint(name)
    with pytest.raises(InvalidArguments):
        await session.rewind("half \ud800")


async def test_what_needs_no_state_reads_none() -> None:
    store = WatchedStore()
    session = await Sessions(Library(), store).seed(LARGE)
    await lend(session, 30)
    await session.rewind(3)
    store.counts.clear()
    await session.checkpoint("here")
    fork = await session.fork()
    await session.close()
    await fork.close()
    assert store.counts["load"] == 0


class Reader(State):
    name: str = "ann"


class ReadingRoom(Library):
    """Where readers look at the shelf."""

    name = "reading_room"

    @tool(effect="read")
    def look(self, state: Shelf, user: Reader) -> list[Any]:
        """Look at the shelf."""
        return [user.name, state.count]


async def test_a_read_beside_a_rewind_sees_a_state() -> None:
    store, gate = WatchedStore(), asyncio.Event()

    async def wait(operation: str, name: str, *_: object) -> None:
        if operation == "head" and ":" in name:  # of a shared state
            await gate.wait()

    session = await Sessions(ReadingRoom(), store).seed({**LARGE, "user": "ann"})
    await lend(session, 30)
    assert (await session.call("look")).output == ["ann", 30]
    store.before = wait
    looking = asyncio.create_task(session.call("look"))
    await asyncio.sleep(0)
    await session.rewind(5)
    gate.set()
    assert (await looking).output == ["ann", 4]


@pytest.mark.parametrize(
    ("old", "new", "differs"), [(float("nan"), float("nan"), False), (1, True, True), (1, 1.0, True), ([1], [1], False)]
)
def test_a_difference_is_one_of_type_too(old: Any, new: Any, differs: bool) -> None:
    assert bool([*diff({"a": old}, {"a": new})]) is differs

"""Several processes on one object store, one request at a time in orders that chance picks, some of them killed."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stateroom.errors import Conflict, DuplicateCall, StateroomError, StoreError, UnknownSession
from stateroom.store import Commit, Head, Snapshot, store_class
from stateroom.store.objects.backend import Folder
from stateroom.store.objects.layout import Gone, decode_head
from tests.store import rooms

ObjectStore: Any = store_class("file://")
NOW, LATER, FAR = 1_000.0, 2_000.0, 1e9


class Killed(BaseException):
    """The process has died."""


class Stage:
    """Lets one request at a time through. Whose is chance; mostly a process makes some before it is another's turn."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.waiting: list[tuple[object, asyncio.Future[None]]] = []
        self.last: object = None

    async def run(self, *calls: Awaitable[Any]) -> list[Any]:
        """What each call returned or raised."""
        together = asyncio.gather(*calls, return_exceptions=True)
        while not together.done():
            for _ in range(10):  # until each has come to its next request
                await asyncio.sleep(0)
            if self.waiting:
                self.let_one_through()
            else:
                await asyncio.sleep(0.0002)
        return await together

    def let_one_through(self) -> None:
        same = [number for number, (process, _) in enumerate(self.waiting) if process is self.last]
        number = same[0] if same and self.chance.random() < 0.6 else self.chance.randrange(len(self.waiting))
        self.last, turn = self.waiting.pop(number)
        turn.set_result(None)


class Process:
    """The requests of one process, which may die before or after one of them."""

    def __init__(self, stage: Stage, store: Any, dies_at: int | None = None) -> None:
        self.stage = stage
        self.place = Folder(store.backend.root, store.backend.url)
        self.dies_at = dies_at
        self.requests = 0
        self.store = ObjectStore(self.place)
        for name in ("read", "read_changed", "read_part", "write", "swap", "remove"):
            setattr(self.place, name, partial(self.request, getattr(self.place, name)))
        self.place.list = partial(self.listing, self.place.list)  # type: ignore[method-assign]

    async def request(self, work: Callable[..., Awaitable[Any]], *args: Any) -> Any:
        await self.turn()
        result = await work(*args)
        self.requests += 1
        self.die_if_it_is_time(0.5)
        return result

    async def listing(self, work: Callable[..., Any], *args: Any) -> Any:
        await self.turn()
        self.requests += 1
        async for portion in work(*args):
            yield portion

    async def turn(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stage.waiting.append((self, turn))
        await turn
        self.die_if_it_is_time(0.0)

    def die_if_it_is_time(self, after: float) -> None:
        if self.dies_at is not None and self.requests + after > self.dies_at:
            raise Killed


head = partial(rooms.head, expires=LATER, created=NOW)
entry = partial(rooms.entry, at=NOW)


def fork(parent: str = "room", session: str = "fork") -> Head:
    return head(session, parent=parent, expires=FAR)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was begun a moment ago counts as left behind: a vacuum must be safe all the same."""
    monkeypatch.setattr("stateroom.store.objects.maintenance.LEFT_BEHIND", timedelta(days=-1))


@pytest.fixture(params=range(30))
def stage(request: pytest.FixtureRequest) -> Stage:
    return Stage(random.Random(request.param))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path / 'rooms'}"


@pytest.fixture
async def store(store: Any) -> AsyncIterator[Any]:
    """A store with a session; in the end all must be well in it."""
    await store.create(head(), [entry(1, "seed")])
    yield store
    await check(store)


async def check(store: Any) -> None:
    """Every session is whole and has its parent, and after a vacuum nothing is left that belongs to none."""
    for found in await store.heads():
        assert (await store.head(found.id)) == found
        record = await store.maintenance.export(found.id)
        assert [each.revision for each in record.entries] == list(range(found.parent_revision + 1, found.revision + 1))
        if found.parent is not None:
            assert (await store.head(found.parent)).revision >= found.parent_revision
            assert found.id in [child.id for child in await store.children(found.parent)]
    before = [await store.maintenance.export(found.id) for found in await store.heads()]
    with pytest.MonkeyPatch.context() as patch:  # nobody is at work any more
        patch.setattr("stateroom.store.objects.maintenance.REMOVAL_LEFT_BEHIND", timedelta(days=-1))
        for _ in range(2):  # the second removes what the first has put in the way of writers
            await store.maintenance.vacuum()
        assert await store.maintenance.orphans() == []
    assert [await store.maintenance.export(found.id) for found in await store.heads()] == before
    names = [listed.name async for some in store.backend.list("") for listed in some]
    assert len([name for name in names if name.startswith("heads/")]) == len(before)
    assert len([name for name in names if name.startswith("recent/")]) == len(before)


def is_there(outcome: object) -> bool:
    return not isinstance(outcome, BaseException)


async def test_a_fork_at_the_last_moment_of_a_deletion(store: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = await ObjectStore.open(url)
    original = store.backend.swap

    async def swap(name: str, data: bytes, version: Any) -> Any:
        if isinstance(decode_head(data, name), Gone):
            monkeypatch.setattr(store.backend, "swap", original)
            await other.create(fork())
        return await original(name, data, version)

    monkeypatch.setattr(store.backend, "swap", swap)
    await store.delete("room")
    assert (await store.head("room")).expires == 0.0
    assert [child.id for child in await store.children("room")] == ["fork"]
    await other.close()


async def test_two_forks_and_a_deletion(store: Any, stage: Stage) -> None:
    one, two, three = (Process(stage, store) for _ in range(3))
    forked, forked_too, deleted = await stage.run(
        one.store.create(fork()), two.store.create(fork(session="two")), three.store.delete("room")
    )
    assert deleted is None
    for outcome in (forked, forked_too):
        assert outcome is None or isinstance(outcome, UnknownSession)
    made = {name for name, outcome in (("fork", forked), ("two", forked_too)) if outcome is None}
    assert {found.id for found in await store.heads()} == (made | {"room"} if made else set())
    assert not made or (await store.head("room")).expires == 0.0


async def test_a_fork_two_sweeps_and_a_renewal(store: Any, stage: Stage) -> None:
    one, two, three, four = (Process(stage, store) for _ in range(4))
    forked, swept, swept_too, touched = await stage.run(
        one.store.create(fork()),
        two.store.sweep(LATER),
        three.store.sweep(LATER),
        four.store.touch("room", now=NOW, expires=FAR),
    )
    left = {found.id for found in await store.heads()}
    assert swept + swept_too == ("room" not in left)
    assert is_there(forked) == ("fork" in left)
    if is_there(forked) or is_there(touched):
        assert "room" in left
    else:
        assert isinstance(touched, UnknownSession)


async def test_appends_a_lease_and_a_deletion(store: Any, stage: Stage) -> None:
    processes = [Process(stage, store) for _ in range(4)]
    body = stage.chance.randbytes(5_000)  # more than a head takes
    first, second, leased, deleted = await stage.run(
        processes[0].store.append(Commit("room", entry(2, "one", body=body), expires=FAR, blobs={"digest": body})),
        processes[1].store.append(Commit("room", entry(2, "two", body=body), expires=FAR, blobs={"digest": body})),
        processes[2].store.lease("room", "me", now=NOW, until=LATER),
        processes[3].store.delete("room"),
    )
    assert deleted is None
    assert is_there(first) + is_there(second) <= 1
    for outcome in (first, second):
        assert outcome is None or isinstance(outcome, Conflict | UnknownSession)
    assert is_there(leased) or isinstance(leased, UnknownSession)
    assert await store.heads() == []


async def test_an_id_that_is_removed_by_two_and_used_again_by_two(store: Any, stage: Stage) -> None:
    processes = [Process(stage, store) for _ in range(4)]
    new = [head(owner=owner, expires=FAR) for owner in ("one", "two")]
    *begun, removed, swept = await stage.run(
        *(process.store.create(each, [entry(1, body=each.owner.encode())]) for process, each in zip(processes, new)),  # noqa: B905
        processes[2].store.delete("room"),
        processes[3].store.sweep(LATER),
    )
    for outcome in begun:
        assert outcome is None or type(outcome) is StoreError
    deleted_again = removed is None and swept == 1
    left = [found.owner for found in await store.heads()]
    assert sum(map(is_there, begun)) == len(left) + deleted_again


async def test_writers_in_the_midst_of_vacuums(store: Any, stage: Stage) -> None:
    writer, maker, forker, one, two = (Process(stage, store) for _ in range(5))

    async def write() -> None:
        for revision in range(2, 7):
            blobs = {f"digest {revision}": b"blob"}
            await writer.store.append(Commit("room", entry(revision, body=bytes(3_000)), expires=FAR, blobs=blobs))

    outcomes = await stage.run(
        write(),
        maker.store.create(head("new"), [entry(1, body=bytes(9_000))], Snapshot(1, bytes(9_000)), {"digest": b"blob"}),
        forker.store.create(fork()),
        one.store.maintenance.vacuum(),
        two.store.maintenance.vacuum(),
    )
    assert outcomes == [None] * 5
    assert {found.id for found in await store.heads()} == {"room", "new", "fork"}


async def test_a_process_may_die_at_any_point(store: Any, stage: Stage) -> None:
    for revision in range(2, 6):
        await store.append(Commit("room", entry(revision, body=bytes(3_000)), expires=LATER))
    await store.create(head("expired", revision=0, expires=NOW))
    mortal = Process(stage, store, dies_at=stage.chance.randrange(40))
    other = Process(stage, store)
    acknowledged: list[Any] = []
    six, seven = (entry(number, name, body=bytes(3_000)) for number, name in ((6, "six"), (7, "seven")))

    async def live() -> None:
        steps: list[tuple[Any, Awaitable[Any]]] = [
            (6, mortal.store.append(Commit("room", six, expires=FAR, blobs={"a": b"blob"}))),
            (7, mortal.store.append(Commit("room", seven, expires=FAR))),
            ("fork", mortal.store.create(fork())),
            ("new", mortal.store.create(head("new"), [entry(1, body=bytes(9_000))])),
            ("swept", mortal.store.sweep(NOW)),
            ("deleted", mortal.store.delete("new")),
            ("vacuum", mortal.store.maintenance.vacuum()),
        ]
        try:
            for name, step in steps:
                await step
                acknowledged.append(name)
        finally:
            for _, step in steps:
                step.close()  # type: ignore[attr-defined]

    async def meanwhile() -> None:
        with suppress(StateroomError):
            await other.store.lease("room", "me", now=NOW, until=LATER)
            await other.store.create(fork(session="other fork"))
            await other.store.sweep(NOW)

    outcomes = await stage.run(live(), meanwhile())
    assert outcomes[1] is None
    if Killed not in map(type, outcomes):
        assert len(acknowledged) == 7 or isinstance(outcomes[0], Conflict)
    revision = (await store.head("room")).revision
    assert max([5, *(each for each in acknowledged if isinstance(each, int))]) <= revision
    for number, call_id in ((6, "six"), (7, "seven")):
        if number <= revision:
            assert await store.find_call("room", call_id) == entry(number, call_id, body=bytes(3_000))
            with pytest.raises(DuplicateCall):
                await store.append(Commit("room", entry(number, call_id), expires=FAR))
    left = {found.id for found in await store.heads()}
    assert "other fork" in left
    assert "fork" in left or "fork" not in acknowledged
    assert "new" not in left or "deleted" not in acknowledged

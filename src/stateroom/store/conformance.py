"""The suite that every store passes: what a `Store` promises, as tests that anyone can run on their own store.

Subclass `StoreConformance` in a test module, and say where a fresh store is to be made; it needs nothing but pytest:

    from stateroom.store.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def url(self, tmp_path):
            return f"mystore://{tmp_path}/rooms"

The scheme must be registered (see `stateroom.store.url`). Set `shared = False` if two stores that are open on one URL
do not see the same sessions, and `durable = False` if sessions are lost when the store closes. To have pytest show the
values of a failed comparison, put `pytest.register_assert_rewrite("stateroom.store.conformance")` in `conftest.py`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, ParamSpec, TypeVar

import pytest
from msgspec.structs import replace

from stateroom.errors import (
    Conflict,
    DuplicateCall,
    SessionClosed,
    SessionExpired,
    StateroomError,
    StoreError,
    StoreUnavailable,
    UnknownRevision,
    UnknownSession,
)
from stateroom.store.contract import Entry, Head, Loaded, Snapshot, Store
from stateroom.store.reference import Reference
from stateroom.store.url import open_store

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 120.0
"""After how many seconds a store that does not answer fails its test."""

NOW = 1_000.0
LATER = 2_000.0
MUCH_LATER = 3_000.0

NAMES = [
    "o'clock",
    'say "hello"',
    "back`tick; DROP TABLE sessions; --",
    "per%cent_under*star?mark[a-z]",
    "a/b\\c:d{e}#f g&h=i",
    "ship 🚢 船 سفينة",
    "caf\u00e9",
    "cafe\u0301",
    "CASE",
    "case",
    "line\nbreak",
    " edges ",
    "n" * 200,
]
"""Ids that a careless store mixes up, cuts or takes for something else."""


def asynchronous(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that runs to its end in an event loop of its own."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), PATIENCE))

    return run


def make_head(session: str = "room", **fields: Any) -> Head:
    """A head with all that a test does not care about filled in."""
    given: dict[str, Any] = {"environment": "env", "owner": "owner", "created": NOW, "expires": LATER, "revision": 0}
    return Head(session, **{**given, **fields})


def make_entry(revision: int, call_id: str | None = None, *, at: float = NOW, body: bytes | None = None) -> Entry:
    """An entry whose body tells its revision."""
    return Entry(revision, "call", at, b"body %d" % revision if body is None else body, call_id)


async def make_session(store: Store, session: str = "room", *, revision: int = 1, **fields: Any) -> list[Entry]:
    """Create a session with entries up to a revision; a fork's begin after its parent's revision."""
    head = make_head(session, revision=revision, **fields)
    entries = [make_entry(number) for number in range(head.parent_revision + 1, revision + 1)]
    await store.create(head, entries)
    return entries


async def make_fork(store: Store, session: str, parent: str, at: int, **fields: Any) -> list[Entry]:
    """Fork a session; without a `revision` the fork has no entries of its own."""
    return await make_session(store, session, **{"revision": at, **fields}, parent=parent, parent_revision=at)


async def outcome(call: Awaitable[T]) -> T | type[StateroomError]:
    """What a call returned, or the class of the error it raised."""
    try:
        return await call
    except StateroomError as error:
        return type(error)


async def everything(store: Store, session: str) -> tuple[Head, list[Entry], list[Loaded]]:
    """All that a store tells of one session."""
    head = await store.head(session)
    loads = [await store.load(session, at) for at in range(head.revision + 1)]
    return head, await store.entries(session), loads


async def list_all(store: Store, *, limit: int, environment: str | None = None) -> list[Head]:
    """A whole listing, page by page."""
    found: list[Head] = []
    while True:
        page = await store.heads(environment=environment, before=found[-1] if found else None, limit=limit)
        assert len(page) <= limit, "a page is longer than its limit"
        assert not {head.id for head in page} & {head.id for head in found}, "a head is listed twice"
        found += page
        if not page:
            return found


class StoreConformance:
    """What a store promises. A subclass gives the `url` of a fresh store."""

    shared: ClassVar[bool] = True
    """Whether several stores that are open on one URL hold the same sessions."""
    durable: ClassVar[bool] = True
    """Whether sessions are still there after the store was closed and opened again."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        """The URL of a store that nobody used before."""
        raise NotImplementedError("a subclass of StoreConformance has a fixture `url` that gives a fresh store's URL")

    def needs_shared(self) -> None:
        """Skip a test of stores that share their sessions."""
        if not self.shared:
            pytest.skip("stores of this kind do not share sessions")

    def needs_durable(self) -> None:
        """Skip a test of stores that keep their sessions."""
        if not self.durable:
            pytest.skip("stores of this kind do not outlive their closing")

    # What is written is read.

    @asynchronous
    async def test_a_fresh_store_is_empty(self, url: str) -> None:
        async with open_store(url) as store:
            assert await store.heads() == []
            assert await store.sweep(MUCH_LATER) == 0

    @asynchronous
    async def test_a_created_session_has_the_head_it_was_given(self, url: str) -> None:
        async with open_store(url) as store:
            head = make_head(
                "room", environment="café", owner="o'wner 🚢", created=1731628800.123456, expires=2e9 + 0.1
            )
            await store.create(head)
            assert await store.head("room") == head
            assert await store.heads() == [head]

    @asynchronous
    async def test_a_session_without_entries_loads_as_such(self, url: str) -> None:
        async with open_store(url) as store:
            head = make_head("room")
            await store.create(head)
            assert await store.load("room") == Loaded(head, None, [])
            assert await store.entries("room") == []

    @asynchronous
    async def test_a_session_is_created_with_its_entries_and_snapshot(self, url: str) -> None:
        async with open_store(url) as store:
            head = make_head("room", revision=2)
            entries = [make_entry(1, "first"), make_entry(2, "second")]
            await store.create(head, entries, Snapshot(2, b"state 2"))
            assert await store.load("room") == Loaded(head, Snapshot(2, b"state 2"), [])
            assert await store.entries("room") == entries
            assert await store.find_call("room", "second") == entries[1]

    @asynchronous
    async def test_an_append_moves_head_log_snapshot_and_expiry_together(self, url: str) -> None:
        async with open_store(url) as store:
            first = await make_session(store)
            second = Entry(2, "kind of its own", 1234.56789, b"\x00\xff", "call")
            await store.append("room", second, expires=2345.6789, snapshot=Snapshot(2, b"state 2"))
            head = make_head("room", revision=2, expires=2345.6789)
            assert await store.head("room") == head
            assert await store.entries("room") == [*first, second]
            assert await store.load("room") == Loaded(head, Snapshot(2, b"state 2"), [])
            assert await store.find_call("room", "call") == second

    @asynchronous
    async def test_an_append_changes_no_other_session(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store, "room")
            await make_session(store, "room2")
            before = await everything(store, "room2")
            await store.append(
                "room", make_entry(2, "call"), expires=MUCH_LATER, snapshot=Snapshot(2, b""), closes=True
            )
            assert await everything(store, "room2") == before
            assert await store.find_call("room2", "call") is None

    @pytest.mark.parametrize(
        "body", [b"", b"\x00", bytes(range(256)), b"\xff\xfe not text \x80", b"'; --", b"0123456789" * 500_000]
    )
    @asynchronous
    async def test_bodies_come_back_byte_for_byte(self, url: str, body: bytes) -> None:
        async with open_store(url) as store:
            await store.create(make_head(revision=1), [make_entry(1, body=body)], Snapshot(1, body))
            await store.append("room", make_entry(2, "call", body=body), expires=LATER, snapshot=Snapshot(2, body))
            assert [entry.body == body for entry in await store.entries("room")] == [True, True]
            for revision in (1, 2):
                snapshot = (await store.load("room", revision)).snapshot
                assert snapshot is not None
                assert snapshot.body == body
            found = await store.find_call("room", "call")
            assert found is not None
            assert found.body == body

    @asynchronous
    async def test_any_text_can_be_an_id(self, url: str) -> None:
        async with open_store(url) as store:
            for number, name in enumerate(NAMES):
                await make_session(store, name, environment=name, owner=name, created=float(number))
            for number, name in enumerate(NAMES):
                await store.append(name, make_entry(2, body=name.encode()), expires=LATER)
                head = make_head(name, environment=name, owner=name, created=float(number), revision=2)
                assert await store.head(name) == head
                assert await store.heads(environment=name) == [head]
                assert [entry.body for entry in await store.entries(name, after=1)] == [name.encode()]
            await make_fork(store, "fork of " + NAMES[0], NAMES[0], 2)
            assert (await store.head("fork of " + NAMES[0])).parent == NAMES[0]

    @asynchronous
    async def test_any_text_can_be_a_call_id(self, url: str) -> None:
        async with open_store(url) as store:
            await store.create(make_head(revision=1), [make_entry(1, "")])
            for revision, name in enumerate(NAMES, 2):
                await store.append("room", make_entry(revision, name), expires=LATER)
            for revision, name in enumerate(["", *NAMES], 1):
                assert await store.find_call("room", name) == make_entry(revision, name)
                with pytest.raises(DuplicateCall):
                    await store.append("room", make_entry(len(NAMES) + 2, name), expires=LATER)

    @asynchronous
    async def test_a_call_that_was_never_made_is_not_found(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store, revision=2)
            assert await store.find_call("room", "nobody") is None
            assert await store.find_call("room", "None") is None
            assert await store.find_call("room", "") is None

    # One commit: all or nothing.

    @pytest.mark.parametrize("refusal", [Conflict, DuplicateCall, SessionClosed, SessionExpired])
    @asynchronous
    async def test_a_refused_append_changes_nothing(self, url: str, refusal: type[StateroomError]) -> None:
        async with open_store(url) as store:
            await store.create(make_head(revision=1), [make_entry(1, "first")], Snapshot(1, b"state 1"))
            if refusal is SessionClosed:
                await store.append("room", make_entry(2), expires=LATER, closes=True)
            before = await everything(store, "room")
            attempt = make_entry(
                before[0].revision + (2 if refusal is Conflict else 1),
                "first" if refusal is DuplicateCall else "new",
                at=LATER if refusal is SessionExpired else NOW,
            )
            with pytest.raises(refusal):
                await store.append(
                    "room", attempt, expires=MUCH_LATER, snapshot=Snapshot(attempt.revision, b"wrong"), closes=True
                )
            assert await everything(store, "room") == before
            assert await store.find_call("room", "new") is None

    @asynchronous
    async def test_an_id_is_given_once_and_the_first_session_keeps_it(self, url: str) -> None:
        async with open_store(url) as store:
            await store.create(make_head(revision=1), [make_entry(1, "mine")], Snapshot(1, b"mine"))
            before = await everything(store, "room")
            other = make_head(environment="other", owner="other", created=NOW + 1, expires=MUCH_LATER, revision=2)
            with pytest.raises(StoreError):
                await store.create(other, [make_entry(1, "theirs"), make_entry(2)], Snapshot(2, b"theirs"))
            assert await everything(store, "room") == before
            assert await store.find_call("room", "theirs") is None

    @asynchronous
    async def test_a_refused_create_leaves_no_trace(self, url: str) -> None:
        async with open_store(url) as store:
            head = make_head(revision=2)
            with pytest.raises(DuplicateCall):
                await store.create(head, [make_entry(1, "twice"), make_entry(2, "twice")], Snapshot(2, b"wrong"))
            assert await outcome(store.head("room")) is UnknownSession
            assert await store.heads() == []
            await make_session(store, "room")
            assert await store.load("room") == Loaded(make_head(revision=1), None, [make_entry(1)])
            assert await store.find_call("room", "twice") is None

    @asynchronous
    async def test_of_many_creates_with_one_id_one_wins(self, url: str) -> None:
        async with open_store(url) as store:
            heads = [make_head(owner=f"owner {number}", revision=1) for number in range(10)]
            done = await asyncio.gather(
                *(outcome(store.create(head, [make_entry(1, body=head.owner.encode())])) for head in heads)
            )
            winners = [head for head, error in zip(heads, done, strict=True) if error is None]
            assert len(winners) == 1
            assert await store.head("room") == winners[0]
            assert [entry.body for entry in await store.entries("room")] == [winners[0].owner.encode()]

    # One revision.

    @pytest.mark.parametrize("revision", [0, 1, 2, 3, 5, 100])
    @asynchronous
    async def test_a_writer_at_the_wrong_revision_is_refused(self, url: str, revision: int) -> None:
        async with open_store(url) as store:
            await make_session(store, revision=3)
            with pytest.raises(Conflict) as refused:
                await store.append("room", make_entry(revision), expires=LATER)
            assert refused.value.session == "room"
            assert refused.value.revision == revision - 1

    @asynchronous
    async def test_of_many_writers_at_one_revision_one_wins(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store)
            for revision in range(2, 7):
                entries = [make_entry(revision, f"{revision}/{writer}") for writer in range(12)]
                done = await asyncio.gather(*(outcome(store.append("room", entry, expires=LATER)) for entry in entries))
                assert sorted(map(str, done)) == sorted(map(str, [None] + [Conflict] * 11))
                assert await store.entries("room", after=revision - 1) == [entries[done.index(None)]]

    @asynchronous
    async def test_writers_who_try_again_lose_nothing(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store, revision=0)
            await asyncio.gather(*(self.write_with_retries(store, f"writer {number}", 6) for number in range(6)))
            await self.check_nothing_lost(store, [f"writer {number}" for number in range(6)], 6)

    @asynchronous
    async def test_writers_in_several_stores_lose_nothing(self, url: str) -> None:
        self.needs_shared()
        async with open_store(url) as one, open_store(url) as two, open_store(url) as three:
            await make_session(one, revision=0)
            names = [f"writer {number}" for number in range(6)]
            stores = [one, two, three, one, two, three]
            pairs = zip(stores, names, strict=True)
            await asyncio.gather(*(self.write_with_retries(store, name, 5) for store, name in pairs))
            for store in (one, two, three):
                await self.check_nothing_lost(store, names, 5)

    @asynchronous
    async def test_touches_and_forks_in_several_stores_are_all_done(self, url: str) -> None:
        self.needs_shared()
        async with open_store(url) as one, open_store(url) as two, open_store(url) as three:
            await make_session(one)

            async def work(store: Store, name: str) -> None:
                for number in range(20):
                    await store.touch("room", now=NOW, expires=LATER + number)
                    await make_fork(store, f"{name}/{number}", "room", 1)

            await asyncio.gather(work(one, "one"), work(two, "two"), work(three, "three"))
            forks = {f"{name}/{number}" for name in ("one", "two", "three") for number in range(20)}
            assert {head.id for head in await one.heads()} == {"room", *forks}
            assert (await one.head("room")).expires == LATER + 19

    @staticmethod
    async def write_with_retries(store: Store, writer: str, count: int) -> None:
        """Append entries as a worker does: read the head, try, and begin again when somebody was quicker."""
        for number in range(count):
            while True:
                revision = (await store.head("room")).revision + 1
                entry = make_entry(revision, f"{writer}/{number}")
                done = await outcome(store.append("room", entry, expires=LATER))
                assert done in (None, Conflict)
                if done is None:
                    break

    @staticmethod
    async def check_nothing_lost(store: Store, writers: list[str], count: int) -> None:
        """Every writer's entries are there once, in the order in which they were written."""
        entries = await store.entries("room")
        assert [entry.revision for entry in entries] == list(range(1, len(writers) * count + 1))
        for writer in writers:
            written = [entry.call_id for entry in entries if str(entry.call_id).startswith(f"{writer}/")]
            assert written == [f"{writer}/{number}" for number in range(count)]
        assert (await store.head("room")).revision == len(entries)

    # A call once.

    @pytest.mark.parametrize("revision", [1, 3, 4, 9])
    @asynchronous
    async def test_a_call_id_is_committed_once_whatever_the_revision(self, url: str, revision: int) -> None:
        async with open_store(url) as store:
            await store.create(make_head(revision=1), [make_entry(1, "seed")])
            await store.append("room", make_entry(2, "call"), expires=LATER)
            await store.append("room", make_entry(3), expires=LATER)
            for call_id in ("seed", "call"):
                with pytest.raises(DuplicateCall) as refused:
                    await store.append("room", make_entry(revision, call_id), expires=LATER)
                assert refused.value.session == "room"
                assert refused.value.call_id == call_id

    @asynchronous
    async def test_one_call_sent_many_times_at_once_is_committed_once(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store)
            attempts = [make_entry(2, "call"), make_entry(3, "call")] * 6
            done = await asyncio.gather(*(outcome(store.append("room", entry, expires=LATER)) for entry in attempts))
            assert done.count(None) == 1
            assert [entry.call_id for entry in await store.entries("room")] == [None, "call"]

    @asynchronous
    async def test_two_sessions_may_use_one_call_id(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store, "room")
            await make_session(store, "other")
            await store.append("room", make_entry(2, "call", body=b"room"), expires=LATER)
            await make_fork(store, "fork", "room", 2)
            assert await store.find_call("fork", "call") is None
            await store.append("other", make_entry(2, "call", body=b"other"), expires=LATER)
            await store.append("fork", make_entry(3, "call", body=b"fork"), expires=LATER)
            for session in ("room", "other", "fork"):
                found = await store.find_call(session, "call")
                assert found is not None
                assert found.body == session.encode()

    # No silent emptiness.

    @asynchronous
    async def test_an_unknown_session_is_an_error_for_every_method(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store, "somebody else")
            calls: list[Callable[[], Awaitable[object]]] = [
                lambda: store.append("room", make_entry(1), expires=LATER),
                lambda: store.append("room", make_entry(1, "call"), expires=LATER, snapshot=Snapshot(1, b"")),
                lambda: store.touch("room", now=NOW, expires=LATER),
                lambda: store.head("room"),
                lambda: store.load("room"),
                lambda: store.load("room", 1),
                lambda: store.entries("room"),
                lambda: store.entries("room", after=1, until=2),
                lambda: store.find_call("room", "call"),
                lambda: store.create(make_head("fork", parent="room")),
            ]
            for call in calls:
                with pytest.raises(UnknownSession) as refused:
                    await call()
                assert refused.value.session == "room"
            assert [head.id for head in await store.heads()] == ["somebody else"]

    @asynchronous
    async def test_a_closed_session_refuses_changes_and_can_be_read(self, url: str) -> None:
        async with open_store(url) as store:
            first = await make_session(store)
            last = make_entry(2, "close")
            await store.append("room", last, expires=LATER, closes=True)
            for call in (
                store.append("room", make_entry(3), expires=LATER),
                store.append("room", make_entry(3, "close"), expires=LATER),
                store.append("room", make_entry(2), expires=LATER),
                store.touch("room", now=NOW, expires=MUCH_LATER),
                store.touch("room", now=LATER, expires=MUCH_LATER),
            ):
                with pytest.raises(SessionClosed) as refused:
                    await call
                assert refused.value.session == "room"
            head = make_head(revision=2, closed=True)
            assert await store.head("room") == head
            assert await store.heads() == [head]
            assert await store.load("room") == Loaded(head, None, [*first, last])
            assert await store.entries("room") == [*first, last]
            assert await store.find_call("room", "close") == last

    @asynchronous
    async def test_an_expired_session_refuses_changes_and_can_be_read(self, url: str) -> None:
        async with open_store(url) as store:
            entries = await make_session(store, revision=2)
            for call in (
                store.append("room", make_entry(3, at=LATER), expires=MUCH_LATER),
                store.append("room", make_entry(3, at=LATER + 1), expires=MUCH_LATER),
                store.append("room", make_entry(9, at=LATER), expires=MUCH_LATER),
                store.touch("room", now=LATER, expires=MUCH_LATER),
                store.touch("room", now=MUCH_LATER, expires=MUCH_LATER + 1),
            ):
                with pytest.raises(SessionExpired) as refused:
                    await call
                assert refused.value.session == "room"
            head = make_head(revision=2)
            assert await store.head("room") == head
            assert await store.heads() == [head]
            assert await store.load("room") == Loaded(head, None, entries)
            assert await store.entries("room") == entries

    @asynchronous
    async def test_a_closed_store_refuses_every_call(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store)
        for call in (
            store.create(make_head("new")),
            store.append("room", make_entry(2), expires=LATER),
            store.touch("room", now=NOW, expires=LATER),
            store.head("room"),
            store.heads(),
            store.load("room"),
            store.entries("room"),
            store.find_call("room", "call"),
            store.sweep(NOW),
        ):
            with pytest.raises(StoreUnavailable):
                await call
        await store.close()

    @asynchronous
    async def test_closing_finishes_what_is_under_way(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store)
            await make_session(store, "expired", expires=NOW)
            calls = [asyncio.ensure_future(make_session(store, f"room {number}")) for number in range(10)]
            reads = [asyncio.ensure_future(store.head("room")) for _ in range(10)]
            sweep = asyncio.ensure_future(store.sweep(NOW))
            await asyncio.sleep(0)  # all of them have begun
            await store.close()
            await asyncio.wait_for(asyncio.gather(*calls, *reads), PATIENCE / 4)
            assert await asyncio.wait_for(sweep, PATIENCE / 4) == 1

    # History: append-only, in order, and readable from any point.

    @asynchronous
    async def test_entries_come_back_in_order_and_between_any_two_revisions(self, url: str) -> None:
        async with open_store(url) as store:
            history = await make_session(store, revision=3)
            for revision in range(4, 13):  # past 9: an order by text would show
                history.append(make_entry(revision, f"call {revision}", at=NOW - revision))
                await store.append("room", history[-1], expires=LATER)
            assert await store.entries("room") == history
            for after in range(14):
                assert await store.entries("room", after=after) == history[after:]
                for until in range(14):
                    assert await store.entries("room", after=after, until=until) == history[after:until]

    @asynchronous
    async def test_a_load_has_the_newest_snapshot_and_the_entries_since(self, url: str) -> None:
        async with open_store(url) as store:
            history = await make_session(store)
            snapshots: dict[int, Snapshot] = {}
            for revision in range(2, 13):
                if revision in (4, 5, 9):
                    snapshots[revision] = Snapshot(revision, b"state %d" % revision)
                history.append(make_entry(revision))
                await store.append("room", history[-1], expires=LATER, snapshot=snapshots.get(revision))
            head = make_head(revision=12)
            for at in range(1, 13):
                base = max((revision for revision in snapshots if revision <= at), default=0)
                assert await store.load("room", at) == Loaded(head, snapshots.get(base), history[base:at])
            assert await store.load("room") == Loaded(head, snapshots[9], history[9:])

    @asynchronous
    async def test_a_load_without_snapshots_has_all_entries_up_to_the_revision(self, url: str) -> None:
        async with open_store(url) as store:
            history = await make_session(store, revision=11)
            for at in range(12):
                assert await store.load("room", at) == Loaded(make_head(revision=11), None, history[:at])

    @asynchronous
    async def test_what_was_read_does_not_change_afterwards(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store)
            head, loaded, entries = await store.head("room"), await store.load("room"), await store.entries("room")
            await store.append("room", make_entry(2), expires=MUCH_LATER, snapshot=Snapshot(2, b"state"))
            assert head == make_head(revision=1)
            assert loaded == Loaded(head, None, [make_entry(1)])
            assert entries == [make_entry(1)]
            entries.clear()
            loaded.entries.clear()
            assert await store.entries("room") == [make_entry(1), make_entry(2)]

    # Forks.

    @asynchronous
    async def test_a_fork_begins_without_entries_of_its_own(self, url: str) -> None:
        async with open_store(url) as store:
            await store.create(make_head(revision=3), [make_entry(n) for n in (1, 2, 3)], Snapshot(3, b"state 3"))
            await make_fork(store, "fork", "room", 2)
            head = make_head("fork", revision=2, parent="room", parent_revision=2)
            assert await store.head("fork") == head
            assert await store.entries("fork") == []
            for at in (None, 0, 1, 2):
                assert await store.load("fork", at) == Loaded(head, None, [])

    @asynchronous
    async def test_a_fork_has_only_its_own_entries(self, url: str) -> None:
        async with open_store(url) as store:
            trunk = await make_session(store, revision=4)
            await make_fork(store, "fork", "room", 2)
            own = [make_entry(3, "fork 3"), make_entry(4, "fork 4")]
            for entry in own:
                await store.append("fork", entry, expires=LATER)
            head = make_head("fork", revision=4, parent="room", parent_revision=2)
            assert await store.entries("fork") == own
            assert await store.entries("fork", after=3) == own[1:]
            assert await store.entries("fork", after=1, until=3) == own[:1]
            for at, expected in ((None, own), (4, own), (3, own[:1]), (2, []), (1, [])):
                assert await store.load("fork", at) == Loaded(head, None, expected)
            assert await store.entries("room") == trunk
            assert await store.head("room") == make_head(revision=4)

    @asynchronous
    async def test_a_fork_can_be_created_with_entries_and_a_snapshot(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store, revision=2)
            head = make_head("fork", revision=3, parent="room", parent_revision=2)
            await store.create(head, [make_entry(3, "own")], Snapshot(2, b"state 2"))
            assert await store.entries("fork") == [make_entry(3, "own")]
            assert await store.load("fork") == Loaded(head, Snapshot(2, b"state 2"), [make_entry(3, "own")])
            assert await store.load("fork", 2) == Loaded(head, Snapshot(2, b"state 2"), [])
            assert await store.load("fork", 1) == Loaded(head, None, [])

    @asynchronous
    async def test_a_fork_has_only_its_own_snapshots(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store)
            await store.append("room", make_entry(2), expires=LATER, snapshot=Snapshot(2, b"room 2"))
            await make_fork(store, "fork", "room", 2)
            await store.append("fork", make_entry(3), expires=LATER)
            await store.append("fork", make_entry(4), expires=LATER, snapshot=Snapshot(4, b"fork 4"))
            await store.append("fork", make_entry(5), expires=LATER)
            head = make_head("fork", revision=5, parent="room", parent_revision=2)
            assert await store.load("fork") == Loaded(head, Snapshot(4, b"fork 4"), [make_entry(5)])
            assert await store.load("fork", 3) == Loaded(head, None, [make_entry(3)])
            assert (await store.load("room")).snapshot == Snapshot(2, b"room 2")

    @asynchronous
    async def test_a_fork_and_its_parent_go_on_apart(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store, revision=2)
            await make_fork(store, "fork", "room", 1)
            await store.append("room", make_entry(3, body=b"room"), expires=LATER)
            await store.append("fork", make_entry(2, body=b"fork"), expires=MUCH_LATER, closes=True)
            assert (await store.head("room")) == make_head(revision=3)
            assert [entry.body for entry in await store.entries("fork")] == [b"fork"]
            with pytest.raises(SessionClosed):
                await store.append("fork", make_entry(3), expires=LATER)
            await store.append("room", make_entry(4), expires=LATER)

    @asynchronous
    async def test_a_fork_can_be_forked(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store, revision=2)
            await make_fork(store, "fork", "room", 2, revision=4)
            await make_fork(store, "deep", "fork", 3, revision=5)
            await make_fork(store, "early", "fork", 1)  # a revision that the fork has from its parent
            assert [entry.revision for entry in await store.entries("deep")] == [4, 5]
            assert await store.head("early") == make_head("early", revision=1, parent="fork", parent_revision=1)
            await store.append("early", make_entry(2, "own"), expires=LATER)
            assert await store.entries("early") == [make_entry(2, "own")]

    @asynchronous
    async def test_a_fork_of_a_revision_that_was_not_reached_is_refused(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store, revision=2)
            with pytest.raises(UnknownRevision) as refused:
                await make_fork(store, "fork", "room", 3)
            assert refused.value.session == "room"
            assert await outcome(store.head("fork")) is UnknownSession
            await store.append("room", make_entry(3), expires=LATER)
            await make_fork(store, "fork", "room", 3)

    @asynchronous
    async def test_a_closed_or_expired_session_can_be_forked(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store, revision=0)
            await store.append("room", make_entry(1), expires=NOW, closes=True)
            await make_fork(store, "fork", "room", 1)
            await store.append("fork", make_entry(2), expires=LATER)
            assert await store.head("fork") == make_head("fork", revision=2, parent="room", parent_revision=1)

    # Expiry.

    @asynchronous
    async def test_a_session_lives_until_the_very_moment_of_its_expiry(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store)
            await store.append("room", make_entry(2, at=LATER - 0.001), expires=LATER)
            await store.touch("room", now=LATER - 0.001, expires=LATER)
            assert await store.sweep(LATER - 0.001) == 0
            assert await outcome(store.append("room", make_entry(3, at=LATER), expires=LATER)) is SessionExpired
            assert await store.sweep(LATER) == 1

    @asynchronous
    async def test_a_touch_renews_the_expiry_and_nothing_else(self, url: str) -> None:
        async with open_store(url) as store:
            entries = await make_session(store)
            await store.touch("room", now=NOW, expires=MUCH_LATER)
            assert await store.load("room") == Loaded(make_head(revision=1, expires=MUCH_LATER), None, entries)
            assert await store.sweep(LATER) == 0
            await store.append("room", make_entry(2, at=LATER), expires=MUCH_LATER)

    @asynchronous
    async def test_an_append_renews_the_expiry(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store)
            await store.append("room", make_entry(2), expires=MUCH_LATER)
            assert (await store.head("room")).expires == MUCH_LATER
            assert await store.sweep(LATER) == 0

    @asynchronous
    async def test_a_sweep_removes_the_expired_and_only_them(self, url: str) -> None:
        async with open_store(url) as store:
            for number in range(30):
                await make_session(store, f"room {number}", expires=NOW + number)
            await store.append("room 3", make_entry(2), expires=NOW + 3, closes=True)
            await store.append("room 20", make_entry(2), expires=NOW + 20, closes=True)
            kept = {f"room {number}": await everything(store, f"room {number}") for number in range(11, 30)}
            assert await store.sweep(NOW + 10) == 11
            assert {head.id for head in await store.heads()} == set(kept)
            for session, before in kept.items():
                assert await everything(store, session) == before
            for number in range(11):
                assert await outcome(store.head(f"room {number}")) is UnknownSession
            assert await store.sweep(NOW + 10) == 0

    @asynchronous
    async def test_an_id_that_was_swept_begins_anew(self, url: str) -> None:
        async with open_store(url) as store:
            await store.create(make_head(revision=2), [make_entry(1, "a"), make_entry(2, "b")], Snapshot(2, b"old"))
            await store.append("room", make_entry(3, "c"), expires=LATER, snapshot=Snapshot(3, b"old"))
            assert await store.sweep(LATER) == 1
            for call in (store.load("room"), store.entries("room"), store.find_call("room", "a")):
                assert await outcome(call) is UnknownSession
            head = make_head(created=MUCH_LATER, expires=2 * MUCH_LATER)
            await store.create(head)
            assert await store.load("room") == Loaded(head, None, [])
            for call_id in ("a", "b", "c"):
                assert await store.find_call("room", call_id) is None
            await store.append("room", make_entry(1, "a", at=MUCH_LATER), expires=2 * MUCH_LATER)
            assert (await store.load("room")).entries == [make_entry(1, "a", at=MUCH_LATER)]
            assert await store.heads() == [replace(head, revision=1)]

    @asynchronous
    async def test_a_sweep_keeps_a_parent_as_long_as_a_fork_reads_it(self, url: str) -> None:
        async with open_store(url) as store:
            entries = await make_session(store, revision=3)
            await make_fork(store, "fork", "room", 2, expires=MUCH_LATER)
            await make_fork(store, "short fork", "room", 2)
            assert await store.sweep(LATER) == 1
            assert {head.id for head in await store.heads()} == {"room", "fork"}
            assert await store.entries("room") == entries
            assert await outcome(store.append("room", make_entry(4, at=LATER), expires=MUCH_LATER)) is SessionExpired
            assert await store.sweep(MUCH_LATER) == 2
            assert await store.heads() == []

    @asynchronous
    async def test_a_sweep_keeps_a_whole_chain_of_parents(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store, "a")
            await make_fork(store, "b", "a", 1)
            await make_fork(store, "c", "b", 1)
            await make_fork(store, "d", "c", 1, expires=MUCH_LATER)
            await make_fork(store, "side", "c", 1)
            assert await store.sweep(LATER) == 1
            assert {head.id for head in await store.heads()} == {"a", "b", "c", "d"}
            assert await store.sweep(MUCH_LATER) == 4
            assert await store.heads() == []

    @asynchronous
    async def test_a_fork_does_not_die_with_its_live_parent(self, url: str) -> None:
        async with open_store(url) as store:
            await make_session(store, expires=MUCH_LATER)
            await make_fork(store, "fork", "room", 1)
            await make_fork(store, "fork of fork", "fork", 1, expires=MUCH_LATER)
            assert await store.sweep(LATER) == 0
            await store.touch("fork of fork", now=LATER, expires=LATER + 1)
            assert await store.sweep(LATER + 1) == 2
            assert [head.id for head in await store.heads()] == ["room"]

    @asynchronous
    async def test_a_sweep_and_a_fork_at_the_same_time_leave_no_orphan(self, url: str) -> None:
        async with open_store(url) as store:
            for number in range(10):
                parent, fork = f"room {number}", f"fork {number}"
                await make_session(store, parent)
                calls: list[Awaitable[object]] = [
                    outcome(make_fork(store, fork, parent, 1, expires=MUCH_LATER)),
                    store.sweep(LATER),
                ]
                await asyncio.gather(*(calls if number % 2 else reversed(calls)))
                has_fork = await outcome(store.head(fork)) is not UnknownSession
                has_parent = await outcome(store.head(parent)) is not UnknownSession
                assert has_fork == has_parent

    @asynchronous
    async def test_a_sweep_never_takes_a_session_that_was_just_renewed(self, url: str) -> None:
        async with open_store(url) as store:
            for number in range(10):
                session = f"room {number}"
                await make_session(store, session)
                renewal = (
                    store.append(session, make_entry(2), expires=MUCH_LATER)
                    if number % 4 < 2
                    else store.touch(session, now=NOW, expires=MUCH_LATER)
                )
                calls: list[Awaitable[object]] = [outcome(renewal), store.sweep(LATER)]
                done = await asyncio.gather(*(calls if number % 2 else reversed(calls)))
                renewed = done[0 if number % 2 else 1] is None
                assert renewed == (await outcome(store.head(session)) is not UnknownSession)

    # Listing.

    @asynchronous
    async def test_heads_are_listed_from_the_newest(self, url: str) -> None:
        async with open_store(url) as store:
            ages = [float(number) for number in range(12)]
            random.Random(1).shuffle(ages)
            for created in ages:
                await make_session(store, f"room {created}", created=created)
            assert [head.created for head in await store.heads()] == sorted(ages, reverse=True)
            assert [head.created for head in await store.heads(limit=3)] == [11.0, 10.0, 9.0]

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 100])
    @asynchronous
    async def test_pages_hold_every_head_once_even_if_all_are_of_one_age(self, url: str, limit: int) -> None:
        async with open_store(url) as store:
            for number in range(15):
                session, environment = f"room {number * 7 % 15}", "odd" if number % 2 else "even"
                await make_session(store, session, created=float(number // 8), environment=environment)
            listed = await list_all(store, limit=limit)
            assert sorted(head.id for head in listed) == sorted(f"room {number}" for number in range(15))
            assert all(one.created >= other.created for one, other in pairwise(listed))
            assert listed == await store.heads()
            for environment in ("odd", "even"):
                mine = [head for head in listed if head.environment == environment]
                assert await list_all(store, limit=limit, environment=environment) == mine
            assert await store.heads(environment="none") == []

    @asynchronous
    async def test_a_listing_goes_on_after_a_head_that_changed_or_is_gone(self, url: str) -> None:
        async with open_store(url) as store:
            for number in range(6):
                await make_session(store, f"room {number}", expires=LATER if number in (2, 4) else MUCH_LATER)
            whole = [head.id for head in await store.heads()]
            first = await store.heads(limit=2)
            await store.append(first[-1].id, make_entry(2), expires=first[-1].expires)
            second = await store.heads(before=first[-1], limit=2)
            await store.sweep(LATER)
            third = await store.heads(before=second[-1])
            assert [head.id for head in [*first, *second]] == whole[:4]
            assert [head.id for head in third] == [
                session for session in whole[4:] if session not in ("room 2", "room 4")
            ]

    @asynchronous
    async def test_a_page_has_a_hundred_heads_unless_told_otherwise(self, url: str) -> None:
        async with open_store(url) as store:
            await asyncio.gather(*(make_session(store, f"room {n}", created=float(n), revision=0) for n in range(105)))
            assert [head.id for head in await store.heads()] == [f"room {number}" for number in range(104, 4, -1)]

    # Several stores on one URL, and one after another.

    @asynchronous
    async def test_stores_on_one_url_see_each_others_commits_at_once(self, url: str) -> None:
        self.needs_shared()
        async with open_store(url) as one, open_store(url) as two:
            await make_session(one)
            for revision in range(2, 12):
                writer, reader = (one, two) if revision % 2 else (two, one)
                snapshot = Snapshot(revision, b"state") if revision == 6 else None
                entry = make_entry(revision, f"call {revision}")
                await writer.append("room", entry, expires=LATER + revision, snapshot=snapshot)
                assert await everything(reader, "room") == await everything(writer, "room")
                assert await reader.find_call("room", f"call {revision}") == entry
            await two.touch("room", now=NOW, expires=NOW + 1)
            assert await one.sweep(NOW + 1) == 1
            assert await two.heads() == []

    @asynchronous
    async def test_a_load_is_of_one_moment_whatever_others_do_meanwhile(self, url: str) -> None:
        self.needs_shared()
        async with open_store(url) as writer, open_store(url) as reader:
            finished = asyncio.Event()

            async def write() -> None:
                for life in range(40):
                    revision = 1 + life % 3
                    entries = [make_entry(number, body=b"%d" % life) for number in range(1, revision + 1)]
                    head = make_head(owner=str(life), revision=revision)
                    await writer.create(head, entries, Snapshot(1, b"%d" % life))
                    await writer.sweep(LATER)
                finished.set()

            async def read() -> None:
                while not finished.is_set():
                    loaded = await outcome(reader.load("room"))
                    if not isinstance(loaded, Loaded):
                        assert loaded is UnknownSession
                        continue
                    life = loaded.head.owner.encode()
                    assert loaded.snapshot == Snapshot(1, life), "the head and the snapshot are of different sessions"
                    assert loaded.entries == [make_entry(n, body=life) for n in range(2, loaded.head.revision + 1)]

            await asyncio.gather(write(), *(read() for _ in range(4)))

    @asynchronous
    async def test_sessions_survive_closing_and_opening_again(self, url: str) -> None:
        self.needs_durable()
        async with open_store(url) as store:
            await make_session(store, "room", revision=2)
            await store.append("room", make_entry(3, "call"), expires=LATER, snapshot=Snapshot(3, b"state 3"))
            await make_fork(store, "fork", "room", 2, revision=4)
            await make_session(store, "closed", revision=0)
            await store.append("closed", make_entry(1), expires=LATER, closes=True)
            sessions = ("room", "fork", "closed")
            before = [await everything(store, session) for session in sessions]
            listed = await store.heads()
        async with open_store(url) as store:
            assert [await everything(store, session) for session in sessions] == before
            assert await store.heads() == listed
            assert await outcome(store.append("room", make_entry(4, "call"), expires=LATER)) is DuplicateCall
            assert await outcome(store.append("room", make_entry(3), expires=LATER)) is Conflict
            assert await outcome(store.append("closed", make_entry(2), expires=LATER)) is SessionClosed
            await store.append("room", make_entry(4), expires=LATER)
            assert await store.sweep(LATER) == 3
        async with open_store(url) as store:
            assert await store.heads() == []

    # Everything together, by chance.

    @pytest.mark.parametrize("seed", range(4))
    @asynchronous
    async def test_any_mixture_of_calls_does_what_a_model_in_plain_dicts_does(self, url: str, seed: int) -> None:
        async with open_store(url) as store:
            reference, chance, now = Reference(), random.Random(seed), NOW
            for step in range(300):
                now += chance.choice([0.0, 0.5, 1.0])
                name, arguments = _choose_call(reference, chance, now)
                expected = reference.answer(name, arguments)
                got = await outcome(getattr(store, name)(**arguments))
                if isinstance(got, list) and name == "heads":  # heads of one age may be listed in any order
                    got.sort(key=lambda head: (head.created, head.id), reverse=True)
                assert got == expected, f"seed {seed}, step {step}: {name}({arguments})"
            for session in reference.sessions:
                for at in (None, *range(reference.sessions[session].head.revision + 1)):
                    assert await store.load(session, at) == reference.load(session, at), (
                        f"seed {seed}: {session} at {at}"
                    )


def _choose_call(reference: Reference, chance: random.Random, now: float) -> tuple[str, dict[str, Any]]:
    """A call: mostly one that a session layer would make, now and then one that must be refused."""
    session = chance.choice([*reference.sessions, *reference.sessions, "room 0"]) if reference.sessions else "room 0"
    revision = reference.sessions[session].head.revision if session in reference.sessions else 0
    expires = now + chance.choice([5.0, 60.0, 200.0])
    name = chance.choices(
        ["create", "append", "touch", "head", "heads", "load", "entries", "find_call", "sweep"],
        [4, 16, 1, 1, 1, 3, 2, 2, 2],
    )[0]
    if name == "create":
        made = f"room {chance.randrange(12)}"
        # Of two reasons to refuse, the contract does not say which comes first: a fork gets an id that is free.
        parent = session if made not in reference.sessions and chance.random() < 0.6 else None
        first = max(0, revision + chance.choice([-2, -1, 0, 0, 0, 1])) if parent else 0
        last = first + chance.randrange(3)
        head = make_head(
            made,
            environment=chance.choice(["a", "b"]),
            created=float(int(now)),
            expires=expires,
            revision=last,
            parent=parent,
            parent_revision=first,
        )
        entries = [make_entry(number, at=now, body=chance.randbytes(9)) for number in range(first + 1, last + 1)]
        snapshot = Snapshot(last, chance.randbytes(9)) if chance.random() < 0.3 else None
        return name, {"head": head, "entries": entries, "snapshot": snapshot}
    if name == "append":
        number = max(0, revision + chance.choice([1] * 12 + [0, 2]))
        entry = make_entry(number, _choose_call_id(chance), at=now, body=chance.randbytes(9))
        snapshot = Snapshot(number, chance.randbytes(9)) if chance.random() < 0.2 else None
        closes = chance.random() < 0.01
        return name, {
            "session": session, "entry": entry, "expires": expires, "snapshot": snapshot, "closes": closes
        }  # fmt: skip
    others: dict[str, dict[str, Any]] = {
        "touch": {"session": session, "now": now, "expires": expires},
        "head": {"session": session},
        "heads": {"environment": chance.choice([None, "a", "b"])},
        "load": {"session": session, "at": chance.choice([None, chance.randint(0, revision)])},
        "entries": {
            "session": session,
            "after": chance.randint(0, revision + 1),
            "until": chance.choice([None, chance.randint(0, revision + 1)]),
        },
        "find_call": {"session": session, "call_id": _choose_call_id(chance) or "call"},
        "sweep": {"now": now},
    }
    return name, others[name]


def _choose_call_id(chance: random.Random) -> str | None:
    return chance.choice([None, None, f"call {chance.randrange(6)}"])

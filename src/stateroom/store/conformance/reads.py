"""Promises about reading."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from stateroom.errors import SessionClosed, SessionExpired, StoreUnavailable, UnknownSession
from stateroom.store import Commit, Loaded, Snapshot, Store, open_store
from stateroom.store.conformance import make
from stateroom.store.conformance.helpers import TIMEOUT, Suite, append, check_refused
from stateroom.store.conformance.make import LATER, MUCH_LATER, NOW


class ReadPromises(Suite):
    """Nothing is silently empty, and history can be read from any point."""

    # No silent emptiness.

    async def test_an_unknown_session_is_an_error_for_every_method(self, store: Store) -> None:
        await make.session(store, "somebody else")
        calls: list[Callable[[], Awaitable[object]]] = [
            lambda: append(store, "room", 1),
            lambda: append(store, "room", 1, "call", snapshot=Snapshot(1, b"")),
            lambda: store.touch("room", now=NOW, expires=LATER),
            lambda: store.head("room"),
            lambda: store.load("room"),
            lambda: store.load("room", 1),
            lambda: store.entries("room"),
            lambda: store.entries("room", after=1, until=2),
            lambda: store.find_call("room", "call"),
            lambda: store.delete("room"),
            lambda: store.lease("room", "me", now=NOW, until=LATER),
            lambda: store.release("room", "me"),
            lambda: store.children("room"),
            lambda: store.blobs("room", ["digest"]),
            lambda: store.blobs("room", []),
            lambda: store.maintenance.export("room"),
            lambda: store.prune("room", 1),
            lambda: store.size("room"),
            lambda: store.create(make.head("fork", parent="room")),
        ]
        for call in calls:
            await check_refused(UnknownSession, call(), session="room")
        assert [head.id for head in await store.heads()] == ["somebody else"]

    async def test_a_closed_session_refuses_changes_and_can_be_read(self, store: Store) -> None:
        first = await make.session(store)
        last = make.entry(2, "close")
        await store.append(Commit("room", last, expires=LATER, closes=True))
        for call in (
            append(store, "room", 3),
            append(store, "room", 3, "close"),
            append(store, "room", 2),
            store.touch("room", now=NOW, expires=MUCH_LATER),
            store.touch("room", now=LATER, expires=MUCH_LATER),
        ):
            await check_refused(SessionClosed, call, session="room")
        head = make.head(revision=2, closed=True)
        assert await store.head("room") == head
        assert await store.heads() == [head]
        assert await store.load("room") == Loaded(head, None, [*first, last])
        assert await store.entries("room") == [*first, last]
        assert await store.find_call("room", "close") == last

    async def test_an_expired_session_refuses_changes_and_can_be_read(self, store: Store) -> None:
        entries = await make.session(store, revision=2)
        for call in (
            append(store, "room", 3, at=LATER, expires=MUCH_LATER),
            append(store, "room", 3, at=LATER + 1, expires=MUCH_LATER),
            append(store, "room", 9, at=LATER, expires=MUCH_LATER),
            store.touch("room", now=LATER, expires=MUCH_LATER),
            store.touch("room", now=MUCH_LATER, expires=MUCH_LATER + 1),
        ):
            await check_refused(SessionExpired, call, session="room")
        head = make.head(revision=2)
        assert await store.head("room") == head
        assert await store.heads() == [head]
        assert await store.load("room") == Loaded(head, None, entries)
        assert await store.entries("room") == entries

    async def test_a_closed_store_refuses_every_call(self, url: str) -> None:
        async with open_store(url) as store:
            await make.session(store)
            record = await store.maintenance.export("room")
        for call in (
            store.create(make.head("new")),
            append(store, "room", 2),
            store.touch("room", now=NOW, expires=LATER),
            store.head("room"),
            store.heads(),
            store.load("room"),
            store.entries("room"),
            store.find_call("room", "call"),
            store.sweep(NOW),
            store.delete("room"),
            store.count(NOW),
            store.lease("room", "me", now=NOW, until=LATER),
            store.release("room", "me"),
            store.children("room"),
            store.blobs("room", ["digest"]),
            store.maintenance.export("room"),
            store.put(record),
            store.prune("room", 1),
            store.size("room"),
            store.maintenance.sizes(),
            store.maintenance.orphans(),
            store.maintenance.vacuum(),
        ):
            await check_refused(StoreUnavailable, call)
        await store.close()

    async def test_closing_finishes_what_is_under_way(self, store: Store) -> None:
        await make.session(store)
        await make.session(store, "expired", expires=NOW)
        calls = [asyncio.ensure_future(make.session(store, f"room {number}")) for number in range(10)]
        reads = [asyncio.ensure_future(store.head("room")) for _ in range(10)]
        sweep = asyncio.ensure_future(store.sweep(NOW))
        await asyncio.sleep(0)  # all of them have begun
        await store.close()
        await asyncio.wait_for(asyncio.gather(*calls, *reads), TIMEOUT / 4)
        assert await asyncio.wait_for(sweep, TIMEOUT / 4) == 1

    # History: append-only, in order, and readable from any point.

    async def test_entries_come_back_in_order_and_between_any_two_revisions(self, store: Store) -> None:
        history = await make.session(store, revision=3)
        for revision in range(4, 13):  # past 9: an order by text would show
            history.append(make.entry(revision, f"call {revision}", at=NOW - revision))
            await store.append(Commit("room", history[-1], expires=LATER))
        assert await store.entries("room") == history
        for after in range(14):
            assert await store.entries("room", after=after) == history[after:]
            for until in range(14):
                assert await store.entries("room", after=after, until=until) == history[after:until]

    async def test_a_load_has_the_newest_snapshot_and_the_entries_since(self, store: Store) -> None:
        history = await make.session(store)
        snapshots: dict[int, Snapshot] = {}
        for revision in range(2, 13):
            if revision in (4, 5, 9):
                snapshots[revision] = Snapshot(revision, b"state %d" % revision)
            history.append(make.entry(revision))
            await store.append(Commit("room", history[-1], expires=LATER, snapshot=snapshots.get(revision)))
        head = make.head(revision=12)
        for at in range(1, 13):
            base = max((revision for revision in snapshots if revision <= at), default=0)
            assert await store.load("room", at) == Loaded(head, snapshots.get(base), history[base:at])
        assert await store.load("room") == Loaded(head, snapshots[9], history[9:])

    async def test_a_load_without_snapshots_has_all_entries_up_to_the_revision(self, store: Store) -> None:
        history = await make.session(store, revision=11)
        for at in range(12):
            assert await store.load("room", at) == Loaded(make.head(revision=11), None, history[:at])

    async def test_what_was_read_does_not_change_afterwards(self, store: Store) -> None:
        await make.session(store)
        head, loaded, entries = await store.head("room"), await store.load("room"), await store.entries("room")
        await append(store, "room", 2, expires=MUCH_LATER, snapshot=Snapshot(2, b"state"))
        assert head == make.head(revision=1)
        assert loaded == Loaded(head, None, [make.entry(1)])
        assert entries == [make.entry(1)]
        entries.clear()
        loaded.entries.clear()
        assert await store.entries("room") == [make.entry(1), make.entry(2)]

    # Counting.

    async def test_live_sessions_are_counted(self, store: Store) -> None:
        assert await store.count(NOW) == 0
        for number in range(7):
            await make.session(store, f"room {number}", environment=f"env {number % 2}", expires=NOW + number)
        assert [await store.count(NOW + passed) for passed in (-1, 0, 0.5, 3, 5, 6, 99)] == [7, 6, 6, 3, 1, 0, 0]

    async def test_closed_swept_and_deleted_sessions_are_not_counted(self, store: Store) -> None:
        for number in range(6):
            await make.session(store, f"room {number}", expires=LATER if number == 0 else MUCH_LATER)
        await append(store, "room 1", 2, expires=MUCH_LATER, closes=True)
        await append(store, "room 2", 2, expires=None, closes=True)
        assert await store.count(NOW) == 4
        await store.delete("room 3")
        await store.delete("room 1")
        assert await store.count(NOW) == 3
        await store.sweep(LATER)
        assert await store.count(NOW) == 2

    async def test_forks_are_counted_and_renewals_are_seen(self, store: Store) -> None:
        await make.session(store)
        await make.fork(store, "fork", "room", 1, expires=MUCH_LATER)
        assert await store.count(NOW) == 2
        assert await store.count(LATER) == 1
        await store.touch("room", now=NOW, expires=MUCH_LATER)
        assert await store.count(LATER) == 2
        await append(store, "fork", 2)
        assert await store.count(LATER) == 1
        await store.delete("room")
        assert await store.count(NOW) == 1

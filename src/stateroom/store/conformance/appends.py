"""Promises about writing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from stateroom.errors import (
    Conflict,
    DuplicateCall,
    SessionClosed,
    SessionExpired,
    StateroomError,
    StoreError,
    UnknownSession,
)
from stateroom.store import Commit, Entry, HeadFilter, Loaded, Size, Snapshot, Store, open_store
from stateroom.store.conformance import make
from stateroom.store.conformance.helpers import NAMES, Suite, append, check_refused, everything, outcome, size_of_blobs
from stateroom.store.conformance.make import LATER, MUCH_LATER, NOW


class AppendPromises(Suite):
    """A write is there, once and whole, and never replaces another one."""

    # What is written is read.

    async def test_a_fresh_store_is_empty(self, store: Store) -> None:
        assert await store.heads() == []
        assert await store.sweep(MUCH_LATER) == 0

    async def test_a_created_session_has_the_head_it_was_given(self, store: Store) -> None:
        head = make.head("room", environment="café", owner="o'wner 🚢", created=1731628800.123456, expires=2e9 + 0.1)
        await store.create(head)
        assert await store.head("room") == head
        assert await store.heads() == [head]

    async def test_a_session_without_entries_loads_as_such(self, store: Store) -> None:
        head = make.head("room")
        await store.create(head)
        assert await store.load("room") == Loaded(head, None, [])
        assert await store.entries("room") == []

    async def test_a_session_is_created_with_its_entries_and_snapshot(self, store: Store) -> None:
        head = make.head("room", revision=2)
        entries = [make.entry(1, "first"), make.entry(2, "second")]
        await store.create(head, entries, Snapshot(2, b"state 2"))
        assert await store.load("room") == Loaded(head, Snapshot(2, b"state 2"), [])
        assert await store.entries("room") == entries
        assert await store.find_call("room", "second") == entries[1]

    async def test_an_append_moves_head_log_snapshot_and_expiry_together(self, store: Store) -> None:
        first = await make.session(store)
        second = Entry(2, "kind of its own", 1234.56789, b"\x00\xff", "call")
        await store.append(Commit("room", second, expires=2345.6789, snapshot=Snapshot(2, b"state 2")))
        head = make.head("room", revision=2, expires=2345.6789)
        assert await store.head("room") == head
        assert await store.entries("room") == [*first, second]
        assert await store.load("room") == Loaded(head, Snapshot(2, b"state 2"), [])
        assert await store.find_call("room", "call") == second

    async def test_an_append_changes_no_other_session(self, store: Store) -> None:
        await make.session(store, "room")
        await make.session(store, "room2")
        before = await everything(store, "room2")
        await append(store, "room", 2, "call", expires=MUCH_LATER, snapshot=Snapshot(2, b""), closes=True)
        assert await everything(store, "room2") == before
        assert await store.find_call("room2", "call") is None

    @pytest.mark.parametrize(
        "body", [b"", b"\x00", bytes(range(256)), b"\xff\xfe not text \x80", b"'; --", b"0123456789" * 500_000]
    )
    async def test_bodies_come_back_byte_for_byte(self, store: Store, body: bytes) -> None:
        await store.create(make.head(revision=1), [make.entry(1, body=body)], Snapshot(1, body))
        await append(store, "room", 2, "call", body=body, snapshot=Snapshot(2, body))
        assert [entry.body == body for entry in await store.entries("room")] == [True, True]
        for revision in (1, 2):
            snapshot = (await store.load("room", revision)).snapshot
            assert snapshot is not None
            assert snapshot.body == body
        stored = await store.find_call("room", "call")
        assert stored is not None
        assert stored.body == body

    async def test_any_text_can_be_an_id(self, store: Store) -> None:
        for number, name in enumerate(NAMES):
            await make.session(store, name, environment=name, owner=name, created=float(number))
        for number, name in enumerate(NAMES):
            await append(store, name, 2, body=name.encode())
            head = make.head(name, environment=name, owner=name, created=float(number), revision=2)
            assert await store.head(name) == head
            assert await store.heads(HeadFilter(environment=name)) == [head]
            assert [entry.body for entry in await store.entries(name, after=1)] == [name.encode()]
        await make.fork(store, "fork of " + NAMES[0], NAMES[0], 2)
        assert (await store.head("fork of " + NAMES[0])).parent == NAMES[0]

    async def test_any_text_can_be_a_call_id(self, store: Store) -> None:
        await store.create(make.head(revision=1), [make.entry(1, "")])
        for revision, name in enumerate(NAMES, 2):
            await append(store, "room", revision, name)
        for revision, name in enumerate(["", *NAMES], 1):
            assert await store.find_call("room", name) == make.entry(revision, name)
            await check_refused(DuplicateCall, append(store, "room", len(NAMES) + 2, name))

    async def test_a_call_that_was_never_made_is_not_found(self, store: Store) -> None:
        await make.session(store, revision=2)
        assert await store.find_call("room", "nobody") is None
        assert await store.find_call("room", "None") is None
        assert await store.find_call("room", "") is None

    # One commit: all or nothing.

    @pytest.mark.parametrize("refusal", [Conflict, DuplicateCall, SessionClosed, SessionExpired, UnknownSession])
    async def test_a_refused_append_changes_nothing(self, store: Store, refusal: type[StateroomError]) -> None:
        await store.create(make.head(revision=1), [make.entry(1, "first")], Snapshot(1, b"state 1"))
        if refusal is SessionClosed:
            await append(store, "room", 2, closes=True)
        before = await everything(store, "room")
        session = "nobody" if refusal is UnknownSession else "room"
        revision = before[0].revision + (2 if refusal is Conflict else 1)
        call_id, at = "first" if refusal is DuplicateCall else "new", LATER if refusal is SessionExpired else NOW
        rest: dict[str, Any] = {"snapshot": Snapshot(revision, b"wrong"), "blobs": make.blobs(b"wrong"), "closes": True}
        await check_refused(refusal, append(store, session, revision, call_id, at=at, expires=MUCH_LATER, **rest))
        assert await everything(store, "room") == before
        assert await store.find_call("room", "new") is None
        assert await size_of_blobs(store) == Size(0, 0)
        assert await store.maintenance.orphans() == []

    async def test_an_id_is_given_once_and_the_first_session_keeps_it(self, store: Store) -> None:
        await store.create(make.head(revision=1), [make.entry(1, "mine")], Snapshot(1, b"mine"))
        before = await everything(store, "room")
        other = make.head(environment="other", owner="other", created=NOW + 1, expires=MUCH_LATER, revision=2)
        theirs = [make.entry(1, "theirs"), make.entry(2)], Snapshot(2, b"theirs"), make.blobs(b"theirs")
        await check_refused(StoreError, store.create(other, *theirs))
        assert await everything(store, "room") == before
        assert await store.find_call("room", "theirs") is None
        assert await size_of_blobs(store) == Size(0, 0)

    async def test_a_refused_create_leaves_no_trace(self, store: Store) -> None:
        twice = [make.entry(1, "twice"), make.entry(2, "twice")], Snapshot(2, b"wrong"), make.blobs(b"wrong")
        await check_refused(DuplicateCall, store.create(make.head(revision=2), *twice))
        assert await outcome(store.head("room")) is UnknownSession
        assert await store.heads() == []
        assert await size_of_blobs(store) == Size(0, 0)
        await make.session(store, "room")
        assert await store.load("room") == Loaded(make.head(revision=1), None, [make.entry(1)])
        assert await store.find_call("room", "twice") is None
        assert await store.blobs("room") == {}

    async def test_of_many_creates_with_one_id_one_wins(self, store: Store) -> None:
        heads = [make.head(owner=f"owner {number}", revision=1) for number in range(10)]
        done = await asyncio.gather(
            *(outcome(store.create(head, [make.entry(1, body=head.owner.encode())])) for head in heads)
        )
        winners = [head for head, error in zip(heads, done, strict=True) if error is None]
        assert len(winners) == 1
        assert await store.head("room") == winners[0]
        assert [entry.body for entry in await store.entries("room")] == [winners[0].owner.encode()]

    # One revision.

    @pytest.mark.parametrize("revision", [0, 1, 2, 3, 5, 100])
    async def test_a_writer_at_the_wrong_revision_is_refused(self, store: Store, revision: int) -> None:
        await make.session(store, revision=3)
        await check_refused(Conflict, append(store, "room", revision), session="room", revision=revision - 1)

    async def test_of_many_writers_at_one_revision_one_wins(self, store: Store) -> None:
        await make.session(store)
        for revision in range(2, 7):
            entries = [make.entry(revision, f"{revision}/{writer}") for writer in range(12)]
            done = await asyncio.gather(
                *(outcome(store.append(Commit("room", entry, expires=LATER))) for entry in entries)
            )
            assert sorted(map(str, done)) == sorted(map(str, [None] + [Conflict] * 11))
            assert await store.entries("room", after=revision - 1) == [entries[done.index(None)]]

    async def test_writers_who_try_again_lose_nothing(self, store: Store) -> None:
        await make.session(store, revision=0)
        writers = [f"writer {number}" for number in range(8)]
        await asyncio.gather(*(self.write_with_retries(store, writer, self.increments) for writer in writers))
        await self.check_nothing_lost(store, writers, self.increments)

    async def test_writers_in_several_stores_lose_nothing(self, url: str) -> None:
        self.needs_shared()
        async with open_store(url) as one, open_store(url) as two, open_store(url) as three:
            await make.session(one, revision=0)
            names = [f"writer {number}" for number in range(6)]
            stores = [one, two, three, one, two, three]
            pairs = zip(stores, names, strict=True)
            await asyncio.gather(*(self.write_with_retries(store, name, 5) for store, name in pairs))
            for store in (one, two, three):
                await self.check_nothing_lost(store, names, 5)

    async def test_touches_and_forks_in_several_stores_are_all_done(self, url: str) -> None:
        self.needs_shared()
        async with open_store(url) as one, open_store(url) as two, open_store(url) as three:
            await make.session(one)

            async def work(store: Store, name: str) -> None:
                for number in range(20):
                    await store.touch("room", now=NOW, expires=LATER + number)
                    await make.fork(store, f"{name}/{number}", "room", 1)

            await asyncio.gather(work(one, "one"), work(two, "two"), work(three, "three"))
            forks = {f"{name}/{number}" for name in ("one", "two", "three") for number in range(20)}
            assert {head.id for head in await one.heads()} == {"room", *forks}
            assert (await one.head("room")).expires == LATER + 19

    @staticmethod
    async def write_with_retries(store: Store, writer: str, count: int) -> None:
        """Append entries as a worker does: read the head, try, and retry after a conflict."""
        for number in range(count):
            while True:
                revision = (await store.head("room")).revision + 1
                entry = make.entry(revision, f"{writer}/{number}")
                done = await outcome(store.append(Commit("room", entry, expires=LATER)))
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
    async def test_a_call_id_is_committed_once_whatever_the_revision(self, store: Store, revision: int) -> None:
        await store.create(make.head(revision=1), [make.entry(1, "seed")])
        await append(store, "room", 2, "call")
        await append(store, "room", 3)
        for call_id in ("seed", "call"):
            await check_refused(
                DuplicateCall, append(store, "room", revision, call_id), session="room", call_id=call_id
            )

    async def test_one_call_sent_many_times_at_once_is_committed_once(self, store: Store) -> None:
        await make.session(store)
        attempts = [make.entry(2, "call"), make.entry(3, "call")] * 6
        done = await asyncio.gather(
            *(outcome(store.append(Commit("room", entry, expires=LATER))) for entry in attempts)
        )
        assert done.count(None) == 1
        assert [entry.call_id for entry in await store.entries("room")] == [None, "call"]

    async def test_two_sessions_may_use_one_call_id(self, store: Store) -> None:
        await make.session(store, "room")
        await make.session(store, "other")
        await append(store, "room", 2, "call", body=b"room")
        await make.fork(store, "fork", "room", 2)
        assert await store.find_call("fork", "call") is None
        await append(store, "other", 2, "call", body=b"other")
        await append(store, "fork", 3, "call", body=b"fork")
        for session in ("room", "other", "fork"):
            entry = await store.find_call(session, "call")
            assert entry is not None
            assert entry.body == session.encode()

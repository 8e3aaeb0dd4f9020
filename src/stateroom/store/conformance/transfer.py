"""Promises about whole sessions, out and in."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from stateroom.errors import Conflict, DuplicateCall, OutdatedRecord, StoreError, UnknownRevision, UnknownSession
from stateroom.store import Commit, Head, Loaded, Record, Snapshot, Store, open_store
from stateroom.store.conformance import make
from stateroom.store.conformance.helpers import Suite, append, check_refused, everything, outcome
from stateroom.store.conformance.make import LATER, MUCH_LATER, NOW


def cut(record: Record, revision: int) -> Record:
    """An earlier moment of a session."""
    return Record(
        replace(record.head, revision=revision, expires=LATER, fence=3, holder=None, leased_until=0.0),
        record.entries[:revision],
        [snapshot for snapshot in record.snapshots if snapshot.revision <= revision],
        dict(list(record.blobs.items())[:1]),
    )


class TransferPromises(Suite):
    """A session can be moved, as it is, from store to store."""

    async def test_an_export_is_all_of_a_session(self, store: Store) -> None:
        record = await make.long_session(store)
        assert await store.maintenance.export("room") == record
        own = [make.entry(4, "own")]
        fork = make.head("fork", revision=4, parent="room", parent_revision=3)
        await store.create(fork, own, Snapshot(3, b"state 3"), make.blobs(b"own"))
        assert await store.maintenance.export("fork") == Record(
            fork, own, [Snapshot(3, b"state 3")], make.blobs(b"own")
        )
        await make.session(store, "bare", revision=0)
        assert await store.maintenance.export("bare") == Record(make.head("bare"), [], [], {})

    async def test_a_session_that_is_restored_is_as_it_was(self, store: Store) -> None:
        record = await make.long_session(store)
        before, listed = await everything(store, "room"), await store.heads()
        await store.delete("room")
        await store.put(record)
        assert await everything(store, "room") == before
        assert await store.heads() == listed
        assert await store.blobs("room", [*record.blobs]) == record.blobs
        assert await store.find_call("room", "call 2") == record.entries[1]
        assert await store.count(NOW) == 1
        again = make.entry(9, "call 2")
        assert await outcome(store.append(Commit("room", again, expires=LATER, fence=4))) is DuplicateCall
        assert await outcome(append(store, "room", 9, fence=3)) is Conflict
        await append(store, "room", 9, fence=4)
        assert (await store.load("room")).entries == [*record.entries[6:], make.entry(9)]
        assert await store.sweep(LATER) == 1

    async def test_a_whole_session_can_be_put_in_as_new_once(self, store: Store) -> None:
        record = await make.long_session(store)
        await store.delete("room")
        await store.put(record, new=True)
        assert await store.maintenance.export("room") == record
        await check_refused(StoreError, store.put(record, new=True))
        assert await store.maintenance.export("room") == record

    @pytest.mark.parametrize(
        "head",
        [
            make.head(closed=True),
            make.head(expires=0.0),
            make.head(fence=2**53 - 1, holder="o'clock", leased_until=1234.5678),
            make.head(fence=5, leased_until=3.0),
            make.head("caf\u00e9\n", environment="{a}:b", owner="o'wner 🚢", created=1731628800.123456),
        ],
        ids=["closed", "expired", "leased", "released", "odd names"],
    )
    async def test_a_head_is_restored_exactly_as_it_is_given(self, store: Store, head: Head) -> None:
        for revision in (1, 1, 3):  # new, again, and more of it
            moment = replace(head, revision=revision)
            entries = [make.entry(number) for number in range(1, revision + 1)]
            await store.put(Record(moment, entries, [], {}))
            assert await store.head(head.id) == moment
            assert await store.heads() == [moment]
            assert await store.load(head.id) == Loaded(moment, None, entries)

    @pytest.mark.parametrize("revision", [1, 4, 5, 8])
    async def test_the_rest_of_a_session_is_added_to_an_earlier_moment(self, store: Store, revision: int) -> None:
        record = await make.long_session(store)
        before = await everything(store, "room")
        await store.delete("room")
        await store.put(cut(record, revision))
        assert (await store.head("room")).revision == revision
        await store.put(record)
        assert await everything(store, "room") == before
        assert await store.find_call("room", "call 8") == record.entries[7]

    async def test_to_restore_a_session_again_changes_nothing(self, store: Store) -> None:
        record = await make.long_session(store)
        before, size = await everything(store, "room"), await store.size("room")
        for _ in range(2):
            await store.put(record)
            assert await everything(store, "room") == before
        await asyncio.gather(*(store.put(record) for _ in range(4)))
        assert await everything(store, "room") == before
        assert await store.size("room") == size

    async def test_a_head_that_has_changed_becomes_that_of_the_record(self, store: Store) -> None:
        await make.session(store)
        record = await store.maintenance.export("room")
        await store.lease("room", "me", now=NOW, until=LATER)
        await store.touch("room", now=NOW, expires=MUCH_LATER)
        await store.put(record)
        assert await store.head("room") == record.head
        assert await store.sweep(LATER) == 1

    async def test_a_record_of_another_session_is_refused(self, store: Store) -> None:
        record = await make.long_session(store)
        before = await everything(store, "room")
        entries = [*record.entries, make.entry(9, "theirs")]
        for different in ({"created": NOW + 1}, {"owner": "another"}, {"environment": "another"}):
            other = replace(record.head, revision=9, **different)
            theirs = Record(other, entries, [Snapshot(9, b"wrong")], make.blobs(b"theirs"))
            await check_refused(OutdatedRecord, store.put(theirs))
        assert await everything(store, "room") == before
        assert await store.find_call("room", "theirs") is None

    async def test_a_record_that_is_behind_the_session_is_refused(self, store: Store) -> None:
        record = await make.long_session(store)
        before = await everything(store, "room")
        for revision in (1, 7):
            await check_refused(OutdatedRecord, store.put(cut(record, revision)))
        assert await everything(store, "room") == before

    async def test_a_fork_is_refused_without_its_parent(self, store: Store) -> None:
        head = make.head("fork", revision=4, parent="room", parent_revision=3)
        record = Record(head, [make.entry(4, "own")], [Snapshot(4, b"state")], make.blobs(b"own"))
        await check_refused(UnknownSession, store.put(record), session="room")
        await make.session(store, revision=2)
        await check_refused(UnknownRevision, store.put(record), session="room")
        assert await outcome(store.head("fork")) is UnknownSession
        assert await store.children("room") == []
        assert await store.maintenance.orphans() == []
        await append(store, "room", 3)
        await store.put(record)
        assert await store.maintenance.export("fork") == record

    async def test_a_restored_fork_holds_its_parent(self, store: Store) -> None:
        await make.session(store, revision=2)
        await make.fork(store, "fork", "room", 1, revision=3)
        parent, fork = await store.maintenance.export("room"), await store.maintenance.export("fork")
        await store.delete("fork")
        await store.delete("room")
        for record in (parent, fork, fork, parent):
            await store.put(record)
        assert [head.id for head in await store.children("room")] == ["fork"]
        await store.delete("room")
        assert (await store.head("room")).expires == 0.0
        assert await store.sweep(NOW) == 0
        await store.delete("fork")
        assert await store.sweep(NOW) == 1
        assert await store.heads() == []
        assert await store.maintenance.orphans() == []

    async def test_what_was_exported_does_not_change_afterwards(self, store: Store) -> None:
        await make.session(store)
        record = await store.maintenance.export("room")
        await append(store, "room", 2, snapshot=Snapshot(2, b""), blobs=make.blobs(b"a"))
        assert record == Record(make.head(revision=1), [make.entry(1)], [], {})
        await store.delete("room")
        await store.put(record)
        record.entries.clear()
        record.blobs["digest"] = b"wrong"
        assert (await store.maintenance.export("room")) == Record(make.head(revision=1), [make.entry(1)], [], {})

    async def test_an_export_is_of_one_moment_whatever_others_do_meanwhile(self, url: str) -> None:
        self.needs_shared()
        async with open_store(url) as writer, open_store(url) as reader:
            await make.session(writer, revision=0)
            finished = asyncio.Event()

            async def write() -> None:
                for revision in range(1, 41):
                    blobs = make.blobs(b"%d" % revision)
                    snapshot = Snapshot(revision, b"%d" % revision)
                    await append(writer, "room", revision, snapshot=snapshot, blobs=blobs)
                finished.set()

            async def look() -> None:
                while not finished.is_set():
                    record = await reader.maintenance.export("room")
                    revisions = range(1, record.head.revision + 1)
                    assert record.entries == [make.entry(revision) for revision in revisions]
                    assert record.snapshots == [Snapshot(revision, b"%d" % revision) for revision in revisions]
                    assert record.blobs == make.blobs(*(b"%d" % revision for revision in revisions))

            await asyncio.gather(write(), look(), look())

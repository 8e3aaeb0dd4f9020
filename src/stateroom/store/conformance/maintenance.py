"""Promises about maintenance: forks, pruning, sizes, and orphans."""

from __future__ import annotations

import asyncio
import random

import pytest
from msgspec.structs import replace

from stateroom.errors import DuplicateCall, StateroomError, UnknownRevision
from stateroom.store import Commit, Entry, Loaded, Size, Snapshot, Store
from stateroom.store.conformance import make
from stateroom.store.conformance.helpers import NAMES, Suite, append, check_refused, everything, outcome
from stateroom.store.conformance.make import LATER, MUCH_LATER, NOW


class MaintenancePromises(Suite):
    """A store can be listed, measured and pruned, and nothing is left behind."""

    # Forks.

    async def test_the_children_of_a_session_are_its_forks_from_the_oldest(self, store: Store) -> None:
        await make.session(store, revision=2)
        await make.session(store, "other")
        await make.fork(store, "late", "room", 2, created=NOW + 3)
        await make.fork(store, "early", "room", 1, created=NOW + 1)
        await make.fork(store, "grandchild", "early", 1)
        await make.fork(store, "middle", "room", 1, created=NOW + 2, expires=NOW)
        await append(store, "early", 2, closes=True)
        children = [await store.head(name) for name in ("early", "middle", "late")]
        assert await store.children("room") == children
        assert [head.id for head in await store.children("early")] == ["grandchild"]
        assert await store.children("other") == []
        await store.sweep(NOW)
        assert [head.id for head in await store.children("room")] == ["early", "late"]
        await store.delete("late")
        assert [head.id for head in await store.children("room")] == ["early"]

    async def test_children_of_sessions_with_similar_names_are_kept_apart(self, store: Store) -> None:
        for name in NAMES:
            await make.session(store, name)
            await make.fork(store, f"{name}/fork", name, 1)
        for name in NAMES:
            assert [head.id for head in await store.children(name)] == [f"{name}/fork"]

    # Pruning.

    async def test_a_prune_forgets_what_is_before_a_snapshot(self, store: Store) -> None:
        record = await make.long_session(store)
        assert await store.prune("room", 4) == 3
        stay = [record.entries[0], *record.entries[4:]]
        assert await store.head("room") == record.head
        assert await store.entries("room") == stay
        assert await store.entries("room", after=1, until=5) == stay[1:2]
        pruned = await store.maintenance.export("room")
        assert (pruned.entries, pruned.snapshots) == (stay, record.snapshots[1:])
        for at, snapshot, entries in (
            (4, record.snapshots[1], []),
            (5, record.snapshots[1], record.entries[4:5]),
            (6, record.snapshots[2], []),
            (None, record.snapshots[2], record.entries[6:]),
        ):
            assert await store.load("room", at) == Loaded(record.head, snapshot, entries)
        assert await store.blobs("room", [*record.blobs][1:]) == dict([*record.blobs.items()][1:])
        assert await store.maintenance.orphans() == []

    async def test_a_call_that_was_pruned_is_forgotten_and_others_are_not(self, store: Store) -> None:
        record = await make.long_session(store)
        await store.prune("room", 6)
        for number, entry in enumerate(record.entries, 1):
            stored = await store.find_call("room", f"call {number}")
            assert stored == (entry if number in (1, 7, 8) else None)
        assert await outcome(append(store, "room", 9, "call 1", fence=4)) is DuplicateCall
        await append(store, "room", 9, "call 3", fence=4)
        assert await store.find_call("room", "call 3") == make.entry(9, "call 3")

    async def test_a_pruned_session_goes_on_and_can_be_pruned_again(self, store: Store) -> None:
        record = await make.long_session(store)
        assert await store.prune("room", 1) == 0
        assert await store.maintenance.export("room") == record
        assert await store.prune("room", 4) == 3
        assert await store.prune("room", 4) == 0
        await append(store, "room", 9, fence=4, snapshot=Snapshot(9, b"state 9"))
        assert await store.prune("room", 9) == 5
        assert await store.entries("room") == record.entries[:1]
        assert (await store.load("room")).snapshot == Snapshot(9, b"state 9")
        await append(store, "room", 10, fence=4)
        assert (await store.load("room")).entries == [make.entry(10)]
        await store.delete("room")
        assert await store.heads() == []
        assert await store.maintenance.orphans() == []

    @pytest.mark.parametrize("below", [0, 2, 5, 8, 9, 100])
    async def test_a_prune_without_a_snapshot_is_refused(self, store: Store, below: int) -> None:
        await make.long_session(store)
        before = await everything(store, "room")
        await check_refused(UnknownRevision, store.prune("room", below), session="room")
        assert await everything(store, "room") == before

    async def test_a_prune_is_of_one_session(self, store: Store) -> None:
        record = await make.long_session(store)
        own = [make.entry(number, f"call {number}") for number in range(4, 8)]
        head = make.head("fork", revision=6, parent="room", parent_revision=3)
        await store.create(head, own[:3], Snapshot(6, b"fork 6"))
        await store.append(Commit("fork", own[3], expires=LATER))
        assert await store.prune("fork", 6) == 2  # not its first
        assert await store.entries("fork") == [own[0], own[3]]
        assert await store.load("fork") == Loaded(replace(head, revision=7), Snapshot(6, b"fork 6"), own[3:])
        assert await store.maintenance.export("room") == record

    async def test_a_pruned_session_can_be_moved(self, store: Store) -> None:
        await make.long_session(store)
        await store.prune("room", 4)
        before, record = await everything(store, "room"), await store.maintenance.export("room")
        await store.delete("room")
        await store.put(record)
        assert await everything(store, "room") == before

    # Sizes.

    async def test_an_empty_store_has_no_size(self, store: Store) -> None:
        sizes = await store.maintenance.sizes()
        for kind in ("sessions", "entries", "snapshots", "blobs"):
            assert sizes[kind] == Size(0, 0)

    async def test_the_size_of_a_session_is_that_of_all_it_has(self, store: Store) -> None:
        body = random.Random(1).randbytes  # what cannot be compressed
        await make.session(store, "other", revision=7)
        await store.create(make.head(revision=1), [make.entry(1, body=body(3_000))])
        sizes = [await store.size("room")]
        await append(store, "room", 2, body=body(3_000))
        sizes.append(await store.size("room"))
        await append(store, "room", 3, body=b"", snapshot=Snapshot(3, body(3_000)))
        sizes.append(await store.size("room"))
        await append(store, "room", 4, body=b"", blobs=make.blobs(body(3_000)))
        sizes.append(await store.size("room"))
        assert [size.rows for size in sizes] == [1, 2, 3, 4]
        for number, size in enumerate(sizes, 1):
            assert 3_000 * number <= size.bytes < 3_000 * (number + 1)
        await make.fork(store, "fork", "room", 4)
        fork = await store.size("fork")
        assert fork.rows == 0
        assert fork.bytes < 1_000
        await store.prune("room", 3)
        pruned = await store.size("room")
        assert pruned.rows == 2
        assert 9_000 <= pruned.bytes < 12_000

    async def test_the_sizes_of_a_store_grow_and_shrink(self, store: Store) -> None:
        body = random.Random(1).randbytes
        for name in ("deleted", "swept", "stays"):
            head = make.head(name, revision=1, expires=LATER if name == "swept" else MUCH_LATER)
            await store.create(head, [make.entry(1, body=body(2_000))], Snapshot(1, body(3_000)))
            await append(store, name, 2, body=b"", expires=None, blobs=make.blobs(body(4_000)))
        full = await store.maintenance.sizes()
        assert full["sessions"].rows >= 3
        assert full["sessions"].bytes > 0
        for kind, size in (("entries", 2_000), ("snapshots", 3_000), ("blobs", 4_000)):
            assert full[kind].rows >= 3
            assert full[kind].bytes >= 3 * size
        await store.delete("deleted")
        await store.sweep(LATER)
        rest = await store.maintenance.sizes()
        for kind, size in (("entries", 2_000), ("snapshots", 3_000), ("blobs", 4_000)):
            assert rest[kind].rows < full[kind].rows
            assert size <= rest[kind].bytes <= full[kind].bytes - 2 * size
        await store.delete("stays")
        gone = await store.maintenance.sizes()
        for kind in ("sessions", "entries", "snapshots", "blobs"):
            assert gone[kind] == Size(0, 0)

    # Orphans.

    async def test_after_everything_there_are_no_orphans(self, store: Store) -> None:
        assert await store.maintenance.orphans() == []
        for name in NAMES:
            await store.create(make.head(name, revision=1), [make.entry(1)], Snapshot(1, b""), make.blobs(b"a"))
            await make.fork(store, f"{name}/fork", name, 1, revision=2, expires=MUCH_LATER)
        record = await make.long_session(store)
        assert await store.maintenance.orphans() == []
        await store.prune("room", 4)
        await store.release("room", "me")
        await store.delete(NAMES[0])
        await store.delete(f"{NAMES[1]}/fork")
        await store.delete(NAMES[1])
        attempts: list[tuple[str, Entry]] = [("room", make.entry(1)), ("nobody", make.entry(1))]
        for name, entry in attempts:
            refused = await outcome(store.append(Commit(name, entry, expires=LATER, blobs=make.blobs(b"refused"))))
            assert isinstance(refused, type)
            assert issubclass(refused, StateroomError)
        assert await store.maintenance.orphans() == []
        await store.sweep(LATER)
        assert await store.maintenance.orphans() == []
        await store.sweep(MUCH_LATER)
        await store.put(record)
        assert await store.maintenance.orphans() == []
        assert [head.id for head in await store.heads()] == ["room"]

    async def test_a_vacuum_does_no_harm(self, store: Store) -> None:
        await store.maintenance.vacuum()
        await make.long_session(store)
        await make.fork(store, "fork", "room", 5, revision=7)
        for number in range(20):
            blobs = make.blobs(bytes(10_000))
            await store.create(make.head(f"gone {number}", revision=1), [make.entry(1)], blobs=blobs)
            await store.delete(f"gone {number}")
        before = [await everything(store, name) for name in ("room", "fork")]
        for _ in range(2):
            await store.maintenance.vacuum()
            assert [await everything(store, name) for name in ("room", "fork")] == before
        assert await store.maintenance.orphans() == []
        await append(store, "room", 9, fence=4)

    async def test_commits_go_on_during_maintenance(self, store: Store) -> None:
        await make.session(store)

        async def write() -> None:
            for revision in range(2, 22):
                blobs = make.blobs(b"%d" % revision)
                await append(store, "room", revision, blobs=blobs)

        async def maintain() -> None:
            for _ in range(3):
                await store.maintenance.vacuum()
                assert await store.maintenance.orphans() == []
                await store.maintenance.sizes()

        await asyncio.gather(write(), maintain())
        assert [entry.revision for entry in await store.entries("room")] == list(range(1, 22))
        written = make.blobs(*(b"%d" % revision for revision in range(2, 22)))
        assert await store.blobs("room", [*written]) == written

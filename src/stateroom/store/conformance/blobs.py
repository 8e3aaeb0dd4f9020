"""Promises about blobs: large values that are kept once, beside the log."""

from __future__ import annotations

import asyncio
import random

import pytest

from stateroom.errors import UnknownSession
from stateroom.store import Loaded, Size, Snapshot, Store
from stateroom.store.conformance import make
from stateroom.store.conformance.helpers import NAMES, Suite, append, outcome, size_of_blobs
from stateroom.store.conformance.make import LATER, MUCH_LATER, NOW

NOTHING = Size(0, 0)


class BlobPromises(Suite):
    """A blob comes with a commit, belongs to the session that wrote it, and goes with it."""

    # Written and read.

    async def test_blobs_of_a_create_and_of_an_append_are_read(self, store: Store) -> None:
        first, second = make.blobs(b"one", b"two"), make.blobs(b"three")
        head = make.head(revision=1)
        await store.create(head, [make.entry(1)], blobs=first)
        assert await store.blobs("room", [*first]) == first
        await append(store, "room", 2, snapshot=Snapshot(2, b"state"), blobs=second)
        await append(store, "room", 3, expires=None, blobs=make.blobs(b"four"))
        whole = {**first, **second, **make.blobs(b"four")}
        assert await store.blobs("room", [*whole]) == whole
        assert (await store.maintenance.export("room")).blobs == whole
        loaded = Loaded(make.head(revision=3), Snapshot(2, b"state"), [make.entry(3)])
        assert await store.load("room") == loaded

    async def test_all_blobs_come_back_unless_some_are_asked_for(self, store: Store) -> None:
        blobs = make.blobs(b"first", b"second", b"")
        await store.create(make.head(revision=1), [make.entry(1)], blobs=blobs)
        await append(store, "room", 2, blobs=make.blobs(b"third"), expires=None)
        await make.session(store, "bare")
        assert await store.blobs("room") == {**blobs, **make.blobs(b"third")}
        assert await store.blobs("room", []) == {}
        assert await store.blobs("bare") == {}

    async def test_only_those_that_are_asked_for_and_there_come_back(self, store: Store) -> None:
        blobs, others = make.blobs(b"one", b"two", b"three"), make.blobs(b"never written")
        await store.create(make.head(), blobs=blobs)
        one, two, three = blobs
        assert await store.blobs("room", []) == {}
        assert await store.blobs("room", [*others]) == {}
        assert await store.blobs("room", [two]) == {two: b"two"}
        assert await store.blobs("room", [three, *others, one, one]) == {one: b"one", three: b"three"}
        await make.session(store, "without")
        assert await store.blobs("without", [one]) == {}

    @pytest.mark.parametrize("size", [0, 1, 65_536, 5_000_000])
    async def test_blobs_come_back_byte_for_byte(self, store: Store, size: int) -> None:
        body = random.Random(size).randbytes(size)
        blobs = make.blobs(body)
        await store.create(make.head(), blobs=blobs)
        other = make.blobs(body[::-1] + b"\x00")
        await append(store, "room", 1, blobs=other)
        assert await store.blobs("room", [*blobs, *other]) == {**blobs, **other}

    async def test_a_commit_can_bring_many_blobs(self, store: Store) -> None:
        await make.session(store)
        blobs = make.blobs(*(b"blob %d" % number for number in range(200)))
        await append(store, "room", 2, blobs=blobs)
        assert await store.blobs("room", [*blobs]) == blobs

    # Once.

    async def test_a_blob_that_is_there_costs_no_second_copy(self, store: Store) -> None:
        blobs = make.blobs(random.Random(1).randbytes(10_000))
        await store.create(make.head(revision=1), [make.entry(1)], blobs=blobs)
        once = await size_of_blobs(store)
        assert once.rows >= 1
        assert once.bytes >= 10_000
        for revision in (2, 3):
            await append(store, "room", revision, blobs=blobs)
        assert await size_of_blobs(store) == once
        more = make.blobs(b"another")
        await append(store, "room", 4, blobs={**blobs, **more})
        assert await store.blobs("room", [*blobs, *more]) == {**blobs, **more}
        assert (await size_of_blobs(store)).bytes < once.bytes + 5_000

    async def test_writers_that_bring_one_blob_at_once_all_succeed(self, store: Store) -> None:
        blobs = make.blobs(b"large")
        names = [f"room {number}" for number in range(12)]
        for name in names:
            await make.session(store, name)
        for revision in (2, 3):
            writes = (append(store, name, revision, blobs=blobs) for name in names)
            await asyncio.gather(*writes)
        for name in names:
            assert await store.blobs(name, [*blobs]) == blobs

    # Whose they are.

    async def test_a_session_has_only_its_own_blobs(self, store: Store) -> None:
        blobs = make.blobs(b"large")
        await store.create(make.head(revision=1), [make.entry(1)], blobs=blobs)
        await make.fork(store, "fork", "room", 1)
        await make.session(store, "other")
        for name in ("fork", "other"):
            assert await store.blobs(name, [*blobs]) == {}
            assert (await store.maintenance.export(name)).blobs == {}
        await append(store, "fork", 2, blobs=make.blobs(b"fork's"))
        assert await store.blobs("room", [*make.blobs(b"fork's")]) == {}

    async def test_blobs_of_sessions_with_similar_names_are_kept_apart(self, store: Store) -> None:
        digest = next(iter(make.blobs(b"")))
        for name in NAMES:  # one digest for many bodies: so it shows whose they are
            await store.create(make.head(name), blobs={digest: name.encode()})
        for name in NAMES:
            assert await store.blobs(name, [digest]) == {digest: name.encode()}
        for number, name in enumerate(NAMES):
            await store.delete(name)
            for other in NAMES[number + 1 :]:
                assert await store.blobs(other, [digest]) == {digest: other.encode()}

    # Their end.

    async def test_blobs_are_removed_with_their_session(self, store: Store) -> None:
        blobs = make.blobs(b"large")
        for name in ("deleted", "swept", "stays"):
            expires = LATER if name == "swept" else MUCH_LATER
            await store.create(make.head(name, revision=1, expires=expires), [make.entry(1)], blobs=blobs)
            await append(store, name, 2, expires=None, blobs=make.blobs(name.encode()))
        await store.delete("deleted")
        assert await store.sweep(LATER) == 1
        for name in ("deleted", "swept"):
            assert await outcome(store.blobs(name, [*blobs])) is UnknownSession
            await make.session(store, name)
            assert await store.blobs(name, [*blobs, *make.blobs(name.encode())]) == {}
        mine = {**blobs, **make.blobs(b"stays")}
        assert await store.blobs("stays", [*mine]) == mine
        assert (await size_of_blobs(store)).bytes > 0
        await store.delete("stays")
        assert await size_of_blobs(store) == NOTHING
        assert await store.maintenance.orphans() == []

    async def test_a_deleted_parent_keeps_its_blobs_for_its_forks(self, store: Store) -> None:
        blobs = make.blobs(b"large")
        await store.create(make.head(revision=1), [make.entry(1)], blobs=blobs)
        await make.fork(store, "fork", "room", 1)
        await store.delete("room")
        assert await store.blobs("room", [*blobs]) == blobs
        await store.delete("fork")
        assert await store.sweep(NOW) == 1
        assert await size_of_blobs(store) == NOTHING

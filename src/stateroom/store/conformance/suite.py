"""The suite that every store passes: the promises of `Store` as tests that anyone can run on their own store.

Subclass `StoreConformance` in a test module, and give the URL of a fresh store; this needs nothing but pytest:

    from stateroom.store.conformance import StoreConformance

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def url(self, tmp_path):
            return f"mystore://{tmp_path}/rooms"

The scheme must be registered (see `stateroom.store.url`). Set `shared = False` if two stores that are open on one URL
do not see the same sessions, `durable = False` if sessions are lost when the store closes, and `increments = 10` if
writing is slow. To have pytest show the values of a failed comparison, put
`pytest.register_assert_rewrite("stateroom.store.conformance")` in `conftest.py`. With Hypothesis installed,
`stateroom.store.conformance.stateful` looks for a sequence of calls that a store answers wrongly.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from stateroom.errors import Conflict, DuplicateCall, SessionClosed, SessionLeased, UnknownSession
from stateroom.store import Commit, Loaded, Snapshot, Store, open_store
from stateroom.store.conformance import make
from stateroom.store.conformance.appends import AppendPromises
from stateroom.store.conformance.blobs import BlobPromises
from stateroom.store.conformance.helpers import Suite, append, everything, outcome
from stateroom.store.conformance.leases import LeasePromises
from stateroom.store.conformance.lifetimes import LifetimePromises
from stateroom.store.conformance.listings import ListingPromises
from stateroom.store.conformance.maintenance import MaintenancePromises
from stateroom.store.conformance.make import LATER, NOW
from stateroom.store.conformance.reads import ReadPromises
from stateroom.store.conformance.reference import Reference, ask, choose_call, compare
from stateroom.store.conformance.transfer import TransferPromises


class ConcurrencyPromises(Suite):
    """Stores agree with one another, and with a model in plain dicts."""

    # Several stores on one URL, and one after another.

    async def test_stores_on_one_url_see_each_others_commits_at_once(self, url: str) -> None:
        self.needs_shared()
        async with open_store(url) as one, open_store(url) as two:
            await make.session(one)
            for revision in range(2, 12):
                writer, reader = (one, two) if revision % 2 else (two, one)
                snapshot = Snapshot(revision, b"state") if revision == 6 else None
                entry = make.entry(revision, f"call {revision}")
                await writer.append(Commit("room", entry, expires=LATER + revision, snapshot=snapshot))
                assert await everything(reader, "room") == await everything(writer, "room")
                assert await reader.find_call("room", f"call {revision}") == entry
            assert await one.count(NOW) == await two.count(NOW) == 1
            blobs = make.blobs(b"large")
            await append(one, "room", 12, blobs=blobs)
            assert await two.blobs("room", list(blobs)) == blobs
            leased = await one.lease("room", "one", now=NOW, until=LATER)
            assert await two.head("room") == leased
            assert await outcome(two.lease("room", "two", now=NOW, until=LATER)) is SessionLeased
            assert await outcome(append(two, "room", 13)) is Conflict
            await append(two, "room", 13, fence=leased.fence)
            await two.release("room", "one")
            assert (await one.head("room")).holder is None
            await make.session(one, "deleted")
            await two.delete("deleted")
            assert await outcome(append(one, "deleted", 2)) is UnknownSession
            await two.touch("room", now=NOW, expires=NOW + 1)
            assert await one.sweep(NOW + 1) == 1
            assert await two.heads() == []

    async def test_a_load_is_of_one_moment_whatever_others_do_meanwhile(self, url: str) -> None:
        self.needs_shared()
        async with open_store(url) as writer, open_store(url) as reader:
            finished = asyncio.Event()

            async def write() -> None:
                for life in range(40):
                    revision = 1 + life % 3
                    entries = [make.entry(number, body=b"%d" % life) for number in range(1, revision + 1)]
                    head = make.head(owner=str(life), revision=revision)
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
                    assert loaded.entries == [make.entry(n, body=life) for n in range(2, loaded.head.revision + 1)]

            await asyncio.gather(write(), *(read() for _ in range(4)))

    async def test_sessions_survive_closing_and_opening_again(self, url: str) -> None:
        self.needs_durable()
        async with open_store(url) as store:
            await make.session(store, "room", revision=2)
            fence = (await store.lease("room", "me", now=NOW, until=LATER)).fence
            parts: dict[str, Any] = {"snapshot": Snapshot(3, b"state 3"), "blobs": make.blobs(b"large", b"larger")}
            await append(store, "room", 3, "call", fence=fence, **parts)
            await make.fork(store, "fork", "room", 2, revision=4)
            await make.session(store, "closed", revision=0)
            await append(store, "closed", 1, closes=True)
            await make.session(store, "deleted")
            await store.delete("deleted")
            sessions = ("room", "fork", "closed")
            before = [await everything(store, session) for session in sessions]
            listed = await store.heads()
        async with open_store(url) as store:
            assert [await everything(store, session) for session in sessions] == before
            assert await store.heads() == listed
            assert await outcome(append(store, "room", 4, "call")) is DuplicateCall
            assert await outcome(append(store, "room", 3)) is Conflict
            assert await outcome(append(store, "closed", 2)) is SessionClosed
            assert await outcome(append(store, "room", 4)) is Conflict
            assert await outcome(store.lease("room", "another", now=NOW, until=LATER)) is SessionLeased
            await append(store, "room", 4, fence=fence)
            assert await store.sweep(LATER) == 3
        async with open_store(url) as store:
            assert await store.heads() == []

    # Random calls.

    @pytest.mark.parametrize("seed", range(4))
    async def test_any_mixture_of_calls_does_what_a_model_in_plain_dicts_does(self, store: Store, seed: int) -> None:
        model, chance, now = Reference(), random.Random(seed), NOW
        for step in range(300):
            now += chance.choice([0.25, 0.5, 1.0])
            name, arguments = choose_call(model, chance, now)
            expected = model.answer(name, arguments)
            assert await ask(store, name, arguments) == expected, f"seed {seed}, step {step}: {name}({arguments})"
        await compare(store, model)


class StoreConformance(
    AppendPromises,
    ReadPromises,
    ListingPromises,
    LeasePromises,
    BlobPromises,
    LifetimePromises,
    TransferPromises,
    MaintenancePromises,
    ConcurrencyPromises,
):
    """Tests for everything that a store promises. A subclass returns the `url` of a fresh store."""

"""Copying sessions: to another store and back, again, while they are used, and what can go wrong."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from stateroom import open_store
from stateroom.errors import OutdatedRecord, StoreError, UnknownSession
from stateroom.session import Copier
from stateroom.store import MemoryStore, Record, Store
from tests.messages import raises
from tests.session.stored_sessions import family, go_on, new, problems, prune, sessions_of

pytestmark = [pytest.mark.every_store, pytest.mark.usefixtures("many_snapshots")]


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[Store]:
    async with open_store(f"sqlite:///{tmp_path / 'target.db'}") as opened:
        yield opened


async def records(store: Store) -> dict[str, Record]:
    return {head.id: await store.maintenance.export(head.id) for head in await store.heads()}


async def test_a_family_is_copied_parents_first(store: Store, target: Store) -> None:
    parent, fork, closed, grandchild = await family(store)
    copier = Copier(store, target)
    await copier.copy(grandchild)
    assert list(copier.copied) == [parent, fork, grandchild]
    await copier.copy(closed)
    await copier.copy(parent)  # which is there
    assert await records(target) == await records(store)
    assert await problems(target) == {}
    sent = await store.maintenance.export(fork)
    bodies = [*(entry.body for entry in sent.entries), *(each.body for each in sent.snapshots), *sent.blobs.values()]
    assert copier.copied[fork] == (sent.head.revision, len(sent.entries), sum(map(len, bodies)))
    session = await sessions_of(target).open(grandchild)
    await go_on(session, 3)


async def test_whatever_became_of_a_family_since_it_was_copied_its_copy_is_as_it_is(
    store: Store, target: Store
) -> None:
    copied, pruned, copier = await new(store, 10), await new(store, 40), Copier(store, target)
    await copier.copy(copied.id)
    await go_on(copied, 40)
    assert set(await prune(store, keep=10)) == {copied.id, pruned.id}  # the copy of one has been left behind
    for parent in (copied, pruned):
        await copier.copy((await parent.fork()).id)
    assert await records(target) == await records(store)
    assert await problems(target) == {}


async def test_a_copy_keeps_the_past_of_an_original_that_was_pruned_since(store: Store, target: Store) -> None:
    session = await new(store, 40)
    await Copier(store, target).copy(session.id)
    await prune(store, keep=10)
    await go_on(session, 1)
    assert len((await store.maintenance.export(session.id)).entries) < 20
    await Copier(store, target).copy(session.id)
    assert len((await target.maintenance.export(session.id)).entries) == 41
    assert await problems(target) == {}


async def test_nobody_holds_a_copy(store: Store, target: Store) -> None:
    session = await new(store, 2)
    async with session.lease():
        await Copier(store, target).copy(session.id)
        held = await store.head(session.id)
        assert held.leased(time.time())
    head = await target.head(session.id)
    assert head == replace(held, holder=None, leased_until=0.0)
    await go_on(await sessions_of(target).open(session.id), 1)


async def test_a_session_that_went_on_in_the_target_is_left_alone(store: Store, target: Store) -> None:
    session = await new(store, 5)
    await Copier(store, target).copy(session.id)
    await go_on(await sessions_of(target).open(session.id), 3)
    before = await records(target)
    for longer in (0, 3, 10):  # behind the copy, as far, and further
        await go_on(session, longer)
        with pytest.raises(StoreError):
            await Copier(store, target).copy(session.id)
        assert await records(target) == before


async def test_another_session_of_the_same_name_is_left_alone(store: Store, target: Store) -> None:
    await sessions_of(store).seed({"user": "ann"}, session_id="one")
    await sessions_of(target, now=lambda: time.time() + 5).seed({"user": "bob"}, session_id="one")
    with pytest.raises(OutdatedRecord):
        await Copier(store, target).copy("one")
    with pytest.raises(UnknownSession):
        await Copier(store, target).copy("none")


@pytest.mark.parametrize("what", ["head", "entries", "snapshots", "large values"])
async def test_a_copy_that_arrives_changed_is_noticed(store: Store, what: str) -> None:
    class Lossy(MemoryStore):
        async def put(self, record: Record, *, new: bool = False) -> None:
            lost: dict[str, Any] = {
                "head": {"head": replace(record.head, owner="somebody else")},
                "entries": {"entries": [replace(entry, body=entry.body + b" ") for entry in record.entries]},
                "snapshots": {"snapshots": record.snapshots[:-1]},
                "large values": {"blobs": {}},
            }
            await super().put(replace(record, **lost[what]), new=new)

    parent, *_ = await family(store)
    with raises(StoreError):
        await Copier(store, Lossy()).copy(parent)

"""A store that is put around another passes on all that it does not change."""

from base64 import b64encode
from pathlib import Path
from typing import Self

import pytest

from stateroom.errors import UnknownStore
from stateroom.store import OPERATIONS, Commit, Entry, Head, MemoryStore, Snapshot, Store, WrappedStore, store_class
from stateroom.store.conformance import StoreConformance
from tests.messages import raises
from tests.store.conftest import Register


class SeenStore(WrappedStore):
    """Notes what goes through it."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.seen: list[tuple[str, str | None]] = []

    def around(self, operation, session, work, /, *args, **kwargs):
        self.seen.append((operation, session))
        return super().around(operation, session, work, *args, **kwargs)


class SeenSQLite(SeenStore):
    @classmethod
    async def open(cls, url: str) -> Self:
        return cls(await store_class("sqlite://").open(url.replace("seen", "sqlite")))


class TestAllAroundOne(StoreConformance):
    """Seen, compressed and encrypted, it keeps all promises of the store within."""

    @pytest.fixture
    def url(self, path: Path, register: Register, monkeypatch: pytest.MonkeyPatch) -> str:
        register("seen", f"{__name__}:SeenSQLite")
        monkeypatch.setenv("ROOM_KEYS", f"k1:{b64encode(bytes(32)).decode()}")
        return f"seen:///{path}?keys=env:ROOM_KEYS&compress=zstd"


async def test_every_operation_is_seen_with_its_session() -> None:
    store = SeenStore(MemoryStore())
    await store.create(Head("room", "env", "owner", 0.0, 10.0, 1), [Entry(1, "seed", 0.0, b"")], Snapshot(1, b""))
    await store.append(Commit("room", Entry(2, "call", 0.0, b"", "call")))
    await store.touch("room", now=0.0, expires=10.0)
    assert (await store.lease("room", "holder", now=0.0, until=1.0)).holder == "holder"
    await store.release("room", "holder")
    head = await store.head("room")
    assert await store.heads() == [head]
    assert await store.children("room") == []
    assert (await store.load("room")).head == head
    assert len(await store.entries("room")) == 2
    assert await store.find_call("room", "call") == Entry(2, "call", 0.0, b"", "call")
    assert await store.blobs("room", ["none"]) == {}
    assert await store.count(0.0) == 1
    record = await store.maintenance.export("room")
    await store.put(record)
    assert await store.prune("room", 1) == 0
    assert (await store.size("room")).rows == 2
    assert (await store.maintenance.sizes())["sessions"].rows == 1
    assert await store.maintenance.orphans() == []
    await store.maintenance.vacuum()
    assert await store.sweep(0.0) == 0
    await store.delete("room")
    of_none = {"heads", "count", "sizes", "orphans", "vacuum", "sweep"}
    operations = [operation for operation, _ in store.seen]
    assert sorted(operations) == sorted(OPERATIONS)
    assert {operation for operation, session in store.seen if session is None} == of_none
    assert {session for _, session in store.seen} == {"room", None}


def test_what_a_store_is_shows_through() -> None:
    inner = MemoryStore()
    inner.remote, inner.large = True, 1 << 20
    outer = SeenStore(SeenStore(inner))
    assert (outer.shared, outer.remote, outer.large) == (False, True, 1 << 20)


async def test_it_has_no_url() -> None:
    with raises(UnknownStore):
        await SeenStore.open("memory://")

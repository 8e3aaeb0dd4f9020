"""The contract is small: a store that writes only the abstract methods keeps every promise.

The store is the suite's own model in plain dicts, which so has to keep them too.
"""

from collections.abc import Sequence
from typing import Self

import pytest

from stateroom.errors import StoreError, StoreUnavailable
from stateroom.store import ALL_SESSIONS, Commit, Entry, Head, HeadFilter, Loaded, Order, Record, Store, page_of
from stateroom.store.conformance import StoreConformance
from stateroom.store.conformance.reference import Reference
from stateroom.store.conformance.stateful import check_against_model
from tests.store.conftest import Register


class ModelStore(Store):
    """What the contract asks for, and no more."""

    shared = False

    def __init__(self) -> None:
        self.kept: Reference | None = Reference()

    @property
    def model(self) -> Reference:
        if self.kept is None:
            raise StoreUnavailable("this store is closed")
        return self.kept

    @classmethod
    async def open(cls, url: str) -> Self:
        return cls()

    async def close(self) -> None:
        self.kept = None

    async def put(self, record: Record, *, new: bool = False) -> None:
        record.check_calls()
        if new and record.head.id in self.model.sessions:
            raise StoreError(f"session {record.head.id!r} already exists")
        self.model.restore(record)

    async def append(self, commit: Commit) -> None:
        self.model.append(commit)

    async def touch(self, session: str, *, now: float, expires: float) -> None:
        self.model.touch(session, now, expires)

    async def lease(self, session: str, holder: str, *, now: float, until: float) -> Head:
        return self.model.lease(session, holder, now, until)

    async def release(self, session: str, holder: str) -> None:
        self.model.release(session, holder)

    async def heads(
        self, wanted: HeadFilter = ALL_SESSIONS, *, order: Order = "newest", after: Head | None = None, limit: int = 100
    ) -> list[Head]:
        return page_of(self.model.heads(wanted, limit=len(self.model.sessions)), order, after, limit)

    async def load(self, session: str, at: int | None = None) -> Loaded:
        return self.model.load(session, at)

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        return self.model.entries(session, after, until)

    async def blobs(self, session: str, digests: Sequence[str] | None = None) -> dict[str, bytes]:
        kept = self.model.find(session).blobs
        return self.model.blobs(session, [*(kept if digests is None else digests)])

    async def prune(self, session: str, below: int) -> int:
        return self.model.prune(session, below)

    async def sweep(self, now: float) -> int:
        return self.model.sweep(now)

    async def delete(self, session: str) -> None:
        self.model.delete(session)


def test_a_new_store_writes_at_most_fourteen_methods() -> None:
    assert len(Store.__abstractmethods__) <= 14
    assert all(name in vars(ModelStore) for name in Store.__abstractmethods__)


class TestModelStore(StoreConformance):
    shared = False
    durable = False

    @pytest.fixture
    def url(self, register: Register) -> str:
        register("model", f"{__name__}:ModelStore")
        return "model://"


def test_what_a_store_need_not_write_does_what_the_model_does(register: Register) -> None:
    register("model", f"{__name__}:ModelStore")
    check_against_model(lambda: "model://", examples=20)

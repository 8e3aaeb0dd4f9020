"""The contract is small: a store that writes only the abstract methods keeps every promise."""

from collections.abc import Sequence
from typing import Self

import pytest
from msgspec.structs import replace

from stateroom.errors import StoreUnavailable, UnknownRevision, UnknownSession
from stateroom.store import ALL_SESSIONS, Commit, Entry, Head, HeadFilter, Loaded, Order, Record, Store, page_of
from stateroom.store.conformance import StoreConformance
from stateroom.store.conformance.stateful import check_against_model
from tests.store.conftest import Register


class DictStore(Store):
    """Sessions in a dict, each as one record, and only what the contract asks for."""

    shared = False

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}
        self.closed = False

    @classmethod
    async def open(cls, url: str) -> Self:
        return cls()

    async def close(self) -> None:
        self.closed = True

    def find(self, session: str) -> Record:
        if session not in self.all():
            raise UnknownSession(session)
        return self.records[session]

    def all(self) -> dict[str, Record]:
        if self.closed:
            raise StoreUnavailable("this store is closed")
        return self.records

    def change(self, session: str, head: Head) -> Head:
        self.records[session] = replace(self.find(session), head=head)
        return head

    async def put(self, record: Record, *, new: bool = False) -> None:
        record.check_calls()
        head, kept = record.head, self.all().get(record.head.id)
        if head.parent is not None:
            head.check_parent(self.find(head.parent).head.revision)
        if kept:
            head.check_replaces(kept.head, new=new)
        else:
            kept = Record(head, [], [], {})
        entries = {entry.revision: entry for entry in (*record.entries, *kept.entries)}
        snapshots = {snapshot.revision: snapshot for snapshot in (*record.snapshots, *kept.snapshots)}
        self.records[head.id] = Record(
            head,
            [entries[revision] for revision in sorted(entries)],
            [snapshots[revision] for revision in sorted(snapshots)],
            {**record.blobs, **kept.blobs},
        )

    async def append(self, commit: Commit) -> None:
        entry, record = commit.entry, self.find(commit.session)
        head, calls = record.head, {each.call_id for each in record.entries} - {None}
        head.check_next(commit, duplicate=entry.call_id in calls)
        self.records[head.id] = Record(
            head.after(commit),
            [*record.entries, entry],
            [*record.snapshots, *([commit.snapshot] if commit.snapshot else [])],
            {**commit.blobs, **record.blobs},
        )

    async def touch(self, session: str, *, now: float, expires: float) -> None:
        self.change(session, self.find(session).head.renewed(now, expires))

    async def lease(self, session: str, holder: str, *, now: float, until: float) -> Head:
        return self.change(session, self.find(session).head.leased_to(holder, now, until))

    async def release(self, session: str, holder: str) -> None:
        self.change(session, self.find(session).head.released_by(holder))

    async def heads(
        self, wanted: HeadFilter = ALL_SESSIONS, *, order: Order = "newest", after: Head | None = None, limit: int = 100
    ) -> list[Head]:
        heads = (record.head for record in self.all().values())
        return page_of(filter(wanted.matches, heads), order, after, limit)

    async def load(self, session: str, at: int | None = None) -> Loaded:
        record = self.find(session)
        until = record.head.revision if at is None else at
        snapshot = max((each for each in record.snapshots if each.revision <= until), key=revision_of, default=None)
        after = snapshot.revision if snapshot else 0
        return Loaded(record.head, snapshot, await self.entries(session, after=after, until=until))

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        record = self.find(session)
        last = record.head.revision if until is None else until
        return [entry for entry in record.entries if after < entry.revision <= last]

    async def blobs(self, session: str, digests: Sequence[str] | None = None) -> dict[str, bytes]:
        return {
            digest: body for digest, body in self.find(session).blobs.items() if digests is None or digest in digests
        }

    async def prune(self, session: str, below: int) -> int:
        record = self.find(session)
        if below not in map(revision_of, record.snapshots):
            raise UnknownRevision(session, f"session {session!r} has no snapshot at revision {below}")
        first = record.head.parent_revision + 1
        entries = [entry for entry in record.entries if entry.revision == first or entry.revision > below]
        snapshots = [snapshot for snapshot in record.snapshots if snapshot.revision >= below]
        self.records[session] = replace(record, entries=entries, snapshots=snapshots)
        return len(record.entries) - len(entries)

    async def sweep(self, now: float) -> int:
        swept = 0
        while expired := [
            each for each, record in self.all().items() if record.head.expires <= now and not self.forks(each)
        ]:
            swept += len(expired)
            for session in expired:
                del self.records[session]
        return swept

    async def delete(self, session: str) -> None:
        self.find(session)
        if self.forks(session):
            self.change(session, replace(self.find(session).head, expires=0.0))
        else:
            del self.records[session]

    def forks(self, session: str) -> bool:
        return any(record.head.parent == session for record in self.records.values())


def revision_of(part: object) -> int:
    return part.revision  # type: ignore[attr-defined]


def test_a_new_store_writes_at_most_fourteen_methods() -> None:
    assert len(Store.__abstractmethods__) <= 14
    assert all(name in vars(DictStore) for name in Store.__abstractmethods__)


class TestDictStore(StoreConformance):
    shared = False
    durable = False

    @pytest.fixture
    def url(self, register: Register) -> str:
        register("dict", f"{__name__}:DictStore")
        return "dict://"


def test_a_dict_store_does_what_the_model_does(register: Register) -> None:
    register("dict", f"{__name__}:DictStore")
    check_against_model(lambda: "dict://", examples=20)

"""Base classes for stores that wrap another store.

`WrappedStore` hands every operation on through one method, `around`, where it can be timed, traced or repeated.
`TransformedStore` changes the bodies on their way in and out. Its bodies begin with `MARK`, the one byte that msgpack
never has, and a letter for the form. So a store can hold bodies in several forms, and a reader that does not know a
form fails to decode it instead of reading other data.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ParamSpec, Self, TypeVar

from msgspec.structs import replace

from stateroom.errors import UnknownStore
from stateroom.store.contract import Maintenance, Store
from stateroom.store.head_filter import ALL_SESSIONS, HeadFilter, Order
from stateroom.store.records import Blobs, Commit, Entry, Head, Loaded, Record, Size, Snapshot

P = ParamSpec("P")
T = TypeVar("T")

Work = Coroutine[Any, Any, T]

OPERATIONS = (
    *("append", "blobs", "children", "count", "create", "delete", "entries", "export", "find_call", "head", "heads"),
    *("lease", "load", "orphans", "prune", "release", "restore", "size", "sizes", "sweep", "touch", "vacuum"),
)
"""The operations that `WrappedStore.around` sees; `put` is `create` for a new session, else `restore`."""

MARK = b"\xc1"
"""The first byte of a body that is compressed or encrypted."""

Location = tuple[str | int | None, ...]
"""Where a body belongs: what it is, its session, its revision or name, and what else identifies it."""


class WrappedStore(Store):
    """Wraps another store, and calls `around` for every operation.

    The methods return the coroutine of `around` instead of awaiting it, which saves one coroutine per call.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.shared = store.shared
        self.remote = store.remote
        self.large = store.large

    def around(
        self, operation: str, session: str | None, work: Callable[P, Work[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Work[T]:
        """Carry out one of `OPERATIONS`, on a session or on the whole store; call `work` any number of times."""
        return work(*args, **kwargs)

    @property
    def maintenance(self) -> Maintenance:
        return WrappedMaintenance(self)

    @classmethod
    async def open(cls, url: str) -> Self:
        raise UnknownStore(f"{cls.__name__} cannot be opened by URL; wrap an open store with it")

    async def close(self) -> None:
        await self.store.close()

    def put(self, record: Record, *, new: bool = False) -> Work[None]:
        return self.around("create" if new else "restore", record.head.id, self.store.put, record, new=new)

    def append(self, commit: Commit) -> Work[None]:
        return self.around("append", commit.session, self.store.append, commit)

    def touch(self, session: str, *, now: float, expires: float) -> Work[None]:
        return self.around("touch", session, self.store.touch, session, now=now, expires=expires)

    def lease(self, session: str, holder: str, *, now: float, until: float) -> Work[Head]:
        return self.around("lease", session, self.store.lease, session, holder, now=now, until=until)

    def release(self, session: str, holder: str) -> Work[None]:
        return self.around("release", session, self.store.release, session, holder)

    def head(self, session: str) -> Work[Head]:
        return self.around("head", session, self.store.head, session)

    def heads(
        self, wanted: HeadFilter = ALL_SESSIONS, *, order: Order = "newest", after: Head | None = None, limit: int = 100
    ) -> Work[list[Head]]:
        return self.around("heads", None, self.store.heads, wanted, order=order, after=after, limit=limit)

    def children(self, session: str) -> Work[list[Head]]:
        return self.around("children", session, self.store.children, session)

    def load(self, session: str, at: int | None = None) -> Work[Loaded]:
        return self.around("load", session, self.store.load, session, at)

    def entries(self, session: str, *, after: int = 0, until: int | None = None) -> Work[list[Entry]]:
        return self.around("entries", session, self.store.entries, session, after=after, until=until)

    def find_call(self, session: str, call_id: str) -> Work[Entry | None]:
        return self.around("find_call", session, self.store.find_call, session, call_id)

    def blobs(self, session: str, digests: Sequence[str] | None = None) -> Work[dict[str, bytes]]:
        return self.around("blobs", session, self.store.blobs, session, digests)

    def prune(self, session: str, below: int) -> Work[int]:
        return self.around("prune", session, self.store.prune, session, below)

    def sweep(self, now: float) -> Work[int]:
        return self.around("sweep", None, self.store.sweep, now)

    def delete(self, session: str) -> Work[None]:
        return self.around("delete", session, self.store.delete, session)

    def size(self, session: str) -> Work[Size]:
        return self.around("size", session, self.store.size, session)

    def count(self, now: float) -> Work[int]:
        return self.around("count", None, self.store.count, now)


class WrappedMaintenance(Maintenance):
    """The maintenance of a wrapped store."""

    store: WrappedStore

    @property
    def _within(self) -> Maintenance:
        return self.store.store.maintenance

    def export(self, session: str) -> Work[Record]:
        return self.store.around("export", session, self._within.export, session)

    def sizes(self) -> Work[dict[str, Size]]:
        return self.store.around("sizes", None, self._within.sizes)

    def orphans(self) -> Work[list[str]]:
        return self.store.around("orphans", None, self._within.orphans)

    def vacuum(self) -> Work[None]:
        return self.store.around("vacuum", None, self._within.vacuum)


class TransformedStore(WrappedStore):
    """Another store that keeps the bodies of entries, snapshots and blobs in another form."""

    @abstractmethod
    def write(self, body: bytes, location: Location) -> bytes:
        """The form in which a body is kept."""

    @abstractmethod
    def read(self, kept: bytes, location: Location) -> bytes:
        """The body that is kept in this form; `BadData` if it cannot be read."""

    def write_blobs(self, session: str, blobs: Blobs) -> Blobs:
        """Blobs as they are kept."""
        return {digest: self.write(body, ("blob", session, digest)) for digest, body in blobs.items()}

    def read_blobs(self, session: str, kept: Blobs) -> dict[str, bytes]:
        """The blobs that are kept so."""
        return {digest: self.read(body, ("blob", session, digest)) for digest, body in kept.items()}

    @property
    def maintenance(self) -> Maintenance:
        return TransformedMaintenance(self)

    # In.

    def put(self, record: Record, *, new: bool = False) -> Work[None]:
        session = record.head.id
        entries = [self._write_entry(session, entry) for entry in record.entries]
        snapshots = [self._write_snapshot(session, snapshot) for snapshot in record.snapshots]
        blobs = dict(self.write_blobs(session, record.blobs))
        return self.store.put(Record(record.head, entries, snapshots, blobs), new=new)

    def append(self, commit: Commit) -> Work[None]:
        session, snapshot = commit.session, commit.snapshot
        written = replace(
            commit,
            entry=self._write_entry(session, commit.entry),
            snapshot=snapshot and self._write_snapshot(session, snapshot),
            blobs=commit.blobs and self.write_blobs(session, commit.blobs),
        )
        return self.store.append(written)

    def _write_entry(self, session: str, entry: Entry) -> Entry:
        body = self.write(entry.body, _location_of(session, entry))
        return Entry(entry.revision, entry.kind, entry.at, body, entry.call_id)

    def _write_snapshot(self, session: str, snapshot: Snapshot) -> Snapshot:
        return Snapshot(snapshot.revision, self.write(snapshot.body, ("snapshot", session, snapshot.revision)))

    # Out.

    async def load(self, session: str, at: int | None = None) -> Loaded:
        kept = await self.store.load(session, at)
        snapshot = kept.snapshot and self.read_snapshot(session, kept.snapshot)
        return Loaded(kept.head, snapshot, self.read_entries(session, kept.entries))

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        return self.read_entries(session, await self.store.entries(session, after=after, until=until))

    async def find_call(self, session: str, call_id: str) -> Entry | None:
        kept = await self.store.find_call(session, call_id)
        return kept and self.read_entries(session, [kept])[0]

    async def blobs(self, session: str, digests: Sequence[str] | None = None) -> dict[str, bytes]:
        return self.read_blobs(session, await self.store.blobs(session, digests))

    def read_entries(self, session: str, kept: Sequence[Entry]) -> list[Entry]:
        """The entries that are kept so."""
        return [
            Entry(each.revision, each.kind, each.at, self.read(each.body, _location_of(session, each)), each.call_id)
            for each in kept
        ]

    def read_snapshot(self, session: str, kept: Snapshot) -> Snapshot:
        """The snapshot that is kept so."""
        return Snapshot(kept.revision, self.read(kept.body, ("snapshot", session, kept.revision)))


class TransformedMaintenance(WrappedMaintenance):
    """The maintenance of a store with bodies in another form."""

    store: TransformedStore

    async def export(self, session: str) -> Record:
        store, kept = self.store, await self._within.export(session)
        snapshots = [store.read_snapshot(session, snapshot) for snapshot in kept.snapshots]
        entries = store.read_entries(session, kept.entries)
        return Record(kept.head, entries, snapshots, store.read_blobs(session, kept.blobs))


def _location_of(session: str, entry: Entry) -> Location:
    return ("entry", session, entry.revision, entry.kind, entry.call_id)


def location_name(location: Location) -> str:
    """A location in words."""
    what, session, at, *_ = location
    return f"{what} {at} of session {session!r}"

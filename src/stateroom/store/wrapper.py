"""Stores that are put around another: what they have in common.

`WrappedStore` hands every operation on through one method, `around`, where it can be timed, traced or repeated.
`TransformedStore` changes the bodies on their way in and out. What it writes begins with `MARK`, the one byte that
msgpack never has, and a letter for the form. So what was written before a store had another form is told from what was
written since, and whoever does not know the form finds something that cannot be decoded, and no other data.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ParamSpec, Self, TypeVar

from msgspec.structs import replace

from stateroom.errors import UnknownStore
from stateroom.store import Commit
from stateroom.store.contract import NO_BLOBS, Blobs, Entry, Head, Loaded, Record, Size, Snapshot, Store

P = ParamSpec("P")
T = TypeVar("T")

Work = Coroutine[Any, Any, T]

MARK = b"\xc1"
"""The first byte of a body that is not as Stateroom wrote it, but compressed or encrypted."""

Place = tuple[str | int | None, ...]
"""Where a body lies: what it is, its session, its revision or name, and what else tells it from others."""


class WrappedStore(Store):
    """Another store, of which `around` sees every operation.

    The methods are no coroutines of their own but return that of `around`, which spares each of them one.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.shared = store.shared
        self.remote = store.remote
        self.large = store.large

    def around(
        self, operation: str, session: str | None, work: Callable[P, Work[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Work[T]:
        """Does an operation, on one session if it names one: calls `work`, as often as it likes."""
        return work(*args, **kwargs)

    @classmethod
    async def open(cls, url: str) -> Self:
        raise UnknownStore(f"{cls.__name__} has no URL: it is put around a store that is open")

    async def close(self) -> None:
        await self.store.close()

    def create(
        self,
        head: Head,
        entries: Sequence[Entry] = (),
        snapshot: Snapshot | None = None,
        blobs: Blobs = NO_BLOBS,
    ) -> Work[None]:
        return self.around("create", head.id, self.store.create, head, entries, snapshot, blobs)

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
        self, *, environment: str | None = None, before: Head | None = None, limit: int = 100
    ) -> Work[list[Head]]:
        return self.around("heads", None, self.store.heads, environment=environment, before=before, limit=limit)

    def children(self, session: str) -> Work[list[Head]]:
        return self.around("children", session, self.store.children, session)

    def load(self, session: str, at: int | None = None) -> Work[Loaded]:
        return self.around("load", session, self.store.load, session, at)

    def entries(self, session: str, *, after: int = 0, until: int | None = None) -> Work[list[Entry]]:
        return self.around("entries", session, self.store.entries, session, after=after, until=until)

    def find_call(self, session: str, call_id: str) -> Work[Entry | None]:
        return self.around("find_call", session, self.store.find_call, session, call_id)

    def blobs(self, session: str, digests: Sequence[str]) -> Work[dict[str, bytes]]:
        return self.around("blobs", session, self.store.blobs, session, digests)

    def sweep(self, now: float) -> Work[int]:
        return self.around("sweep", None, self.store.sweep, now)

    def delete(self, session: str) -> Work[None]:
        return self.around("delete", session, self.store.delete, session)

    def count(self, now: float) -> Work[int]:
        return self.around("count", None, self.store.count, now)

    def export(self, session: str) -> Work[Record]:
        return self.around("export", session, self.store.export, session)

    def restore(self, record: Record) -> Work[None]:
        return self.around("restore", record.head.id, self.store.restore, record)

    def prune(self, session: str, below: int) -> Work[int]:
        return self.around("prune", session, self.store.prune, session, below)

    def size(self, session: str) -> Work[Size]:
        return self.around("size", session, self.store.size, session)

    def sizes(self) -> Work[dict[str, Size]]:
        return self.around("sizes", None, self.store.sizes)

    def orphans(self) -> Work[list[str]]:
        return self.around("orphans", None, self.store.orphans)

    def vacuum(self) -> Work[None]:
        return self.around("vacuum", None, self.store.vacuum)


class TransformedStore(WrappedStore):
    """Another store, in which the bodies of entries, snapshots and blobs have another form."""

    @abstractmethod
    def write(self, body: bytes, place: Place) -> bytes:
        """The form in which a body is kept."""

    @abstractmethod
    def read(self, kept: bytes, place: Place) -> bytes:
        """The body that is kept in this form; `BadData` if it cannot be had."""

    def write_blobs(self, session: str, blobs: Blobs) -> Blobs:
        """Blobs as they are kept."""
        return {digest: self.write(body, ("blob", session, digest)) for digest, body in blobs.items()}

    def read_blobs(self, session: str, kept: Blobs) -> dict[str, bytes]:
        """The blobs that are kept so."""
        return {digest: self.read(body, ("blob", session, digest)) for digest, body in kept.items()}

    # In.

    def create(
        self,
        head: Head,
        entries: Sequence[Entry] = (),
        snapshot: Snapshot | None = None,
        blobs: Blobs = NO_BLOBS,
    ) -> Work[None]:
        return self.store.create(
            head,
            [self._write_entry(head.id, entry) for entry in entries],
            snapshot and self._write_snapshot(head.id, snapshot),
            blobs and self.write_blobs(head.id, blobs),
        )

    def append(self, commit: Commit) -> Work[None]:
        session, snapshot = commit.session, commit.snapshot
        written = replace(
            commit,
            entry=self._write_entry(session, commit.entry),
            snapshot=snapshot and self._write_snapshot(session, snapshot),
            blobs=commit.blobs and self.write_blobs(session, commit.blobs),
        )
        return self.store.append(written)

    def restore(self, record: Record) -> Work[None]:
        session = record.head.id
        entries = [self._write_entry(session, entry) for entry in record.entries]
        snapshots = [self._write_snapshot(session, snapshot) for snapshot in record.snapshots]
        return self.store.restore(
            Record(record.head, entries, snapshots, dict(self.write_blobs(session, record.blobs)))
        )

    def _write_entry(self, session: str, entry: Entry) -> Entry:
        body = self.write(entry.body, _place_of(session, entry))
        return Entry(entry.revision, entry.kind, entry.at, body, entry.call_id)

    def _write_snapshot(self, session: str, snapshot: Snapshot) -> Snapshot:
        return Snapshot(snapshot.revision, self.write(snapshot.body, ("snapshot", session, snapshot.revision)))

    # Out.

    async def load(self, session: str, at: int | None = None) -> Loaded:
        kept = await self.store.load(session, at)
        snapshot = kept.snapshot and self._read_snapshot(session, kept.snapshot)
        return Loaded(kept.head, snapshot, [self._read_entry(session, entry) for entry in kept.entries])

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        kept = await self.store.entries(session, after=after, until=until)
        return [self._read_entry(session, entry) for entry in kept]

    async def find_call(self, session: str, call_id: str) -> Entry | None:
        kept = await self.store.find_call(session, call_id)
        return kept and self._read_entry(session, kept)

    async def blobs(self, session: str, digests: Sequence[str]) -> dict[str, bytes]:
        return self.read_blobs(session, await self.store.blobs(session, digests))

    async def export(self, session: str) -> Record:
        kept = await self.store.export(session)
        entries = [self._read_entry(session, entry) for entry in kept.entries]
        snapshots = [self._read_snapshot(session, snapshot) for snapshot in kept.snapshots]
        return Record(kept.head, entries, snapshots, self.read_blobs(session, kept.blobs))

    def _read_entry(self, session: str, kept: Entry) -> Entry:
        body = self.read(kept.body, _place_of(session, kept))
        return Entry(kept.revision, kept.kind, kept.at, body, kept.call_id)

    def _read_snapshot(self, session: str, kept: Snapshot) -> Snapshot:
        return Snapshot(kept.revision, self.read(kept.body, ("snapshot", session, kept.revision)))


def _place_of(session: str, entry: Entry) -> Place:
    return ("entry", session, entry.revision, entry.kind, entry.call_id)


def place_name(place: Place) -> str:
    """A place in words."""
    what, session, at, *_ = place
    return f"{what} {at} of session {session!r}"

"""Checks of stored sessions: each can be read, and all that belongs to it is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator

from stateroom.errors import StateroomError, StoreUnavailable, UnknownSession
from stateroom.session.history import History
from stateroom.session.log import LogEntry, read_document, read_stored
from stateroom.session.resource import contents
from stateroom.state import Large, digest_of
from stateroom.store import Head, Record, Store


async def check_session(store: Store, head: Head) -> list[str]:
    """Return a session's problems as texts; empty if it is intact. Only reads the store."""
    try:
        return await _Examination(store, await store.maintenance.export(head.id)).findings()
    except (StoreUnavailable, UnknownSession):
        raise
    except StateroomError as error:  # of a store that cannot read what it keeps, of this session or a parent
        return [str(error)]


class _Examination:
    """Looks at all that a store has of a session."""

    def __init__(self, store: Store, record: Record) -> None:
        self.store = store
        self.record = record
        self.head = record.head
        self.log: list[LogEntry] = []
        """The entries that can be read."""
        self.large: list[Large] = []
        """The large values in them, and in the snapshots."""
        self.first = record.head.parent_revision + 1
        self.start = whole_after(record)

    async def findings(self) -> list[str]:
        findings = [*self._bad_bodies(), *self._gaps(), *self._bad_steps()]
        findings += [line async for line in self._bad_parents()]
        if not findings:  # else it is clear already why it cannot be read
            findings += [line async for line in self._bad_blobs()]
            findings += [line async for line in self._bad_states()]
        return findings

    def _bad_bodies(self) -> Iterator[str]:
        for entry in self.record.entries:
            try:
                stored = read_stored(entry)
            except Exception as error:  # noqa: BLE001 (whatever a damaged body leads to)
                yield f"entry {entry.revision} cannot be read: {_explained(error)}"
            else:
                self.log.append(stored.entry)
                self.large += [*stored.large, *contents(stored.entry.facts.get("resources", {}))]
        for snapshot in self.record.snapshots:
            try:
                document = read_document(snapshot.body, self.large)
                self.large += contents(document.progress.resources)
            except Exception as error:  # noqa: BLE001 (whatever a damaged body leads to)
                yield f"the snapshot at revision {snapshot.revision} cannot be read: {_explained(error)}"

    def _gaps(self) -> Iterator[str]:
        """Missing and unexpected parts."""
        newest = self.head.revision
        due = set(range(self.start + 1, newest + 1)) | ({self.first} if self.first <= newest else set())
        entries = {entry.revision for entry in self.record.entries}
        snapshots = {snapshot.revision for snapshot in self.record.snapshots}
        if due - entries:
            yield f"entries are missing: {_spans(due - entries)}"
        if entries - due:
            yield f"unexpected entries: {_spans(entries - due)}"
        if self.head.parent is None and max(self.start, self.first) not in snapshots:
            yield "the first snapshot is missing"
        if late := [revision for revision in snapshots if revision > newest]:
            yield f"unexpected snapshots: {_spans(late)}"

    def _bad_steps(self) -> Iterator[str]:
        used = Counter(entry.call_id for entry in self.record.entries if entry.call_id is not None)
        yield from (f"the call id {call_id!r} was used {times} times" for call_id, times in used.items() if times > 1)
        for entry in self.log:
            if entry.kind == "rewind" and not 1 <= entry.facts["to"] < entry.revision:
                yield f"entry {entry.revision} rewinds to revision {entry.facts['to']}, which is not before it"

    async def _bad_parents(self) -> AsyncIterator[str]:
        head, seen = self.head, {self.head.id}
        while head.parent is not None:
            if head.parent in seen:
                yield f"it is its own ancestor, through session {head.id!r}"
                return
            seen.add(head.parent)
            try:
                parent = await self.store.head(head.parent)
            except UnknownSession:
                yield f"session {head.parent!r}, the parent of session {head.id!r}, does not exist"
                return
            if parent.revision < head.parent_revision:
                forked = f"session {head.id!r} was forked from its revision {head.parent_revision}"
                yield f"session {parent.id!r} is at revision {parent.revision}, but {forked}"
                return
            head = parent

    async def _bad_blobs(self) -> AsyncIterator[str]:
        for digest, content in self.record.blobs.items():
            if digest_of(content) != digest:
                yield f"the large value {digest} is damaged"
        missing = {value.digest for value in self.large} - self.record.blobs.keys()
        head = self.head
        while missing and head.parent is not None:
            missing -= (await self.store.blobs(head.parent, sorted(missing))).keys()
            head = await self.store.head(head.parent)
        for digest in sorted(missing):
            yield f"the large value {digest} is missing"

    async def _bad_states(self) -> AsyncIterator[str]:
        """Why the newest state, or what the session needs of its parents, cannot be read."""
        revisions: list[int | None] = [None]
        shared = [entry.facts["to"] for entry in self.log if entry.kind == "rewind"]
        if self.start < self.first:
            shared.append(self.head.parent_revision)
        if self.head.parent is not None and shared and min(shared) < self.first:
            revisions.append(min(shared))
        for revision in revisions:
            try:
                await History(self.store).document(self.head.id, revision)
            except StoreUnavailable:
                raise
            except Exception as error:  # noqa: BLE001 (a patch that does not fit may lead to any)
                what = "its state" if revision is None else f"its state at revision {revision}"
                yield f"{what} cannot be read: {_explained(error)}"


def whole_after(record: Record) -> int:
    """The revision after which a session has all of its entries: if it was pruned, that of its oldest snapshot."""
    before_first = record.head.parent_revision
    oldest = min((snapshot.revision for snapshot in record.snapshots), default=0)
    whole = any(before_first + 1 < entry.revision <= oldest for entry in record.entries)
    return before_first if whole or oldest <= before_first + 1 else oldest


def _explained(error: Exception) -> str:
    return str(error) if isinstance(error, StateroomError) else f"{type(error).__name__}: {error}"


def _spans(revisions: Iterable[int]) -> str:
    """Revisions for people: `3, 5 to 7`."""
    spans: list[list[int]] = []
    for revision in sorted(revisions):
        if spans and spans[-1][1] == revision - 1:
            spans[-1][1] = revision
        else:
            spans.append([revision, revision])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in spans)

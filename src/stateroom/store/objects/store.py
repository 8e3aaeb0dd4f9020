"""The `Store` contract on objects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import msgspec

from stateroom.errors import (
    BadData,
    Conflict,
    DuplicateCall,
    ForeignStore,
    SessionLeased,
    StoreError,
    StoreUnavailable,
    UnknownSession,
    UnknownStore,
)
from stateroom.store.contract import NO_BLOBS, Blobs, Commit, Entry, Head, Loaded, Record, Size, Snapshot, Store
from stateroom.store.objects import reader, rewrite
from stateroom.store.objects.access import Access, Draft, View
from stateroom.store.objects.bucket import OPTIONS, Bucket
from stateroom.store.objects.creation import begin, find_forks, name_blobs, remove
from stateroom.store.objects.folder import Folder
from stateroom.store.objects.head import Root
from stateroom.store.objects.listing import Census, in_turn
from stateroom.store.objects.log import make_run
from stateroom.store.objects.names import FOLDERS, MARK, RECENT, age_of, environment_of, new_name, owner_of
from stateroom.store.objects.place import Missing, Moved, Place
from stateroom.store.url import parse_url, without_secrets

P = ParamSpec("P")
T = TypeVar("T")

FORMAT = 1
"""Of all that is written. A store with a higher one is not touched."""


class _Mark(msgspec.Struct):
    """The object by which a store is known."""

    stateroom: int
    stamp: str


def operation(
    method: Callable[Concatenate[ObjectStore, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[ObjectStore, P], Coroutine[Any, Any, T]]:
    """A method that a closed store refuses, and that one which is closing finishes."""

    @wraps(method)
    async def run(self: ObjectStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._closed:
            raise StoreUnavailable(f"the store {self.place.url} is closed")
        self._under_way += 1
        try:
            return await method(self, *args, **kwargs)
        finally:
            self._under_way -= 1
            if self._closed and not self._under_way:
                self._idle.set()

    return run


class ObjectStore(Store):
    """Sessions as objects: in a bucket (`s3://bucket/prefix`, `gs://…`, `az://…`), or in a folder (`file:///folder`).

    Options: `endpoint` (another server than the provider's own; `http://` will do), `region` of s3, and `account` of
    az. Credentials come from the environment: `AWS_ACCESS_KEY_ID` and so on, `GOOGLE_APPLICATION_CREDENTIALS`,
    `AZURE_STORAGE_ACCOUNT_KEY`.

    Each session has one small object, its head, which also holds the newest entries, and is swapped by a conditional
    write: that is the moment at which a change happens, whole and durable. Older entries and snapshots are in
    segments, which never change; small ones are merged into larger, so that there are at most seven of each of four
    sizes, and beyond those one for each sixteen megabytes. Each blob is an object. What is written before a swap has a
    name of its own; what a writer who died has left is found by a vacuum.

    What costs time and money is requests. For a session that this process has read or written before:

    | | requests |
    |---|---|
    | append, touch, lease, release | 1; each blob of an append is one more; so is a segment, when the head is full |
    | head | 1 |
    | load, entries | 1, and 1 for each segment that has something of it |
    | create | 2; a fork 4; each blob is one more |
    | find_call, blobs | as head, and 1 for what is found |
    | heads | 1 for each thousand sessions passed over, and 1 for each head |
    | children, delete | some for the session, and 1 for each fork |
    | count, sweep | 1 for each thousand sessions, and 1 for each head that has changed since the last |

    For another session, an append reads the head first, and like `find_call` and `blobs` the ends of all segments,
    where their call ids are.
    """

    def __init__(self, place: Place) -> None:
        self.place = place
        self.remote = place.remote
        self._access = Access(place)
        self._census = Census(self._access)
        self._under_way = 0
        self._closed = False
        self._idle = asyncio.Event()

    # Opening and closing.

    @classmethod
    async def open(cls, url: str) -> Self:
        store = cls(_find_place(url))
        try:
            await store._check_mark()
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        self._closed = True
        if self._under_way:
            await self._idle.wait()
        await self.place.close()

    async def _check_mark(self) -> None:
        try:
            found = await self.place.read(MARK)
        except Missing:
            await self._leave_mark()
            return
        try:
            version = msgspec.json.decode(found.data, type=_Mark).stateroom
        except msgspec.DecodeError:
            raise ForeignStore(f"{self.place.url}: {MARK!r} is not what a Stateroom store has there") from None
        if version > FORMAT:
            raise ForeignStore(f"{self.place.url} was written by a newer version of Stateroom (format {version})")

    async def _leave_mark(self) -> None:
        """Make this a store, if nothing else is there, and the server does swap under conditions and only so."""
        try:
            version = await self._swap_mark(None)
        except Moved:  # another was quicker
            return await self._check_mark()
        try:
            if await self._has_other_things():
                raise ForeignStore(f"{self.place.url}: other things are there; give the store a place of its own")
            await self._expect_refusal(None)
            await self._swap_mark(version)
            await self._expect_refusal(version)
        except BaseException:
            await self.place.remove([MARK])
            raise

    async def _has_other_things(self) -> bool:
        async with aclosing(self.place.list("")) as portions:
            async for portion in portions:
                if any(listed.name.partition("/")[0] not in (MARK, *FOLDERS) for listed in portion):
                    return True
        return False

    async def _swap_mark(self, version: Any) -> Any:
        return await self.place.swap(MARK, msgspec.json.encode(_Mark(FORMAT, new_name())), version)

    async def _expect_refusal(self, version: Any) -> None:
        try:
            await self._swap_mark(version)
        except Moved:
            return
        raise StoreError(f"{self.place.url}: this server takes no heed of conditions of a write, so it cannot be used")

    # Writing.

    @operation
    async def create(
        self,
        head: Head,
        entries: Sequence[Entry] = (),
        snapshot: Snapshot | None = None,
        blobs: Blobs = NO_BLOBS,
    ) -> None:
        call_ids = [entry.call_id for entry in entries if entry.call_id is not None]
        for number, call_id in enumerate(call_ids):
            if call_id in call_ids[:number]:
                raise DuplicateCall(head.id, call_id)
        await begin(self._access, head, entries, [snapshot] if snapshot else [], blobs)

    @operation
    async def append(self, commit: Commit) -> None:
        session, entry, blobs = commit.session, commit.entry, commit.blobs

        async def plan(view: View) -> Draft:
            head = view.root.head
            head.check_live(entry.at)
            if entry.call_id is not None and await reader.find_call(self._access, view, entry.call_id) is not None:
                raise DuplicateCall(session, entry.call_id)
            if head.revision != entry.revision - 1 or head.fence != commit.fence:
                raise Conflict(session, entry.revision - 1)
            have = await reader.find_blobs(self._access, view) if blobs else {}
            rows, parts = name_blobs({digest: body for digest, body in blobs.items() if digest not in have})
            run = make_run([entry], [commit.snapshot] if commit.snapshot else [], rows)
            draft = await self._access.add_run(view, run)
            expires = head.expires if commit.expires is None else commit.expires
            root = draft.root.with_head(revision=entry.revision, expires=expires, closed=commit.closes)
            return draft._replace(root=root, parts=[*draft.parts, *parts])

        await self._access.change(session, plan)

    @operation
    async def touch(self, session: str, *, now: float, expires: float) -> None:
        async def plan(view: View) -> Draft:
            view.root.head.check_live(now)
            return Draft(view.root.with_head(expires=expires))

        await self._access.change(session, plan)

    @operation
    async def lease(self, session: str, holder: str, *, now: float, until: float) -> Head:
        async def plan(view: View) -> Draft:
            head = view.root.head
            if head.holder == holder:
                return Draft(view.root.with_head(leased_until=until))
            if head.leased(now):
                raise SessionLeased(session)
            return Draft(view.root.with_head(fence=head.fence + 1, holder=holder, leased_until=until))

        return (await self._access.change(session, plan)).head

    @operation
    async def release(self, session: str, holder: str) -> None:
        async def plan(view: View) -> Draft | None:
            if view.root.head.holder != holder:
                return None
            return Draft(view.root.with_head(holder=None, leased_until=0.0))

        await self._access.change(session, plan)

    # Reading.

    @operation
    async def head(self, session: str) -> Head:
        return (await self._access.fetch(session)).root.head

    @operation
    async def heads(
        self, *, environment: str | None = None, before: Head | None = None, limit: int = 100
    ) -> list[Head]:
        after = f"{RECENT}/{age_of(before.created)}" if before else ""
        found: list[Head] = []
        waiting: list[str] = []
        """Names of sessions, all of an age or none: those of one age are in order only once their heads are read."""
        async with aclosing(self.place.list(RECENT, after)) as portions:
            async for portion in portions:
                for name in [listed.name for listed in portion]:
                    if owner_of(name) is None:
                        continue
                    age, _, mark, _ = name.split(".")
                    if environment is not None and mark != environment_of(environment):
                        continue
                    full = len(found) + len(waiting) >= limit
                    if full and waiting and not waiting[-1].startswith(f"{age}."):
                        found += await self._read_recent(waiting, environment, before)
                        waiting = []
                        if len(found) >= limit:
                            return found[:limit]
                    waiting.append(name)
        found += await self._read_recent(waiting, environment, before)
        return found[:limit]

    async def _read_recent(self, names: Sequence[str], environment: str | None, before: Head | None) -> list[Head]:
        """The heads of sessions that are still there, the newest first."""

        async def read(name: str) -> Head | None:
            owner = owner_of(name)
            assert owner is not None
            with suppress(BadData):  # which `orphans` tells
                there, _ = await self._access.look(owner.key)
                return there.head if isinstance(there, Root) and there.life == owner.life else None
            return None

        heads = [
            head
            for head in await in_turn(names, read)
            if head is not None
            and environment in (None, head.environment)
            and (before is None or _age(head) < _age(before))
        ]
        return sorted(heads, key=_age, reverse=True)

    @operation
    async def children(self, session: str) -> list[Head]:
        await self._access.fetch(session)
        forks = await find_forks(self._access, session)
        return sorted((root.head for root in forks.roots), key=_age)

    @operation
    async def load(self, session: str, at: int | None = None) -> Loaded:
        async def read(view: View) -> Loaded:
            return await reader.load(self._access, view, view.root.head.revision if at is None else at)

        return await self._access.read(session, read)

    @operation
    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        async def read(view: View) -> list[Entry]:
            last = view.root.head.revision if until is None else until
            return await reader.read_entries(self._access, view, after, last)

        return await self._access.read(session, read)

    @operation
    async def find_call(self, session: str, call_id: str) -> Entry | None:
        async def read(view: View) -> Entry | None:
            revision = await reader.find_call(self._access, view, call_id)
            if revision is None:
                return None
            [found] = await reader.read_entries(self._access, view, revision - 1, revision)
            return found

        return await self._access.read(session, read)

    @operation
    async def blobs(self, session: str, digests: Sequence[str]) -> dict[str, bytes]:
        async def read(view: View) -> dict[str, bytes]:
            return await reader.read_blobs(self._access, view, set(digests))

        return await self._access.read(session, read)

    # The end.

    @operation
    async def sweep(self, now: float) -> int:
        return await self._census.sweep(now)

    @operation
    async def delete(self, session: str) -> None:
        await remove(self._access, session)

    @operation
    async def count(self, now: float) -> int:
        return await self._census.count(now)

    # Care.

    @operation
    async def export(self, session: str) -> Record:
        async def read(view: View) -> Record:
            return await reader.read_all(self._access, view)

        return await self._access.read(session, read)

    @operation
    async def restore(self, record: Record) -> None:
        async def plan(view: View) -> Draft:
            return await rewrite.plan_restore(self._access, view, record)

        while True:
            try:
                await self._access.change(record.head.id, plan)
                return
            except UnknownSession:
                pass
            try:
                return await begin(self._access, record.head, record.entries, record.snapshots, record.blobs)
            except StoreUnavailable:
                raise
            except StoreError:  # another has just put it in
                continue

    @operation
    async def prune(self, session: str, below: int) -> int:
        gone = 0

        async def plan(view: View) -> Draft | None:
            nonlocal gone
            gone, draft = await rewrite.plan_prune(self._access, view, below)
            return draft

        await self._access.change(session, plan)
        return gone

    @operation
    async def size(self, session: str) -> Size:
        return _size((await self._access.fetch(session)).root)

    @operation
    async def sizes(self) -> dict[str, Size]:
        return await self._census.sizes()

    @operation
    async def orphans(self) -> list[str]:
        return await self._census.orphans()

    @operation
    async def vacuum(self) -> None:
        await self._census.vacuum()


def _find_place(url: str) -> Place:
    scheme = url.partition("://")[0]
    if scheme != "file":
        return Bucket(scheme, parse_url(url, options=OPTIONS[scheme]))
    parts = parse_url(url)
    path = f"{parts.host}{parts.path}"
    if parts.host not in ("", ".", "..") or not path.strip("/."):
        raise UnknownStore(f"{without_secrets(url)}: write file:///absolute/folder or file://./relative/folder")
    return Folder(Path(path), without_secrets(url))


def _age(head: Head) -> tuple[float, str]:
    return head.created, head.id


def _size(root: Root) -> Size:
    index = root.tail.index
    rows = sum(segment.entries for segment in root.segments) + len(index.entries)
    log = sum(segment.size + segment.blob_bytes for segment in root.segments) + len(root.tail.records)
    return Size(rows, log + sum(blob.size for blob in index.blobs))

"""The `Store` contract on objects."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec

from stateroom.errors import (
    BadData,
    ForeignStore,
    StoreError,
    StoreUnavailable,
    UnknownSession,
    UnknownStore,
)
from stateroom.store.concurrency import Gate, gated, in_turn
from stateroom.store.contract import Store
from stateroom.store.head_filter import ALL_SESSIONS, HeadFilter, Order, filter_newest
from stateroom.store.objects import layout
from stateroom.store.objects.access import Access, SessionChange, SessionView
from stateroom.store.objects.backend import Folder, Missing, Moved, ObjectBackend
from stateroom.store.objects.bucket import OPTIONS, Bucket
from stateroom.store.objects.layout import Root
from stateroom.store.objects.lifetime import begin, find_forks, name_blobs, plan_prune, plan_restore, remove
from stateroom.store.objects.maintenance import MAX_CONCURRENT, ObjectMaintenance
from stateroom.store.records import Commit, Entry, Head, Loaded, Record, Size, check_version
from stateroom.store.url import parse_url, without_secrets

FORMAT = 1
"""The version of the layout. A store with a higher one is refused."""


class _Mark(msgspec.Struct):
    """The object that marks a store as ours."""

    stateroom: int
    stamp: str


@gated
class ObjectStore(Store):
    """Sessions as objects: in a bucket (`s3://bucket/prefix`, `gs://…`, `az://…`), or in a folder (`file:///folder`).

    Options: `endpoint` (another server than the provider's; may be `http://`), `region` of s3, and `account` of az.
    Credentials come from the environment: `AWS_ACCESS_KEY_ID` and so on, `GOOGLE_APPLICATION_CREDENTIALS`,
    `AZURE_STORAGE_ACCOUNT_KEY`.

    Each session has one small object, its head, which also holds the newest entries, and is swapped by a conditional
    write: one atomic, durable step per change. Older entries and snapshots are in segments, which never change; small
    ones are merged into larger ones, so that there are at most seven of each of four sizes, and beyond those one for
    each sixteen megabytes. Each blob is an object. What is written before a swap has a unique name; a vacuum removes
    what a writer that died has left.

    Requests cost time and money. For a session that this process has read or written before:

    | | requests |
    |---|---|
    | append, touch, lease, release | 1; each blob of an append is one more; so is a segment, when the head is full |
    | head | 1 |
    | load, entries | 1, and 1 for each segment that has something of it |
    | create | 2; a fork 4; each blob is one more |
    | find_call, blobs | as head, and 1 for what is found |
    | heads | 1 for each thousand sessions passed over, and 1 for each head, also of those filtered out |
    | children, delete | a few for the session, and 1 for each fork |
    | count, sweep | 1 for each thousand sessions, and 1 for each head that has changed since the last |

    For another session, an append first reads the head and, like `find_call` and `blobs`, the indexes of all segments.
    """

    def __init__(self, backend: ObjectBackend) -> None:
        self.backend = backend
        self.remote = backend.remote
        self.gate = Gate(f"the store {backend.url}")
        self._access = Access(backend)
        self._maintenance = ObjectMaintenance(self, self._access)

    @property
    def maintenance(self) -> ObjectMaintenance:
        return self._maintenance

    # Opening and closing.

    @classmethod
    async def open(cls, url: str) -> Self:
        store = cls(_find_backend(url))
        try:
            await store._check_mark()
        except BaseException:
            await store.close()
            raise
        return store

    async def close(self) -> None:
        await self.gate.close()
        await self.backend.close()

    async def _check_mark(self) -> None:
        try:
            mark = await self.backend.read(layout.MARK)
        except Missing:
            await self._leave_mark()
            return
        try:
            version = msgspec.json.decode(mark.data, type=_Mark).stateroom
        except msgspec.DecodeError:
            raise ForeignStore(f"{self.backend.url}: the object {layout.MARK!r} was not written by Stateroom") from None
        check_version(self.backend.url, version, FORMAT)

    async def _leave_mark(self) -> None:
        """Make this a store, if it is empty, and if the server honours conditional writes."""
        try:
            version = await self._swap_mark(None)
        except Moved:  # another process was quicker
            return await self._check_mark()
        try:
            if await self._has_other_things():
                raise ForeignStore(f"{self.backend.url}: this location holds other objects; choose an empty one")
            await self._expect_refusal(None)
            await self._swap_mark(version)
            await self._expect_refusal(version)
        except BaseException:
            await self.backend.remove([layout.MARK])
            raise

    async def _has_other_things(self) -> bool:
        async with aclosing(self.backend.list("")) as portions:
            async for portion in portions:
                if any(listed.name.partition("/")[0] not in (layout.MARK, *layout.FOLDERS) for listed in portion):
                    return True
        return False

    async def _swap_mark(self, version: Any) -> Any:
        return await self.backend.swap(layout.MARK, msgspec.json.encode(_Mark(FORMAT, layout.new_name())), version)

    async def _expect_refusal(self, version: Any) -> None:
        try:
            await self._swap_mark(version)
        except Moved:
            return
        raise StoreError(f"{self.backend.url}: this server does not support conditional writes; use another one")

    # Writing.

    async def put(self, record: Record, *, new: bool = False) -> None:
        record.check_calls()
        while not new:
            try:
                await self._access.change(record.head.id, partial(plan_restore, self._access, record))
                return
            except UnknownSession:
                pass
            try:
                return await begin(self._access, record)
            except StoreUnavailable:
                raise
            except StoreError:  # another process has just put it in
                continue
        await begin(self._access, record)

    async def append(self, commit: Commit) -> None:
        session, entry, blobs = commit.session, commit.entry, commit.blobs

        async def plan(view: SessionView) -> SessionChange:
            head, call_id = view.root.head, entry.call_id
            duplicate = call_id is not None and await self._access.find_call(view, call_id) is not None
            head.check_next(commit, duplicate=duplicate)
            have = await self._access.find_blobs(view) if blobs else {}
            rows, parts = name_blobs({digest: body for digest, body in blobs.items() if digest not in have})
            run = layout.make_run([entry], [commit.snapshot] if commit.snapshot else [], rows)
            change = await self._access.add_run(view, run)
            root = change.root.changed(head=head.after(commit))
            return change._replace(root=root, parts=[*change.parts, *parts])

        await self._access.change(session, plan)

    async def touch(self, session: str, *, now: float, expires: float) -> None:
        await self._access.change_head(session, lambda head: head.renewed(now, expires))

    async def lease(self, session: str, holder: str, *, now: float, until: float) -> Head:
        root = await self._access.change_head(session, lambda head: head.leased_to(holder, now, until))
        return root.head

    async def release(self, session: str, holder: str) -> None:
        await self._access.change_head(session, lambda head: head.released_by(holder))

    # Reading.

    async def head(self, session: str) -> Head:
        return (await self._access.fetch(session)).root.head

    async def heads(
        self, wanted: HeadFilter = ALL_SESSIONS, *, order: Order = "newest", after: Head | None = None, limit: int = 100
    ) -> list[Head]:
        return await filter_newest(self._newest, wanted, order, after, limit)

    async def _newest(self, environment: str | None, after: Head | None, limit: int) -> list[Head]:
        first = f"{layout.RECENT}/{layout.age_of(after.created)}" if after else ""
        heads: list[Head] = []
        waiting: list[str] = []
        """Names of sessions, all of an age or none: those of one age are in order only once their heads are read."""
        async with aclosing(self.backend.list(layout.RECENT, first)) as portions:
            async for portion in portions:
                for name in [listed.name for listed in portion]:
                    if layout.owner_of(name) is None:
                        continue
                    age, _, mark, _ = name.split(".")
                    if environment is not None and mark != layout.environment_of(environment):
                        continue
                    full = len(heads) + len(waiting) >= limit
                    if full and waiting and not waiting[-1].startswith(f"{age}."):
                        heads += await self._read_recent(waiting, environment, after)
                        waiting = []
                        if len(heads) >= limit:
                            return heads[:limit]
                    waiting.append(name)
        heads += await self._read_recent(waiting, environment, after)
        return heads[:limit]

    async def _read_recent(self, names: Sequence[str], environment: str | None, after: Head | None) -> list[Head]:
        """The heads of sessions that still exist, the newest first."""

        async def read(name: str) -> Head | None:
            owner = layout.owner_of(name)
            assert owner is not None
            with suppress(BadData):  # which `orphans` reports
                there, _ = await self._access.look(owner.key)
                return there.head if isinstance(there, Root) and there.life == owner.life else None
            return None

        heads = [
            head
            for head in await in_turn(names, read, MAX_CONCURRENT)
            if head is not None and environment in (None, head.environment) and (after is None or head.age < after.age)
        ]
        return sorted(heads, key=lambda head: head.age, reverse=True)

    async def children(self, session: str) -> list[Head]:
        await self._access.fetch(session)
        forks = await find_forks(self._access, session)
        return sorted((root.head for root in forks.roots), key=lambda head: head.age)

    async def load(self, session: str, at: int | None = None) -> Loaded:
        return await self._access.read(session, partial(self._access.load, until=at))

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        return await self._access.read(session, partial(self._access.read_entries, after=after, until=until))

    async def find_call(self, session: str, call_id: str) -> Entry | None:
        async def read(view: SessionView) -> Entry | None:
            revision = await self._access.find_call(view, call_id)
            if revision is None:
                return None
            [entry] = await self._access.read_entries(view, revision - 1, revision)
            return entry

        return await self._access.read(session, read)

    async def blobs(self, session: str, digests: Sequence[str] | None = None) -> dict[str, bytes]:
        return await self._access.read(session, partial(self._access.read_blobs, digests=digests))

    # Removing.

    async def sweep(self, now: float) -> int:
        return await self._maintenance.sweep(now)

    async def delete(self, session: str) -> None:
        await remove(self._access, session)

    async def count(self, now: float) -> int:
        return await self._maintenance.count(now)

    async def prune(self, session: str, below: int) -> int:
        gone = 0

        async def plan(view: SessionView) -> SessionChange | None:
            nonlocal gone
            gone, change = await plan_prune(self._access, view, below)
            return change

        await self._access.change(session, plan)
        return gone

    async def size(self, session: str) -> Size:
        return _size((await self._access.fetch(session)).root)


def _find_backend(url: str) -> ObjectBackend:
    scheme = url.partition("://")[0]
    if scheme != "file":
        return Bucket(scheme, parse_url(url, options=OPTIONS[scheme]))
    parts = parse_url(url)
    path = f"{parts.host}{parts.path}"
    if parts.host not in ("", ".", "..") or not path.strip("/."):
        raise UnknownStore(f"{without_secrets(url)}: write file:///absolute/folder or file://./relative/folder")
    return Folder(Path(path), without_secrets(url))


def _size(root: Root) -> Size:
    index = root.tail.index
    rows = sum(segment.entries for segment in root.segments) + len(index.entries)
    log = sum(segment.size + segment.blob_bytes for segment in root.segments) + len(root.tail.records)
    return Size(rows, log + sum(blob.size for blob in index.blobs))

"""The contract on Redis: what is asked of the server, and what its answers mean."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from stateroom.errors import (
    Conflict,
    DuplicateCall,
    ForeignStore,
    SessionClosed,
    SessionExpired,
    SessionLeased,
    StateroomError,
    StoreUnavailable,
    UnknownRevision,
    UnknownSession,
)
from stateroom.store.contract import NO_BLOBS, Blobs, Commit, Entry, Head, Loaded, Record, Size, Snapshot, Store
from stateroom.store.redis.address import find
from stateroom.store.redis.connection import Link, Word
from stateroom.store.redis.index import Index
from stateroom.store.redis.layout import (
    HEAD,
    Keys,
    flag,
    from_member,
    pack_entry,
    session_key,
    time,
    unpack_entry,
    unpack_head,
)
from stateroom.store.redis.lifetime import Lives
from stateroom.store.redis.maintenance import Care
from stateroom.store.redis.scripts import APPEND, FIND_CALL, LEASE, PRUNE, READ, RELEASE, TOUCH, VERSION_OF

VERSION = 1
"""The version of what lies where. Goes up when an older Stateroom could no longer read it."""


class RedisStore(Store):
    """Sessions in Redis or Valkey.

    | URL | |
    |---|---|
    | `redis://user:password@host:6379/0` | a server, and the number of its database |
    | `unix:///path/to.sock?db=0` | a server on this machine |
    | `redis+sentinel://host:26379,host:26379/service/0` | whichever server the Sentinels name for a service |
    | `redis+cluster://host:6379,host:6379` | a cluster, by some of its servers |

    With `rediss` in place of `redis` the servers are reached over TLS (`ssl_ca_certs`, `ssl_certfile` and `ssl_keyfile`
    are paths). `prefix` stands before all keys: `stateroom:` unless given.
    """

    remote = True

    def __init__(self, link: Link, prefix: str) -> None:
        self._link = link
        self._prefix = prefix
        self._index = Index(link, prefix)
        self._lives = Lives(link, self._index, prefix)
        self._care = Care(link, self._index, self._lives, prefix)
        self._open = _Gate(link.place)

    @classmethod
    async def open(cls, url: str) -> Self:
        link, prefix = find(url)
        try:
            await _check_version(link, f"{prefix}version")
        except BaseException:
            await link.close()
            raise
        return cls(link, prefix)

    async def close(self) -> None:
        await self._open.close()
        await self._link.close()

    def _keys(self, session: str) -> Keys:
        return Keys(session_key(self._prefix, session))

    # Writing.

    async def create(
        self,
        head: Head,
        entries: Sequence[Entry] = (),
        snapshot: Snapshot | None = None,
        blobs: Blobs = NO_BLOBS,
    ) -> None:
        with self._open:
            await self._lives.begin(Record(head, list(entries), [snapshot] if snapshot else [], dict(blobs)))

    async def append(self, commit: Commit) -> None:
        with self._open:
            session, entry, snapshot = commit.session, commit.entry, commit.snapshot
            keys: tuple[str, ...] = (session_key(self._prefix, session),)
            revision, call = entry.revision, entry.call_id
            more: tuple[Word, ...] = ()
            if snapshot is not None:
                keys = (*keys, Keys(*keys).snapshots)
                more = (flag(commit.closes), str(snapshot.revision), snapshot.body)
            elif commit.blobs or commit.closes:
                more = (flag(commit.closes), "", "")
            for blob in commit.blobs.items():
                more += blob
            answer = await self._link.run(
                APPEND,
                keys,
                str(revision - 1),
                str(revision),
                str(commit.fence),
                time(entry.at),
                pack_entry(entry),
                "" if commit.expires is None else time(commit.expires),
                "" if call is None else f"c:{call}",
                *more,
            )
            if isinstance(answer, bytes):
                raise _refusal(answer, session, entry)
            if answer is not None:
                await self._lives.take_note(session, answer)

    async def touch(self, session: str, *, now: float, expires: float) -> None:
        with self._open:
            answer = await self._link.run(TOUCH, (self._keys(session).session,), time(now), time(expires))
            if isinstance(answer, bytes):
                raise _refusal(answer, session)
            if answer is not None:
                await self._lives.take_note(session, answer)

    async def lease(self, session: str, holder: str, *, now: float, until: float) -> Head:
        with self._open:
            answer = await self._link.run(LEASE, (self._keys(session).session,), holder, time(now), time(until))
            if isinstance(answer, bytes):
                raise _refusal(answer, session)
            return unpack_head(session, answer)

    async def release(self, session: str, holder: str) -> None:
        with self._open:
            answer = await self._link.run(RELEASE, (self._keys(session).session,), holder, time(0.0))
            if answer is not None:
                raise _refusal(answer, session)

    # Reading.

    async def head(self, session: str) -> Head:
        with self._open:
            fields = await self._link.ask("HMGET", self._keys(session).session, *HEAD)
            if fields[0] is None:
                raise UnknownSession(session)
            return unpack_head(session, fields)

    async def heads(
        self, *, environment: str | None = None, before: Head | None = None, limit: int = 100
    ) -> list[Head]:
        with self._open:
            found: list[Head] = []
            start, newest = 0, "+inf" if before is None else time(before.created)
            while len(found) < limit:
                page = await self._index.page(environment, newest, start, limit)
                members = [
                    member
                    for member, created in page
                    if before is None or (created, from_member(member)[0]) < (before.created, before.id)
                ]
                found += await self._lives.heads(members)
                if len(page) < limit:
                    break
                start += limit
            return found[:limit]

    async def children(self, session: str) -> list[Head]:
        with self._open:
            keys = self._keys(session)
            there, members = await asyncio.gather(
                self._link.ask("EXISTS", keys.session), self._link.ask("SMEMBERS", keys.forks)
            )
            if not there:
                raise UnknownSession(session)
            return sorted(await self._lives.heads(list(members)), key=lambda head: (head.created, head.id))

    async def load(self, session: str, at: int | None = None) -> Loaded:
        with self._open:
            fields, revision, body, entries = await self._read(session, at, "")
            snapshot = Snapshot(int(revision), body) if revision is not None else None
            read = [unpack_entry(session, entry) for entry in entries]
            return Loaded(unpack_head(session, fields), snapshot, read)

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        with self._open:
            *_, entries = await self._read(session, until, str(after))
            return [unpack_entry(session, entry) for entry in entries]

    async def _read(self, session: str, until: int | None, after: str) -> Any:
        keys = self._keys(session)
        last = "" if until is None else str(until)
        answer = await self._link.run(READ, (keys.session, keys.snapshots), last, after)
        if isinstance(answer, bytes):
            raise _refusal(answer, session)
        return answer

    async def find_call(self, session: str, call_id: str) -> Entry | None:
        with self._open:
            answer = await self._link.run(FIND_CALL, (self._keys(session).session,), f"c:{call_id}")
            if isinstance(answer, bytes):
                raise _refusal(answer, session)
            return None if answer is None else unpack_entry(session, answer[0])

    async def blobs(self, session: str, digests: Sequence[str]) -> dict[str, bytes]:
        with self._open:
            fields = [f"b:{digest}" for digest in digests]
            there, *bodies = await self._link.ask("HMGET", self._keys(session).session, "birth", *fields)
            if there is None:
                raise UnknownSession(session)
            return {digest: body for digest, body in zip(digests, bodies, strict=True) if body is not None}

    # Ends.

    async def sweep(self, now: float) -> int:
        with self._open:
            return await self._lives.sweep(now)

    async def delete(self, session: str) -> None:
        with self._open:
            await self._lives.delete(session)

    async def count(self, now: float) -> int:
        with self._open:
            return await self._lives.count(now)

    # Care.

    async def export(self, session: str) -> Record:
        with self._open:
            return await self._care.export(session)

    async def restore(self, record: Record) -> None:
        with self._open:
            await self._lives.restore(record)

    async def prune(self, session: str, below: int) -> int:
        with self._open:
            keys = self._keys(session)
            answer = await self._link.run(PRUNE, (keys.session, keys.snapshots), str(below))
            if answer == b"revision":
                raise UnknownRevision(session, f"session {session!r} has no snapshot at revision {below}")
            if isinstance(answer, bytes):
                raise _refusal(answer, session)
            return int(answer)

    async def size(self, session: str) -> Size:
        with self._open:
            return await self._care.size(session)

    async def sizes(self) -> dict[str, Size]:
        with self._open:
            return await self._care.sizes()

    async def orphans(self) -> list[str]:
        with self._open:
            return await self._care.orphans()

    async def vacuum(self) -> None:
        with self._open:
            await self._care.vacuum()


class _Gate:
    """Lets calls pass until it closes, which waits for those that have."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._inside = 0
        self._closed: asyncio.Event | None = None
        """When there is one, the gate is closed; it is set when nobody is left inside."""

    def __enter__(self) -> None:
        if self._closed is not None:
            raise StoreUnavailable(f"the store on {self._place} is closed")
        self._inside += 1

    def __exit__(self, *_: object) -> None:
        self._inside -= 1
        if self._closed is not None and not self._inside:
            self._closed.set()

    async def close(self) -> None:
        if self._closed is None:
            self._closed = asyncio.Event()
            if not self._inside:
                self._closed.set()
        await self._closed.wait()


async def _check_version(link: Link, key: str) -> None:
    """See that what lies there is ours, and that we can read it; or that nothing does."""
    found = await link.run(VERSION_OF, (key,))
    if found is None:
        await link.ask("SET", key, str(VERSION), "NX")
        found = await link.run(VERSION_OF, (key,))
    if not found.isdigit():
        raise ForeignStore(f"{link.place}: the key {key} is not Stateroom's; choose another prefix=... in the URL")
    if int(found) > VERSION:
        raise ForeignStore(f"{link.place}: a newer Stateroom wrote what is there (the key {key} says {int(found)})")


def _refusal(word: bytes, session: str, entry: Entry | None = None) -> StateroomError:
    """The error that a script's answer stands for."""
    match word:
        case b"unknown":
            return UnknownSession(session)
        case b"closed":
            return SessionClosed(session)
        case b"expired":
            return SessionExpired(session)
        case b"leased":
            return SessionLeased(session)
        case b"duplicate" if entry is not None:
            return DuplicateCall(session, str(entry.call_id))
        case b"conflict" if entry is not None:
            return Conflict(session, entry.revision - 1)
    raise StoreUnavailable(f"Redis gave an answer that nobody understands: {word!r}")

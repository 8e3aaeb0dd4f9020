"""The `Store` contract on Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Self

from stateroom.errors import ForeignStore, UnknownSession
from stateroom.store.concurrency import Gate, gated
from stateroom.store.contract import Store
from stateroom.store.head_filter import ALL_SESSIONS, HeadFilter, Order, filter_newest
from stateroom.store.records import (
    Commit,
    Entry,
    Head,
    Loaded,
    Record,
    Size,
    Snapshot,
    check_version,
    no_snapshot,
    refusal,
)
from stateroom.store.redis import scripts
from stateroom.store.redis.address import parse_address
from stateroom.store.redis.connection import RedisLink, Word
from stateroom.store.redis.layout import (
    HEAD,
    SessionKeys,
    flag,
    from_member,
    keys_of,
    optional,
    pack_entry,
    time,
    unpack_entry,
    unpack_head,
)
from stateroom.store.redis.lifetime import Lifetimes, SessionIndex, is_held_back
from stateroom.store.redis.maintenance import RedisMaintenance

VERSION = 1
"""The version of the layout, raised when older code could no longer read it."""


@gated
class RedisStore(Store):
    """Sessions in Redis or Valkey.

    | URL | |
    |---|---|
    | `redis://user:password@host:6379/0` | a server, and the number of its database |
    | `unix:///path/to.sock?db=0` | a server on this machine |
    | `redis+sentinel://host:26379,host:26379/service/0` | the primary that the Sentinels name for a service |
    | `redis+cluster://host:6379,host:6379` | a cluster, by some of its servers |

    With `rediss` in place of `redis` the servers are reached over TLS (`ssl_ca_certs`, `ssl_certfile` and `ssl_keyfile`
    are paths). `prefix` is put before all keys: `stateroom:` by default.
    """

    remote = True

    def __init__(self, link: RedisLink, prefix: str) -> None:
        self._link = link
        self._prefix = prefix
        self._index = SessionIndex(link, prefix)
        self._lifetimes = Lifetimes(link, self._index, prefix)
        self.gate = Gate(f"the store on {link.place}")

    @property
    def maintenance(self) -> RedisMaintenance:
        return RedisMaintenance(self, self.gate, self._link, self._index, self._lifetimes, self._prefix)

    @classmethod
    async def open(cls, url: str) -> Self:
        link, prefix = parse_address(url)
        try:
            await _check_version(link, f"{prefix}version")
        except BaseException:
            await link.close()
            raise
        return cls(link, prefix)

    async def close(self) -> None:
        await self.gate.close()
        await self._link.close()

    def _keys(self, session: str) -> SessionKeys:
        return keys_of(self._prefix, session)

    # Writing.

    async def put(self, record: Record, *, new: bool = False) -> None:
        await (self._lifetimes.create(record) if new else self._lifetimes.restore(record))

    async def append(self, commit: Commit) -> None:
        session, entry, snapshot = commit.session, commit.entry, commit.snapshot
        names = self._keys(session)
        keys: tuple[str, ...] = (names.session,)
        revision, call = entry.revision, entry.call_id
        more: tuple[Word, ...] = ()
        if snapshot is not None:
            keys = (names.session, names.snapshots)
            more = (flag(commit.closes), str(snapshot.revision), snapshot.body)
        elif commit.blobs or commit.closes or commit.phase is not None or commit.reward is not None:
            more = (flag(commit.closes), "", "")
        if more:
            more += (optional("phase", commit.phase), optional("reward", commit.reward))
        for blob in commit.blobs.items():
            more += blob
        words = (
            str(revision - 1),
            str(revision),
            str(commit.fence),
            time(entry.at),
            pack_entry(entry),
            "" if commit.expires is None else time(commit.expires),
            "" if call is None else f"c:{call}",
            *more,
        )
        await self._write(scripts.APPEND, session, keys, *words, entry=entry)

    async def touch(self, session: str, *, now: float, expires: float) -> None:
        keys = (self._keys(session).session,)
        await self._write(scripts.TOUCH, session, keys, time(now), time(expires))

    async def lease(self, session: str, holder: str, *, now: float, until: float) -> Head:
        keys = (self._keys(session).session,)
        fields = await self._run(scripts.LEASE, session, keys, holder, time(now), time(until))
        return unpack_head(session, fields)

    async def release(self, session: str, holder: str) -> None:
        await self._run(scripts.RELEASE, session, (self._keys(session).session,), holder, time(0.0))

    async def _write(
        self, script: scripts.Script, session: str, keys: Sequence[str], *words: Word, entry: Entry | None = None
    ) -> None:
        """Run a script that may move the expiry: its ancestors must live longer, and the index must know."""
        while is_held_back(answer := await self._link.run(script, keys, *words)):
            await self._lifetimes.hold(session, answer)
        if isinstance(answer, bytes):
            raise refusal(answer.decode(), session, entry)
        if answer is not None:
            await self._lifetimes.take_note(session, answer)

    async def _run(self, script: scripts.Script, session: str, keys: Sequence[str], *words: Word) -> Any:
        """Run a script; an answer in one word is a refusal."""
        answer = await self._link.run(script, keys, *words)
        if isinstance(answer, bytes):
            raise refusal(answer.decode(), session)
        return answer

    # Reading.

    async def head(self, session: str) -> Head:
        fields = await self._link.ask("HMGET", self._keys(session).session, *HEAD)
        if fields[0] is None:
            raise UnknownSession(session)
        return unpack_head(session, fields)

    async def heads(
        self, wanted: HeadFilter = ALL_SESSIONS, *, order: Order = "newest", after: Head | None = None, limit: int = 100
    ) -> list[Head]:
        return await filter_newest(self._newest, wanted, order, after, limit)

    async def _newest(self, environment: str | None, after: Head | None, limit: int) -> list[Head]:
        heads: list[Head] = []
        start, newest = 0, "+inf" if after is None else time(after.created)
        while len(heads) < limit:
            page = await self._index.page(environment, newest, start, limit)
            members = [
                member for member, created in page if after is None or (created, from_member(member)[0]) < after.age
            ]
            heads += await self._lifetimes.heads(members)
            if len(page) < limit:
                break
            start += limit
        return heads[:limit]

    async def children(self, session: str) -> list[Head]:
        keys = self._keys(session)
        there, members = await asyncio.gather(
            self._link.ask("EXISTS", keys.session), self._link.ask("SMEMBERS", keys.forks)
        )
        if not there:
            raise UnknownSession(session)
        return sorted(await self._lifetimes.heads(list(members)), key=lambda head: head.age)

    async def load(self, session: str, at: int | None = None) -> Loaded:
        fields, revision, body, entries = await self._read(session, at, "")
        snapshot = Snapshot(int(revision), body) if revision is not None else None
        read = [unpack_entry(session, entry) for entry in entries]
        return Loaded(unpack_head(session, fields), snapshot, read)

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        *_, entries = await self._read(session, until, str(after))
        return [unpack_entry(session, entry) for entry in entries]

    async def _read(self, session: str, until: int | None, after: str) -> Any:
        keys = self._keys(session)
        last = "" if until is None else str(until)
        return await self._run(scripts.READ, session, (keys.session, keys.snapshots), last, after)

    async def find_call(self, session: str, call_id: str) -> Entry | None:
        answer = await self._run(scripts.FIND_CALL, session, (self._keys(session).session,), f"c:{call_id}")
        return None if answer is None else unpack_entry(session, answer[0])

    async def blobs(self, session: str, digests: Sequence[str] | None = None) -> dict[str, bytes]:
        if digests is None:
            return (await self.maintenance.read_all(session)).blobs
        fields = [f"b:{digest}" for digest in digests]
        there, *bodies = await self._link.ask("HMGET", self._keys(session).session, "birth", *fields)
        if there is None:
            raise UnknownSession(session)
        return {digest: body for digest, body in zip(digests, bodies, strict=True) if body is not None}

    async def size(self, session: str) -> Size:
        return await self.maintenance.session_size(session)

    async def count(self, now: float) -> int:
        return await self._lifetimes.count(now)

    # Removing.

    async def prune(self, session: str, below: int) -> int:
        keys = self._keys(session)
        answer = await self._run(scripts.PRUNE, session, (keys.session, keys.snapshots), str(below))
        if answer is None:
            raise no_snapshot(session, below)
        return int(answer)

    async def sweep(self, now: float) -> int:
        return await self._lifetimes.sweep(now)

    async def delete(self, session: str) -> None:
        await self._lifetimes.delete(session)


async def _check_version(link: RedisLink, key: str) -> None:
    """Check that the data is ours, of a version that we can read; mark an empty place as ours."""
    found = await link.run(scripts.VERSION_OF, (key,))
    if found is None:
        await link.ask("SET", key, str(VERSION), "NX")
        found = await link.run(scripts.VERSION_OF, (key,))
    if not found.isdigit():
        raise ForeignStore(f"{link.place}: the key {key} is not Stateroom's; choose another prefix=... in the URL")
    check_version(f"{link.place}: the key {key}", int(found), VERSION)

"""The `Store` contract on Redis."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any, Self
from urllib.parse import unquote

from stateroom.errors import BadData, ForeignStore, UnknownSession
from stateroom.store.concurrency import Gate, gated, in_turn
from stateroom.store.contract import Maintenance, Store
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
    lost_fork,
    lost_parts,
    no_snapshot,
    refusal,
)
from stateroom.store.redis import scripts
from stateroom.store.redis.connection import RedisLink, Word, parse_address
from stateroom.store.redis.layout import (
    HEAD,
    flag,
    from_member,
    optional,
    pack_entry,
    time,
    to_member,
    unpack_entry,
    unpack_head,
)
from stateroom.store.redis.lifetime import SESSIONS_PER_REQUEST, Lifetimes, SessionIndex, is_held_back

VERSION = 1
"""The version of the layout, raised when older code could no longer read it."""
KINDS = ("entries", "snapshots", "blobs", "sessions")
"""In the order of the `MEASURE` script."""

_SPECIAL = re.compile(r"([*?\[\]\\^])")
"""Special characters in a pattern of keys."""


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
        self.link = link
        self.prefix = prefix
        self.index = SessionIndex(link, prefix)
        self.lifetimes = Lifetimes(link, self.index, prefix)
        self.gate = Gate(f"the store on {link.place}")

    @property
    def maintenance(self) -> RedisMaintenance:
        return RedisMaintenance(self)

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
        await self.link.close()

    # Writing.

    async def put(self, record: Record, *, new: bool = False) -> None:
        await (self.lifetimes.create(record) if new else self.lifetimes.restore(record))

    async def append(self, commit: Commit) -> None:
        session, entry, snapshot = commit.session, commit.entry, commit.snapshot
        names = self.lifetimes.keys(session)
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
        keys = (self.lifetimes.keys(session).session,)
        await self._write(scripts.TOUCH, session, keys, time(now), time(expires))

    async def lease(self, session: str, holder: str, *, now: float, until: float) -> Head:
        keys = (self.lifetimes.keys(session).session,)
        fields = await self._run(scripts.LEASE, session, keys, holder, time(now), time(until))
        return unpack_head(session, fields)

    async def release(self, session: str, holder: str) -> None:
        await self._run(scripts.RELEASE, session, (self.lifetimes.keys(session).session,), holder, time(0.0))

    async def _write(
        self, script: scripts.Script, session: str, keys: Sequence[str], *words: Word, entry: Entry | None = None
    ) -> None:
        """Run a script that may move the expiry: its ancestors must live longer, and the index must know."""
        while is_held_back(answer := await self.link.run(script, keys, *words)):
            await self.lifetimes.hold(session, answer)
        if isinstance(answer, bytes):
            raise refusal(answer.decode(), session, entry)
        if answer is not None:
            await self.lifetimes.take_note(session, answer)

    async def _run(self, script: scripts.Script, session: str, keys: Sequence[str], *words: Word) -> Any:
        """Run a script; an answer in one word is a refusal."""
        answer = await self.link.run(script, keys, *words)
        if isinstance(answer, bytes):
            raise refusal(answer.decode(), session)
        return answer

    # Reading.

    async def head(self, session: str) -> Head:
        fields = await self.link.ask("HMGET", self.lifetimes.keys(session).session, *HEAD)
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
            page = await self.index.page(environment, newest, start, limit)
            members = [
                member for member, created in page if after is None or (created, from_member(member)[0]) < after.age
            ]
            heads += await self.lifetimes.heads(members)
            if len(page) < limit:
                break
            start += limit
        return heads[:limit]

    async def children(self, session: str) -> list[Head]:
        keys = self.lifetimes.keys(session)
        there, members = await asyncio.gather(
            self.link.ask("EXISTS", keys.session), self.link.ask("SMEMBERS", keys.forks)
        )
        if not there:
            raise UnknownSession(session)
        return sorted(await self.lifetimes.heads(list(members)), key=lambda head: head.age)

    async def load(self, session: str, at: int | None = None) -> Loaded:
        fields, revision, body, entries = await self._read(session, at, "")
        snapshot = Snapshot(int(revision), body) if revision is not None else None
        read = [unpack_entry(session, entry) for entry in entries]
        return Loaded(unpack_head(session, fields), snapshot, read)

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        *_, entries = await self._read(session, until, str(after))
        return [unpack_entry(session, entry) for entry in entries]

    async def _read(self, session: str, until: int | None, after: str) -> Any:
        keys = self.lifetimes.keys(session)
        last = "" if until is None else str(until)
        return await self._run(scripts.READ, session, (keys.session, keys.snapshots), last, after)

    async def find_call(self, session: str, call_id: str) -> Entry | None:
        answer = await self._run(scripts.FIND_CALL, session, (self.lifetimes.keys(session).session,), f"c:{call_id}")
        return None if answer is None else unpack_entry(session, answer[0])

    async def blobs(self, session: str, digests: Sequence[str] | None = None) -> dict[str, bytes]:
        if digests is None:
            return (await self.maintenance.read_all(session)).blobs
        fields = [f"b:{digest}" for digest in digests]
        there, *bodies = await self.link.ask("HMGET", self.lifetimes.keys(session).session, "birth", *fields)
        if there is None:
            raise UnknownSession(session)
        return {digest: body for digest, body in zip(digests, bodies, strict=True) if body is not None}

    async def size(self, session: str) -> Size:
        return await self.maintenance.session_size(session)

    async def count(self, now: float) -> int:
        return await self.lifetimes.count(now)

    # Removing.

    async def prune(self, session: str, below: int) -> int:
        keys = self.lifetimes.keys(session)
        answer = await self._run(scripts.PRUNE, session, (keys.session, keys.snapshots), str(below))
        if answer is None:
            raise no_snapshot(session, below)
        return int(answer)

    async def sweep(self, now: float) -> int:
        return await self.lifetimes.sweep(now)

    async def delete(self, session: str) -> None:
        await self.lifetimes.delete(session)


async def _check_version(link: RedisLink, key: str) -> None:
    """Check that the data is ours, of a version that we can read; mark an empty place as ours."""
    version = await link.run(scripts.VERSION_OF, (key,))
    if version is None:
        await link.ask("SET", key, str(VERSION), "NX")
        version = await link.run(scripts.VERSION_OF, (key,))
    if not version.isdigit():
        raise ForeignStore(
            f"{link.place}: the key {key} belongs to another program; choose another prefix=... in the URL"
        )
    check_version(f"{link.place}: the key {key}", int(version), VERSION)


@gated
class RedisMaintenance(Maintenance):
    """Maintenance of a store in Redis."""

    store: RedisStore

    async def export(self, session: str) -> Record:
        return await self.read_all(session)

    async def read_all(self, session: str) -> Record:
        """All of a session."""
        fields = await self.store.link.ask("HGETALL", self.store.lifetimes.keys(session).session)
        if not fields:
            raise UnknownSession(session)
        if not isinstance(fields, dict):  # which a cluster's client has made
            fields = dict(zip(fields[::2], fields[1::2], strict=True))
        head = unpack_head(session, [fields.get(name.encode()) for name in HEAD])
        entries = [unpack_entry(session, value) for field, value in fields.items() if field.startswith(b"e:")]
        snapshots = [Snapshot(int(field[2:]), value) for field, value in fields.items() if field.startswith(b"s:")]
        blobs = {field[2:].decode(): value for field, value in fields.items() if field.startswith(b"b:")}
        entries.sort(key=lambda entry: entry.revision)
        snapshots.sort(key=lambda snapshot: snapshot.revision)
        return Record(head, entries, snapshots, blobs)

    # Sizes.

    async def session_size(self, session: str) -> Size:
        """The size of a session."""
        sizes = await self._measure(session)
        if not sizes["sessions"].rows:
            raise UnknownSession(session)
        return Size(sizes["entries"].rows, sum(sizes[kind].bytes for kind in ("entries", "snapshots", "blobs")))

    async def sizes(self) -> dict[str, Size]:
        total = dict.fromkeys(KINDS, Size(0, 0))
        members = await self.store.index.all()
        for sizes in await in_turn([from_member(member)[0] for member in members], self._measure, SESSIONS_PER_REQUEST):
            total = {kind: total[kind] + sizes[kind] for kind in KINDS}
        return {**total, "index": Size(len(members), await self.store.index.memory())}

    async def _measure(self, session: str) -> dict[str, Size]:
        """The sizes of a session's parts; `sessions` has one row, or none if it is gone."""
        try:
            numbers = await self.store.link.run(scripts.MEASURE, (self.store.lifetimes.keys(session).session,))
        except BadData:
            numbers = [0] * 2 * len(KINDS)
        sizes = dict(zip(KINDS, map(Size, numbers[::2], numbers[1::2]), strict=True))
        return {**sizes, "sessions": Size(min(1, sizes["sessions"].rows), sizes["sessions"].bytes)}

    # Orphans.

    async def orphans(self) -> list[str]:
        orphans = await self._find_orphans()
        # What is under way can look like an orphan, but not twice.
        return [what for what in await self._find_orphans() if what in orphans] if orphans else []

    async def _find_orphans(self) -> list[str]:
        there = await self._survey()
        indexed = set(await self.store.index.all())
        born = {to_member(head.id, birth): head for head, birth in there.sessions.values()}
        orphans = [*there.damages.values()]
        orphans += [lost_parts(what, session) for session, what in there.parts_alone()]
        for session in sorted(from_member(member)[0] for member in indexed - born.keys()):
            if session not in there.damages:
                orphans.append(f"session {session!r} in the index, which does not exist")
        for member, head in sorted(born.items()):
            if member not in indexed:
                orphans.append(f"session {head.id!r}, which is not in the index")
            if head.parent is None or head.parent in there.damages:
                continue
            if head.parent not in there.sessions:
                orphans.append(lost_fork(head.id, head.parent))
            elif member not in there.forks[head.parent]:
                orphans.append(f"session {head.id!r}, which its parent {head.parent!r} does not list")
        for session, members in there.forks.items():
            gone = sorted({from_member(member)[0] for member in members - born.keys()} - there.damages.keys())
            orphans += [f"fork {fork!r} of session {session!r}, which does not exist" for fork in gone]
        return orphans

    async def vacuum(self) -> None:
        """Correct the index and the sets of forks, and remove data without a session; Redis frees memory by itself."""
        there = await self._survey()
        born = {to_member(head.id, birth) for head, birth in there.sessions.values()}
        await self.store.lifetimes.settle([member for member in await self.store.index.all() if member not in born])
        await in_turn(there.sessions.values(), lambda kept: self.store.lifetimes.repair(*kept), SESSIONS_PER_REQUEST)
        for session, members in there.forks.items():
            await asyncio.gather(*(self.store.lifetimes.disown(session, member) for member in members))
        for session, what in there.parts_alone():
            keys = self.store.lifetimes.keys(session)
            await self.store.link.run(scripts.CLEAR, (keys.session, f"{keys.session}:{what}"))

    async def _survey(self) -> _Survey:
        """All keys under our prefix; not of one moment."""
        start = f"{self.store.prefix}{{/"
        pattern = _SPECIAL.sub(r"\\\1", start) + "*"
        keys = {key.decode("utf-8", "backslashreplace") async for key in self.store.link.keys(pattern)}
        there = _Survey()
        for key in sorted(keys):
            name, _, part = key.removeprefix(start).partition("}")
            there.parts[unquote(name)].add(part.removeprefix(":"))
        await in_turn(list(there.parts), partial(self._look_at, there=there), SESSIONS_PER_REQUEST)
        return there

    async def _look_at(self, session: str, there: _Survey) -> None:
        keys = self.store.lifetimes.keys(session)
        try:
            fields = await self.store.link.ask("HMGET", keys.session, *HEAD, "birth")
            if fields[-1] is not None:
                there.sessions[session] = unpack_head(session, fields[:-1]), fields[-1].decode()
            if "forks" in there.parts[session]:
                there.forks[session] = set(await self.store.link.ask("SMEMBERS", keys.forks))
        except BadData as error:
            there.damages[session] = str(error)


class _Survey:
    """The data found on a server, by the ids of sessions."""

    def __init__(self) -> None:
        self.parts: defaultdict[str, set[str]] = defaultdict(set)
        """The keys that exist: '' is a session itself."""
        self.sessions: dict[str, tuple[Head, str]] = {}
        """Heads and births."""
        self.forks: defaultdict[str, set[bytes]] = defaultdict(set)
        """The forks of each, as members."""
        self.damages: dict[str, str] = {}
        """The errors of sessions that cannot be read."""

    def parts_alone(self) -> list[tuple[str, str]]:
        """Parts without their session."""
        return [
            (session, part)
            for session, parts in self.parts.items()
            if session not in self.sessions and session not in self.damages
            for part in sorted(parts & {"snapshots", "forks"})
        ]

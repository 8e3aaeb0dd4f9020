"""Maintenance of a store in Redis: exports, sizes and orphans."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from functools import partial
from urllib.parse import unquote

from stateroom.errors import BadData, UnknownSession
from stateroom.store.concurrency import Gate, gated, in_turn
from stateroom.store.contract import Maintenance, Store
from stateroom.store.records import Head, Record, Size, Snapshot, lost_fork, lost_parts
from stateroom.store.redis.connection import RedisLink
from stateroom.store.redis.layout import HEAD, from_member, to_member, unpack_entry, unpack_head
from stateroom.store.redis.lifetime import MANY, Lifetimes, SessionIndex
from stateroom.store.redis.scripts import CLEAR, MEASURE

KINDS = ("entries", "snapshots", "blobs", "sessions")
"""In the order of the `MEASURE` script."""

_SPECIAL = re.compile(r"([*?\[\]\\^])")
"""Special characters in a pattern of keys."""


@gated
class RedisMaintenance(Maintenance):
    """Maintenance of a store in Redis."""

    def __init__(
        self, store: Store, gate: Gate, link: RedisLink, index: SessionIndex, lifetimes: Lifetimes, prefix: str
    ) -> None:
        super().__init__(store)
        self.gate = gate
        self._link = link
        self._index = index
        self._lifetimes = lifetimes
        self._prefix = prefix

    async def export(self, session: str) -> Record:
        return await self.read_all(session)

    async def read_all(self, session: str) -> Record:
        """All of a session."""
        fields = await self._link.ask("HGETALL", self._lifetimes.keys(session).session)
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
        members = await self._index.all()
        for sizes in await in_turn([from_member(member)[0] for member in members], self._measure, MANY):
            total = {kind: total[kind] + sizes[kind] for kind in KINDS}
        return {**total, "index": Size(len(members), await self._index.memory())}

    async def _measure(self, session: str) -> dict[str, Size]:
        """The sizes of a session's parts; `sessions` has one row, or none if it is gone."""
        try:
            numbers = await self._link.run(MEASURE, (self._lifetimes.keys(session).session,))
        except BadData:
            numbers = [0] * 2 * len(KINDS)
        sizes = dict(zip(KINDS, map(Size, numbers[::2], numbers[1::2]), strict=True))
        return {**sizes, "sessions": Size(min(1, sizes["sessions"].rows), sizes["sessions"].bytes)}

    # Orphans.

    async def orphans(self) -> list[str]:
        found = await self._find_orphans()
        # What is under way can look like an orphan, but not twice.
        return [what for what in await self._find_orphans() if what in found] if found else []

    async def _find_orphans(self) -> list[str]:
        there = await self._survey()
        indexed = set(await self._index.all())
        born = {to_member(head.id, birth): head for head, birth in there.sessions.values()}
        found = [*there.damages.values()]
        found += [lost_parts(what, session) for session, what in there.parts_alone()]
        for session in sorted(from_member(member)[0] for member in indexed - born.keys()):
            if session not in there.damages:
                found.append(f"session {session!r} in the index, which is gone")
        for member, head in sorted(born.items()):
            if member not in indexed:
                found.append(f"session {head.id!r}, which is not in the index")
            if head.parent is None or head.parent in there.damages:
                continue
            if head.parent not in there.sessions:
                found.append(lost_fork(head.id, head.parent))
            elif member not in there.forks[head.parent]:
                found.append(f"session {head.id!r}, which its parent {head.parent!r} does not know of")
        for session, members in there.forks.items():
            gone = sorted({from_member(member)[0] for member in members - born.keys()} - there.damages.keys())
            found += [f"fork {fork!r} of session {session!r}, which is gone" for fork in gone]
        return found

    async def vacuum(self) -> None:
        """Correct the index and the sets of forks, and remove data without a session; Redis frees memory by itself."""
        there = await self._survey()
        born = {to_member(head.id, birth) for head, birth in there.sessions.values()}
        await self._lifetimes.settle([member for member in await self._index.all() if member not in born])
        await in_turn(there.sessions.values(), lambda kept: self._lifetimes.repair(*kept), MANY)
        for session, members in there.forks.items():
            await asyncio.gather(*(self._lifetimes.disown(session, member) for member in members))
        for session, what in there.parts_alone():
            keys = self._lifetimes.keys(session)
            await self._link.run(CLEAR, (keys.session, f"{keys.session}:{what}"))

    async def _survey(self) -> _Survey:
        """All keys under our prefix; not of one moment."""
        start = f"{self._prefix}{{/"
        pattern = _SPECIAL.sub(r"\\\1", start) + "*"
        keys = {key.decode("utf-8", "backslashreplace") async for key in self._link.keys(pattern)}
        there = _Survey()
        for key in sorted(keys):
            name, _, part = key.removeprefix(start).partition("}")
            there.parts[unquote(name)].add(part.removeprefix(":"))
        await in_turn(list(there.parts), partial(self._look_at, there=there), MANY)
        return there

    async def _look_at(self, session: str, there: _Survey) -> None:
        keys = self._lifetimes.keys(session)
        try:
            fields = await self._link.ask("HMGET", keys.session, *HEAD, "birth")
            if fields[-1] is not None:
                there.sessions[session] = unpack_head(session, fields[:-1]), fields[-1].decode()
            if "forks" in there.parts[session]:
                there.forks[session] = set(await self._link.ask("SMEMBERS", keys.forks))
        except BadData as error:
            there.damages[session] = str(error)


class _Survey:
    """What was found on a server, by the ids of sessions."""

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

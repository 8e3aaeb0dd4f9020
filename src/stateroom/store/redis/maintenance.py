"""Care: whole sessions out, what there is and how large, and what belongs to nobody."""

from __future__ import annotations

import asyncio
import re
from collections import defaultdict
from urllib.parse import unquote

from stateroom.errors import BadData, UnknownSession
from stateroom.store.contract import Head, Record, Size, Snapshot
from stateroom.store.redis.connection import Link
from stateroom.store.redis.index import Index
from stateroom.store.redis.layout import HEAD, from_member, to_member, unpack_entry, unpack_head
from stateroom.store.redis.lifetime import Lives, batches
from stateroom.store.redis.scripts import CLEAR, MEASURE

KINDS = ("entries", "snapshots", "blobs", "sessions")
"""In the order in which the server measures them."""

_SPECIAL = re.compile(r"([*?\[\]\\^])")
"""What means something in a pattern of keys."""


class Care:
    """Care for the sessions of a store."""

    def __init__(self, link: Link, index: Index, lives: Lives, prefix: str) -> None:
        self._link = link
        self._index = index
        self._lives = lives
        self._prefix = prefix

    async def export(self, session: str) -> Record:
        fields = await self._link.ask("HGETALL", self._lives.keys(session).session)
        if not fields:
            raise UnknownSession(session)
        if not isinstance(fields, dict):  # as a cluster's client makes it
            fields = dict(zip(fields[::2], fields[1::2], strict=True))
        head = unpack_head(session, [fields.get(name.encode()) for name in HEAD])
        entries = [unpack_entry(session, value) for field, value in fields.items() if field.startswith(b"e:")]
        snapshots = [Snapshot(int(field[2:]), value) for field, value in fields.items() if field.startswith(b"s:")]
        blobs = {field[2:].decode(): value for field, value in fields.items() if field.startswith(b"b:")}
        entries.sort(key=lambda entry: entry.revision)
        snapshots.sort(key=lambda snapshot: snapshot.revision)
        return Record(head, entries, snapshots, blobs)

    # Sizes.

    async def size(self, session: str) -> Size:
        sizes = await self._measure(session)
        if not sizes["sessions"].rows:
            raise UnknownSession(session)
        return Size(sizes["entries"].rows, sum(sizes[kind].bytes for kind in ("entries", "snapshots", "blobs")))

    async def sizes(self) -> dict[str, Size]:
        total = dict.fromkeys(KINDS, Size(0, 0))
        members = await self._index.all()
        for some in batches(members):
            for sizes in await asyncio.gather(*(self._measure(from_member(member)[0]) for member in some)):
                total = {kind: _add(total[kind], sizes[kind]) for kind in KINDS}
        return {**total, "index": Size(len(members), await self._index.memory())}

    async def _measure(self, session: str) -> dict[str, Size]:
        """What a session has; it counts as one, or none if it is gone."""
        try:
            numbers = await self._link.run(MEASURE, (self._lives.keys(session).session,))
        except BadData:
            numbers = [0] * 2 * len(KINDS)
        sizes = dict(zip(KINDS, map(Size, numbers[::2], numbers[1::2]), strict=True))
        return {**sizes, "sessions": Size(min(1, sizes["sessions"].rows), sizes["sessions"].bytes)}

    # Orphans.

    async def orphans(self) -> list[str]:
        """What belongs to nobody. What is under way can look like it, but not twice."""
        found = await self._find_orphans()
        return [what for what in await self._find_orphans() if what in found] if found else []

    async def _find_orphans(self) -> list[str]:
        there = await self._survey()
        indexed = set(await self._index.all())
        born = {to_member(head.id, birth): head for head, birth in there.sessions.values()}
        found = [*there.damages.values()]
        found += [f"{what} of session {session!r}, which is gone" for session, what in there.parts_alone()]
        for session in sorted(from_member(member)[0] for member in indexed - born.keys()):
            if session not in there.damages:
                found.append(f"session {session!r} in the index, which is gone")
        for member, head in sorted(born.items()):
            if member not in indexed:
                found.append(f"session {head.id!r}, which is not in the index")
            if head.parent is None or head.parent in there.damages:
                continue
            if head.parent not in there.sessions:
                found.append(f"session {head.id!r}, forked from session {head.parent!r}, which is gone")
            elif member not in there.forks[head.parent]:
                found.append(f"session {head.id!r}, which its parent {head.parent!r} does not know of")
        for session, members in there.forks.items():
            gone = sorted({from_member(member)[0] for member in members - born.keys()} - there.damages.keys())
            found += [f"fork {fork!r} of session {session!r}, which is gone" for fork in gone]
        return found

    async def vacuum(self) -> None:
        """Make index and forks what they must be, and remove what is left of sessions; Redis frees memory by itself."""
        there = await self._survey()
        born = {to_member(head.id, birth) for head, birth in there.sessions.values()}
        await self._lives.settle([member for member in await self._index.all() if member not in born])
        for some in batches(list(there.sessions.values())):
            await asyncio.gather(*(self._lives.repair(head, birth) for head, birth in some))
        for session, members in there.forks.items():
            await asyncio.gather(*(self._lives.disown(session, member) for member in members))
        for session, what in there.parts_alone():
            keys = self._lives.keys(session)
            await self._link.run(CLEAR, (keys.session, f"{keys.session}:{what}"))

    async def _survey(self) -> _Survey:
        """All that lies under our prefix, as of no one moment."""
        start = f"{self._prefix}{{/"
        pattern = _SPECIAL.sub(r"\\\1", start) + "*"
        keys = {key.decode("utf-8", "backslashreplace") async for key in self._link.keys(pattern)}
        there = _Survey()
        for key in sorted(keys):
            name, _, part = key.removeprefix(start).partition("}")
            there.parts[unquote(name)].add(part.removeprefix(":"))
        for some in batches(list(there.parts)):
            await asyncio.gather(*(self._look_at(session, there) for session in some))
        return there

    async def _look_at(self, session: str, there: _Survey) -> None:
        keys = self._lives.keys(session)
        try:
            fields = await self._link.ask("HMGET", keys.session, *HEAD, "birth")
            if fields[-1] is not None:
                there.sessions[session] = unpack_head(session, fields[:-1]), fields[-1].decode()
            if "forks" in there.parts[session]:
                there.forks[session] = set(await self._link.ask("SMEMBERS", keys.forks))
        except BadData as error:
            there.damages[session] = str(error)


class _Survey:
    """What was found in a server, by the ids of sessions."""

    def __init__(self) -> None:
        self.parts: defaultdict[str, set[str]] = defaultdict(set)
        """Which keys there are: '' is a session itself."""
        self.sessions: dict[str, tuple[Head, str]] = {}
        """Heads and births."""
        self.forks: defaultdict[str, set[bytes]] = defaultdict(set)
        """The members that were forked from each."""
        self.damages: dict[str, str] = {}
        """What cannot be read, in words."""

    def parts_alone(self) -> list[tuple[str, str]]:
        """Parts without their session."""
        return [
            (session, part)
            for session, parts in self.parts.items()
            if session not in self.sessions and session not in self.damages
            for part in sorted(parts & {"snapshots", "forks"})
        ]


def _add(one: Size, other: Size) -> Size:
    return Size(one.rows + other.rows, one.bytes + other.bytes)

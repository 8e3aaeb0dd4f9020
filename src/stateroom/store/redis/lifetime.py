"""How sessions begin and end: in several steps, each of which may be the last that is done. See `index`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from secrets import token_hex
from typing import Any, TypeVar

from stateroom.errors import (
    BadData,
    DuplicateCall,
    StateroomError,
    StoreError,
    StoreUnavailable,
    UnknownRevision,
    UnknownSession,
)
from stateroom.store.contract import Entry, Head, Record
from stateroom.store.redis.connection import Link, Word
from stateroom.store.redis.index import Index, Note
from stateroom.store.redis.layout import (
    HEAD,
    Keys,
    flag,
    from_member,
    pack_entry,
    pack_origin,
    session_key,
    time,
    to_member,
    unpack_head,
    unpack_origin,
)
from stateroom.store.redis.scripts import ADOPT, DELETE, EXPIRE, LOOK, PUT

T = TypeVar("T")

MANY = 500
"""How many sessions are asked at once."""
VOID_MILLISECONDS = 24 * 3600 * 1000
"""For how long a birth stays void: longer than any command can be on its way."""
LONG_AGO = float("-inf")
"""A time at which nothing has expired."""


class Lives:
    """The beginnings and ends of the sessions of a store."""

    def __init__(self, link: Link, index: Index, prefix: str) -> None:
        self._link = link
        self._index = index
        self._prefix = prefix

    def keys(self, session: str) -> Keys:
        return Keys(session_key(self._prefix, session))

    # Beginnings.

    async def begin(self, record: Record) -> None:
        """Create a session."""
        head = record.head
        key = self.keys(head.id).session
        while True:
            birth = token_hex(8)
            member = to_member(head.id, birth)
            taken, _ = await asyncio.gather(self._link.ask("EXISTS", key), self._index.announce(head, birth))
            refusal = _taken(head) if taken else await self._adopt(head, member)
            if refusal is None:
                answer = await self._put(record, birth)
                if answer is None:
                    return
                if answer == b"taken":
                    refusal = _taken(head)
                elif answer != b"void":  # else it took so long that its birth was forgotten: once more, with another
                    refusal = DuplicateCall(head.id, answer[1].decode().removeprefix("c:"))
            await self._finish(member, head.environment, head.parent)
            if refusal is not None:
                raise refusal

    async def restore(self, record: Record) -> None:
        """Add what is missing to a session that is there, or create it."""
        head = record.head
        while True:  # somebody else may create or remove it meanwhile
            answer = b"unknown"
            if await self._link.ask("EXISTS", self.keys(head.id).session):
                answer = await self._put(record, "")
            if answer == b"other":
                raise StoreError(f"there is another session {head.id!r} already, or a later moment of this one")
            if answer != b"unknown":
                return await self.take_note(head.id, answer)
            try:
                return await self.begin(record)
            except StoreError as error:
                if type(error) is not StoreError:
                    raise

    async def _adopt(self, head: Head, member: bytes) -> StateroomError | None:
        """Make a fork known to its parent; why not, if that cannot be."""
        if head.parent is None:
            return None
        parent = self.keys(head.parent)
        answer = await self._link.run(ADOPT, (parent.session, parent.forks), member, str(head.parent_revision))
        if answer == b"unknown":
            return UnknownSession(head.parent)
        if answer == b"revision":
            return UnknownRevision(head.parent, f"session {head.parent!r} has no revision {head.parent_revision}")
        return None

    async def _put(self, record: Record, birth: str) -> Any:
        head, keys = record.head, self.keys(record.head.id)
        words: list[Word] = [birth, pack_origin(head), time(head.created), str(head.revision), time(head.expires)]
        words += [flag(head.closed), str(head.fence), "" if head.holder is None else f"={head.holder}"]
        words += [time(head.leased_until), str(head.parent_revision + 1), str(_base(head, record.entries))]
        words += [str(len(record.entries)), str(len(record.snapshots)), str(len(record.blobs))]
        for entry in record.entries:
            call = "" if entry.call_id is None else f"c:{entry.call_id}"
            words += (str(entry.revision), pack_entry(entry), call)
        for snapshot in record.snapshots:
            words += (str(snapshot.revision), snapshot.body)
        for blob in record.blobs.items():
            words += blob
        return await self._link.run(PUT, (keys.session, keys.snapshots, keys.void(birth)), *words)

    async def repair(self, head: Head, birth: str) -> None:
        """See that the index, and the parent if it is a fork, know of a session, and know it as it is."""
        member = to_member(head.id, birth)
        if not await self._index.has(member):
            await self._index.announce(head, birth)
        await self._adopt(head, member)
        await self._end(member, pack_origin(head), LONG_AGO)  # which undoes all that, if it is gone meanwhile

    async def disown(self, parent: str, member: bytes) -> None:
        """Forget a fork that is gone, or was never born."""
        if await self._expire(member, LONG_AGO) == b"gone":
            await self._link.ask("SREM", self.keys(parent).forks, member)

    # Ends.

    async def delete(self, session: str) -> None:
        keys = self.keys(session)
        answer = await self._link.run(DELETE, (keys.session, keys.snapshots, keys.forks), time(0.0))
        if answer == b"unknown":
            raise UnknownSession(session)
        if answer[0] != b"removed":
            return await self.take_note(session, answer)
        _, birth, origin = answer
        environment, parent = unpack_origin(origin)
        with suppress(StoreUnavailable):  # it is gone; a sweep will find what is left in the index
            await self._finish(to_member(session, birth.decode()), environment, parent)

    async def sweep(self, now: float) -> int:
        """Remove the sessions that have expired, from the youngest forks up to their parents."""
        swept = 0
        due = await self._index.due(now)
        held: dict[str, bytes] = {}
        while due:
            some, due = due[:MANY], due[MANY:]
            origins = await self._index.origins(some)
            ends = await asyncio.gather(*map(self._end, some, origins, [now] * len(some)))
            for member, (end, _) in zip(some, ends, strict=True):
                if end == "held":
                    held[from_member(member)[0]] = member
            swept += sum(end == "removed" for end, _ in ends)
            freed = {parent for end, parent in ends if end != "held" and parent in held}
            due += [held.pop(parent) for parent in freed if parent is not None]
        return swept

    async def settle(self, members: Sequence[bytes]) -> None:
        """See whether these sessions are there; finish what is left of those that are not."""
        for some in batches(members):
            origins = await self._index.origins(some)
            await asyncio.gather(*map(self._end, some, origins, [LONG_AGO] * len(some)))

    async def _end(self, member: bytes, origin: bytes | None, now: float) -> tuple[str, str | None]:
        """Remove a session if it has expired and nobody reads it; what became of it, and its parent if it is gone."""
        try:
            answer = await self._expire(member, now)
        except BadData:  # which `orphans` tells
            return "damaged", None
        if answer == b"held":
            return "held", None
        if isinstance(answer, list):
            await self._index.place(from_member(member)[0], answer)
            return "lives", None
        if origin is None:  # another sweep was quicker
            return answer.decode(), None
        environment, parent = unpack_origin(origin)
        await self._finish(member, environment, parent)
        return answer.decode(), parent

    async def _expire(self, member: bytes, now: float) -> Any:
        session, birth = from_member(member)
        keys = self.keys(session)
        places = (keys.session, keys.snapshots, keys.forks, keys.void(birth))
        return await self._link.run(EXPIRE, places, birth, time(now), str(VOID_MILLISECONDS))

    async def _finish(self, member: bytes, environment: str, parent: str | None) -> None:
        """Let the parent know that a session is gone, and then the index."""
        if parent is not None:
            await self._link.ask("SREM", self.keys(parent).forks, member)
        await self._index.discard(member, environment)

    # What the index is told.

    async def take_note(self, session: str, note: Note) -> None:
        """Tell the index what a session said."""
        with suppress(StoreUnavailable):  # what was asked for is done; a sweep or a vacuum tells the index
            await self._index.place(session, note)

    async def count(self, now: float) -> int:
        """How many sessions are live."""
        count, due = await asyncio.gather(self._index.count_open(now), self._index.open_due(now))
        for some in batches(due):
            count += sum(await asyncio.gather(*(self._lives(member, now) for member in some)))
        return count

    async def _lives(self, member: bytes, now: float) -> bool:
        """Whether a session is live; the index is told if it did not know."""
        session, birth = from_member(member)
        try:
            note = await self._link.run(LOOK, (self.keys(session).session,), birth, time(now))
        except BadData:
            return False
        if not isinstance(note, list):
            return False
        await self._index.place(session, note)
        _, _, expires, closed = note
        return closed == b"0" and float(expires) > now

    # Many at once.

    async def heads(self, members: Sequence[bytes]) -> list[Head]:
        """The heads of those that are there and not damaged, in the same order."""
        found: list[Head] = []
        for some in batches(members):
            found += filter(None, await asyncio.gather(*map(self._head, some)))
        return found

    async def _head(self, member: bytes) -> Head | None:
        session, birth = from_member(member)
        with suppress(BadData):
            *fields, kept = await self._link.ask("HMGET", self.keys(session).session, *HEAD, "birth")
            return unpack_head(session, fields) if kept == birth.encode() else None
        return None


def batches(members: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(members), MANY):
        yield members[start : start + MANY]


def _taken(head: Head) -> StoreError:
    return StoreError(f"there is a session {head.id!r} already")


def _base(head: Head, entries: Sequence[Entry]) -> int:
    """Below which revision there are no entries, except perhaps the session's first."""
    later = (entry.revision for entry in entries if entry.revision > head.parent_revision + 1)
    start = next(later, head.revision + 1) - 1
    return start if start > head.parent_revision + 1 or not entries else entries[0].revision - 1

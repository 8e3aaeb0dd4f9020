"""Creation and removal of sessions, and the index of all sessions by age and by expiry.

In a cluster the index and a session are on different servers, so no script can write both, and a process that writes
one after the other can die in between. These rules hold all the same:

- *Every session is in the index*, and every fork in the set of its parent's forks: a session is announced there, under
  its birth, before it is created. One that is announced and never created is counted, but not listed; the sweep after
  its expiry, or a vacuum, removes it. If its creation is still under way then, however late, it must fail: before a
  birth is removed, it is marked as void at the session's keys, where the creation finds that.
- *A session leaves the index last*, when it is gone and its parent knows. A sweep that finds it there finishes the
  removal.
- *The expiry in the index is never later than the session's*, so a sweep finds all sessions that have expired, and then
  asks each session. An append that makes the expiry later, as most do, is one command and leaves the index alone; the
  next sweep corrects it. One that makes it earlier, or closes the session, sends the index a note. Notes are numbered,
  so that a late one does not undo a newer one. If a note is lost with its sender, the session is swept later than it
  could be; a vacuum writes the whole index anew.

Where nobody sweeps, a session goes by itself, `GRACE` seconds after its expiry. Its line in the index and the list of
its snapshots stay for the next sweep. Each script that moves the expiry moves this time to live too. A fork reads its
ancestors, so they must live longer than it does. The servers of a cluster cannot renew them together: a fork knows
until when its ancestors are *held*, and a script that would let it live longer is refused. Then the ancestors are held
for longer, from the oldest on, and the script runs again. The parent is held for twice as long as the fork asks for,
so this is rare; each ancestor of the parent for `GRACE` longer, which is longer than it takes to hold them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from secrets import token_hex
from typing import Any
from urllib.parse import quote

from stateroom.errors import (
    BadData,
    OutdatedRecord,
    StateroomError,
    StoreError,
    StoreUnavailable,
    UnknownSession,
)
from stateroom.store.concurrency import in_turn
from stateroom.store.records import Entry, Head, Record, no_revision, taken
from stateroom.store.redis import scripts
from stateroom.store.redis.connection import RedisLink, Word
from stateroom.store.redis.layout import (
    CHANGING,
    HEAD,
    SessionKeys,
    from_member,
    keys_of,
    optional,
    pack_entry,
    pack_origin,
    time,
    to_member,
    unpack_head,
    unpack_origin,
)

SESSIONS_PER_REQUEST = 500
"""Number of sessions asked at once."""
VOID_MILLISECONDS = 24 * 3600 * 1000
"""How long a birth stays void: longer than any command can be under way."""
LONG_AGO = float("-inf")
"""A time at which nothing has expired."""
FOREVER = b"9000000000000000"
"""A time that does not come, in the server's milliseconds."""


Note = Sequence[Any]
"""A note from a session to the index: its birth, the number of the note, its expiry, whether it is closed."""


class SessionIndex:
    """The sessions of a store. A session is a member: its id and its birth."""

    def __init__(self, link: RedisLink, prefix: str) -> None:
        self._link = link
        home = f"{prefix}{{index}}"  # all its keys are in one slot
        self._by_age = f"{home}:created"
        self._open = f"{home}:open"
        self._closed = f"{home}:closed"
        """By expiry, sessions that are open and sessions that are closed."""
        self._origins = f"{home}:origins"
        self._notes = f"{home}:notes"
        """The number of the latest note of each session that sent one."""

    def _by_age_in(self, environment: str) -> str:
        return f"{self._by_age}:{quote(environment, '')}"

    async def announce(self, head: Head, birth: str) -> None:
        """Add a session before it is created."""
        by_expiry = self._closed if head.closed else self._open
        keys = (self._by_age, self._by_age_in(head.environment), by_expiry, self._origins)
        member = to_member(head.id, birth)
        await self._link.run(scripts.ANNOUNCE, keys, member, time(head.created), time(head.expires), pack_origin(head))

    async def discard(self, member: bytes, environment: str) -> None:
        """Remove a session that is gone."""
        by_age = (self._by_age, self._by_age_in(environment))
        await self._link.run(scripts.DISCARD, (*by_age, self._open, self._closed, self._origins, self._notes), member)

    async def place(self, session: str, note: Note) -> None:
        """Apply a note."""
        birth, number, expires, closed = note
        member = to_member(session, birth.decode())
        keys = (self._by_age, self._open, self._closed, self._notes)
        await self._link.run(scripts.PLACE, keys, member, str(number), expires, closed)

    async def has(self, member: bytes) -> bool:
        return await self._link.ask("ZSCORE", self._by_age, member) is not None

    async def all(self) -> list[bytes]:
        """All members, from the oldest."""
        members: list[bytes] = await self._link.ask("ZRANGE", self._by_age, "0", "-1")
        return members

    async def page(self, environment: str | None, newest: str, start: int, size: int) -> list[tuple[bytes, float]]:
        """A page of members and their times of creation, the newest first, beginning at a time."""
        key = self._by_age if environment is None else self._by_age_in(environment)
        flat = await self._link.ask(
            "ZREVRANGEBYSCORE", key, newest, "-inf", "WITHSCORES", "LIMIT", str(start), str(size)
        )
        return [(member, float(created)) for member, created in zip(flat[::2], flat[1::2], strict=True)]

    async def due(self, now: float) -> list[bytes]:
        """Members that may have expired."""
        return [*await self.open_due(now), *await self._link.ask("ZRANGEBYSCORE", self._closed, "-inf", time(now))]

    async def open_due(self, now: float) -> list[bytes]:
        """Open members that may have expired."""
        members: list[bytes] = await self._link.ask("ZRANGEBYSCORE", self._open, "-inf", time(now))
        return members

    async def count_open(self, now: float) -> int:
        """The number of open sessions that expire after this time."""
        count: int = await self._link.ask("ZCOUNT", self._open, f"({time(now)}", "+inf")
        return count

    async def origins(self, members: Sequence[bytes]) -> list[bytes | None]:
        """The origin under which each was announced."""
        origins: list[bytes | None] = await self._link.ask("HMGET", self._origins, *members) if members else []
        return origins

    async def memory(self) -> int:
        """About the bytes of memory that it takes, without the small part that is by environment."""
        keys = (self._by_age, self._open, self._closed, self._origins, self._notes)
        size: int = await self._link.run(scripts.MEMORY, keys)
        return size


class Lifetimes:
    """Creates, ends and counts the sessions of a store."""

    def __init__(self, link: RedisLink, index: SessionIndex, prefix: str) -> None:
        self._link = link
        self._index = index
        self._prefix = prefix

    def keys(self, session: str) -> SessionKeys:
        return keys_of(self._prefix, session)

    # Beginnings.

    async def create(self, record: Record) -> None:
        """Create a session."""
        record.check_calls()
        head = record.head
        key = self.keys(head.id).session
        while True:
            birth = token_hex(8)
            member = to_member(head.id, birth)
            is_taken, _ = await asyncio.gather(self._link.ask("EXISTS", key), self._index.announce(head, birth))
            refusal, held = (taken(head.id), "") if is_taken else await self._adopt(head, member)
            if refusal is None:
                answer = await self._put(record, birth, held)
                if answer is None:
                    return
                if answer == b"taken":  # else it took so long that its birth is void: once more, with another
                    refusal = taken(head.id)
            await self._finish(member, head.environment, head.parent)
            if refusal is not None:
                raise refusal

    async def restore(self, record: Record) -> None:
        """Add what is missing to a session that is there, or create it."""
        head = record.head
        while True:  # another process may create or remove it meanwhile
            answer = b"unknown"
            if await self._link.ask("EXISTS", self.keys(head.id).session):
                answer = await self._put(record, "")
            if answer == b"other":
                raise OutdatedRecord(head.id)
            if is_held_back(answer):
                await self.hold(head.id, answer)
                continue
            if answer != b"unknown":
                return await self.take_note(head.id, answer)
            try:
                return await self.create(record)
            except StoreError as error:
                if type(error) is not StoreError:
                    raise

    async def _adopt(self, head: Head, member: bytes) -> tuple[StateroomError | None, Word]:
        """Add a fork to its parent's set; the error if that is refused, and until when its ancestors are held."""
        if head.parent is None:
            return None, ""
        parent = self.keys(head.parent)
        words = (member, str(head.parent_revision), time(head.expires), time(head.created))
        while is_held_back(answer := await self._link.run(scripts.ADOPT, (parent.session, parent.forks), *words)):
            await self.hold(head.parent, answer)
        if answer == b"unknown":
            return UnknownSession(head.parent), ""
        if answer == b"revision":
            return no_revision(head.parent, head.parent_revision), ""
        return None, answer

    async def hold(self, fork: str, answer: Any) -> None:
        """Let the ancestors of a fork live longer than it wants to; `answer` is the script's that held it back.

        From the oldest on: an ancestor must not live longer than its own are held.
        """
        below = [(fork, b"")]
        _, milliseconds, origin = answer
        session = unpack_origin(origin)[1]
        while below and session is not None:
            answer = await self._link.run(scripts.KEEP, (self.keys(session).session,), milliseconds)
            if is_held_back(answer):
                below.append((session, milliseconds))
                _, milliseconds, origin = answer
                session = unpack_origin(origin)[1]
            else:
                until = FOREVER if answer == b"unknown" else answer  # then it is lost, and there is nothing to hold
                session, milliseconds = below.pop()
                await self._link.run(scripts.HELD, (self.keys(session).session,), until)

    async def _put(self, record: Record, birth: str, held: Word = "") -> Any:
        head, keys = record.head, self.keys(record.head.id)
        words: list[Word] = [birth, pack_origin(head), str(head.parent_revision + 1), str(_base(head, record.entries))]
        words += [held, str(len(record.entries)), str(len(record.snapshots))]
        words += [optional(name, getattr(head, name)) for name in CHANGING]
        for entry in record.entries:
            call = "" if entry.call_id is None else f"c:{entry.call_id}"
            words += (str(entry.revision), pack_entry(entry), call)
        for snapshot in record.snapshots:
            words += (str(snapshot.revision), snapshot.body)
        for blob in record.blobs.items():
            words += blob
        return await self._link.run(scripts.PUT, (keys.session, keys.snapshots, keys.forks, keys.void(birth)), *words)

    async def repair(self, head: Head, birth: str) -> None:
        """Make sure that the index, and the parent of a fork, know a session as it is."""
        member = to_member(head.id, birth)
        if not await self._index.has(member):
            await self._index.announce(head, birth)
        await self._adopt(head, member)
        await self._end(member, pack_origin(head), LONG_AGO)  # undoes all that if it is gone meanwhile

    async def disown(self, parent: str, member: bytes) -> None:
        """Remove a fork that is gone, or was never created, from its parent's set."""
        if await self._expire(member, LONG_AGO) == b"gone":
            await self._link.ask("SREM", self.keys(parent).forks, member)

    # Ends.

    async def delete(self, session: str) -> None:
        keys = self.keys(session)
        answer = await self._link.run(scripts.DELETE, (keys.session, keys.snapshots, keys.forks), time(0.0))
        if answer == b"unknown":
            raise UnknownSession(session)
        if answer[0] != b"removed":
            return await self.take_note(session, answer)
        _, birth, origin = answer
        environment, parent = unpack_origin(origin)
        with suppress(StoreUnavailable):  # it is gone; a sweep finds the rest in the index
            await self._finish(to_member(session, birth.decode()), environment, parent)

    async def sweep(self, now: float) -> int:
        """Remove the sessions that have expired, from the youngest forks up to their parents."""
        swept = 0
        due = await self._index.due(now)
        held: dict[str, bytes] = {}
        while due:
            ends = await self._end_all(due, now)
            held |= {
                from_member(member)[0]: member for member, (end, _) in zip(due, ends, strict=True) if end == "held"
            }
            swept += sum(end == "removed" for end, _ in ends)
            freed = {parent for end, parent in ends if end != "held" and parent in held}
            due = [held.pop(parent) for parent in freed if parent is not None]
        return swept

    async def settle(self, members: Sequence[bytes]) -> None:
        """Finish the removal of those of these sessions that are gone."""
        await self._end_all(members, LONG_AGO)

    async def _end_all(self, members: Sequence[bytes], now: float) -> list[tuple[str, str | None]]:
        ends: list[tuple[str, str | None]] = []
        for start in range(0, len(members), SESSIONS_PER_REQUEST):
            some = members[start : start + SESSIONS_PER_REQUEST]
            origins = await self._index.origins(some)
            ends += await asyncio.gather(*map(self._end, some, origins, [now] * len(some)))
        return ends

    async def _end(self, member: bytes, origin: bytes | None, now: float) -> tuple[str, str | None]:
        """Remove a session if it has expired and no fork reads it; the outcome, and its parent if it is gone."""
        try:
            answer = await self._expire(member, now)
        except BadData:  # which `orphans` reports
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
        return await self._link.run(scripts.EXPIRE, places, birth, time(now), str(VOID_MILLISECONDS))

    async def _finish(self, member: bytes, environment: str, parent: str | None) -> None:
        """Remove a session that is gone from its parent's set, and then from the index."""
        if parent is not None:
            await self._link.ask("SREM", self.keys(parent).forks, member)
        await self._index.discard(member, environment)

    # Notes to the index.

    async def take_note(self, session: str, note: Note) -> None:
        """Pass a note of a session on to the index."""
        with suppress(StoreUnavailable):  # the operation is done; a sweep or a vacuum corrects the index
            await self._index.place(session, note)

    async def count(self, now: float) -> int:
        """The number of live sessions."""
        count, due = await asyncio.gather(self._index.count_open(now), self._index.open_due(now))
        return count + sum(await in_turn(due, partial(self._lives, now=now), SESSIONS_PER_REQUEST))

    async def _lives(self, member: bytes, now: float) -> bool:
        """Whether a session is live; corrects the index."""
        session, birth = from_member(member)
        try:
            note = await self._link.run(scripts.LOOK, (self.keys(session).session,), birth, time(now))
        except BadData:
            return False
        if not isinstance(note, list):
            return False
        await self._index.place(session, note)
        _, _, expires, closed = note
        return closed == b"0" and float(expires) > now

    # Many at once.

    async def heads(self, members: Sequence[bytes]) -> list[Head]:
        """The heads of the members that exist and are not damaged, in the same order."""
        return [head for head in await in_turn(members, self._head, SESSIONS_PER_REQUEST) if head is not None]

    async def _head(self, member: bytes) -> Head | None:
        session, birth = from_member(member)
        with suppress(BadData):
            *fields, kept = await self._link.ask("HMGET", self.keys(session).session, *HEAD, "birth")
            return unpack_head(session, fields) if kept == birth.encode() else None
        return None


def is_held_back(answer: Any) -> bool:
    """Whether a script was refused because the session's ancestors are not held for long enough; see `hold`."""
    return isinstance(answer, list) and answer[0] == b"hold"


def _base(head: Head, entries: Sequence[Entry]) -> int:
    """The revision up to which the entries were pruned, except perhaps the session's first."""
    later = (entry.revision for entry in entries if entry.revision > head.parent_revision + 1)
    start = next(later, head.revision + 1) - 1
    return start if start > head.parent_revision + 1 or not entries else entries[0].revision - 1

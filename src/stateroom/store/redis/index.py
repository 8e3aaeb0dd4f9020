"""Which sessions there are, by age and by expiry.

In a cluster the index and a session lie on different servers, so no script can write both, and whoever does so one
after the other can die between the two. What holds all the same:

- *Every session is in the index*, and every fork in the set of its parent's forks: before a session is created it is
  announced there, under a birth that is its own. What is announced and never created is counted, but not listed, and
  is removed by the sweep after its expiry, or a vacuum. If its creation is still under way then, however late, it must
  not come about: who removes a birth first leaves word of it at the session's place, which the creation finds there.
- *A session leaves the index last*, when it is gone and its parent knows. A sweep that finds it there finishes what was
  begun.
- *The expiry in the index is never later than the session's*, so a sweep finds all that have expired, and then asks
  each session itself. An append that makes the expiry later, as most do, is one command and leaves the index alone; the
  next sweep corrects it. One that makes it earlier, or closes the session, tells the index with a note. Notes have
  numbers, so that one which comes late does not undo a later one. A note that is lost with its sender makes the session
  be swept later than it could be; a vacuum tells the index everything anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from stateroom.store.contract import Head
from stateroom.store.redis.connection import Link
from stateroom.store.redis.layout import pack_origin, time, to_member
from stateroom.store.redis.scripts import ANNOUNCE, DISCARD, MEMORY, PLACE

Note = Sequence[Any]
"""What a session tells the index: its birth, the number of the note, its expiry, whether it is closed."""


class Index:
    """The sessions of a store. A session is a member: its id and its birth."""

    def __init__(self, link: Link, prefix: str) -> None:
        self._link = link
        self._home = f"{prefix}{{index}}"
        """All its keys are in one slot."""
        self._by_age = f"{self._home}:created"
        self._open = f"{self._home}:open"
        self._closed = f"{self._home}:closed"
        """By expiry, those that are closed and those that are not."""
        self._origins = f"{self._home}:origins"
        self._notes = f"{self._home}:notes"
        """The number of the latest note of each that has sent one."""

    def _by_age_in(self, environment: str) -> str:
        return f"{self._by_age}:{quote(environment, '')}"

    async def announce(self, head: Head, birth: str) -> None:
        """Add a session that is about to be created."""
        by_expiry = self._closed if head.closed else self._open
        keys = (self._by_age, self._by_age_in(head.environment), by_expiry, self._origins)
        member = to_member(head.id, birth)
        await self._link.run(ANNOUNCE, keys, member, time(head.created), time(head.expires), pack_origin(head))

    async def discard(self, member: bytes, environment: str) -> None:
        """Remove a session that is gone."""
        by_age = (self._by_age, self._by_age_in(environment))
        await self._link.run(DISCARD, (*by_age, self._open, self._closed, self._origins, self._notes), member)

    async def place(self, session: str, note: Note) -> None:
        """Take note of a session's expiry."""
        birth, number, expires, closed = note
        member = to_member(session, birth.decode())
        keys = (self._by_age, self._open, self._closed, self._notes)
        await self._link.run(PLACE, keys, member, str(number), expires, closed)

    async def has(self, member: bytes) -> bool:
        return await self._link.ask("ZSCORE", self._by_age, member) is not None

    async def all(self) -> list[bytes]:
        """All members, from the oldest."""
        found: list[bytes] = await self._link.ask("ZRANGE", self._by_age, "0", "-1")
        return found

    async def page(self, environment: str | None, newest: str, start: int, size: int) -> list[tuple[bytes, float]]:
        """Members and their ages, the newest first: so many, after the first ones that are no younger than that."""
        key = self._by_age if environment is None else self._by_age_in(environment)
        flat = await self._link.ask(
            "ZREVRANGEBYSCORE", key, newest, "-inf", "WITHSCORES", "LIMIT", str(start), str(size)
        )
        return [(member, float(created)) for member, created in zip(flat[::2], flat[1::2], strict=True)]

    async def due(self, now: float) -> list[bytes]:
        """Members that may have expired."""
        return [*await self.open_due(now), *await self._link.ask("ZRANGEBYSCORE", self._closed, "-inf", time(now))]

    async def open_due(self, now: float) -> list[bytes]:
        """Those of them that may not be closed."""
        found: list[bytes] = await self._link.ask("ZRANGEBYSCORE", self._open, "-inf", time(now))
        return found

    async def count_open(self, now: float) -> int:
        """How many sessions are open, and will not have expired at this time."""
        count: int = await self._link.ask("ZCOUNT", self._open, f"({time(now)}", "+inf")
        return count

    async def origins(self, members: Sequence[bytes]) -> list[bytes | None]:
        """What each was announced as."""
        found: list[bytes | None] = await self._link.ask("HMGET", self._origins, *members) if members else []
        return found

    async def memory(self) -> int:
        """About how many bytes of memory it takes; what it has by environment is little, and not counted."""
        keys = (self._by_age, self._open, self._closed, self._origins, self._notes)
        size: int = await self._link.run(MEMORY, keys)
        return size

"""`durable=warm`: a session that is worked on is in the warm tier, and one that is not is in the cold tier.

A commit is written to the warm tier, and is as durable as that is. A sweep moves the sessions that have cooled to the
cold tier, with their families. There they can be read; whatever changes one brings it back. The warm tier is asked
first, always: what it has counts. The cold tier keeps a copy of what went up, marked as away. So a session that it has
as away, and that the warm tier does not have, is lost, and that is said; nobody goes on from the copy unawares.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Self, TypeVar

from stateroom.errors import (
    BadData,
    Conflict,
    SessionClosed,
    SessionError,
    SessionLeased,
    StoreError,
    StoreUnavailable,
    UnknownSession,
    UnknownStore,
)
from stateroom.store import Commit
from stateroom.store.contract import NO_BLOBS, Blobs, Entry, Head, Loaded, Record, Size, Snapshot, Store
from stateroom.store.tiered.families import Families
from stateroom.store.tiered.idle import Idleness
from stateroom.store.tiered.marks import BURIED, Mark, head_only, is_buried, kind_of, mark_of, visible
from stateroom.store.tiered.moves import Moves, find
from stateroom.store.tiered.tier import Tier

T = TypeVar("T")

logger = logging.getLogger(__name__)

PAGE = 1_000
"""How many heads are asked for at once."""
LOOKED_AT = 50
"""How many of the cold tier's heads a sweep looks at."""
AT_ONCE = 16
"""How many copies in the cold tier are removed at once."""


class MovingStore(Store):
    """Sessions that are in the warm tier while they are worked on, and in the cold tier after that."""

    def __init__(self, warm: Tier, cold: Tier, cool: float) -> None:
        self.warm = warm
        self.cold = cold
        self.shared = warm.shared and cold.shared
        self.moves = Moves(warm, cold)
        self.idleness = Idleness(warm, cool)
        self._looked_at: Head | None = None

    @classmethod
    async def open(cls, url: str) -> Self:
        raise UnknownStore(f"{cls.__name__} has no URL: it is what tiered:// opens")

    async def close(self) -> None:
        await self.moves.close()
        await self.warm.close()
        await self.cold.close()

    # Writing. What the warm tier refuses may be at rest or on the move; once it is settled, the refusal stands or it is
    # tried again.

    async def create(
        self,
        head: Head,
        entries: Sequence[Entry] = (),
        snapshot: Snapshot | None = None,
        blobs: Blobs = NO_BLOBS,
    ) -> None:
        with suppress(UnknownSession):
            await self.moves.resting(head.id)
            raise StoreError(f"there is a session {head.id!r} already")
        await self._beside_parent(head, lambda: self.warm.create(head, entries, snapshot, blobs))

    async def _beside_parent(self, head: Head, put: Callable[[], Awaitable[None]]) -> None:
        """Put a session into the warm tier, where its parent is and stays."""
        if head.parent is None:
            await put()
            return
        while True:
            await self._settled(head.parent)
            with suppress(UnknownSession):  # it has moved in between, or is gone, which is told when it is settled
                await put()
                break
        with suppress(UnknownSession):  # the fork is gone already, and the parent with it
            await self._settled(head.parent)  # a move may have begun before the fork was there to be seen

    async def _settled(self, session: str) -> None:
        while await self.moves.settle(session) is None:
            pass

    async def append(self, commit: Commit) -> None:
        while True:
            try:
                await self.warm.append(commit)
                return
            except (UnknownSession, SessionClosed, Conflict) as refusal:
                head = await self.moves.settle(commit.session, commit.entry.at)
                closed = isinstance(refusal, SessionClosed) and head and head.closed
                behind = isinstance(refusal, Conflict) and head and not _fits(commit, head)
                if closed or behind:
                    raise

    async def touch(self, session: str, *, now: float, expires: float) -> None:
        while True:
            try:
                await self.warm.touch(session, now=now, expires=expires)
                if not mark_of(await self.warm.head(session)):
                    return  # else it may have been copied to the cold tier before it was renewed
            except (UnknownSession, SessionClosed) as refusal:
                head = await self.moves.settle(session, now)
                if isinstance(refusal, SessionClosed) and head and head.closed:
                    raise
            else:
                await self.moves.settle(session)

    async def lease(self, session: str, holder: str, *, now: float, until: float) -> Head:
        while True:
            try:
                return await self.warm.lease(session, holder, now=now, until=until)
            except (UnknownSession, SessionLeased) as refusal:
                head = await self.moves.settle(session)
                if isinstance(refusal, SessionLeased) and head and head.leased(now):
                    raise

    async def release(self, session: str, holder: str) -> None:
        async def ask(tier: Store) -> Mark | None:
            await tier.release(session, holder)
            return mark_of(await tier.head(session))

        while (mark := await self._read(session, ask)) and mark.holder == holder and mark.kind != "away":
            await self.moves.settle(session)  # it is the mark's to remember just now

    # Reading.

    async def _read(self, session: str, ask: Callable[[Store], Awaitable[T]]) -> T:
        """What the tier that has the session answers."""
        while True:
            try:
                return await ask(self.warm)
            except UnknownSession:
                if await self.moves.resting(session):
                    return await ask(self.cold)
            except StoreUnavailable:
                with suppress(UnknownSession, StoreUnavailable):
                    if kind_of(await self.cold.head(session)) != "away":
                        return await ask(self.cold)
                raise

    async def head(self, session: str) -> Head:
        async def ask(tier: Store) -> Head:
            return _present(await tier.head(session))

        return await self._read(session, ask)

    async def heads(
        self, *, environment: str | None = None, before: Head | None = None, limit: int = 100
    ) -> list[Head]:
        # In this order: one that moves meanwhile is in both lists rather than in none.
        warm = await self.warm.heads(environment=environment, before=before, limit=limit)
        cold = await self.cold.heads(environment=environment, before=before, limit=limit)
        found = {head.id: visible(head) for head in (*cold, *warm) if not is_buried(head)}
        return sorted(found.values(), key=lambda head: (head.created, head.id), reverse=True)[:limit]

    async def children(self, session: str) -> list[Head]:
        async def ask(tier: Store) -> list[Head]:
            head = await tier.head(session)
            _present(head)
            whole = self.cold if kind_of(head) == "arriving" else tier  # its forks may not have arrived yet
            return [_present(head) for head in await whole.children(session)]

        return await self._read(session, ask)

    async def load(self, session: str, at: int | None = None) -> Loaded:
        async def ask(tier: Store) -> Loaded:
            loaded = await tier.load(session, at)
            return Loaded(_present(loaded.head), loaded.snapshot, loaded.entries)

        return await self._read(session, ask)

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        async def ask(tier: Store) -> list[Entry]:
            found = await tier.entries(session, after=after, until=until)
            return found[:-1] if found and found[-1].at == BURIED else found

        return await self._read(session, ask)

    async def find_call(self, session: str, call_id: str) -> Entry | None:
        return await self._read(session, lambda tier: tier.find_call(session, call_id))

    async def blobs(self, session: str, digests: Sequence[str]) -> dict[str, bytes]:
        return await self._read(session, lambda tier: tier.blobs(session, digests))

    async def count(self, now: float) -> int:
        """Those in a tier that cannot be reached are not counted: what is worked on goes on without it."""
        counted = await asyncio.gather(self.warm.count(now), self.cold.count(now), return_exceptions=True)
        for number in counted:
            if isinstance(number, BaseException) and not isinstance(number, StoreUnavailable):
                raise number
        numbers = [number for number in counted if isinstance(number, int)]
        if not numbers:
            raise StoreUnavailable("neither tier can be reached")
        return sum(numbers)

    # The end.

    async def delete(self, session: str) -> None:
        async with self.moves.held(session, lost_too=True) as tier:
            if tier is self.warm and not await tier.children(session):
                with suppress(UnknownSession):  # first: a copy of what is not there would be a loss
                    await self.cold.delete(session)
            await tier.delete(session)

    async def sweep(self, now: float) -> int:
        """Remove what has expired, and move what has cooled."""
        try:
            heads = await self._heads_in_order()
        except StoreUnavailable:
            return await self.cold.sweep(now)
        for generation in Families(heads).going(now):
            await self._remove_copies([head.id for head in generation if not is_buried(head)])
        await self._let_losses_expire(now)
        swept = await self.warm.sweep(now) + await self.cold.sweep(now)
        for root in await self.idleness.idle_families(heads, now):
            await self._lower(root)
        return swept

    async def _heads_in_order(self) -> list[Head]:
        """All heads in the warm tier; moves that somebody has begun and not ended are ended first."""
        await self.warm.sweep(BURIED)
        heads = await _all_heads(self.warm)
        moving = [head for head in heads if mark_of(head)]
        if not moving:
            return heads
        await asyncio.gather(*(self.moves.see_through(self.warm, head) for head in moving))
        return await _all_heads(self.warm)

    async def _lower(self, root: str) -> None:
        try:
            await self.moves.lower(root)
        except SessionError:
            pass  # somebody else moves it, or it is gone
        except StoreUnavailable:
            raise
        except (StoreError, BadData) as error:  # the next sweep tries again; this one goes on with others
            logger.warning("session %r cannot move to the cold tier: %s", root, error)

    async def _remove_copies(self, sessions: Sequence[str]) -> None:
        """Remove what the cold tier has of sessions that the warm one is about to remove."""
        waiting = iter(sessions)

        async def remove_some() -> None:
            for session in waiting:
                with suppress(UnknownSession, BadData):
                    await self.cold.delete(session)

        await asyncio.gather(*(remove_some() for _ in range(min(AT_ONCE, len(sessions)))))

    async def _let_losses_expire(self, now: float) -> None:
        """Look at some of the cold tier's heads, each time at the next: a copy of what was lost goes too."""
        page = await self.cold.heads(before=self._looked_at, limit=LOOKED_AT)
        self._looked_at = page[-1] if len(page) == LOOKED_AT else None
        for head in page:
            mark = mark_of(head)
            if mark and mark.kind == "away" and mark.expires <= now:
                with suppress(UnknownSession, BadData):
                    resting = await self.moves.resting(head.id, lost_too=True)
                    if resting and resting.holder == head.holder:
                        await self.cold.restore(head_only(visible(resting)))  # for the sweep

    # Care.

    async def export(self, session: str) -> Record:
        async def ask(tier: Store) -> Record:
            record = await tier.export(session)
            return Record(_present(record.head), record.entries, record.snapshots, record.blobs)

        return await self._read(session, ask)

    async def restore(self, record: Record) -> None:
        """One that neither tier has is put to rest beside its parent, or in the cold tier."""
        head = record.head
        try:
            async with self.moves.held(head.id) as tier:
                await tier.restore(record)
            return
        except UnknownSession as unknown:
            if unknown.session != head.id:
                raise
        if head.parent is not None and await find(self.warm, head.parent):
            await self._beside_parent(head, lambda: self.warm.restore(record))
        else:
            await self.cold.restore(record)

    async def prune(self, session: str, below: int) -> int:
        async with self.moves.held(session) as tier:
            if tier is self.warm and await self.moves.renew_copy(session):
                await self.cold.prune(session, below)  # else what is forgotten would come back from there
            return await tier.prune(session, below)

    async def size(self, session: str) -> Size:
        async def ask(tier: Store) -> Size:
            _present(await tier.head(session))
            return await tier.size(session)

        return await self._read(session, ask)

    async def sizes(self) -> dict[str, Size]:
        """What both tiers have, copies of sessions that are away too; but a session that both have is one session."""
        warm, cold = await self.warm.sizes(), await self.cold.sizes()
        sizes = {kind: _sum(warm.get(kind), cold.get(kind)) for kind in {**warm, **cold}}
        copies = sum(kind_of(head) == "away" for head in await _all_heads(self.cold))
        sessions = sizes["sessions"]
        return {**sizes, "sessions": Size(sessions.rows - copies, sessions.bytes)}

    async def orphans(self) -> list[str]:
        found = [
            f"in the {tier.name} tier: {words}" for tier in (self.warm, self.cold) for words in await tier.orphans()
        ]
        for head in await _all_heads(self.cold):
            if kind_of(head) == "away" and not await find(self.warm, head.id):
                with suppress(UnknownSession):
                    found += await self._loss(head.id)
        return found

    async def _loss(self, session: str) -> list[str]:
        head = await self.moves.resting(session, lost_too=True)
        if head is None or kind_of(head) != "away":
            return []
        return [f"session {session!r}, of which the cold tier has revision {head.revision}: the warm tier has lost it"]

    async def vacuum(self) -> None:
        await self.warm.vacuum()
        await self.cold.vacuum()

    async def adopt(self, session: str) -> Head:
        """Put the copy of a session that the warm tier has lost to rest; the head as it is then."""
        head = await self.moves.resting(session, lost_too=True)
        if head is not None and kind_of(head) == "away":
            await self.cold.restore(head_only(visible(head)))
        return await self.head(session)


def _fits(commit: Commit, head: Head) -> bool:
    """Whether a commit can be the next of a session with this head."""
    return (commit.entry.revision - 1, commit.fence) == (head.revision, head.fence)


def _present(head: Head) -> Head:
    """A head as it is to be seen, if it is not just what is left of a session."""
    if is_buried(head):
        raise UnknownSession(head.id)
    return visible(head)


async def _all_heads(tier: Store) -> list[Head]:
    found = page = await tier.heads(limit=PAGE)
    while len(page) == PAGE:
        page = await tier.heads(before=page[-1], limit=PAGE)
        found += page
    return found


def _sum(*sizes: Size | None) -> Size:
    there = [size for size in sizes if size]
    return Size(sum(size.rows for size in there), sum(size.bytes for size in there))

"""`durable=warm`: active sessions are in the warm tier, and idle ones in the cold tier.

A commit is written to the warm tier, and is as durable as that. A sweep moves idle sessions to the cold tier, with
their families. There they can be read; a change brings them back. The warm tier is always asked first: what it has
counts. The cold tier keeps a copy of what went up, marked as away. So a session that is away, and that the warm tier
does not have, is lost. That is an error: no caller continues from the copy by accident.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Self, TypeVar

from msgspec.structs import replace

from stateroom.errors import (
    BadData,
    Conflict,
    OutdatedRecord,
    SessionClosed,
    SessionError,
    SessionLeased,
    StoreError,
    StoreUnavailable,
    UnknownSession,
    UnknownStore,
)
from stateroom.store.concurrency import in_turn
from stateroom.store.contract import Maintenance, Store
from stateroom.store.head_filter import ALL_SESSIONS, HeadFilter, Order, filter_newest, page_of
from stateroom.store.records import Commit, Entry, Head, Loaded, Record, Size, taken
from stateroom.store.tiered.families import Families, Idleness
from stateroom.store.tiered.tier import BURIED, Mark, Tier, is_buried, kind_of, mark_of, visible
from stateroom.store.tiered.transfer import Transfer, find, set_head

T = TypeVar("T")

logger = logging.getLogger(__name__)

HEADS_PER_SWEEP = 50
"""Number of the cold tier's heads that a sweep checks."""
MAX_CONCURRENT = 16
"""Most copies in the cold tier that are removed at once."""


class DurableWarmStore(Store):
    """Sessions that are in the warm tier while they are active, and in the cold tier after that."""

    def __init__(self, warm: Tier, cold: Tier, cool: float) -> None:
        self.warm = warm
        self.cold = cold
        self.shared = warm.shared and cold.shared
        self.transfer = Transfer(warm, cold)
        self.idleness = Idleness(warm, cool)
        self._looked_at: Head | None = None

    @property
    def maintenance(self) -> Maintenance:
        return DurableWarmMaintenance(self)

    @classmethod
    async def open(cls, url: str) -> Self:
        raise UnknownStore(f"{cls.__name__} cannot be opened itself; use a tiered:// URL")

    async def close(self) -> None:
        await self.transfer.close()
        await self.warm.close()
        await self.cold.close()

    # Writing. A session that the warm tier refuses may be at rest or on the move; once it is settled there, the refusal
    # stands or the operation is repeated.

    async def put(self, record: Record, *, new: bool = False) -> None:
        """A new session goes to the warm tier; one that is restored goes beside its parent, or to the cold tier."""
        head = record.head
        if new:
            with suppress(UnknownSession):
                await self.transfer.resting(head.id)
                raise taken(head.id)
            return await self._put_beside_parent(record, new=True)
        try:
            async with self.transfer.held(head.id) as tier:
                await tier.put(record)
            return
        except UnknownSession as unknown:
            if unknown.session != head.id:
                raise
        if head.parent is not None and await find(self.warm, head.parent):
            await self._put_beside_parent(record, new=False)
        else:
            await self.cold.put(record)

    async def _put_beside_parent(self, record: Record, *, new: bool) -> None:
        """Put a session into the warm tier, where its parent is and stays."""
        parent = record.head.parent
        if parent is None:
            return await self.warm.put(record, new=new)
        while True:
            await self._settled(parent)
            with suppress(UnknownSession):  # it has moved in between, or is gone, which the next attempt raises
                await self.warm.put(record, new=new)
                break
        with suppress(UnknownSession):  # the fork is gone already, and the parent with it
            await self._settled(parent)  # a move may have begun before it could see the fork

    async def _settled(self, session: str) -> None:
        while await self.transfer.settle(session) is None:
            pass

    async def append(self, commit: Commit) -> None:
        while True:
            try:
                await self.warm.append(commit)
                return
            except (UnknownSession, SessionClosed, Conflict) as refusal:
                head = await self.transfer.settle(commit.session, commit.entry.at)
                closed = isinstance(refusal, SessionClosed) and head and head.closed
                behind = isinstance(refusal, Conflict) and head and not _fits(commit, head)
                if closed or behind:
                    raise

    async def touch(self, session: str, *, now: float, expires: float) -> None:
        while True:
            try:
                await self.warm.touch(session, now=now, expires=expires)
                if not mark_of(await self.warm.head(session)):
                    return  # else its copy in the cold tier may be from before the renewal
            except (UnknownSession, SessionClosed) as refusal:
                head = await self.transfer.settle(session, now)
                if isinstance(refusal, SessionClosed) and head and head.closed:
                    raise
            else:
                await self.transfer.settle(session)

    async def lease(self, session: str, holder: str, *, now: float, until: float) -> Head:
        while True:
            try:
                return await self.warm.lease(session, holder, now=now, until=until)
            except (UnknownSession, SessionLeased) as refusal:
                head = await self.transfer.settle(session)
                if isinstance(refusal, SessionLeased) and head and head.leased(now):
                    raise

    async def release(self, session: str, holder: str) -> None:
        async def ask(tier: Store) -> Mark | None:
            await tier.release(session, holder)
            return mark_of(await tier.head(session))

        while (mark := await self.read(session, ask)) and mark.holder == holder and mark.kind != "away":
            await self.transfer.settle(session)  # the mark has the lease just now

    # Reading.

    async def read(self, session: str, ask: Callable[[Store], Awaitable[T]]) -> T:
        """Ask the tier that has the session."""
        while True:
            try:
                return await ask(self.warm)
            except UnknownSession:
                if await self.transfer.resting(session):
                    return await ask(self.cold)
            except StoreUnavailable:
                with suppress(UnknownSession, StoreUnavailable):
                    if kind_of(await self.cold.head(session)) != "away":
                        return await ask(self.cold)
                raise

    async def head(self, session: str) -> Head:
        async def ask(tier: Store) -> Head:
            return _present(await tier.head(session))

        return await self.read(session, ask)

    async def heads(
        self, wanted: HeadFilter = ALL_SESSIONS, *, order: Order = "newest", after: Head | None = None, limit: int = 100
    ) -> list[Head]:
        return await filter_newest(self._newest, wanted, order, after, limit)

    async def _newest(self, environment: str | None, after: Head | None, limit: int) -> list[Head]:
        # In this order, a session that moves meanwhile is in both lists rather than in none.
        wanted = HeadFilter(environment=environment)
        warm = await self.warm.heads(wanted, after=after, limit=limit)
        cold = await self.cold.heads(wanted, after=after, limit=limit)
        heads = {head.id: visible(head) for head in (*cold, *warm) if not is_buried(head)}
        return page_of(heads.values(), "newest", None, limit)

    async def children(self, session: str) -> list[Head]:
        async def ask(tier: Store) -> list[Head]:
            head = await tier.head(session)
            _present(head)
            whole = self.cold if kind_of(head) == "arriving" else tier  # its forks may not have arrived yet
            return [_present(head) for head in await whole.children(session)]

        return await self.read(session, ask)

    async def load(self, session: str, at: int | None = None) -> Loaded:
        async def ask(tier: Store) -> Loaded:
            loaded = await tier.load(session, at)
            return Loaded(_present(loaded.head), loaded.snapshot, loaded.entries)

        return await self.read(session, ask)

    async def entries(self, session: str, *, after: int = 0, until: int | None = None) -> list[Entry]:
        async def ask(tier: Store) -> list[Entry]:
            entries = await tier.entries(session, after=after, until=until)
            return entries[:-1] if entries and entries[-1].at == BURIED else entries

        return await self.read(session, ask)

    async def find_call(self, session: str, call_id: str) -> Entry | None:
        return await self.read(session, lambda tier: tier.find_call(session, call_id))

    async def blobs(self, session: str, digests: Sequence[str] | None = None) -> dict[str, bytes]:
        return await self.read(session, lambda tier: tier.blobs(session, digests))

    async def count(self, now: float) -> int:
        """Sessions in a tier that cannot be reached are not counted: active ones go on without it."""
        counted = await asyncio.gather(self.warm.count(now), self.cold.count(now), return_exceptions=True)
        for number in counted:
            if isinstance(number, BaseException) and not isinstance(number, StoreUnavailable):
                raise number
        numbers = [number for number in counted if isinstance(number, int)]
        if not numbers:
            raise StoreUnavailable("neither tier can be reached")
        return sum(numbers)

    async def size(self, session: str) -> Size:
        async def ask(tier: Store) -> Size:
            _present(await tier.head(session))
            return await tier.size(session)

        return await self.read(session, ask)

    # Removing.

    async def prune(self, session: str, below: int) -> int:
        async with self.transfer.held(session) as tier:
            if tier is self.warm and await self.transfer.renew_copy(session):
                await self.cold.prune(session, below)  # else what is removed would come back from there
            return await tier.prune(session, below)

    async def delete(self, session: str) -> None:
        async with self.transfer.held(session, include_lost=True) as tier:
            if tier is self.warm and not await tier.children(session):
                with suppress(UnknownSession):  # first: a copy without its session would count as lost
                    await self.cold.delete(session)
            await tier.delete(session)

    async def sweep(self, now: float) -> int:
        """Remove expired sessions, and move idle ones to the cold tier."""
        try:
            heads = await self._heads_in_order()
        except StoreUnavailable:
            return await self.cold.sweep(now)
        for generation in Families(heads).expired(now):
            await self._remove_copies([head.id for head in generation if not is_buried(head)])
        await self._let_losses_expire(now)
        swept = await self.warm.sweep(now) + await self.cold.sweep(now)
        for root in await self.idleness.idle_families(heads, now):
            await self._demote(root)
        return swept

    async def _heads_in_order(self) -> list[Head]:
        """All heads in the warm tier, after stalled moves are finished."""
        await self.warm.sweep(BURIED)
        heads = await all_heads(self.warm)
        moving = [head for head in heads if mark_of(head)]
        if not moving:
            return heads
        await asyncio.gather(*(self.transfer.see_through(self.warm, head) for head in moving))
        return await all_heads(self.warm)

    async def _demote(self, root: str) -> None:
        try:
            await self.transfer.demote(root)
        except (SessionError, OutdatedRecord):
            pass  # another process moves it, or it is gone
        except StoreUnavailable:
            raise
        except (StoreError, BadData) as error:  # the next sweep tries again
            logger.warning("session %r cannot move to the cold tier: %s", root, error)

    async def _remove_copies(self, sessions: Sequence[str]) -> None:
        """Remove the cold tier's copies of sessions that the warm one is about to remove."""

        async def remove_copy(session: str) -> None:
            with suppress(UnknownSession, BadData):
                await self.cold.delete(session)

        await in_turn(sessions, remove_copy, MAX_CONCURRENT)

    async def _let_losses_expire(self, now: float) -> None:
        """Check the next few of the cold tier's heads: copies of lost sessions expire too."""
        page = await self.cold.heads(after=self._looked_at, limit=HEADS_PER_SWEEP)
        self._looked_at = page[-1] if len(page) == HEADS_PER_SWEEP else None
        for head in page:
            mark = mark_of(head)
            if mark and mark.kind == "away" and mark.expires <= now:
                with suppress(UnknownSession, BadData):
                    resting = await self.transfer.resting(head.id, include_lost=True)
                    if resting and resting.holder == head.holder:
                        await set_head(self.cold, visible(resting))  # for the sweep

    async def adopt(self, session: str) -> Head:
        """Put the copy of a session that the warm tier has lost to rest; returns its head."""
        head = await self.transfer.resting(session, include_lost=True)
        if head is not None and kind_of(head) == "away":
            await set_head(self.cold, visible(head))
        return await self.head(session)


class DurableWarmMaintenance(Maintenance):
    """The maintenance of both tiers."""

    store: DurableWarmStore

    async def export(self, session: str) -> Record:
        async def ask(tier: Store) -> Record:
            record = await tier.maintenance.export(session)
            return replace(record, head=_present(record.head))

        return await self.store.read(session, ask)

    async def sizes(self) -> dict[str, Size]:
        """The sizes of both tiers, with copies; but a session that is in both counts once."""
        warm, cold = await self.store.warm.maintenance.sizes(), await self.store.cold.maintenance.sizes()
        none = Size(0, 0)
        sizes = {kind: warm.get(kind, none) + cold.get(kind, none) for kind in {**warm, **cold}}
        copies = sum(kind_of(head) == "away" for head in await all_heads(self.store.cold))
        return {**sizes, "sessions": sizes["sessions"] + Size(-copies, 0)}

    async def orphans(self) -> list[str]:
        warm, cold = self.store.warm, self.store.cold
        orphans = [
            f"in the {tier.name} tier: {words}" for tier in (warm, cold) for words in await tier.maintenance.orphans()
        ]
        for head in await all_heads(cold):
            if kind_of(head) == "away" and not await find(warm, head.id):
                with suppress(UnknownSession):
                    orphans += await self._loss(head.id)
        return orphans

    async def _loss(self, session: str) -> list[str]:
        head = await self.store.transfer.resting(session, include_lost=True)
        mark = mark_of(head) if head else None
        if head is None or mark is None or mark.kind != "away" or mark.closed:  # of a closed one the copy is whole
            return []
        return [f"session {session!r}, which the warm tier has lost; the cold tier has revision {head.revision}"]

    async def vacuum(self) -> None:
        await self.store.warm.maintenance.vacuum()
        await self.store.cold.maintenance.vacuum()


async def all_heads(tier: Store) -> list[Head]:
    """The heads of all sessions in a tier."""
    return [head async for page in tier.pages() for head in page]


def _fits(commit: Commit, head: Head) -> bool:
    """Whether a commit can be the next one after this head."""
    return (commit.entry.revision - 1, commit.fence) == (head.revision, head.fence)


def _present(head: Head) -> Head:
    """A head without its mark; raises `UnknownSession` if the session is buried."""
    if is_buried(head):
        raise UnknownSession(head.id)
    return visible(head)

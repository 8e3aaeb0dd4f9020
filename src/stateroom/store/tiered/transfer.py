"""Transfers between the tiers: of whole families, and safe to stop at any step.

A fork reads its parent, and a store keeps a parent for its forks, so the whole family of a session, from its root on,
is in one tier. Its members are held before they move: marked with a lease, under a fence that no other process knows.
Commits are refused then, and their callers wait until the family has moved.

Down (demote): hold all in the warm tier, put all into the cold tier at rest, bury all in the warm tier, remove what is
buried. A session is buried by an append under the fence of the hold. That is the one step at which the cold tier takes
over, and it is refused if anything was added since. Up (promote): hold all in the cold tier, put all into the warm tier
as arriving, mark all in the cold tier as away, open all in the warm tier.

Every step can be repeated without harm, and a move only goes forward. So a process that meets a stalled move (its
process was killed) repeats all its steps, with the same marks. A process that was only slow may come late with a copy
that it made long ago; so a copy is written soon or made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any, Literal

from msgspec.structs import replace

from stateroom.errors import OutdatedRecord, SessionClosed, SessionError, SessionLeased, StoreError, UnknownSession
from stateroom.pauses import Pauses
from stateroom.store.contract import Store
from stateroom.store.records import Commit, Entry, Head, Record
from stateroom.store.tiered.tier import (
    BURIED,
    FOREVER,
    Tier,
    is_buried,
    kind_of,
    mark_for,
    mark_of,
    marked,
    new_token,
    visible,
)

TAKEOVER_SECONDS = 10.0
"""Seconds after which another process takes over a stalled move."""
FRESH = TAKEOVER_SECONDS / 2
"""Seconds for which a copy may be written to the other tier after it was read."""
PAUSES = Pauses(first=0.01, longest=0.1)
"""Between two looks at a mark of another process."""


Hold = Literal["leaving", "thawing"]
"""The marks under which a session cannot be changed: in the warm tier, and in the cold one."""


class Transfer:
    """Moves families of sessions between two tiers."""

    def __init__(self, warm: Tier, cold: Tier) -> None:
        self.warm = warm
        self.cold = cold
        self._running: set[asyncio.Future[None]] = set()

    async def close(self) -> None:
        """Wait for moves whose callers have stopped waiting."""
        await asyncio.gather(*self._running, return_exceptions=True)

    # Where a session is.

    async def resting(self, session: str, *, include_lost: bool = False) -> Head | None:
        """The head in the cold tier of a session that the warm one did not have; None if that has it now.

        A session that the warm tier has lost is an error, except with `include_lost`.
        """
        seen = None
        while True:
            head = await self.cold.head(session)
            mark = mark_of(head)
            if mark is None or mark.kind != "away":
                return head
            if mark.token == seen:
                if mark.closed or include_lost:  # nothing can have been added to one that was closed
                    return head
                raise StoreError(
                    f"session {session!r} is lost: it moved to the warm tier ({self.warm.shown}) at revision "
                    f"{head.revision}, and is missing there. Restore the warm tier's data, continue from revision "
                    f"{head.revision} in the cold tier with TieredStore.adopt, or delete the session"
                )
            there = await find(self.warm, session)
            if there and not is_buried(there):
                return None
            seen = mark.token

    async def settle(self, session: str, at: float | None = None) -> Head | None:
        """Bring a session to the warm tier, unmarked: its head, or None if the caller must try again.

        A session at rest is not moved if it cannot be changed at the time `at`.
        """
        head = await find(self.warm, session)
        if head is None:
            await self._wake(session, at)
            return None
        if mark_of(head):
            await self.see_through(self.warm, head)
            return None
        return head

    async def _wake(self, session: str, at: float | None) -> None:
        resting = await self.resting(session)
        if resting is None:
            return
        if at is not None:
            visible(resting).check_live(at)
        match kind_of(resting):
            case None:
                await self._run(self.promote(session))
            case "away":
                await set_head(self.cold, visible(resting))
            case _:
                await self.see_through(self.cold, resting)

    async def see_through(self, tier: Store, head: Head) -> None:
        """Wait until the session has another mark or none; if that takes too long, finish its move."""
        started, looks = monotonic(), 0
        while monotonic() - started < TAKEOVER_SECONDS:
            looks += 1
            await asyncio.sleep(PAUSES.after(looks))
            newer = await find(tier, head.id)
            if newer is None or (newer.holder, newer.expires) != (head.holder, head.expires):
                return
        await self._run(self._finish(tier, head))

    async def _finish(self, tier: Store, head: Head) -> None:
        if kind_of(head) == "leaving":
            await self.demote(head.id, join=True)
            return
        try:
            await self.promote(head.id, join=True)
        except UnknownSession:
            if tier is self.warm:  # it expired in the cold tier before it was all here
                await set_head(self.warm, replace(head, expires=BURIED))
                await self.warm.sweep(BURIED)

    async def _run(self, move: Coroutine[Any, Any, None]) -> None:
        """Do a move to its end, even if its caller is cancelled."""
        task = asyncio.ensure_future(move)
        self._running.add(task)
        task.add_done_callback(self._ran)
        with suppress(SessionError, OutdatedRecord):  # another process was quicker; the caller looks again
            await asyncio.shield(task)

    def _ran(self, task: asyncio.Future[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved

    # Holding.

    @asynccontextmanager
    async def held(self, session: str, *, include_lost: bool = False) -> AsyncIterator[Tier]:
        """The tier that has the session, which others cannot change or move inside the block."""
        token = new_token()
        while True:
            tier, head = self.warm, await find(self.warm, session)
            if head is None:
                tier, head = self.cold, await self.resting(session, include_lost=include_lost)
            if head is None:
                continue
            kind = kind_of(head)
            if kind == "away":
                break
            if kind:
                await self.see_through(tier, head)
                continue
            with suppress(SessionLeased, UnknownSession):  # another process was quicker
                await self._hold(tier, session, "leaving" if tier is self.warm else "thawing", token)
                break
        try:
            yield tier
        finally:
            await self._release(tier, session, token)

    async def _release(self, tier: Store, session: str, token: str) -> None:
        head = await find(tier, session)
        mark = head and mark_of(head)
        if head and mark and mark.token == token:
            with suppress(OutdatedRecord):  # another process has finished the move meanwhile
                await set_head(tier, visible(head))

    async def _hold(self, tier: Store, session: str, kind: Hold, token: str, *, join: bool = False) -> Head:
        """Mark a session as ours; raises `SessionLeased` if it has a mark, except with `join`."""
        while True:
            head = await tier.head(session)
            mark = mark_of(head)
            if mark and join:
                return head
            if mark:
                raise SessionLeased(session)
            text = mark_for(head, kind, token).text
            # A lease in use is suspended: its holder is refused, and has it again after the move.
            held = await tier.lease(session, text, now=FOREVER - 1, until=FOREVER)
            if held.fence == head.fence + 1:
                return held
            await tier.release(session, text)  # it was leased in between, so the mark is wrong

    async def _hold_family(self, tier: Store, top: str, kind: Hold, token: str, *, join: bool) -> list[Head]:
        """Hold a session and all its descendants; parents come before their forks.

        Each is held before its forks are listed, so a later fork finds its parent held.
        """
        family = [await self._hold(tier, top, kind, token, join=join)]
        for head in family:
            for fork in await tier.children(head.id):
                with suppress(UnknownSession):  # it was deleted
                    family.append(await self._hold_fork(tier, fork.id, kind, token, join=join))
        first = await find(tier, top)
        if first and _is_held(first, family[0]):
            return family
        for head in family:  # it took so long that another process has moved the family
            await self._release(tier, head.id, token)
        raise SessionLeased(top)

    async def _hold_fork(self, tier: Store, session: str, kind: Hold, token: str, *, join: bool) -> Head:
        while True:
            with suppress(SessionLeased):
                return await self._hold(tier, session, kind, token, join=join)
            head = await tier.head(session)
            if kind_of(head) == "away":
                return head
            if mark_of(head):  # held for something else than a move of the family
                await self.see_through(tier, head)

    # Down.

    async def demote(self, session: str, *, join: bool = False) -> None:
        """Move a family to the cold tier. `SessionLeased` if another process does; `join` repeats its steps."""
        root = await _root(self.warm, session)
        family = await self._hold_family(self.warm, root, "leaving", new_token(), join=join)
        family = [head for head in family if not is_buried(head)]
        if any(kind_of(head) == "arriving" for head in family):
            raise SessionLeased(root)
        copied = [head for head in family if await self._copy(self.warm, self.cold, head, lambda head: head)]
        for head in reversed(copied):
            await self._bury(head)
        await self.warm.sweep(BURIED)

    async def _copy(self, source: Store, target: Store, held: Head, change: Callable[[Head], Head]) -> bool:
        """Put a session into the other tier; False if it was deleted, or moved by another process."""
        while True:
            started = monotonic()
            try:
                record = await source.maintenance.export(held.id)
            except UnknownSession:
                return False
            if not _is_held(record.head, held):
                return False
            if monotonic() - started < FRESH:
                break
        await target.put(replace(record, head=change(visible(record.head))))
        return True

    async def _bury(self, head: Head) -> None:
        """Let the cold tier take over, if nothing was added meanwhile."""
        with suppress(UnknownSession, SessionClosed):  # another process has done it
            if not _is_held(await self.warm.head(head.id), head):
                return
            if head.closed:  # nothing can be added, so nothing was added meanwhile
                await set_head(self.warm, replace(head, expires=BURIED))
            else:
                last = Entry(head.revision + 1, "buried", BURIED, b"")
                await self.warm.append(Commit(head.id, last, expires=BURIED, fence=head.fence, closes=True))

    async def renew_copy(self, session: str) -> bool:
        """Update the cold tier's copy of a session that is held in the warm tier, if there is one."""
        copy = await find(self.cold, session)
        if copy is None:
            return False
        mark = mark_of(copy)
        record = await self.warm.maintenance.export(session)
        away = marked(visible(record.head), "away", mark.token if mark else new_token())
        await self.cold.put(replace(record, head=away))
        return True

    # Up.

    async def promote(self, session: str, *, join: bool = False) -> None:
        """Move a family to the warm tier; waits if another process does; `join` repeats its steps."""
        top = await self._top(session)
        mark = mark_of(top)
        if mark and not join:
            if mark.kind == "thawing":  # else it has just been promoted
                await self.see_through(self.cold, top)
            return
        token = mark.token if mark else new_token()
        await self._clear(top.id)
        family = await self._hold_family(self.cold, top.id, "thawing", token, join=join)
        thawing = [head for head in family if kind_of(head) == "thawing"]
        arriving = partial(marked, kind="arriving", token=token)
        copied = [head for head in thawing if await self._copy(self.cold, self.warm, head, arriving)]
        for head in reversed(copied):  # the top last: as long as that is thawing, some may be
            await set_head(self.cold, marked(visible(head), "away", token))
        for head in family:
            await self._open(head.id, token)

    async def _top(self, session: str) -> Head:
        """The head to promote a family from: its root, or the first that did not go to the warm tier before."""
        head = await self.cold.head(session)
        while head.parent is not None:
            parent = await self.cold.head(head.parent)
            mark, above = mark_of(head), mark_of(parent)
            if above and above.kind == "away" and not (mark and mark.token == above.token):
                break
            head = parent
        return head

    async def _clear(self, session: str) -> None:
        """Remove a buried session from the warm tier, with forks that came too late to move with it."""
        await self.warm.sweep(BURIED)
        left = await find(self.warm, session)
        if left and is_buried(left):
            await self.demote(session, join=True)

    async def _open(self, session: str, token: str) -> None:
        head = await find(self.warm, session)
        mark = head and mark_of(head)
        if head and mark and (mark.kind, mark.token) == ("arriving", token):
            await set_head(self.warm, visible(head))


async def set_head(tier: Store, head: Head) -> None:
    """Change only the head of a session, which is at this revision already."""
    await tier.put(Record(head, [], [], {}))


async def find(tier: Store, session: str) -> Head | None:
    """The head of a session in a tier that may not have it."""
    try:
        return await tier.head(session)
    except UnknownSession:
        return None


def _is_held(head: Head, held: Head) -> bool:
    """Whether the hold on a session is still the same."""
    return head.holder == held.holder and is_buried(head) == is_buried(held)


async def _root(tier: Store, session: str) -> str:
    while (head := await tier.head(session)).parent is not None:
        session = head.parent
    return session

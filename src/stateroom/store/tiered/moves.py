"""How a session moves from one tier to the other: with its whole family, and so that it can be stopped at any step.

A fork reads its parent, and a store keeps a parent for its forks, so the whole family of a session, from its root on,
is in one tier. Its members are held before they are moved: marked with a lease, under a fence that nobody else knows.
Commits are refused then, and whoever wanted to commit waits until the family has moved.

Down: hold all in the warm tier, put all into the cold tier at rest, bury all in the warm tier, remove what is buried.
A session is buried by an append under the fence of the hold. That is the one step at which the cold tier takes over,
and it is refused if anything was added since. Up: hold all in the cold tier, put all into the warm tier as arriving,
mark all in the cold tier as away, open all in the warm tier.

Every step can be done again with no harm, and a move only goes forward. So whoever meets a move that does not get on
(its process was killed) does all its steps again, with the same marks. A mover that was only slow may then come late
with a copy it made long ago; so a copy is written at once or made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from functools import partial
from time import monotonic
from typing import Any, Literal

from msgspec.structs import replace

from stateroom.errors import SessionClosed, SessionError, SessionLeased, StoreError, UnknownSession
from stateroom.store import Commit
from stateroom.store.contract import Entry, Head, Record, Store
from stateroom.store.tiered.marks import (
    BURIED,
    FOREVER,
    head_only,
    is_buried,
    kind_of,
    mark_for,
    mark_of,
    marked,
    new_token,
    visible,
)
from stateroom.store.tiered.tier import Tier

TAKEOVER = 10.0
"""After how many seconds a move that does not get on is done by somebody else."""
FRESH = TAKEOVER / 2
"""For how many seconds what was read may be written to the other tier."""
FIRST_PAUSE = 0.005
LONGEST_PAUSE = 0.1


Hold = Literal["leaving", "thawing"]
"""The kinds of marks under which a session cannot be changed: in the warm tier, and in the cold one."""


class Moves:
    """Moves families of sessions between two tiers."""

    def __init__(self, warm: Tier, cold: Tier) -> None:
        self.warm = warm
        self.cold = cold
        self._running: set[asyncio.Future[None]] = set()

    async def close(self) -> None:
        """Wait for the moves whose callers have stopped waiting."""
        await asyncio.gather(*self._running, return_exceptions=True)

    # Where a session is.

    async def resting(self, session: str, *, lost_too: bool = False) -> Head | None:
        """The head in the cold tier of a session that the warm one did not have; None if that has it now.

        One that both know, and the warm tier has lost, is an error unless asked for.
        """
        seen = None
        while True:
            head = await self.cold.head(session)
            mark = mark_of(head)
            if mark is None or mark.kind != "away":
                return head
            if mark.token == seen:
                if mark.closed or lost_too:  # nothing can have been added to one that was closed
                    return head
                raise StoreError(
                    f"session {session!r} is lost: it went to the warm tier ({self.warm.shown}) at revision "
                    f"{head.revision}, and is not there. Bring back what the warm tier had; or go on from revision "
                    f"{head.revision}, which the cold tier has, with TieredStore.adopt; or delete the session"
                )
            there = await find(self.warm, session)
            if there and not is_buried(there):
                return None
            seen = mark.token

    async def settle(self, session: str, at: float | None = None) -> Head | None:
        """See that the session is in the warm tier and can be changed: its head, or None if something was in the way.

        One that is at rest is not moved if it cannot be changed at the time `at`.
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
                await self._run(self.lift(session))
            case "away":
                await self.cold.restore(head_only(visible(resting)))
            case _:
                await self.see_through(self.cold, resting)

    async def see_through(self, tier: Store, head: Head) -> None:
        """Wait until the session has moved on from this mark, and if that takes too long, move it."""
        started, pause = monotonic(), FIRST_PAUSE
        while monotonic() - started < TAKEOVER:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            newer = await find(tier, head.id)
            if newer is None or (newer.holder, newer.expires) != (head.holder, head.expires):
                return
        await self._run(self._finish(tier, head))

    async def _finish(self, tier: Store, head: Head) -> None:
        if kind_of(head) == "leaving":
            await self.lower(head.id, join=True)
            return
        try:
            await self.lift(head.id, join=True)
        except UnknownSession:
            if tier is self.warm:  # it expired in the cold tier before it was all here
                await self.warm.restore(head_only(replace(head, expires=BURIED)))
                await self.warm.sweep(BURIED)

    async def _run(self, move: Coroutine[Any, Any, None]) -> None:
        """Do a move to its end, even if whoever waits for it is cancelled."""
        task = asyncio.ensure_future(move)
        self._running.add(task)
        task.add_done_callback(self._ran)
        with suppress(SessionError):  # somebody else was quicker; whoever asked looks again
            await asyncio.shield(task)

    def _ran(self, task: asyncio.Future[None]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # it has been looked at

    # Holding.

    @asynccontextmanager
    async def held(self, session: str, *, lost_too: bool = False) -> AsyncIterator[Tier]:
        """The tier that has the session, which cannot be changed or moved by others meanwhile."""
        token = new_token()
        while True:
            tier, head = self.warm, await find(self.warm, session)
            if head is None:
                tier, head = self.cold, await self.resting(session, lost_too=lost_too)
            if head is None:
                continue
            kind = kind_of(head)
            if kind == "away":
                break
            if kind:
                await self.see_through(tier, head)
                continue
            with suppress(SessionLeased, UnknownSession):  # somebody else was quicker
                await self._hold(tier, session, "leaving" if tier is self.warm else "thawing", token)
                break
        try:
            yield tier
        finally:
            await self._let_go(tier, session, token)

    async def _let_go(self, tier: Store, session: str, token: str) -> None:
        head = await find(tier, session)
        mark = head and mark_of(head)
        if head and mark and mark.token == token:
            await tier.restore(head_only(visible(head)))

    async def _hold(self, tier: Store, session: str, kind: Hold, token: str, *, join: bool = False) -> Head:
        """Mark a session as ours; `join` says that another's mark will do, else that is `SessionLeased`."""
        while True:
            head = await tier.head(session)
            mark = mark_of(head)
            if mark and join:
                return head
            if mark:
                raise SessionLeased(session)
            text = mark_for(head, kind, token).text
            # A lease in use ends here: whoever has it is refused, and finds it again as it was after the move.
            held = await tier.lease(session, text, now=FOREVER - 1, until=FOREVER)
            if held.fence == head.fence + 1:
                return held
            await tier.release(session, text)  # somebody else had it in between, and the mark says otherwise

    async def _hold_family(self, tier: Store, top: str, kind: Hold, token: str, *, join: bool) -> list[Head]:
        """Hold a session and all that were forked from it; parents come before their forks.

        Each is held before its forks are listed, so whoever makes another one finds the parent held.
        """
        family = [await self._hold(tier, top, kind, token, join=join)]
        for head in family:
            for fork in await tier.children(head.id):
                with suppress(UnknownSession):  # it was deleted
                    family.append(await self._hold_fork(tier, fork.id, kind, token, join=join))
        first = await find(tier, top)
        if first and _is_held(first, family[0]):
            return family
        for head in family:  # so long did it take that others have moved the family, and what we hold may be back
            await self._let_go(tier, head.id, token)
        raise SessionLeased(top)

    async def _hold_fork(self, tier: Store, session: str, kind: Hold, token: str, *, join: bool) -> Head:
        while True:
            with suppress(SessionLeased):
                return await self._hold(tier, session, kind, token, join=join)
            head = await tier.head(session)
            if kind_of(head) == "away":
                return head
            if mark_of(head):  # whoever has the top moves the family, but one of it may be held for something else
                await self.see_through(tier, head)

    # Down.

    async def lower(self, session: str, *, join: bool = False) -> None:
        """Move a family to the cold tier. `SessionLeased` if somebody else does, unless that is to be done again."""
        root = await _root(self.warm, session)
        family = await self._hold_family(self.warm, root, "leaving", new_token(), join=join)
        family = [head for head in family if not is_buried(head)]
        if any(kind_of(head) == "arriving" for head in family):
            raise SessionLeased(root)
        copied = [head for head in family if await self._copy(self.warm, self.cold, head, _at_rest)]
        for head in reversed(copied):
            await self._bury(head)
        await self.warm.sweep(BURIED)

    async def _copy(self, source: Store, target: Store, held: Head, dress: Callable[[Record], Record]) -> bool:
        """Put what one tier has of a session into the other; not if it was deleted, or moved by somebody else."""
        while True:
            started = monotonic()
            try:
                record = await source.export(held.id)
            except UnknownSession:
                return False
            if not _is_held(record.head, held):
                return False
            if monotonic() - started < FRESH:
                break
        await target.restore(dress(record))
        return True

    async def _bury(self, head: Head) -> None:
        """Let the cold tier take over, if nothing was added meanwhile."""
        with suppress(UnknownSession, SessionClosed):  # somebody else has done it
            if not _is_held(await self.warm.head(head.id), head):
                return
            if head.closed:  # nothing can be added, by us neither; but nothing can have been added meanwhile
                await self.warm.restore(head_only(replace(head, expires=BURIED)))
            else:
                last = Entry(head.revision + 1, "buried", BURIED, b"")
                await self.warm.append(Commit(head.id, last, expires=BURIED, fence=head.fence, closes=True))

    async def renew_copy(self, session: str) -> bool:
        """Bring the copy of a session that is held in the warm tier up to date, if the cold tier has one."""
        copy = await find(self.cold, session)
        if copy is None:
            return False
        mark = mark_of(copy)
        record = await self.warm.export(session)
        await self.cold.restore(_marked("away", mark.token if mark else new_token(), record))
        return True

    # Up.

    async def lift(self, session: str, *, join: bool = False) -> None:
        """Move a family to the warm tier; if somebody else does, wait, unless that is to be done again."""
        top = await self._top(session)
        mark = mark_of(top)
        if mark and not join:
            if mark.kind == "thawing":  # else it has just been lifted
                await self.see_through(self.cold, top)
            return
        token = mark.token if mark else new_token()
        await self._clear(top.id)
        family = await self._hold_family(self.cold, top.id, "thawing", token, join=join)
        thawing = [head for head in family if kind_of(head) == "thawing"]
        copied = [
            head
            for head in thawing
            if await self._copy(self.cold, self.warm, head, partial(_marked, "arriving", token))
        ]
        for head in reversed(copied):  # the top last: as long as that is thawing, some may be
            await self.cold.restore(head_only(marked(visible(head), "away", token)))
        for head in family:
            await self._open(head.id, token)

    async def _top(self, session: str) -> Head:
        """From where on a family is to be lifted: its root, or the first that did not go to the warm tier before."""
        head = await self.cold.head(session)
        while head.parent is not None:
            parent = await self.cold.head(head.parent)
            mark, above = mark_of(head), mark_of(parent)
            if above and above.kind == "away" and not (mark and mark.token == above.token):
                break
            head = parent
        return head

    async def _clear(self, session: str) -> None:
        """Remove what is left of a session in the warm tier, with forks that came too late to move with it."""
        await self.warm.sweep(BURIED)
        left = await find(self.warm, session)
        if left and is_buried(left):
            await self.lower(session, join=True)

    async def _open(self, session: str, token: str) -> None:
        head = await find(self.warm, session)
        mark = head and mark_of(head)
        if head and mark and (mark.kind, mark.token) == ("arriving", token):
            await self.warm.restore(head_only(visible(head)))


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


def _at_rest(record: Record) -> Record:
    return Record(visible(record.head), record.entries, record.snapshots, record.blobs)


def _marked(kind: Literal["arriving", "away"], token: str, record: Record) -> Record:
    head = marked(visible(record.head), kind, token)
    return Record(head, record.entries, record.snapshots, record.blobs)

"""Leases: a session that one worker has for itself for a while.

Nobody needs a lease to change a session: a commit names its revision, and a stale one is refused. With a lease, nobody
else can change it, so that what this process holds of the session is the newest there is, and reading it asks no store.
Each new lease raises the session's fence, which every commit names: a holder that was paused, and wakes up when the
lease has gone to somebody else, is refused and reads again.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from secrets import token_hex
from time import monotonic
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from stateroom.errors import SessionError, SessionLeased, StoreError, StoreUnavailable
from stateroom.session.room import Room

if TYPE_CHECKING:
    from stateroom.session.sessions import Sessions

logger = logging.getLogger(__name__)

SECONDS = 30.0
"""How long a lease lasts that is not renewed."""

RENEWALS = 3
"""It is renewed so many times before it would end."""

SURE = 2 / 3
"""The holder relies on it for this share of its time: other workers' clocks may be ahead by what remains."""


class Lease:
    """Holds a session for as long as the block runs: `async with session.hold():`."""

    def __init__(self, sessions: Sessions[Any], room: Room, seconds: float) -> None:
        self._sessions = sessions
        self._room = room
        self._seconds = seconds
        self._token = token_hex(12)
        self._fence = 0
        self._sure_until = 0.0
        self._renewing: asyncio.Task[None] | None = None

    @property
    def token(self) -> str:
        """What the store knows the holder by."""
        return self._token

    @property
    def lost(self) -> bool:
        """True when somebody else has, or may have, got the session meanwhile."""
        return self._room.held is not self

    @property
    def is_sure(self) -> bool:
        """Whether nobody else can have changed the session up to now."""
        return monotonic() < self._sure_until

    async def __aenter__(self) -> Self:
        room = self._room
        async with room.lock:  # no commit of this process is under way with the old fence
            self._fence = 0  # a new one each time
            try:
                await self._take()
                room.held = self
                await room.refresh()
            except BaseException:
                self._let_go()
                await self._release()
                raise
        self._renewing = asyncio.create_task(self._renew())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if self._renewing is not None:
                self._renewing.cancel()
                await asyncio.wait([self._renewing])  # unlike `await` of it, this raises our own cancellation only
        finally:
            self._let_go()
            await self._release()
            self._room.stale = True  # the head says that it is leased

    async def _release(self) -> None:
        with suppress(SessionError, StoreError):  # else it ends by itself
            await self._sessions.store.release(self._room.head.id, self._token)

    async def _take(self) -> None:
        """Take the lease, or renew it; `SessionLeased` if somebody else has, or had, it."""
        asked, now = monotonic(), self._sessions.now()
        session = self._room.head.id
        head = await self._sessions.store.lease(session, self._token, now=now, until=now + self._seconds)
        if self._fence not in (0, head.fence):
            raise SessionLeased(session)
        self._fence = head.fence
        self._sure_until = asked + SURE * self._seconds

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._seconds / RENEWALS)
            try:
                await self._take()
            except StoreUnavailable as error:
                logger.warning("the lease of session %s could not be renewed: %s", self._room.head.id, error)
            except Exception as error:  # noqa: BLE001 (whatever it is, the lease ends by itself)
                logger.warning("the lease of session %s is lost: %s", self._room.head.id, error)
                self._let_go()
                await self._release()  # the store may just have given it to us anew
                return

    def _let_go(self) -> None:
        if self._room.held is self:
            self._room.held = None
            self._room.stale = True

"""Leases: exclusive access to a session for one worker.

No process needs a lease to change a session: a commit names its revision, and a stale one is refused. With a lease, no
other process can change it, so that the state in memory is the newest, and reading it asks no store.
Each new lease raises the session's fence, which every commit names: a holder that was paused, and wakes up when the
lease has gone to another process, is refused and reads again.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from secrets import token_hex
from time import monotonic
from typing import Self

from stateroom.errors import SessionError, SessionLeased, StoreError, StoreUnavailable
from stateroom.session.cached_session import CachedSession, HeldLease

logger = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
"""Seconds that a lease lasts unless it is renewed."""

RENEWALS_PER_LEASE = 3
"""Renewals within the time of a lease."""

TRUSTED_SHARE = 2 / 3
"""The holder relies on it for this share of its time: other workers' clocks may be ahead by what remains."""


class Lease:
    """Has a session's lease for as long as the block runs: `async with session.lease():`."""

    def __init__(self, cached: CachedSession, seconds: float) -> None:
        self._cached = cached
        self._seconds = seconds
        self._held = HeldLease(token_hex(12))
        self._fence = 0
        self._renewing: asyncio.Task[None] | None = None

    @property
    def lost(self) -> bool:
        """True when another process has, or may have, the lease now."""
        return self._cached.lease is not self._held

    async def __aenter__(self) -> Self:
        cached = self._cached
        async with cached.lock:  # no commit of this process is under way with the old fence
            self._fence = 0  # a new one each time
            try:
                await self._take()
                cached.lease = self._held
                await cached.refresh()
            except BaseException:
                self._lost()
                await self._release()
                raise
        self._renewing = asyncio.create_task(self._renew())
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            if self._renewing is not None:
                self._renewing.cancel()
                await asyncio.wait([self._renewing])  # unlike `await` of it, this raises our own cancellation only
        finally:
            self._lost()
            await self._release()
            self._cached.stale = True  # the head says that it is leased

    async def _release(self) -> None:
        with suppress(SessionError, StoreError):  # else it ends by itself
            await self._cached.store.release(self._cached.head.id, self._held.token)

    async def _take(self) -> None:
        """Take the lease, or renew it; `SessionLeased` if another process has, or had, it."""
        asked, now = monotonic(), self._cached.limits.now()
        session = self._cached.head.id
        head = await self._cached.store.lease(session, self._held.token, now=now, until=now + self._seconds)
        if self._fence not in (0, head.fence):
            raise SessionLeased(session)
        self._fence = head.fence
        self._held.sure_until = asked + TRUSTED_SHARE * self._seconds

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._seconds / RENEWALS_PER_LEASE)
            try:
                await self._take()
            except StoreUnavailable as error:
                logger.warning("the lease of session %s could not be renewed: %s", self._cached.head.id, error)
            except Exception as error:  # noqa: BLE001 (whatever it is, the lease ends by itself)
                logger.warning("the lease of session %s is lost: %s", self._cached.head.id, error)
                self._lost()
                await self._release()  # the store may just have given it to us anew
                return

    def _lost(self) -> None:
        if self._cached.lease is self._held:
            self._cached.lease = None
            self._cached.stale = True

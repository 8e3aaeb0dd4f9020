"""Starting episodes: new ones, groups of forks, and those that another worker has begun."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from time import monotonic
from typing import Any, cast

from stateroom.errors import SessionClosed, SessionExpired, SessionLeased, StoreError
from stateroom.rollout.backend import Backend, EpisodeSession, Transcripts
from stateroom.rollout.episode import Start, Started
from stateroom.rollout.plan import EPOCH, Run
from stateroom.rollout.rows import PARENT, SESSION, Key, Row, given_row, key_of
from stateroom.session import Session

PAUSE = 0.2
"""Seconds between two attempts to lease a session."""


class Starter:
    """Starts the episodes of a plan."""

    def __init__(self, plan: Run, backend: Backend, transcripts: Transcripts | None) -> None:
        self._plan = plan
        self._backend = backend
        self._transcripts = transcripts

    def starts(self, rows: list[Row], *, resumes: bool) -> Iterator[tuple[Row, Start]]:
        """Each row with the function that starts its episode. A group is seeded when its first episode starts.

        With `resumes`, another worker may have begun them.
        """
        find = self._find if resumes else _find_none
        if self._plan.options.group is None:
            yield from ((row, partial(self._start, row, find)) for row in rows)
            return
        group = _Group(rows, self._backend, partial(self._find_or_seed, find=find), find)
        yield from ((row, partial(self._start_member, row, group)) for row in rows)

    async def _start(self, row: Row, find: Find) -> Started:
        if self._transcripts is None or SESSION not in row:
            return self._started(await self._find_or_seed(row, find))
        session = await find(row)
        transcript = None if session is None else await self._transcripts.find(row)
        if session is None or transcript is None:  # or what was said was said in a session that is gone
            session, transcript = await self._seed(row), await self._transcripts.begin(row)
        return Started(session, transcript.agent, transcript)

    async def _start_member(self, row: Row, group: _Group) -> Started:
        return self._started(await group.session_of(row))

    def _started(self, session: EpisodeSession) -> Started:
        return Started(session, session.agent, cast("Session[Any]", session) if self._plan.keeps_sessions else None)

    async def _find_or_seed(self, row: Row, find: Find) -> EpisodeSession:
        if (found := await find(row)) is not None:
            return found
        try:
            return await self._seed(row)
        except StoreError:  # the worker that had it before may have come first after all
            if (found := await find(row)) is None:
                raise
            return found

    async def _seed(self, row: Row) -> EpisodeSession:
        return await self._backend.seed(row, seed=self._plan.seed_for(row), began=EPOCH)

    async def _find(self, row: Row) -> EpisodeSession | None:
        if SESSION not in row:
            return None
        return await self._backend.find(row, seed=self._plan.seed_for(row), began=EPOCH)


Find = Callable[[Row], Awaitable[EpisodeSession | None]]


async def _find_none(row: Row) -> None:
    """The session of an episode that nobody has begun."""


class _Group:
    """The sessions of one task's episodes: when the first of them starts, one is seeded and forked for all."""

    def __init__(
        self, rows: Sequence[Row], backend: Backend, seed: Callable[[Row], Awaitable[EpisodeSession]], find: Find
    ) -> None:
        self._rows = rows
        self._backend = backend
        self._seed = seed
        self._find = find
        self._lock = asyncio.Lock()
        self._sessions: dict[Key, EpisodeSession] | None = None
        self._failure: Exception | None = None

    async def session_of(self, row: Row) -> EpisodeSession:
        """The session of a member. If the group could not be seeded, every member raises the same error."""
        async with self._lock:
            if self._failure is not None:
                raise self._failure
            if self._sessions is None:
                try:
                    self._sessions = await self._start_all()
                except Exception as error:
                    self._failure = error
                    raise
            return self._sessions.pop(key_of(row))

    async def _start_all(self) -> dict[Key, EpisodeSession]:
        found = {key_of(row): await self._find(row) for row in self._rows}
        new = [row for row in self._rows if found[key_of(row)] is None]
        forks = dict(zip(map(key_of, new), await self._fork(new) if new else (), strict=True))
        return {key: session or forks[key] for key, session in found.items()}

    async def _fork(self, rows: Sequence[Row]) -> Sequence[EpisodeSession]:
        """New sessions for rows, which may name them and their parent."""
        origin = rows[0].get(PARENT)
        row = {**given_row(rows[0]), "_ng_rollout_index": 0}
        parent = await self._seed(row if origin is None else {**row, SESSION: origin["session"]})
        try:
            if origin is None:
                return await self._backend.fork(parent, len(rows))
            return await self._backend.fork(parent, len(rows), origin["revision"], [row[SESSION] for row in rows])
        finally:
            await parent.close()  # a closed session can be forked, but not changed


async def take_over(started: Started, seconds: float, leases: AsyncExitStack) -> None:
    """Lease the session of an episode that another worker may have begun, until a stack ends.

    The lease raises the session's fence, so that whatever the other worker still sends is refused.
    """
    end = monotonic() + 2 * seconds
    while started.stored is not None:
        try:
            with suppress(SessionClosed, SessionExpired):  # then nobody changes it any more
                await leases.enter_async_context(started.stored.lease(seconds))
            return
        except SessionLeased:
            if monotonic() > end:
                raise
        await asyncio.sleep(PAUSE)

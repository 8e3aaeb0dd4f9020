"""The optimistic write loop of sessions: read, try, append; after a conflict, start again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from stateroom.errors import Conflict, SessionLeased, SessionSealed
from stateroom.pauses import Pauses
from stateroom.session.cached_session import CachedSession, PreparedCommit
from stateroom.session.log import AFTER_VERDICT

R = TypeVar("R")

PAUSES = Pauses(first=0.004, longest=0.05)
"""Between attempts to commit."""

ATTEMPTS = 20
"""Attempts per write before `Conflict` or `SessionLeased` is raised."""


class RetryCommit(Exception):
    """Another writer came first: the attempt is made again on the newest revision."""


async def commit(
    cached: CachedSession,
    attempt: Callable[[], Awaitable[R]],
    what: str,
    *,
    after_verdict: bool = False,
    while_leased: bool = False,
    load_state: bool = True,
    attempts: int = ATTEMPTS,
) -> R:
    """Make an attempt to write until it succeeds; the caller has the session's lock.

    Before each attempt, in this order:

    1. what others have committed is loaded, if this process might lack it (without the state, unless `load_state`);
    2. a session that has its verdict is refused with `SessionSealed`, unless `after_verdict`;
    3. while another process has the lease, this one waits, unless `while_leased`.

    An attempt that raises `RetryCommit` is made again: at once the first time, then after growing pauses. After
    `attempts` of them `Conflict` is raised, which says `what` was refused; and `SessionLeased` after `ATTEMPTS` pauses
    for the lease.
    """
    waited = 0
    for number in range(attempts):
        if number:
            await back_off(number)
        if cached.stale:
            await cached.refresh(load_state=load_state)
        if cached.verdict_facts is not None and not after_verdict:  # also by a verdict for whose lock this has waited
            raise SessionSealed(cached.head.id)
        if cached.head.holder is not None and not while_leased and cached.is_leased_elsewhere(cached.limits.now()):
            cached.stale = True
            waited += 1
            if waited == ATTEMPTS:
                break
            continue
        try:
            return await attempt()
        except RetryCommit:
            cached.stale = True
    session = cached.head.id
    if cached.is_leased_elsewhere(cached.limits.now()):
        raise SessionLeased(session)
    why = f"session {session!r} is too busy: {what} was refused {attempts} times because other writers were first"
    raise Conflict(session, cached.head.revision, why)


async def append_or_retry(cached: CachedSession, prepared: PreparedCommit) -> None:
    """Append what an attempt has prepared; `RetryCommit` if another writer came first."""
    try:
        await cached.append(prepared)
    except Conflict:
        raise RetryCommit from None


async def append_entry(cached: CachedSession, kind: str, facts: dict[str, Any], call_id: str | None = None) -> int:
    """Append an entry that changes no state, whatever others have appended meanwhile; gives its revision."""

    async def attempt() -> int:
        prepared = cached.prepare(kind, facts, call_id=call_id)
        await append_or_retry(cached, prepared)
        return prepared.commit.entry.revision

    return await commit(cached, attempt, kind, after_verdict=kind in AFTER_VERDICT, load_state=False)


async def back_off(number: int) -> None:
    """Wait before attempt `number`; the second is made at once."""
    if number > 1:
        await asyncio.sleep(PAUSES.after(number - 1))

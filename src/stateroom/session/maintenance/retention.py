"""Retention: removing the log before the last revisions, and sessions closed long ago.

The newest state of every session, the model's view of its conversation, the kept part of its log, every fork and every
rewind stay readable.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from secrets import token_hex
from typing import NamedTuple

from stateroom.errors import SessionLeased, UnknownRevision, UnknownSession
from stateroom.session.cached_session import STATES_IN_MEMORY
from stateroom.session.history import ENTRIES_PER_PAGE, History
from stateroom.session.log import VERDICT, read_entry
from stateroom.session.maintenance.heads import descendants, each_session
from stateroom.store import Entry, Head, Store

LEASE_SECONDS = 10.0
"""For how many seconds a session is held while its past is cut off."""


class RetentionPolicy(NamedTuple):
    """The data to keep."""

    keep: int | None = None
    """Revisions to keep in each session's log, at least as many as a process may hold in memory; None keeps all."""
    unused: float = 0.0
    """Seconds without a new entry after which a session is cut."""
    closed: float | None = None
    """Seconds after which closed sessions are removed, unless forks read them; None keeps all."""


class Cut(NamedTuple):
    """The part of a session to remove."""

    head: Head
    below: int | None
    """Its past before this revision; None for the whole session."""
    entries: int
    """The number of entries in that part."""
    in_use: bool = False
    """Whether a worker has the lease, so the session was not changed."""


class Retention:
    """Removes the data that a policy does not keep.

    Removing an entry removes its call id too, so a call that is repeated later would run again. A removed revision
    cannot be read, forked or restored any more. A session is leased meanwhile, so a rewind happens before or is
    refused. Only a fork of a revision that is being removed, or a fork that rewinds to one, can come too late.
    """

    def __init__(self, store: Store, policy: RetentionPolicy, now: Callable[[], float]) -> None:
        self.store = store
        self.policy = policy
        self.keep = max(policy.keep or 0, STATES_IN_MEMORY)
        """How many revisions of each session are kept before its newest."""
        self.now = now

    async def plan(self) -> AsyncIterator[tuple[Head, Cut | None]]:
        """Iterate over all sessions with the part that would be removed; changes nothing."""
        async for cut in each_session(self.store, self._cut):
            yield cut

    async def carry_out(self) -> AsyncIterator[tuple[Head, Cut | None]]:
        """Remove the data, and iterate over all sessions with the removed part."""
        async for head, cut in self.plan():  # the newest first: a fork goes before what it was forked from
            made = None
            if cut is not None:
                with suppress(UnknownSession):  # it has gone by itself
                    made = await self._made(cut)
            yield head, made

    async def _made(self, cut: Cut) -> Cut | None:
        session = cut.head.id
        if cut.below is None:
            await self.store.delete(session)
            return cut
        holder, now = token_hex(12), self.now()
        try:
            head = await self.store.lease(session, holder, now=now, until=now + LEASE_SECONDS)
        except SessionLeased:
            return cut._replace(entries=0, in_use=True)
        try:
            # Now nobody can go back in it; has anybody done so, or made a fork, since it was looked at?
            needed = await self._rewound_to(session, cut.head.revision, head.revision)
            if min(needed, await self._forked_at(session)) < cut.below:
                return None
            return cut._replace(entries=await self.store.prune(session, cut.below))
        finally:
            await self.store.release(session, holder)

    async def _cut(self, head: Head) -> Cut | None:
        if head.closed and self.policy.closed is not None and await self._all_closed(head):
            return None if await self._is_needed(head) else Cut(head, None, (await self.store.size(head.id)).rows)
        if self.policy.keep is None or not await self._unused(head, self.policy.unused):
            return None
        return await self._past_of(head)

    async def _all_closed(self, head: Head) -> bool:
        """Whether a session and its forks were all closed so long ago that they go."""
        assert self.policy.closed is not None
        if not await self._unused(head, self.policy.closed):
            return False
        async for fork in descendants(self.store, head.id):
            with suppress(UnknownSession):  # that fork has gone meanwhile
                if not (fork.closed and await self._unused(fork, self.policy.closed)):
                    return False
        return True

    async def _is_needed(self, head: Head) -> bool:
        """Whether a session has decided about a shared state where the change is still to be entered."""
        decisions: dict[str, tuple[int, int]] = {}
        async for entry in self._entries(head.id, head.parent_revision, head.revision):
            decisions |= _decisions(entry)
        return await self._open_since(decisions) < sys.maxsize

    async def _unused(self, head: Head, seconds: float) -> bool:
        """Whether nothing was added to a session for so long."""
        if seconds <= 0:
            return True
        last = await self.store.entries(head.id, after=head.revision - 1, until=head.revision)
        return (last[0].at if last else head.created) <= self.now() - seconds

    # How far back a session's past is needed.

    async def _past_of(self, head: Head) -> Cut | None:
        """The past of a session that nothing needs, if there is any."""
        first = head.parent_revision + 1  # this entry always stays
        below = await self._snapshot(head, head.revision - self.keep)
        going: list[int] = []
        decisions: dict[str, tuple[int, int]] = {}
        async for entry in self._entries(head.id, first, below):
            going.append(entry.revision)
            decisions |= _decisions(entry)
        if not going:
            return None  # it was cut there before
        needed = min(
            await self._sealed_at(head),
            await self._open_since(decisions),
            await self._forked_at(head.id),
            await self._shown_since(head.id, head.revision - self.keep),
        )
        scanned = head.revision
        while below > first:
            needed = min(needed, await self._rewound_to(head.id, below, scanned))
            if below <= needed:
                entries = sum(revision <= below for revision in going)
                return Cut(head, below, entries) if entries else None
            scanned, below = below, await self._snapshot(head, needed)
        return None

    async def _snapshot(self, head: Head, at: int) -> int:
        """The revision of the session's newest snapshot up to a revision; 0 if there is none."""
        snapshot = (await self.store.load(head.id, at)).snapshot if at > head.parent_revision else None
        return 0 if snapshot is None else snapshot.revision

    async def _sealed_at(self, head: Head) -> int:
        """The revision before the verdict, which seals the session for as long as it is there."""
        verdict = await self.store.find_call(head.id, VERDICT)
        return head.revision if verdict is None else verdict.revision - 1

    async def _open_since(self, decisions: dict[str, tuple[int, int]]) -> int:
        """The revision before the first call that changes a shared state where the change is still to be entered."""
        needed = sys.maxsize
        for identity, (revision, intent) in decisions.items():
            with suppress(UnknownSession):
                if (await self.store.head(identity)).revision <= intent:
                    needed = min(needed, revision - 1)
        return needed

    async def _forked_at(self, session: str) -> int:
        """The first revision that a fork of the session starts from, keeps as one of its last, or was rewound to."""
        needed = sys.maxsize
        async for fork in descendants(self.store, session):
            with suppress(UnknownSession):  # that fork has gone meanwhile
                rewound_to = await self._rewound_to(fork.id, fork.parent_revision, fork.revision)
                shown_since = await self._shown_since(fork.id, max(fork.parent_revision, fork.revision - self.keep))
                needed = min(needed, fork.parent_revision, fork.revision - self.keep, rewound_to, shown_since)
        return needed

    async def _shown_since(self, session: str, oldest: int) -> int:
        """The revision before that from which on its model is shown what was said, now or at the oldest that stays."""
        needed = sys.maxsize
        for revision in (None, oldest):
            with suppress(UnknownRevision):  # it was cut there before
                agent = (await History(self.store).outline(session, revision)).progress.agent
                needed = min(needed, max(agent.view - 1, 0) if agent.said else sys.maxsize)
        return needed

    async def _rewound_to(self, session: str, after: int, until: int) -> int:
        """The first revision to which a rewind leads, of those after a revision."""
        rewinds = [read_entry(entry) async for entry in self._entries(session, after, until) if entry.kind == "rewind"]
        return min((rewind.facts["to"] for rewind in rewinds), default=sys.maxsize)

    async def _entries(self, session: str, after: int, until: int) -> AsyncIterator[Entry]:
        for start in range(after, until, ENTRIES_PER_PAGE):
            for entry in await self.store.entries(session, after=start, until=min(start + ENTRIES_PER_PAGE, until)):
                yield entry


def _decisions(entry: Entry) -> dict[str, tuple[int, int]]:
    """The shared states that a call changed: by id, its revision and that of the intent."""
    if entry.kind != "call":
        return {}
    shared = read_entry(entry).facts.get("shared", {})
    return {identity: (entry.revision, intent) for identity, intent in shared.values()}

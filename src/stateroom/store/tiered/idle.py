"""Which families of sessions have had nothing to do for a while."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from stateroom.errors import BadData, UnknownSession
from stateroom.store.contract import Head, Store
from stateroom.store.tiered.families import Families
from stateroom.store.tiered.marks import mark_of


class _Seen(NamedTuple):
    """A session as it was when it was last looked at, and since when it has been so, if anybody has asked."""

    revision: int
    expires: float
    since: float | None


class Idleness:
    """Knows since when sessions have been as they are.

    Of one that it sees for the first time, it asks for the time of the last entry. From then on a session that looks
    otherwise than the time before, renewed perhaps, has had something to do since.
    """

    def __init__(self, store: Store, cool: float) -> None:
        self.store = store
        self.cool = cool
        self._seen: dict[str, _Seen] = {}

    async def idle_families(self, heads: Sequence[Head], now: float) -> list[str]:
        """The roots of the families of which all members are idle, among all sessions of the store."""
        self._seen = {head.id: await self._look(head, now) for head in heads}
        families = Families(heads).by_root().items()
        return [root for root, family in families if all(self._is_idle(head, now) for head in family)]

    def _is_idle(self, head: Head, now: float) -> bool:
        since = self._seen[head.id].since
        return since is not None and since <= now - self.cool and not head.leased(now) and not mark_of(head)

    async def _look(self, head: Head, now: float) -> _Seen:
        seen = self._seen.get(head.id)
        if seen and (seen.revision, seen.expires) != (head.revision, head.expires):
            return _Seen(head.revision, head.expires, now)
        if seen and seen.since is not None:
            return seen
        young = head.created > now - self.cool  # it cannot be idle, whenever its last entry came
        return _Seen(head.revision, head.expires, None if young else await self._last_change(head, now))

    async def _last_change(self, head: Head, now: float) -> float:
        if head.expires <= now:  # nothing more can be added
            return head.created
        with suppress(UnknownSession, BadData):
            last = await self.store.entries(head.id, after=head.revision - 1)
            return max([head.created, *(entry.at for entry in last)])
        return now

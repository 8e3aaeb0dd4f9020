"""Families of sessions, forks with their parents, and how long they have been idle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from stateroom.errors import BadData, UnknownSession
from stateroom.store.contract import Store
from stateroom.store.records import Head
from stateroom.store.tiered.tier import mark_of


class Families:
    """The sessions of a tier by their families."""

    def __init__(self, heads: Sequence[Head]) -> None:
        self._heads = {head.id: head for head in heads}

    def ancestors(self, head: Head) -> Iterator[Head]:
        """The parent, its parent and so on."""
        while head.parent is not None and head.parent in self._heads:
            head = self._heads[head.parent]
            yield head

    def by_root(self) -> dict[str, list[Head]]:
        """The members of each family."""
        families: dict[str, list[Head]] = defaultdict(list)
        for head in self._heads.values():
            *_, root = head, *self.ancestors(head)
            families[root.id].append(head)
        return families

    def expired(self, now: float) -> list[list[Head]]:
        """The sessions that a sweep removes, in generations: forks before their parents."""
        needed = {each.id for head in self._heads.values() if head.expires > now for each in self.ancestors(head)}
        generations: dict[int, list[Head]] = defaultdict(list)
        for head in self._heads.values():
            if head.expires <= now and head.id not in needed:
                generations[sum(1 for _ in self.ancestors(head))].append(head)
        return [generations[depth] for depth in sorted(generations, reverse=True)]


class _Seen(NamedTuple):
    """A session when it was last seen, and the time since which it is unchanged, if known."""

    revision: int
    expires: float
    since: float | None


class Idleness:
    """Knows since when the sessions of a store are unchanged.

    For a session that it sees for the first time, it reads the time of the last entry. From then on, a session whose
    head differs from the last look has changed since.
    """

    def __init__(self, store: Store, cool: float) -> None:
        self.store = store
        self.cool = cool
        self._seen: dict[str, _Seen] = {}

    async def idle_families(self, heads: Sequence[Head], now: float) -> list[str]:
        """The roots of the families in which all members are idle, among all sessions of the store."""
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
        young = head.created > now - self.cool  # cannot be idle, whatever the time of its last entry
        return _Seen(head.revision, head.expires, None if young else await self._last_change(head, now))

    async def _last_change(self, head: Head, now: float) -> float:
        if head.expires <= now:  # nothing more can be added
            return head.created
        with suppress(UnknownSession, BadData):
            last = await self.store.entries(head.id, after=head.revision - 1)
            return max([head.created, *(entry.at for entry in last)])
        return now

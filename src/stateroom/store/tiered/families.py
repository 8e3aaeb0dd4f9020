"""Who was forked from whom, among the sessions of a tier."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from stateroom.store.contract import Head


class Families:
    """Sessions by the families they belong to."""

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

    def going(self, now: float) -> list[list[Head]]:
        """The sessions that a sweep removes, in generations: the forks before their parents."""
        needed = {each.id for head in self._heads.values() if head.expires > now for each in self.ancestors(head)}
        generations: dict[int, list[Head]] = defaultdict(list)
        for head in self._heads.values():
            if head.expires <= now and head.id not in needed:
                generations[sum(1 for _ in self.ancestors(head))].append(head)
        return [generations[depth] for depth in sorted(generations, reverse=True)]

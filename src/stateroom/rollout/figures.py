"""`Figures`: the metrics of many episodes, in arrays."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import merge
from itertools import chain, groupby, islice

from stateroom.rollout.lazy import LazySequence

EPISODES_PER_PART = 1 << 16
"""Episodes that are sorted at a time."""


class Figures:
    """The metrics of episodes, which are numbered as they are added: 8 bytes a metric, and 28 an episode.

    An index of a task or rollout that has more than 64 bits raises `OverflowError`.
    """

    def __init__(self) -> None:
        self.tasks = array("q")
        self.rollouts = array("q")
        self._values = array("d")
        self._starts = array("Q")
        """Where the values of each episode begin."""
        self._kinds = array("I")
        """Which names the values of each episode have."""
        self._names: list[tuple[str, ...]] = []
        self._kind_of: dict[tuple[str, ...], int] = {}

    def add(self, task: int, rollout: int, figures: Mapping[str, float]) -> None:
        """Add an episode."""
        names = tuple(figures)
        kind = self._kind_of.setdefault(names, len(self._names))
        if kind == len(self._names):
            self._names.append(names)
        self.tasks.append(task)
        self.rollouts.append(rollout)
        self._kinds.append(kind)
        self._starts.append(len(self._values))
        self._values.extend(figures.values())

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def names(self) -> list[str]:
        """The names of all metrics."""
        return sorted(set(chain.from_iterable(self._names)))

    def of(self, episode: int) -> dict[str, float]:
        """The metrics of an episode."""
        names, start = self._names[self._kinds[episode]], self._starts[episode]
        return dict(zip(names, self._values[start : start + len(names)], strict=True))

    def columns(self, episodes: Iterable[int]) -> dict[str, array[float]]:
        """The values of each metric in some episodes, in their order."""
        found: dict[str, array[float]] = defaultdict(lambda: array("d"))
        for kind, alike in groupby(episodes, self._kinds.__getitem__):
            starts = array("Q", map(self._starts.__getitem__, alike))
            for place, name in enumerate(self._names[kind]):
                found[name].extend(map(self._values.__getitem__, map(place.__add__, starts)))
        return found

    def column(self, name: str, episodes: Iterable[int]) -> array[float]:
        """The values of one metric in those of some episodes that have it."""
        column = array("d")
        for kind, alike in groupby(episodes, self._kinds.__getitem__):
            if name in self._names[kind]:
                place = self._names[kind].index(name)
                column.extend(self._values[self._starts[episode] + place] for episode in alike)
        return column

    @cached_property
    def by_task(self) -> Groups:
        """The episodes of each task, by its index. Call it when all are added."""
        return Groups(self.tasks, range(len(self)))

    def in_order(self) -> Iterable[int]:
        """All episodes: first those of the task that came first."""
        groups = self.by_task
        started = array("I", bytes(4 * len(self)))  # the number of the group that an episode is the first of, or 0
        for number in range(len(groups)):
            started[groups.first(number)] = number + 1
        return (episode for number in started if number for episode in groups[number - 1])


def _parts(episodes: Iterable[int]) -> Iterator[list[int]]:
    """Episodes in lists that can be sorted in little memory: a number in a list takes ten times that in an array."""
    left = iter(episodes)
    return iter(lambda: [*islice(left, EPISODES_PER_PART)], [])


class Groups(LazySequence[Sequence[int]]):
    """Episodes with the same index, by that index; each group is in the order in which its episodes are given."""

    def __init__(self, indices: Sequence[int], episodes: Iterable[int]) -> None:
        sorted_parts = [array("I", sorted(part, key=indices.__getitem__)) for part in _parts(episodes)]
        self._order = array("I", merge(*sorted_parts, key=indices.__getitem__))
        self._bounds = array("I")
        before = None
        for place, episode in enumerate(self._order):
            if indices[episode] != before:
                self._bounds.append(place)
                before = indices[episode]
        self._bounds.append(len(self._order))

    def __len__(self) -> int:
        return len(self._bounds) - 1

    def _item(self, index: int) -> Sequence[int]:
        return self._order[self._bounds[index] : self._bounds[index + 1]]

    def first(self, index: int) -> int:
        """The first episode of a group."""
        return self._order[self._bounds[index]]

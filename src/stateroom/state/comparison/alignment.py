"""Which items of three lists belong together, where order counts."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import zip_longest
from typing import Any, NamedTuple

from stateroom.state.comparison.forms import ABSENT, form_of
from stateroom.state.comparison.places import Place
from stateroom.state.comparison.sameness import Sameness

MOST_PAIRS = 1_000_000
"""Longer lists than their product are aligned from their beginning, item by item."""


def ends(same: Sameness, *lists: list[Any]) -> tuple[int, int]:
    """How many items some lists have in common at their beginnings, and how many more at their ends."""
    first, *others = lists
    shortest = min(map(len, lists))
    start = 0
    while start < shortest and all(same(first[start], other[start]) for other in others):
        start += 1
    after = 0
    while after < shortest - start and all(same(first[-1 - after], other[-1 - after]) for other in others):
        after += 1
    return start, after


def alignment(place: Place, base: list[Any], gold: list[Any], found: list[Any]) -> Iterator[tuple[int, Any, Any, Any]]:
    """What each list has of an item, and its index in the list in which it is.

    Items of the base keep their identity, however they moved up or down; what was put in is compared with what the
    other put in before the same item.
    """
    one, other = _follow(base, gold, place), _follow(base, found, place)
    for index in range(len(base) + 1):
        for mine, theirs in zip_longest(one.added[index], other.added[index]):
            yield (
                _first(theirs, mine),
                ABSENT,
                ABSENT if mine is None else gold[mine],
                ABSENT if theirs is None else found[theirs],
            )
        if index < len(base):
            mine, theirs = one.kept[index], other.kept[index]
            yield (
                _first(theirs, index),
                base[index],
                ABSENT if mine is None else gold[mine],
                ABSENT if theirs is None else found[theirs],
            )


class _Followed(NamedTuple):
    """What has become of a list."""

    kept: list[int | None]
    """Where each of its items is now."""
    added: list[list[int]]
    """Where the items are that were put in before each of them, and at the end."""


def _follow(old: list[Any], new: list[Any], place: Place) -> _Followed:
    followed = _Followed([None] * len(old), [[] for _ in range(len(old) + 1)])
    for start, stop, first, last in _runs(old, new, place):
        for index in range(max(stop - start, last - first)):
            if index >= stop - start:
                followed.added[stop].append(first + index)
            elif index < last - first:
                followed.kept[start + index] = first + index
    return followed


def _runs(old: list[Any], new: list[Any], place: Place) -> Iterator[tuple[int, int, int, int]]:
    if len(old) * len(new) > MOST_PAIRS or not old or not new:
        yield 0, len(old), 0, len(new)
        return
    olds, news = ([form_of(item, place) for item in items] for items in (old, new))
    for _, start, stop, first, last in SequenceMatcher(None, olds, news, autojunk=False).get_opcodes():
        yield start, stop, first, last


def _first(*indices: int | None) -> int:
    return next(index for index in indices if index is not None)

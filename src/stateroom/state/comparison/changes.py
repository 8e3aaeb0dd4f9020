"""Where three states part: found by identity first, so that what they share costs nothing.

What a state holds is compared place by place. Only what has no place of its own to be compared at is left for later:
it may mention new records, and nobody knows yet which of them are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import SequenceMatcher
from itertools import chain, compress, islice, zip_longest
from operator import is_not
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel

from stateroom.errors import Path
from stateroom.state.comparison.names import ABSENT, Place, form_of
from stateroom.state.equality import deep_equal

MAX_PAIRS = 1_000_000
"""Longer lists than their product are aligned from their beginning, item by item."""


def ends(*lists: list[Any]) -> tuple[int, int]:
    """How many items some lists have in common at their beginnings, and how many more at their ends."""
    first, *others = lists
    shortest = min(map(len, lists))
    start = 0
    while start < shortest and all(deep_equal(first[start], other[start]) for other in others):
        start += 1
    after = 0
    while after < shortest - start and all(deep_equal(first[-1 - after], other[-1 - after]) for other in others):
        after += 1
    return start, after


def alignment(place: Place, base: list[Any], gold: list[Any], found: list[Any]) -> Iterator[tuple[int, Any, Any, Any]]:
    """The items of each list, with their indices.

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
    """The changes of a list."""

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
    if len(old) * len(new) > MAX_PAIRS or not old or not new:
        yield 0, len(old), 0, len(new)
        return
    olds, news = ([form_of(item, place) for item in items] for items in (old, new))
    for _, start, stop, first, last in SequenceMatcher(None, olds, news, autojunk=False).get_opcodes():
        yield start, stop, first, last


def _first(*indices: int | None) -> int:
    return next(index for index in indices if index is not None)


Entry = tuple[Any, Any]
"""A key or index, and what stands there."""


class Spot(NamedTuple):
    """A place at which something was changed, with what each state has there; `ABSENT` for nothing."""

    path: Path
    place: Place
    base: Any
    gold: Any
    found: Any


class Table(NamedTuple):
    """New entries of a dict or set, which are distinguished by their keys; but a key may be the id of a new record."""

    path: Path
    """Of the dict."""
    place: Place
    """Of an entry."""
    gold: list[Entry]
    found: list[Entry]


class Crowd(NamedTuple):
    """Entries of a dict or list that are distinguished only by content: new ones of a dict, any of a list."""

    path: Path
    place: Place
    base: list[Entry]
    gold: list[Entry]
    found: list[Entry]
    has_ids: bool
    """Whether keys are ids, and not indices."""

    def id(self, key: Any) -> Any:
        """The id of an entry, or None."""
        return key if self.has_ids else None


class Changes:
    """All that was changed at a spot, and in it."""

    def __init__(self, spot: Spot) -> None:
        self.spots: list[Spot] = []
        self.tables: list[Table] = []
        self.crowds: list[Crowd] = []
        self._look(*spot)

    def _look(self, path: Path, place: Place, base: Any, gold: Any, found: Any) -> None:
        if place.ignored:
            return
        kind = type(gold)
        look = self._LOOKS.get(BaseModel if issubclass(kind, BaseModel) else kind)
        if look is None or kind is not type(found):
            self._note(path, place, base, gold, found)
        elif gold is not found:
            look(self, path, place, base if type(base) is kind else ABSENT, gold, found)

    def _note(self, path: Path, place: Place, base: Any, gold: Any, found: Any) -> None:
        # What two texts say is only the same if they do not speak of new records.
        if not (deep_equal(gold, found) and (deep_equal(base, gold) or type(gold) not in (str, int))):
            self.spots.append(Spot(path, place, base, gold, found))

    def _look_at_models(self, path: Path, place: Place, base: Any, gold: Any, found: Any) -> None:
        olds = {} if base is ABSENT else base.__dict__
        golds, founds = gold.__dict__, found.__dict__
        for name in type(gold).__pydantic_fields__:
            old, one, other = olds.get(name, ABSENT), golds[name], founds[name]
            if not (one is other and old is one):
                self._look((*path, name), place.at(name), old, one, other)

    def _look_at_dicts(self, path: Path, place: Place, base: Any, gold: Any, found: Any) -> None:
        olds: dict[Any, Any] = {} if base is ABSENT else base
        each = place.each
        golds, founds = {}, {}
        for key in dict.fromkeys(chain(_touched(olds, gold), _touched(olds, found))):
            if key in olds:
                self._look_at_entries((*path, key), each, olds[key], gold.get(key, ABSENT), found.get(key, ABSENT))
                continue
            if key in gold:
                golds[key] = gold[key]
            if key in found:
                founds[key] = found[key]
        if each.ignored:
            return
        if place.by_content:
            self._gather(path, each, [], list(golds.items()), list(founds.items()), has_ids=True)
        elif golds or founds:
            self.tables.append(Table(path, each, list(golds.items()), list(founds.items())))

    def _look_at_entries(self, path: Path, each: Place, base: Any, gold: Any, found: Any) -> None:
        """Look at records, but first whether they were changed: of states that share nothing, all come here."""
        if not (deep_equal(base, gold) and deep_equal(base, found)):
            self._look(path, each, base, gold, found)

    def _look_at_lists(self, path: Path, place: Place, base: Any, gold: Any, found: Any) -> None:
        olds: list[Any] = [] if base is ABSENT else base
        each = place.each
        if each.ignored:
            return
        start, after = ends(olds, gold, found)
        if place.by_content:
            rests = [_rest(items, start, after) for items in (olds, gold, found)]
            self._gather(path, each, *rests, has_ids=False)
            return
        middles = (items[start : len(items) - after] for items in (olds, gold, found))
        for index, old, one, other in alignment(each, *middles):
            self._look((*path, start + index), each, old, one, other)

    def _look_at_tuples(self, path: Path, place: Place, base: Any, gold: Any, found: Any) -> None:
        if len(gold) != len(found):
            self._note(path, place, base, gold, found)
            return
        for index, (one, other) in enumerate(zip(gold, found, strict=True)):
            old = base[index] if base is not ABSENT and index < len(base) else ABSENT
            self._look((*path, index), place.each, old, one, other)

    def _look_at_sets(self, path: Path, place: Place, base: Any, gold: Any, found: Any) -> None:
        olds = frozenset() if base is ABSENT else base
        for member in sorted((gold ^ found) & olds, key=repr):
            has = (member if member in each else ABSENT for each in (olds, gold, found))
            self.spots.append(Spot((*path, member), place.each, *has))
        new = [[(member, member) for member in sorted(members - olds, key=repr)] for members in (gold, found)]
        if any(new):
            self.tables.append(Table(path, place.each, *new))

    def _gather(
        self, path: Path, each: Place, base: list[Entry], gold: list[Entry], found: list[Entry], *, has_ids: bool
    ) -> None:
        if base or gold or found:
            self.crowds.append(Crowd(path, each, base, gold, found, has_ids))

    _LOOKS: ClassVar[dict[type, Callable[..., None]]] = {
        BaseModel: _look_at_models,
        dict: _look_at_dicts,
        list: _look_at_lists,
        tuple: _look_at_tuples,
        set: _look_at_sets,
        frozenset: _look_at_sets,
    }


def _touched(old: dict[Any, Any], new: dict[Any, Any]) -> Iterator[Any]:
    """The keys at which two dicts do not have the same object."""
    if new is old:
        return
    if list(old) == list(islice(new, len(old))):  # most often, for then nothing was deleted, and it is much faster
        yield from compress(old, map(is_not, old.values(), new.values()))
        yield from islice(new, len(old), None)
    else:
        yield from (key for key, value in old.items() if value is not new.get(key, ABSENT))
        yield from (key for key in new if key not in old)


def _rest(items: list[Any], start: int, after: int) -> list[Entry]:
    return list(enumerate(items[start : len(items) - after], start))

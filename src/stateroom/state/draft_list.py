"""Drafts of lists: shallow copies that are compared with what was committed when the call ends."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress, count, groupby
from operator import is_not
from typing import Any, SupportsIndex, cast

from stateroom.errors import Path, TamperedState
from stateroom.state.draft_context import DRAFTS, DraftContext, Past, free_container
from stateroom.state.shape import Shape
from stateroom.state.values import LEAVES

Order = list[int]
"""Keep the items of these old indices, in this order."""

Splice = tuple[int, int, Sequence[int]]
"""Replace the items from one index up to another by those that are now at these places."""

OPERATION_COST = 16
"""Cost of an operation of a patch, or of an item that is stored again, in indices of an order."""

UNCOMPARED = 2
"""Largest list from which C code can take an item without asking whether the items know `<`."""


class DraftList(list[Any]):
    """A list that knows which of its items are those of its base.

    Items keep their identity, so a commit sees where they are, however they were moved, even by C code such as `heapq`,
    which edits a list without calling its methods. Changing a few items of a wide list is cheap, because the changed
    places are noted.
    """

    __slots__ = (
        *("_draft_base", "_draft_context", "_draft_shape"),
        *("back", "checked", "front", "item", "kept", "origins", "past", "places", "seen", "touched", "whole"),
    )

    def __init__(self, base: list[Any], context: DraftContext, shape: Shape) -> None:
        super().__init__(base)
        self._draft_base = base
        self._draft_shape = shape
        self._draft_context = context
        self.item = item = shape.part(0)
        self.places: set[int] | None = set()
        """Indices of the base at which the tool put something; None once items have moved."""
        self.front = self.back = len(base)
        """Number of items, from the first and from the last on, that no method has reached."""
        self.touched: dict[int, Any] = {}
        """Children that are drafts, by the index in the base of what they stand for."""
        self.whole = item.fixed
        """True when no item is a committed one that can change: each is a leaf, a draft or the tool's own."""
        self.origins: dict[int, list[int]] | None = None
        """Where the items of the base are in it, by identity; made when first needed."""
        self.seen: list[Any] | None = None
        """The items as the methods of this class left them, where C code could hand out committed ones."""
        self.kept: dict[int, int] = {}
        """Where children that were in the base are now, and where they were, found by a commit."""
        self.checked: dict[int, Any] = {}
        """Valid copies of what was put in, by where it is now, made by a commit."""
        self.past: Past = []
        if item.ordered and not (self.whole or item.orderable_mutable):
            self.seen = base.copy()
        elif item.orderable_mutable or len(base) <= UNCOMPARED:
            self._touch_all()

    def follow(self, items: list[Any]) -> bool:
        """Become a fresh draft of what this one was committed as; false if that is as much work as a new one."""
        base = self._draft_base
        if self.whole and not self.item.fixed:
            return False  # all its items are drafts
        if items is base and self.item.ordered:
            return False  # it was only read, so nobody has looked for unseen edits
        if self.places is None or len(self) < len(base) or len(self) != len(items):
            return False
        changed = list({*self.touched, *self.places, *range(UNCOMPARED)})
        for mine in (self, self.seen):
            if mine is not None:
                for index in changed:
                    list.__setitem__(mine, index, items[index])
                list.__setitem__(mine, slice(len(base), None), items[len(base) :])
        if items is not base:
            self.past.append((base, changed))
        self._draft_base = items
        self.front = self.back = len(items)
        self.places, self.touched, self.kept, self.checked, self.origins = set(), {}, {}, {}, None
        return True

    def copy_of_base(self) -> list[Any]:
        """A list with the items of the base: a copy, or a list of old that has been brought up to date."""
        base = self._draft_base
        old, changed = free_container(self.past)
        if old is None:
            return list.copy(base)
        old.extend(base[len(old) :])
        for places in changed:
            for index in places:
                old[index] = base[index]
        return cast(list[Any], old)

    # Reading: children become drafts.

    def __getitem__(self, index: Any) -> Any:
        item = super().__getitem__(index)
        if type(item) in LEAVES or self.whole:
            return item
        if isinstance(index, slice):
            return [self._child(place) for place in range(*index.indices(len(self)))]
        place: int = index.__index__()
        return self._child(place if place >= 0 else place + len(self))

    def _child(self, index: int) -> Any:
        item = super().__getitem__(index)
        if type(item) in LEAVES or self.whole:
            return item
        origin = self.origin(index, item)
        if origin is None:
            return item
        child = self._draft_context.draft(item, self.item)
        if child is not item:
            self._watch(index, index + 1, [child])
            super().__setitem__(index, child)
            self.touched[origin] = child
        return child

    def origin(self, index: int, item: Any) -> int | None:
        """Where the base has a committed item that is at `index` here; None if it is a draft, or the tool's own."""
        base, touched = self._draft_base, self.touched
        if index in touched and touched[index] is item:
            return None
        if index < len(base) and base[index] is item and index not in touched:
            return index
        guess = index + len(base) - len(self)  # it has moved as far as the last item
        if 0 <= guess < len(base) and base[guess] is item and guess not in touched:
            return guess
        if self.places is not None and self.seen is None and (index >= len(base) or index in self.places):
            return None
        if self.origins is None:
            self.origins = _indices(base, range(len(base)))
        indices = self.origins.get(id(item), [])
        while indices and indices[-1] in touched:
            indices.pop()
        return indices[-1] if indices else None

    def _touch_all(self) -> None:
        if not self.whole:
            for index in range(len(self)):
                self._child(index)
            self.whole, self.seen = True, None

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__() if self.whole else self._children()

    def _children(self) -> Iterator[Any]:
        index = 0
        while index < len(self):
            yield self._child(index)
            index += 1

    def __reversed__(self) -> Iterator[Any]:
        return (self._child(index) for index in range(len(self) - 1, -1, -1))

    def copy(self) -> list[Any]:
        return list(self)

    def __add__(self, other: Any) -> Any:
        return [*self, *other] if isinstance(other, list) else NotImplemented

    def __radd__(self, other: Any) -> Any:
        return [*other, *self] if isinstance(other, list) else NotImplemented

    def __mul__(self, times: SupportsIndex) -> list[Any]:
        return list(self) * times

    __rmul__ = __mul__

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return list, (list(self),)

    # Writing: everything is a splice or a new arrangement.

    def _splice(self, start: int, stop: int, values: list[Any]) -> None:
        self._draft_context.check()
        self._watch(start, stop, values)
        self._notice_swap()
        end, size = start + len(values), len(self)
        super().__setitem__(slice(start, stop), values)
        self.front, self.back = min(self.front, start), min(self.back, size - stop)
        if end != stop < size:
            self.places = None
        elif self.places is not None:
            self.places.update(range(start, min(max(stop, end), len(self._draft_base))))
        if self.seen is None and len(self) <= UNCOMPARED:
            self._touch_all()

    def _arrange(self, items: list[Any]) -> None:
        self.places = None
        self._splice(0, len(self), items)

    def __setitem__(self, index: Any, value: Any) -> None:
        if isinstance(index, slice):
            values = list(value)
            start, stop, step = index.indices(len(self))
            if step == 1:
                self._splice(start, max(start, stop), values)
            else:
                items = list.copy(self)
                items[index] = values
                self._arrange(items)
            return
        place = range(len(self))[index] if -len(self) <= index.__index__() < len(self) else None
        if place is None:
            raise IndexError("list assignment index out of range")
        if super().__getitem__(place) is not value:  # `items[i] += ...` puts back what it took
            self._splice(place, place + 1, [value])

    def __delitem__(self, index: Any) -> None:
        if not isinstance(index, slice):
            self.pop(index)
            return
        start, stop, step = index.indices(len(self))
        if step == 1:
            self._splice(start, max(start, stop), [])
        else:
            items = list.copy(self)
            del items[index]
            self._arrange(items)

    def append(self, value: Any) -> None:
        self._splice(len(self), len(self), [value])

    def extend(self, values: Iterable[Any]) -> None:
        self._splice(len(self), len(self), list(values))

    def __iadd__(self, values: Iterable[Any]) -> Any:  # type: ignore[misc]
        self.extend(values)
        return self

    def __imul__(self, times: SupportsIndex) -> Any:
        self[:] = list(self) * times
        return self

    def insert(self, index: SupportsIndex, value: Any) -> None:
        place = slice(index, None).indices(len(self))[0]
        self._splice(place, place, [value])

    def pop(self, index: SupportsIndex = -1) -> Any:
        if not self:
            raise IndexError("pop from empty list")
        if not -len(self) <= index.__index__() < len(self):
            raise IndexError("pop index out of range")
        place = range(len(self))[index]
        value = self._child(place)
        self._splice(place, place + 1, [])
        return value

    def remove(self, value: Any) -> None:
        place = self.index(value)
        self._splice(place, place + 1, [])

    def clear(self) -> None:
        self._splice(0, len(self), [])

    def sort(self, *, key: Any = None, reverse: bool = False) -> None:
        self._draft_context.check()
        self._touch_all()  # a sort key may look at, and keep, any child
        self.places, self.front, self.back = None, 0, 0
        super().sort(key=key, reverse=reverse)

    def reverse(self) -> None:
        self._arrange(list.copy(self)[::-1])

    # Ending: what became of the items.

    def _watch(self, start: int, stop: int, values: list[Any]) -> None:
        """Follow a splice that is about to be made, in the list that shows what C code did."""
        if self.seen is None:
            return
        here = slice(start, stop)
        if len(self.seen) != len(self) or any(map(is_not, self.seen[here], super().__getitem__(here))):
            self.look_for_unseen_edits()
            self.seen = list.copy(self)
        self.seen[here] = values

    def _notice_swap(self) -> None:
        """See whether `heapify` was tried on items that do not know `<`: it swaps two before it compares any."""
        size = len(self)
        if size % 2 or size <= UNCOMPARED or self.item.ordered:
            return
        for place in (size // 2 - 1, size - 1):
            index = place
            if self.places is None and place >= self.front:
                index += len(self._draft_base) - size
                if place < size - self.back:
                    continue  # it is looked for by identity anyway
            elif index >= len(self._draft_base) or (self.places and index in self.places):
                continue
            if super().__getitem__(place) is not self.touched.get(index, self._draft_base[index]):
                self.places, self.front, self.back = None, 0, 0
                return

    def look_for_unseen_edits(self, path: Path = ()) -> bool:
        """Whether C code may have edited the list.

        Raises `TamperedState` if it may have handed a committed item to the tool, which could have changed it.
        """
        if self.seen is None:
            return self.item.ordered
        lost = [*compress(self.seen, map(is_not, self.seen, super().__iter__())), *self.seen[len(self) :]]
        if lost:
            committed = {id(item) for index, item in enumerate(self._draft_base) if index not in self.touched}
            if any(type(item) not in LEAVES and id(item) in committed for item in lost):
                raise TamperedState(
                    path,
                    "something (perhaps heapq) changed the list without calling its methods, and its items are "
                    "mutable; use tuples, or models that define <",
                )
        return bool(lost) or len(self) != len(self.seen)

    def changes(self, path: Path) -> tuple[list[Splice], Order | None]:
        """The splices that lead from the base to the current items, or one splice at the end and a new order."""
        base, touched = self._draft_base, self.touched
        unseen = self.look_for_unseen_edits(path)
        self._notice_swap()
        if self.places is not None:
            changed = self._changed(self.places, unseen)
            if OPERATION_COST * len(changed) <= len(self):
                self.places = set(changed)
                raw = super().__getitem__
                self.kept = {at: at for at, child in touched.items() if at < len(self) and raw(at) is child}
                return _splices_at(changed, len(self), len(base)), None
        now, old = list.copy(self), base.copy()
        for index, child in touched.items():
            old[index] = child
        ends = (0, 0) if unseen else self._unmoved_ends(now, old)
        splices, order = _compare(now, old, *ends)
        self.places = None if splices or order else set()
        put = {place for *_, places in splices for place in places}
        origins = {id(child): index for index, child in touched.items()}
        places = (place for place, item in enumerate(now if touched else ()) if id(item) in origins)
        self.kept = {place: origins[id(now[place])] for place in places if place not in put}
        return splices, order

    def _changed(self, places: set[int], unseen: bool) -> list[int]:
        """Indices of the base at which there is something else now, in a list whose items have not moved."""
        base, touched, raw = self._draft_base, self.touched, super().__getitem__
        common = min(len(self), len(base))
        suspects: Iterable[int]
        if not unseen:
            suspects = sorted(places.union(range(UNCOMPARED)))
        elif not places and self.item.annotation in (str, int, bytes) and raw(slice(common)) == base[:common]:
            return []  # quicker, and what equals a value of these types is stored as the same
        else:
            suspects = list(compress(range(common), map(is_not, super().__iter__(), base)))
        return [at for at in suspects if at < common and raw(at) is not touched.get(at, base[at])]

    def _unmoved_ends(self, now: list[Any], old: list[Any]) -> tuple[int, int]:
        """How many items are where they were, from the first and from the last on."""
        front, back = self.front, self.back
        if front + back > min(len(now), len(old)) or any(map(is_not, now[: min(front, UNCOMPARED)], old)):
            return 0, 0  # C code found that the items do not know `<`, and left it at that
        return (front, back) if not back or now[-1] is old[-1] else (0, 0)


def _splices_at(changed: list[int], size: int, old_size: int) -> list[Splice]:
    """The splices that replace the items at some places, and all that follows the end of the shorter of two lists."""
    if not changed and size == old_size:
        return []
    common = min(size, old_size)
    ends = [common] if size != old_size else []
    splices: list[Splice] = []
    for _, pairs in groupby(enumerate(changed + ends), key=lambda pair: pair[1] - pair[0]):
        run = [place for _, place in pairs]
        start, stop = run[0], run[-1] + 1
        splices.append((start, stop, range(start, stop)) if stop <= common else (start, old_size, range(start, size)))
    return splices


def _compare(now: list[Any], old: list[Any], front: int, back: int) -> tuple[list[Splice], Order | None]:
    """The smaller of two ways from the old items to the current ones, which are the same objects.

    Splices store again what was moved past others. An order stores an index for each item. At least `front` and `back`
    items at either end are the same.
    """
    common = min(len(now), len(old))
    front += _count_same(now[front:], old[front:], common - front - back)
    back += _count_same(now[: len(now) - back][::-1], old[: len(old) - back][::-1], common - front - back)
    end, old_end = len(now) - back, len(old) - back
    indices = _indices(old, range(front, old_end))
    sources = {place: same.pop() for place in range(front, end) if (same := indices.get(id(now[place])))}
    new = [place for place in range(front, end) if place not in sources]
    staying = _longest_rise(sources)
    splices: list[Splice] = []
    most = (
        len(now) // OPERATION_COST + (2 if new else 1) - (len(sources) - len(staying))
    )  # more take more than an order
    place = index = front
    for next_place in [*staying, end]:
        next_index = sources.get(next_place, old_end)
        if place < next_place or index < next_index:
            splices.append((place, place + next_index - index, range(place, next_place)))
        place, index = next_place + 1, next_index + 1
        if len(splices) > most:
            break
    else:
        return splices, None
    sources.update(zip(new, count(len(old)), strict=False))
    order = [*range(front), *(sources[place] for place in range(front, end)), *range(old_end, len(old))]
    return [(len(old), len(old), new)] if new else [], order


def _count_same(now: list[Any], old: list[Any], most: int) -> int:
    """How many items from the first on are the same in both, `most` at most."""
    return next(compress(range(most), map(is_not, now, old)), most)


def _indices(items: list[Any], places: range) -> dict[int, list[int]]:
    """Where items are, by identity; the first place comes last, to be taken first."""
    indices: dict[int, list[int]] = {}
    for place in reversed(places):
        indices.setdefault(id(items[place]), []).append(place)
    return indices


def _longest_rise(numbers: dict[int, int]) -> list[int]:
    """As many of the keys as possible, in their order, such that their numbers rise."""
    lowest: list[int] = []  # the number at which a rise of each length ends, the lowest if there are several
    ends: list[int] = []  # its key
    before: dict[int, int] = {}  # for each key, the one that precedes it in its rise
    for key, number in numbers.items():
        length = bisect_left(lowest, number)
        if length:
            before[key] = ends[length - 1]
        lowest[length : length + 1], ends[length : length + 1] = [number], [key]
    rise = ends[-1:]
    while rise and rise[-1] in before:
        rise.append(before[rise[-1]])
    return rise[::-1]


DRAFTS[list] = DraftList

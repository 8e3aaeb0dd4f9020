"""Drafts of lists: shallow copies that record how they were spliced and reordered."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import compress, count
from operator import is_, is_not, ne
from typing import TYPE_CHECKING, Any, SupportsIndex, cast

from stateroom.errors import Path, TamperedState
from stateroom.state.past import Past, free_container
from stateroom.state.shape import Shape
from stateroom.state.values import LEAVES

if TYPE_CHECKING:
    from stateroom.state.draft import Desk

Splice = tuple[int, int, list[Any]]
"""Replace the items from one index up to another by these."""

Order = list[int]
"""Put the items in the order of these old indices."""


class DraftList(list[Any]):
    """A list that records how it was spliced and reordered."""

    __slots__ = (
        *("_draft_base", "_draft_desk", "_draft_shape"),
        *("checked", "edits", "own", "past", "replaced", "size", "touched"),
    )

    def __init__(self, base: list[Any], shape: Shape, desk: Desk) -> None:
        super().__init__(base)
        self._draft_base = base
        self._draft_shape = shape
        self._draft_desk = desk
        self.edits: list[list[Splice] | Order] = []
        """Runs of splices, in ascending places that do not meet, and new orders between them."""
        self.checked: list[Splice | Order] = []
        """The same with valid copies of the values, made by a commit."""
        self.replaced: dict[int, Any] = {}
        """Children that a commit had to set as a whole, by where they are now."""
        self.touched: dict[int, Any] = {}
        """Children that are drafts, by where they are now."""
        self.own: set[int] = set()
        """Identities of the values that the tool put in."""
        self.size = len(base)
        """The length that the edits led to."""
        self.past: Past = []
        if shape.part(0).heaped:  # C code may hand out such items without asking here
            for index in range(len(base)):
                self._child(index)

    def follow(self, items: list[Any]) -> bool:
        """Become a fresh draft of what this one was committed as; false if that is as much work as a new one."""
        base, item = self._draft_base, self._draft_shape.part(0)
        if item.heaped:
            return False  # all its items would have to become drafts again
        if items is base and item.ordered:
            return False  # it was only read, so nobody has looked for unseen edits
        if self.edits:
            (first, *more) = self.edits
            if more or len(first) != 1 or is_order(first) or cast(Any, first)[0][0] != len(base):
                return False  # not just appended to
            super().__setitem__(slice(len(base), None), items[len(base) :])
        if len(self) != len(items):
            return False  # changed past its own methods
        for index in self.touched:
            super().__setitem__(index, items[index])
        if items is not base:
            self.past.append((base, [*self.touched]))
        self._draft_base, self.size = items, len(items)
        self.edits, self.checked, self.replaced, self.touched, self.own = [], [], {}, {}, set()
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
        if isinstance(index, slice):
            return [self._child(place) for place in range(*index.indices(len(self)))]
        item = super().__getitem__(index)
        if type(item) in LEAVES:
            return item
        place: int = index.__index__()
        return self._child(place if place >= 0 else place + len(self))

    def _child(self, index: int) -> Any:
        item = super().__getitem__(index)
        if type(item) in LEAVES or index in self.touched or id(item) in self.own:
            return item
        child = self._draft_desk.draft(item, self._draft_shape.part(index))
        if child is not item:
            super().__setitem__(index, child)
            self.touched[index] = child
        return child

    def __iter__(self) -> Iterator[Any]:
        part = self._draft_shape.part(0)
        if part.leaf or part.fixed:
            return super().__iter__()
        return self._children()

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

    # Writing: everything is a splice or a new order.

    def _splice(self, start: int, stop: int, values: list[Any]) -> None:
        self._draft_desk.check()
        if len(self) != self.size:  # the places of the next splice must be right
            self.notice_unseen_edits()
        super().__setitem__(slice(start, stop), values)
        self.record(start, stop, values)

    def notice_unseen_edits(self, path: Path = ()) -> None:
        """See what C code (`heapq`, say) did to the list without calling its methods.

        Only items that can be ordered are of use to such code, so lists of other models or dicts are not searched.
        """
        item = self._draft_shape.part(0)
        if not item.ordered:
            return
        now, expected = list.copy(self), self._draft_base
        for edit in self.edits:
            expected = edited(list.copy(expected), [edit] if is_order(edit) else edit)
        if self.touched:
            expected = expected.copy()
            for index, child in self.touched.items():
                expected[index] = child
        if len(now) == len(expected) and (now == expected if item.leaf else all(map(is_, now, expected))):
            return
        common = min(len(now), len(expected))
        moved = list(compress(count(), map(is_not, now, expected)))
        if self.can_hand_out:
            self._refuse_handed_out([expected[index] for index in moved] + expected[common:], path)
        for index in moved:
            self.record(index, index + 1, [now[index]])
        self.record(common, len(expected), now[common:])

    @property
    def can_hand_out(self) -> bool:
        """True when C code that knows `<` could hand committed items to a tool."""
        item = self._draft_shape.part(0)
        return item.ordered and not (item.leaf or item.heaped)

    def _refuse_handed_out(self, items: list[Any], path: Path) -> None:
        """Refuse to go on if a committed item may have been handed to the tool, which could have changed it."""
        safe = self.own | {id(child) for child in self.touched.values()}
        if any(type(item) not in LEAVES and id(item) not in safe for item in items):
            raise TamperedState(
                path,
                "the list was changed past its own methods (by heapq, say), and its items can change; "
                "use tuples, or models that define <",
            )

    def record(self, start: int, stop: int, values: list[Any]) -> None:
        """Write down a splice that was made; one that meets others of its run becomes one with them."""
        self.own.update(id(value) for value in values if type(value) not in LEAVES)
        shift = len(values) - (stop - start)
        self.size += shift
        if shift and self.touched:
            self.touched = {
                index + shift if index >= stop else index: child
                for index, child in self.touched.items()
                if not start <= index < stop
            }
        elif self.touched:
            for index in range(start, stop):
                self.touched.pop(index, None)
        if not self.edits or is_order(self.edits[-1]):
            self.edits.append([])
        run: list[Any] = self.edits[-1]
        first = bisect_left(run, start, key=lambda splice: splice[0] + len(splice[2]))
        last = bisect_right(run, stop, lo=first, key=lambda splice: splice[0])
        removed, values = stop - start, list(values)
        if first < last:
            (head_start, _, head), (tail_start, _, tail) = run[first], run[last - 1]
            removed -= sum(len(new) - (until - since) for since, until, new in run[first:last])
            if tail_start + len(tail) > stop:
                removed += tail_start + len(tail) - stop
                values += tail[stop - tail_start :]
            if head_start < start:
                removed += start - head_start
                if first == len(run) - 1 and start == stop == head_start + len(head):
                    head += values  # a run of appends is not copied each time
                    return
                values = head[: start - head_start] + values
                start = head_start
        run[first:last] = [(start, start + removed, values)] if removed or values else []
        if shift:
            for index in range(first + 1 if removed or values else first, len(run)):
                since, until, new = run[index]
                run[index] = (since + shift, until + shift, new)

    def rearrange(self, order: Order) -> None:
        """Put the items in the order of these old indices."""
        items = list.copy(self)
        self._reorder(lambda: list.__setitem__(self, slice(None), [items[index] for index in order]), order)

    def _reorder(self, change: Callable[[], None], order: Order | None = None) -> None:
        self._draft_desk.check()
        if len(self) != self.size:
            self.notice_unseen_edits()
        if order is None:
            for index in range(len(self)):  # a sort key may look at, and keep, any child
                self._child(index)
            before: dict[int, list[int]] = {}
            for index in range(len(self) - 1, -1, -1):
                before.setdefault(id(super().__getitem__(index)), []).append(index)
        try:
            change()
        finally:  # a sort that fails may leave another order behind
            if order is None:
                order = [before[id(item)].pop() for item in super().__iter__()]
            if any(map(ne, order, range(len(order)))):
                places = {old: new for new, old in enumerate(order)}
                self.touched = {places[index]: child for index, child in self.touched.items()}
                self.edits.append(order)

    def __setitem__(self, index: Any, value: Any) -> None:
        if not isinstance(index, slice):
            place = range(len(self))[index] if -len(self) <= index.__index__() < len(self) else None
            if place is None:
                raise IndexError("list assignment index out of range")
            if super().__getitem__(place) is not value:  # `items[i] += ...` puts back what it took
                self._splice(place, place + 1, [value])
            return
        values = list(value)
        start, stop, step = index.indices(len(self))
        if step == 1:
            self._splice(start, max(start, stop), values)
            return
        places = range(start, stop, step)
        if len(places) != len(values):
            raise ValueError(
                f"attempt to assign sequence of size {len(values)} to extended slice of size {len(places)}"
            )
        for place, part in zip(places, values, strict=True):
            self._splice(place, place + 1, [part])

    def __delitem__(self, index: Any) -> None:
        if not isinstance(index, slice):
            self.pop(index)
            return
        start, stop, step = index.indices(len(self))
        if step == 1:
            self._splice(start, max(start, stop), [])
            return
        for place in sorted(range(start, stop, step), reverse=True):
            self._splice(place, place + 1, [])

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
        self._reorder(lambda: list.sort(self, key=key, reverse=reverse))

    def reverse(self) -> None:
        self._reorder(lambda: list.reverse(self))


def edited(items: list[Any], edits: Iterable[Any]) -> list[Any]:
    """The items after some edits; the list itself is not to be used any more."""
    for edit in edits:
        if isinstance(edit, tuple):
            start, stop, values = edit
            items[start:stop] = values
        else:
            items = [items[index] for index in edit]
    return items


def is_order(edit: Any) -> bool:
    return bool(edit) and isinstance(edit[0], int)

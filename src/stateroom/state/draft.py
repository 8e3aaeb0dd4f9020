"""Drafts: what a tool changes instead of the committed state.

A draft looks like the value it stands for. A model's draft is an instance of a generated subclass of the author's
class; a draft of a list, dict or set is a shallow copy that is also a list, dict or set. Children become drafts when
they are first touched, so a call pays for what it reaches, not for the size of the state. Values that the tool itself
puts in are left alone, so its other names for them stay good; they are copied when the call is committed.

What a commit needs to know is kept as the tool works: lists record their splices, dicts the keys they assigned or
deleted. The committed values are never written to.
"""

from __future__ import annotations

from abc import ABCMeta
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import compress, count
from operator import is_, is_not, ne
from typing import Any, SupportsIndex, TypeVar

from pydantic import BaseModel

from stateroom.errors import ReadOnlyState
from stateroom.state.shape import LEAVES, DictShape, ModelShape, Shape, shape_of_model

M = TypeVar("M", bound=BaseModel)


class Desk:
    """What the drafts of one call share: whether they may be changed, and if not, why."""

    __slots__ = ("closed",)

    def __init__(self, closed: str | None = None) -> None:
        self.closed = closed

    def check(self) -> None:
        if self.closed is not None:
            raise ReadOnlyState(self.closed)


def draft_of(state: M, desk: Desk) -> M:
    """A draft of a whole state."""
    return _draft_model(state, shape_of_model(type(state)), desk)


def is_draft(value: Any) -> bool:
    return hasattr(type(value), "_draft_base")


def draft_part(value: Any, shape: Shape, desk: Desk) -> Any:
    """A draft of a committed value that stands at a place of this shape; the value itself if it cannot change."""
    kind = type(value)
    if kind in LEAVES:
        return value
    shape = shape.member(kind)
    if kind is list:
        return DraftList(value, shape, desk)
    if kind is dict:
        return DraftDict(value, shape, desk)
    if kind is set:
        return DraftSet(value, shape, desk)
    if kind is tuple:
        parts = tuple(draft_part(part, shape.part(index), desk) for index, part in enumerate(value))
        return parts if any(new is not old for new, old in zip(parts, value, strict=True)) else value
    if isinstance(value, BaseModel):
        return _draft_model(value, shape_of_model(kind), desk)
    return value


def _draft_model(model: M, shape: ModelShape, desk: Desk) -> M:
    kind = type(model)
    draft = object.__new__(kind.__dict__.get("__stateroom_draft__") or _draft_class(kind, shape))
    put = object.__setattr__
    fields = model.__dict__
    fill(draft, {name: fields[name] for name in shape.fields}, model.__pydantic_fields_set__)
    put(draft, "_draft_base", model)
    put(draft, "_draft_checked", {})
    put(draft, "_draft_shape", shape)
    put(draft, "_draft_desk", desk)
    return draft  # type: ignore[no-any-return]


def fill(model: BaseModel, fields: dict[str, Any], fields_set: set[str]) -> None:
    """Give a bare instance its content."""
    put = object.__setattr__
    put(model, "__dict__", fields)
    put(model, "__pydantic_fields_set__", fields_set.copy())
    put(model, "__pydantic_extra__", None)
    put(model, "__pydantic_private__", None)


def _draft_class(model: type[BaseModel], shape: ModelShape) -> type:
    """The subclass of the author's class whose instances are drafts; made once per class."""
    namespace: dict[str, Any] = {
        "__slots__": ("_draft_base", "_draft_checked", "_draft_desk", "_draft_shape"),
        "__module__": model.__module__,
        "__qualname__": model.__qualname__,
        "__doc__": model.__doc__,
        "_draft_model": model,
        **{name: _Child(name) for name, part in shape.fields.items() if not part.leaf},
    }
    # Past pydantic's metaclass: the subclass has no fields of its own, and uses its parent's validator and serializer.
    # `isinstance(other, type(self))` in an author's method means the author's class.
    checks = {"__instancecheck__": lambda cls, value: isinstance(value, cls._draft_model)}
    made: type = ABCMeta.__new__(
        type("DraftMeta", (type(model),), checks), model.__name__, (DraftModel, model), namespace
    )
    model.__stateroom_draft__ = made  # type: ignore[attr-defined]
    return made


class _Child:
    """A field that may hold something that can change: it becomes a draft when it is first read."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, draft: Any, owner: type) -> Any:
        if draft is None:
            raise AttributeError(self.name)
        fields = draft.__dict__
        value = fields[self.name]
        if value is draft._draft_base.__dict__[self.name]:
            value = draft_part(value, draft._draft_shape.fields[self.name], draft._draft_desk)
            fields[self.name] = value
        return value

    def __set__(self, draft: Any, value: Any) -> None:  # makes this a data descriptor; `__setattr__` comes first
        draft.__dict__[self.name] = value


class DraftModel:
    """The behaviour that a model's draft adds to the author's class."""

    __slots__ = ()

    _draft_base: BaseModel
    _draft_checked: dict[str, Any]
    """Valid copies, made by a commit, of the fields that were given a value."""
    _draft_shape: ModelShape
    _draft_desk: Desk
    _draft_model: type[BaseModel]

    def __new__(cls, *args: Any, **fields: Any) -> Any:
        # `type(self)(...)` in an author's method makes one of the author's own instances.
        return cls._draft_model(*args, **fields)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._draft_model

    def __setattr__(self, name: str, value: Any) -> None:
        field = self._draft_model.model_fields.get(name)
        if field is None or field.frozen or self._draft_model.model_config.get("frozen"):
            super().__setattr__(name, value)  # a property's setter, or pydantic's own refusal
            return
        self._draft_desk.check()
        self.__dict__[name] = value
        self.__pydantic_fields_set__.add(name)  # type: ignore[attr-defined]

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{name!r} is part of {type(self).__name__} and cannot be deleted")

    def __eq__(self, other: object) -> Any:
        model = self._draft_model
        if model.__eq__ is not BaseModel.__eq__:
            return model.__eq__(self, other)
        if not isinstance(other, BaseModel):
            return NotImplemented
        if _generic_origin(getattr(other, "_draft_model", type(other))) is not _generic_origin(model):
            return False
        mine, others = self.__dict__, other.__dict__
        names = model.model_fields
        return [mine[name] for name in names] == [others[name] for name in names]

    def __hash__(self) -> int:
        return self._draft_model.__hash__(self)

    def __iter__(self) -> Iterator[Any]:
        if self._draft_model.__iter__ is not BaseModel.__iter__:
            return iter(self._draft_model.__iter__(self))  # type: ignore[arg-type]
        return ((name, getattr(self, name)) for name in self._draft_model.model_fields)

    def __copy__(self) -> Any:
        fields = {name: getattr(self, name) for name in self._draft_model.model_fields}
        made = object.__new__(self._draft_model)
        fill(made, fields, self.__pydantic_fields_set__)  # type: ignore[attr-defined]
        return made

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Any:
        return self.__copy__().__deepcopy__(memo)

    def model_dump(self, **options: Any) -> Any:
        return thaw(self).model_dump(**options)

    def model_dump_json(self, **options: Any) -> Any:
        return thaw(self).model_dump_json(**options)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return copy, (self.__deepcopy__(),)


def _generic_origin(model: type[BaseModel]) -> type[Any]:
    return model.__pydantic_generic_metadata__["origin"] or model


def thaw(value: Any) -> Any:
    """The present content of a draft, to be looked at only: what was not touched is the committed value itself.

    A serializer picks the member of a union by the exact class, so it must not see the generated ones.
    """
    if isinstance(value, DraftModel):
        base = value._draft_base.__dict__
        made = object.__new__(value._draft_model)
        fields = {name: part if part is base.get(name) else thaw(part) for name, part in value.__dict__.items()}
        fill(made, fields, value.__pydantic_fields_set__)  # type: ignore[attr-defined]
        return made
    if isinstance(value, DraftList):
        raw = list.copy(value)
        return [thaw(part) if is_draft(part) or id(part) in value.own else part for part in raw]
    if isinstance(value, DraftDict):
        touched, assigned = value.touched, value.assigned
        return {key: thaw(part) if key in touched or key in assigned else part for key, part in dict.items(value)}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(map(thaw, value))
    return {key: thaw(part) for key, part in value.items()} if type(value) is dict else value


Splice = tuple[int, int, list[Any]]
"""Replace the items from one index up to another by these."""

Order = list[int]
"""Put the items in the order of these old indices."""


class DraftList(list[Any]):
    """A list that records how it was spliced and reordered."""

    __slots__ = ("_draft_base", "_draft_desk", "_draft_shape", "checked", "edits", "own", "replaced", "size", "touched")

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
        if shape.part(0).ordered:  # C code may hand out such items without asking here
            for index, item in enumerate(base):
                if type(item) is not dict:
                    self._child(index)

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
        child = draft_part(item, self._draft_shape.part(index), self._draft_desk)
        if child is not item:
            super().__setitem__(index, child)
            self.touched[index] = child
        return child

    def __iter__(self) -> Iterator[Any]:
        if self._draft_shape.part(0).leaf:
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

    def notice_unseen_edits(self) -> None:
        """See what C code (`heapq`, say) did to the list without calling its methods.

        Only items that can be ordered are of use to such code, so lists of other models or dicts are not searched.
        """
        item = self._draft_shape.part(0)
        if not (item.leaf or item.ordered):
            return
        now, expected = list.copy(self), self._draft_base
        for edit in self.edits:
            expected = edited(expected, [edit] if is_order(edit) else edit)
        if self.touched:
            expected = expected.copy()
            for index, child in self.touched.items():
                expected[index] = child
        if len(now) == len(expected) and (now == expected if item.leaf else all(map(is_, now, expected))):
            return
        for index in list(compress(count(), map(is_not, now, expected))):
            self.record(index, index + 1, [now[index]])
        common = min(len(now), len(expected))
        self.record(common, len(expected), now[common:])

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


def edited(base: list[Any], edits: Iterable[Any]) -> list[Any]:
    items = list.copy(base)
    for edit in edits:
        if isinstance(edit, tuple):
            start, stop, values = edit
            items[start:stop] = values
        else:
            items = [items[index] for index in edit]
    return items


def is_order(edit: Any) -> bool:
    return bool(edit) and isinstance(edit[0], int)


_MISSING: Any = object()


class DraftDict(dict[Any, Any]):
    """A dict that records the keys that were assigned and deleted."""

    __slots__ = ("_draft_base", "_draft_desk", "_draft_shape", "assigned", "checked", "deleted", "touched")

    def __init__(self, base: dict[Any, Any], shape: Shape, desk: Desk) -> None:
        super().__init__(base)
        self._draft_base = base
        self._draft_shape = shape
        self._draft_desk = desk
        self.assigned: dict[Any, None] = {}
        """Keys given a value by the tool, in the order in which they joined."""
        self.checked: dict[Any, Any] = {}
        """The same keys with valid copies of their values, made by a commit."""
        self.deleted: dict[Any, None] = {}
        """Keys of the base that were deleted at some time; one may have been assigned again since."""
        self.touched: dict[Any, Any] = {}
        """Children that are drafts."""

    def native_key(self, key: Any) -> Any:
        """The key as it is in this dict, from its plain form in a patch."""
        if key in self or not isinstance(self._draft_shape, DictShape):
            return key
        return self._draft_shape.key.admit(key, (key,))

    # Reading: children become drafts.

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        if type(value) in LEAVES or key in self.touched or key in self.assigned:
            return value
        child = draft_part(value, self._draft_shape.part(key), self._draft_desk)
        if child is not value:
            super().__setitem__(key, child)
            self.touched[key] = child
        return child

    def get(self, key: Any, default: Any = None) -> Any:
        return self[key] if key in self else default  # noqa: SIM401

    def __iter__(self) -> Iterator[Any]:  # overridden so that `dict(draft)` asks for each value
        return super().__iter__()

    def values(self) -> Any:
        self._touch_all()
        return super().values()

    def items(self) -> Any:
        self._touch_all()
        return super().items()

    def _touch_all(self) -> None:
        if not self._draft_shape.part(None).leaf:
            for key in self:
                self[key]

    def copy(self) -> dict[Any, Any]:
        return dict(self.items())

    def __or__(self, other: Any) -> Any:
        return self.copy() | other if isinstance(other, dict) else NotImplemented

    def __ror__(self, other: Any) -> Any:
        return dict(other) | self.copy() if isinstance(other, dict) else NotImplemented

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return dict, (self.copy(),)

    # Writing: a key is assigned or deleted.

    def __setitem__(self, key: Any, value: Any) -> None:
        if super().get(key, _MISSING) is value:
            return  # `table[key] += ...` puts back what it took
        self._draft_desk.check()
        super().__setitem__(key, value)
        self.assigned[key] = None
        self.touched.pop(key, None)

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        self._draft_desk.check()
        super().__delitem__(key)
        self.assigned.pop(key, None)
        self.touched.pop(key, None)
        if key in self._draft_base:
            self.deleted[key] = None

    def pop(self, key: Any, default: Any = _MISSING) -> Any:
        if key not in self:
            if default is _MISSING:
                raise KeyError(key)
            return default
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[Any, Any]:
        if not self:
            raise KeyError("popitem(): dictionary is empty")
        key = next(reversed(self))
        return key, self.pop(key)

    def clear(self) -> None:
        for key in list(self):
            del self[key]

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *others: Any, **named: Any) -> None:
        for key, value in dict(*others, **named).items():
            self[key] = value

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self


class DraftSet(set[Any]):
    """A set that knows whether it was changed; its members never change."""

    __slots__ = ("_draft_base", "_draft_desk", "_draft_shape", "changed")

    def __init__(self, base: set[Any], shape: Shape, desk: Desk) -> None:
        super().__init__(base)
        self._draft_base = base
        self._draft_shape = shape
        self._draft_desk = desk
        self.changed = False

    def copy(self) -> set[Any]:
        return set(self)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return set, (list(self),)


def _recording(name: str) -> Callable[..., Any]:
    change = getattr(set, name)

    def method(self: DraftSet, *args: Any) -> Any:
        self._draft_desk.check()
        self.changed = True
        return change(self, *args)

    method.__name__ = name
    method.__doc__ = change.__doc__
    return method


for _name in (
    *("add", "discard", "remove", "pop", "clear", "update"),
    *("difference_update", "intersection_update", "symmetric_difference_update"),
    *("__ior__", "__iand__", "__isub__", "__ixor__"),
):
    setattr(DraftSet, _name, _recording(_name))

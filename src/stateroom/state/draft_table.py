"""Drafts of dicts and sets: shallow copies that record how they were changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex, cast

from stateroom.state.draft_context import DRAFTS, DraftContext, Past, free_container
from stateroom.state.shape import Shape
from stateroom.state.values import LEAVES

_MISSING: Any = object()


class DraftDict(dict[Any, Any]):
    """A dict that records the keys that were assigned and deleted."""

    __slots__ = (
        *("_draft_base", "_draft_context", "_draft_shape"),
        *("assigned", "checked", "deleted", "past", "touched", "whole"),
    )

    def __init__(self, base: dict[Any, Any], context: DraftContext, shape: Shape) -> None:
        super().__init__(base)
        self._draft_base = base
        self._draft_shape = shape
        self._draft_context = context
        self.assigned: dict[Any, None] = {}
        """Keys given a value by the tool, in the order in which they joined."""
        self.checked: dict[Any, Any] = {}
        """The same keys with valid copies of their values, made by a commit."""
        self.deleted: dict[Any, None] = {}
        """Keys of the base that were deleted at some time; one may have been assigned again since."""
        self.touched: dict[Any, Any] = {}
        """Children that are drafts."""
        self.whole = self._draft_shape.part(None).fixed
        """True when no value is a committed one that can change: each is a leaf, a draft or the tool's own."""
        self.past: Past = []

    def follow(self, table: dict[Any, Any]) -> bool:
        """Become a fresh draft of what this one was committed as; false if that is as much work as a new one."""
        plain_keys = cast(Any, self._draft_shape).key.annotation in (str, int)
        for key in self.assigned:
            if not (plain_keys and type(key) in (str, int) and key in table):
                return False  # it may have been assigned in another spelling of the key
        if len(self) != len(table):
            return False  # changed past its own methods
        base = self._draft_base
        changed = [*self.assigned, *self.touched]
        for key in changed:
            super().__setitem__(key, table[key])
        if self.deleted:
            self.past.clear()  # what is older has keys that are gone, or the same in another order
        elif table is not base:
            self.past.append((base, changed))
        self._draft_base = table
        self.assigned, self.checked, self.deleted, self.touched = {}, {}, {}, {}
        self.whole = self._draft_shape.part(None).fixed
        return True

    def copy_of_base(self) -> dict[Any, Any]:
        """A dict with the items of the base: a copy, or a dict of old that has been brought up to date."""
        base = self._draft_base
        old, changed = free_container(self.past)
        if old is None:
            return base.copy()
        for places in changed:
            for key in places:  # new ones come to the end, in the order in which they joined
                old[key] = base[key]
        return cast(dict[Any, Any], old)

    # Reading: children become drafts.

    def __getitem__(self, key: Any) -> Any:
        value = super().__getitem__(key)
        if type(value) in LEAVES or self.whole or key in self.touched or key in self.assigned:
            return value
        child = self._draft_context.draft(value, self._draft_shape.part(key))
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
        if not self.whole:
            for key in self:
                self[key]
            self.whole = True

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
        self._draft_context.check()
        super().__setitem__(key, value)
        self.assigned[key] = None
        self.touched.pop(key, None)

    def __delitem__(self, key: Any) -> None:
        if key not in self:
            raise KeyError(key)
        self._draft_context.check()
        super().__delitem__(key)
        self._forget(key)

    def _forget(self, key: Any) -> None:
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
        value = self[key]
        self._draft_context.check()
        super().popitem()  # a deleted last key would be searched past by the next call
        self._forget(key)
        return key, value

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

    __slots__ = ("_draft_base", "_draft_context", "_draft_shape", "changed")

    def __init__(self, base: set[Any], context: DraftContext, shape: Shape) -> None:
        super().__init__(base)
        self._draft_base = base
        self._draft_shape = shape
        self._draft_context = context
        self.changed = False

    def copy(self) -> set[Any]:
        return set(self)

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return set, (list(self),)


def _recording(name: str) -> Callable[..., Any]:
    change = getattr(set, name)

    def method(self: DraftSet, *args: Any) -> Any:
        self._draft_context.check()
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

DRAFTS[dict] = DraftDict
DRAFTS[set] = DraftSet

"""Drafts: what a tool changes instead of the committed state.

A draft looks like the value it stands for. A model's draft is an instance of a generated subclass of the author's
class; a draft of a list, dict or set is a shallow copy that is also a list, dict or set. Children become drafts when
they are first touched, so a call pays for what it reaches, not for the size of the state. Values that the tool itself
puts in are left alone, so its other names for them stay good; they are copied when the call is committed.

What a commit needs to know is kept as the tool works: lists note the places that were assigned and whether items have
moved, dicts the keys that were assigned or deleted. The committed values are never written to.
"""

from __future__ import annotations

from abc import ABCMeta
from collections.abc import Iterator
from copy import copy
from sys import getrefcount
from typing import Any, SupportsIndex, TypeVar

from pydantic import BaseModel

from stateroom.state.compiler import shape_of
from stateroom.state.draft_context import DRAFTS, DraftContext
from stateroom.state.draft_list import DraftList
from stateroom.state.draft_table import DraftDict
from stateroom.state.shape import ModelShape, Shape
from stateroom.state.values import fill

M = TypeVar("M", bound=BaseModel)

MIN_ITEMS = 256
"""Items from which on a container is worth pooling."""

MAX_DRAFTS = 8
"""Pooled drafts per session."""


def draft_of(model: M, context: DraftContext, shape: ModelShape | None = None) -> M:
    """A draft of a state, or of a model in it, whose shape is known."""
    shape = shape or type(model).__dict__.get("__stateroom_shape__") or shape_of(type(model))
    draft: Any = object.__new__(shape.draft_class or _draft_class(shape))
    fields = model.__dict__
    if len(fields) > len(shape.fields):  # it holds values of cached properties
        fields = {name: fields[name] for name in shape.fields}
    put = object.__setattr__
    put(draft, "__dict__", fields.copy())
    put(draft, "__pydantic_fields_set__", model.__pydantic_fields_set__)
    put(draft, "_draft_base", model)
    put(draft, "_draft_context", context)
    return draft  # type: ignore[no-any-return]


def is_draft(value: Any) -> bool:
    return hasattr(type(value), "_draft_base")


def _draft_tuple(value: tuple[Any, ...], context: DraftContext, shape: Shape) -> tuple[Any, ...]:
    """A tuple with drafts of its parts; the tuple itself if none of them can change."""
    parts = tuple(context.draft(part, shape.part(index)) for index, part in enumerate(value))
    return parts if any(new is not old for new, old in zip(parts, value, strict=True)) else value


DRAFTS[BaseModel] = draft_of
DRAFTS[tuple] = _draft_tuple


def _draft_class(shape: ModelShape) -> type:
    """The subclass of the author's class whose instances are drafts; made once per class."""
    model = shape.model
    namespace: dict[str, Any] = {
        "__slots__": ("_draft_base", "_draft_checked", "_draft_context", "_draft_touched"),
        "_draft_shape": shape,
        "__module__": model.__module__,
        "__qualname__": model.__qualname__,
        "__doc__": model.__doc__,
        "_draft_model": model,
        "__pydantic_extra__": None,  # in place of slots, which would have to be filled for each draft
        "__pydantic_private__": None,
        **{name: _Child(name) for name, part in shape.fields.items() if not part.leaf},
    }
    # Past pydantic's metaclass: the subclass has no fields of its own, and uses its parent's validator and serializer.
    # `isinstance(other, type(self))` in an author's method means the author's class.
    checks = {"__instancecheck__": lambda cls, value: isinstance(value, cls._draft_model)}
    made: type = ABCMeta.__new__(
        type("DraftMeta", (type(model),), checks), model.__name__, (DraftModel, model), namespace
    )
    shape.draft_class = made
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
            value = draft._draft_context.draft(value, draft._draft_shape.fields[self.name])
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
    _draft_touched: list[str]
    """The fields that a commit has found to hold something else than in the base."""
    _draft_shape: ModelShape
    _draft_context: DraftContext
    _draft_model: type[BaseModel]

    def __new__(cls, *args: Any, **fields: Any) -> Any:
        # `type(self)(...)` in an author's method makes one of the author's own instances.
        return cls._draft_model(*args, **fields)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return self._draft_model

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._draft_shape.settable:
            super().__setattr__(name, value)  # a property's setter, or pydantic's own refusal
            return
        if self._draft_context.closed is not None:
            self._draft_context.check()
        self.__dict__[name] = value
        fields_set = self.__pydantic_fields_set__  # type: ignore[attr-defined]
        if name not in fields_set:  # the base's own set
            object.__setattr__(self, "__pydantic_fields_set__", fields_set | {name})

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
        fill(made, fields, self.__pydantic_fields_set__.copy())  # type: ignore[attr-defined]
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
        fill(made, fields, value.__pydantic_fields_set__.copy())  # type: ignore[attr-defined]
        return made
    if isinstance(value, DraftList):
        raw = list.copy(value)
        if value.whole:
            return list(map(thaw, raw))
        return [thaw(part) if value.origin(place, part) is None else part for place, part in enumerate(raw)]
    if isinstance(value, DraftDict):
        touched, assigned = value.touched, value.assigned
        return {key: thaw(part) if key in touched or key in assigned else part for key, part in dict.items(value)}
    if isinstance(value, list | tuple) and type(value) in (list, tuple):
        return type(value)(map(thaw, value))
    return {key: thaw(part) for key, part in value.items()} if type(value) is dict else value


# Drafts that the next call uses again.


def pool_drafts(draft: Any, state: BaseModel | None = None) -> None:
    """Keep the drafts of wide fields of an ended draft, which was committed as `state`, or only read.

    A draft of a list or dict is a shallow copy, which for 10,000 items costs more than all the rest of a call. When a
    call has ended and nothing else refers to its draft of a wide container, that draft becomes a draft of what was
    committed, by changing the few places that the call changed, and waits for the next call on the session.

    CPython's reference count says whether anything else refers to it. A count that is too high costs a copy, no more.
    """
    pool = draft._draft_context.pool
    if pool is not None and draft._draft_shape.branches:
        _pool(draft, draft._draft_base if state is None else state, pool)


def _pool(draft: DraftModel, state: BaseModel, pool: dict[int, Any]) -> None:
    fields, base, now = draft.__dict__, draft._draft_base.__dict__, state.__dict__
    set_as_a_whole = getattr(draft, "_draft_checked", ())
    for name in getattr(draft, "_draft_touched", draft._draft_shape.branches):
        if fields[name] is base[name] or getattr(fields[name], "_draft_base", None) is not base[name]:
            continue
        if name in set_as_a_whole:  # by a validator, say: then the draft does not show what was committed
            continue
        if isinstance(fields[name], DraftModel):
            _pool(fields[name], now[name], pool)
        elif isinstance(fields[name], DraftList | DraftDict) and len(fields[name]) >= MIN_ITEMS:
            kept = [fields[name]]
            fields[name] = base[name]  # a draft that a tool kept does not lead to the pooled one
            # Two references: the list, and the question itself. A tool that kept a handle makes it three.
            if getrefcount(kept[0]) == 2 and kept[0].follow(now[name]):
                if len(pool) >= MAX_DRAFTS:
                    pool.clear()
                pool[id(now[name])] = kept[0]

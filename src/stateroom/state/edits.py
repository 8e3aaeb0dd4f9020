"""Edits: changes that a person makes to a state, place by place, in JSON.

A change names a place by its steps (fields, keys and indices) and says what is to stand there:

| change | does |
|---|---|
| `{"place": ["orders", "a1", "price"], "value": 3}` | sets a field, a key or an item; one more index adds an item |
| `{"place": ["orders", "a1"], "gone": true}` | deletes a key or an item |
| `{"place": [], "value": {…}}` | sets the whole state |

Changes apply in order, each to what those before it made. A value is JSON as `readable` gives it, and is parsed by the
type that is declared at its place: a date is a text, a set a list, bytes are base64.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator

from stateroom.errors import InvalidState, Path
from stateroom.state.codec import encode, to_json
from stateroom.state.compiler import shape_of
from stateroom.state.descriptions import readable
from stateroom.state.draft import thaw
from stateroom.state.model import State
from stateroom.state.shape import DictShape, JsonShape, ModelShape, Shape

NOTHING = object()
"""Stands for what is not there."""


class EditChange(BaseModel):
    """One change of an edit."""

    model_config = ConfigDict(extra="forbid")

    place: list[str | int]
    value: Any = None
    gone: bool = False

    @model_validator(mode="after")
    def _says_what_to_do(self) -> Self:
        if self.gone == ("value" in self.model_fields_set):
            raise ValueError('a change must have either a "value" or "gone": true')
        return self


_CHANGES = TypeAdapter(list[EditChange])


def read_changes(changes: Any) -> list[EditChange]:
    """Read the changes of an edit from JSON data; raises `InvalidState` for other data."""
    try:
        return _CHANGES.validate_python(changes, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise InvalidState(("changes", *first["loc"]), first["msg"]) from None


def edit(draft: State, changes: Iterable[EditChange]) -> None:
    """Make changes in a draft of a state; a value equal to the current one changes nothing.

    Raises `InvalidState` with the place of the first change that cannot be made. The author's validators run when the
    draft is committed.
    """
    for change in changes:
        steps = tuple(change.place)
        if steps:
            _changed(_Place(draft, shape_of(draft.__class__), ()), steps, change)
        elif change.gone:
            raise InvalidState((), "a state cannot be deleted")
        else:
            _set_all(draft, change.value)


def _set_all(draft: State, value: Any) -> None:
    shape = shape_of(draft.__class__)
    whole = _parsed(shape, value, ())
    for name, part in whole.__dict__.items():
        if not _is_same(getattr(draft, name), part):
            _put(_Place(draft, shape, ()), name, part, (name,))


class _Place(NamedTuple):
    """A value in a draft, its shape, and where it stands."""

    value: Any
    shape: Shape
    path: Path


def _changed(owner: _Place, steps: tuple[str | int, ...], change: EditChange) -> Any:
    """The value of `owner` after a change below it: itself, unless it cannot be changed in place."""
    key = _key(owner, steps[0])
    here = (*owner.path, key)
    old = _part(owner, key)
    if len(steps) > 1:
        if old is NOTHING:
            raise InvalidState(here, "nothing is stored here; set it as a whole")
        new = _changed(_Place(old, owner.shape.part(key).member(_kind(old)), here), steps[1:], change)
        return owner.value if new is old else _put(owner, key, new, here)
    if change.gone:
        return _delete(owner, key, here, old)
    new = _parsed(owner.shape.part(key), change.value, here)
    return owner.value if old is not NOTHING and _is_same(old, new) else _put(owner, key, new, here)


def _kind(value: Any) -> type:
    """The type that is declared for what a draft holds: a draft's own class is generated."""
    if isinstance(value, BaseModel):
        return value.__class__
    return next((kind for kind in (list, dict, set) if isinstance(value, kind)), type(value))


def _key(owner: _Place, step: str | int) -> Any:
    """A step as the key that it names in its owner; `InvalidState` if it can name none."""
    value, shape, path = owner
    if isinstance(shape, ModelShape):
        if step not in shape.fields:
            raise InvalidState((*path, step), f"{shape.model.__name__} does not have this field")
        return step
    if isinstance(value, dict) and isinstance(shape, DictShape | JsonShape):
        return _parsed(shape.key, step, (*path, step))
    if isinstance(value, list | tuple):
        if type(step) is not int or not 0 <= step <= len(value):
            raise InvalidState((*path, step), f"should be an index from 0 to {len(value)}")
        return step
    raise InvalidState((*path, step), f"the parts of a {_kind(value).__name__} cannot be set; set it as a whole")


def _part(owner: _Place, key: Any) -> Any:
    value = owner.value
    if isinstance(value, BaseModel):
        return getattr(value, key)
    if isinstance(value, dict):
        return value.get(key, NOTHING)
    return value[key] if key < len(value) else NOTHING


def _put(owner: _Place, key: Any, new: Any, here: Path) -> Any:
    """Put a value in its owner; gives the owner, or a copy of one that cannot be changed."""
    value, shape, path = owner
    if isinstance(shape, ModelShape):
        if key in shape.settable:
            setattr(value, key, new)
            return value
        if not path:
            raise InvalidState(here, "this field is frozen")
        return value.model_copy(update={key: new})
    if isinstance(value, tuple):
        return (*value[:key], new, *value[key + 1 :])
    if isinstance(value, list) and key == len(value):
        value.append(new)
    else:
        value[key] = new
    return value


def _delete(owner: _Place, key: Any, here: Path, old: Any) -> Any:
    value = owner.value
    if isinstance(value, BaseModel):
        raise InvalidState(here, "a field cannot be deleted; set another value")
    if old is NOTHING:
        raise InvalidState(here, "nothing is stored here to delete")
    if isinstance(value, tuple):
        return (*value[:key], *value[key + 1 :])
    del value[key]
    return value


def _parsed(shape: Shape, value: Any, path: Path) -> Any:
    return shape.parse(to_json(readable(value)), path)


def _is_same(one: Any, other: Any) -> bool:
    return encode(thaw(one)) == encode(other)

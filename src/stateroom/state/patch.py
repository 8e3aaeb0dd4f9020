"""Patches: what one commit changed, as plain operations that apply forwards.

An operation is a tuple of its kind, the path of the place it changes, and what it needs:

| kind | needs | does |
|---|---|---|
| `set` | value | a field or a key gets a value |
| `del` | | a key is deleted |
| `splice` | start, stop, values | items of a list are replaced |
| `order` | old indices | a list keeps the items of these indices, in this order |
| `members` | added, removed | members join and leave a set |

A patch that was stored has plain data in it, as a stored state has. Both ways to apply it trust it: it was checked when
it was made.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any, TypeVar

from pydantic import BaseModel

from stateroom.errors import BadData, Path, format_path
from stateroom.state.compiler import shape_of
from stateroom.state.shape import ModelShape, Shape
from stateroom.state.values import EXACT

Operation = tuple[Any, ...]
Patch = list[Operation]

S = TypeVar("S", bound=BaseModel)


def apply(data: Any, patch: Iterable[Any]) -> None:
    """Carry out a stored patch on plain data."""
    for kind, path, *needs in patch:
        try:
            owner = data
            for step in path[:-1] if kind in ("set", "del") else path:
                owner = owner[step]
            # A later operation may change in place what is put in.
            _carry_out(owner, kind, path, [need if type(need) in EXACT else deepcopy(need) for need in needs])
        except _MISFIT as error:
            raise _misfit(path, error) from error


def patched(state: S, patch: Iterable[Any]) -> S:
    """The state after a stored patch; what the patch does not touch is shared with the old state."""
    tree = _Tree(state)
    for kind, path, *needs in patch:
        try:
            tree.carry_out(kind, path, needs)
        except _MISFIT as error:
            raise _misfit(path, error) from error
    return tree.root  # type: ignore[no-any-return]


class _Tree:
    """A state that changes by copies: of each model or container that a patch writes in, one."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self._own: dict[int, Any] = {}
        """The copied containers, by identity."""

    def carry_out(self, kind: str, path: Path, needs: list[Any]) -> None:
        shape: Shape = shape_of(type(self.root))
        owner = self.root = self._copied(self.root, shape)
        for step in path[:-1] if kind in ("set", "del") else path:
            key, inner = _key(owner, shape, step), _inner(owner)
            shape = shape.part(key).member(type(inner[key]))
            owner = inner[key] = self._copied(inner[key], shape)
        if kind in ("set", "del"):
            key = _key(owner, shape, path[-1])
            path = (*path[:-1], key)
            needs = [shape.part(key).read(value, path) for value in needs]
        elif kind == "splice":
            item, (start, stop, values) = shape.part(0), needs
            needs = [start, stop, [item.read(value, path) for value in values]]
        elif kind == "members":
            needs = [shape.read(set(members), path) for members in needs]
        _carry_out(_inner(owner), kind, path, needs)

    def _copied(self, value: Any, shape: Shape) -> Any:
        if id(value) in self._own:
            return value
        made = shape.changed(value, {}) if isinstance(shape, ModelShape) else value.copy()
        self._own[id(made)] = made
        return made


def _inner(owner: Any) -> Any:
    """The container of a value's parts, by key."""
    return owner.__dict__ if isinstance(owner, BaseModel) else owner


def _key(owner: Any, shape: Any, step: Any) -> Any:
    """The key as it is in a state, from its plain form in a patch. One that is there may be named by what equals it."""
    return step if not isinstance(owner, dict) or step in owner else shape.key.read(step)


def _carry_out(owner: Any, kind: str, path: Path, needs: list[Any]) -> None:
    if kind == "set":
        owner[path[-1]] = needs[0]
    elif kind == "del":
        del owner[path[-1]]
    elif kind == "splice":
        start, stop, values = needs
        owner[start:stop] = values
    elif kind == "order":
        owner[:] = [owner[index] for index in needs[0]]
    elif kind == "members":
        added, removed = needs
        owner.difference_update(removed)
        owner.update(added)
    else:
        raise ValueError(f"unknown operation {kind!r}")


_MISFIT = (LookupError, AttributeError, TypeError, ValueError)
"""Errors from an operation on a state that it was not made for."""


def _misfit(path: Path, error: Exception) -> BadData:
    return BadData(f"a stored change cannot be applied to the state at {format_path(tuple(path))}: {error}")

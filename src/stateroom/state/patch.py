"""Patches: what one commit changed, as plain operations that apply forwards.

An operation is a tuple of its kind, the path of the place it changes, and what it needs:

| kind | needs | does |
|---|---|---|
| `set` | value | a field or a key gets a value |
| `del` | | a key is deleted |
| `splice` | start, stop, values | items of a list are replaced |
| `order` | old indices | a list is rearranged |
| `members` | added, removed | members join and leave a set |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from enum import Enum
from typing import Any, cast

from stateroom.errors import BadData, Path, format_path
from stateroom.state.draft_list import DraftList
from stateroom.state.draft_table import DraftDict, DraftSet
from stateroom.state.shape import is_frozen

Operation = tuple[Any, ...]
Patch = list[Operation]


def apply(root: Any, patch: Iterable[Any]) -> None:
    """Carry out a patch on plain data, or on a draft."""
    for kind, path, *needs in patch:
        try:
            _OPERATIONS[kind](root, path, *needs)
        except (LookupError, AttributeError, TypeError, ValueError) as error:
            raise BadData(f"a stored change does not fit the state at {format_path(tuple(path))}: {error}") from error


def _reach(root: Any, path: Path) -> Any:
    for step in path:
        root = root[_key(root, step)] if isinstance(root, dict | list) else getattr(root, cast(str, step))
    return root


def _key(owner: Any, step: Any) -> Any:
    if isinstance(owner, DraftDict):
        return owner.native_key(step)
    return step.value if isinstance(step, Enum) and step not in owner else step


def _set(root: Any, path: Path, value: Any) -> None:
    owner, place = _reach(root, path[:-1]), cast(Any, path[-1])
    value = deepcopy(value)  # a later operation may change it in place
    if isinstance(owner, dict):
        owner[_key(owner, place)] = value
    elif isinstance(owner, list):
        owner[place] = value
    elif is_frozen(owner, place):  # another takes its place
        _set(root, path[:-1], owner.model_copy(update={place: value}))
    else:
        setattr(owner, place, value)


def _del(root: Any, path: Path) -> None:
    owner = _reach(root, path[:-1])
    del owner[_key(owner, path[-1])]


def _splice(root: Any, path: Path, start: int, stop: int, values: list[Any]) -> None:
    _reach(root, path)[start:stop] = deepcopy(values)


def _order(root: Any, path: Path, order: list[int]) -> None:
    items = _reach(root, path)
    if isinstance(items, DraftList):
        items.rearrange(order)
    else:
        items[:] = [items[index] for index in order]


def _members(root: Any, path: Path, added: Iterable[Any], removed: Iterable[Any]) -> None:
    members = _reach(root, path)
    if isinstance(members, DraftSet):
        added, removed = members.native(added), members.native(removed)
    members.difference_update(removed)
    members.update(added)


_OPERATIONS: dict[str, Callable[..., None]] = {
    "set": _set,
    "del": _del,
    "splice": _splice,
    "order": _order,
    "members": _members,
}

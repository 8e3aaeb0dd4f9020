"""Commits: from a draft to a new state that shares what was not touched, and the patch that leads there.

First every change is checked and written down as operations; the values that a tool put in are replaced in the draft
by valid copies. Only then is the new state built, so a bad change leaves nothing behind.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar, cast

from pydantic import BaseModel, ValidationError

from stateroom.errors import InvalidState, Path
from stateroom.state.draft import Desk, DraftDict, DraftList, DraftModel, DraftSet, draft_of, is_draft
from stateroom.state.model import State
from stateroom.state.patch import Patch, apply
from stateroom.state.shape import ModelShape, Shape, invalid, plain

S = TypeVar("S", bound=State)

ENDED = "this call has ended: its state can no longer be changed"


class Commit(NamedTuple):
    """What a draft came to."""

    state: Any
    patch: Patch


def commit(draft: S) -> Commit:
    """Check a draft, end it, and give the new state with the patch that leads to it."""
    desk: Desk = draft._draft_desk  # type: ignore[attr-defined]
    patch: Patch = []
    ruled: list[Path] = []
    _check(draft, (), patch, ruled)
    state = _settle(draft)
    desk.closed = ENDED
    if not ruled:
        return Commit(state, patch)
    follow_up = _keep_rules(state, ruled)
    return Commit(follow_up.state, patch + follow_up.patch)


def patched(state: S, patch: Patch) -> S:
    """The state after a patch; what the patch does not touch is shared with the old state."""
    draft = draft_of(state, Desk())
    apply(draft, patch)
    return cast(S, commit(draft).state)


def _keep_rules(state: Any, ruled: list[Path]) -> Commit:
    """Run the model validators of what changed, innermost first; what they adjust becomes part of the commit."""
    draft = draft_of(state, Desk())
    for path in ruled:
        model: Any = draft
        for step in path:
            model = model[step] if isinstance(model, dict | list) else getattr(model, cast(str, step))
        for rule in model._draft_shape.rules:
            try:
                rule(model)
            except (ValueError, AssertionError) as error:  # what a pydantic validator may raise
                raise InvalidState(path, str(error)) from None
    patch: Patch = []
    _check(draft, (), patch, [])
    state = _settle(draft)
    draft._draft_desk.closed = ENDED
    return Commit(state, patch)


def _check(draft: Any, path: Path, patch: Patch, ruled: list[Path]) -> None:
    """Validate the changes in a draft and below it, and write them down."""
    if isinstance(draft, DraftModel):
        _check_model(draft, path, patch, ruled)
    elif isinstance(draft, DraftList):
        _check_list(draft, path, patch, ruled)
    elif isinstance(draft, DraftDict):
        _check_dict(draft, path, patch, ruled)
    else:
        _check_set(draft, path, patch)


def _check_model(draft: DraftModel, path: Path, patch: Patch, ruled: list[Path]) -> None:
    shape = draft._draft_shape
    base, fields = draft._draft_base.__dict__, draft.__dict__
    before = len(patch)
    for name, part in shape.fields.items():
        value, old = fields[name], base[name]
        if value is old:
            continue
        here = (*path, name)
        mark = len(patch)
        if _stands(value, old):
            _check_parts(value, old, part, here, patch, ruled)
            if len(patch) == mark:
                continue
            if not (part.guarded or name in shape.guards or isinstance(value, tuple)):
                continue
            settled = _settle(value)
            fields[name] = shape.admit_field(name, settled, fields, here)
            if fields[name] == settled and not isinstance(value, tuple):
                continue  # the smaller operations say it all
            del patch[mark:]
        else:
            fields[name] = shape.admit_field(name, value, fields, here)
        patch.append(("set", here, fields[name]))
    if len(patch) > before:
        if shape.guarded:
            _check_whole(draft, shape, path, patch)
        if shape.rules:
            ruled.append(path)


def _check_whole(draft: DraftModel, shape: ModelShape, path: Path, patch: Patch) -> None:
    """Run the validators that must see the whole model; a field that they replace is set."""
    settled = _settle(draft)
    try:
        whole = shape.model.__pydantic_validator__.validate_python(plain(settled), by_name=True, by_alias=False)
    except ValidationError as error:
        raise invalid(error, path) from None
    for name in shape.fields:
        value = whole.__dict__[name]
        if value != settled.__dict__[name]:
            draft.__dict__[name] = value
            patch.append(("set", (*path, name), value))


def _check_list(draft: DraftList, path: Path, patch: Patch, ruled: list[Path]) -> None:
    _notice_unseen_edits(draft)
    shape = draft._draft_shape
    for edit in draft.edits:
        if isinstance(edit, tuple):
            start, stop, values = edit
            for offset, value in enumerate(values):
                values[offset] = shape.part(start + offset).admit(value, (*path, start + offset))
            patch.append(("splice", path, start, stop, values))
        else:
            patch.append(("order", path, edit))
    for index, child in sorted(draft.touched.items()):
        changed = _check_child(child, shape.part(index), (*path, index), patch, ruled)
        if changed is not child:
            draft.touched[index] = changed
            patch.append(("splice", path, index, index + 1, [changed]))


def _check_dict(draft: DraftDict, path: Path, patch: Patch, ruled: list[Path]) -> None:
    shape = cast(Any, draft._draft_shape)
    for key in draft.deleted:
        patch.append(("del", (*path, key)))
    keys: dict[Any, None] = {}
    for key in draft.assigned:
        here = (*path, key)
        admitted = shape.key.admit(key, here) if hasattr(shape, "key") else key
        value = shape.part(key).admit(dict.__getitem__(draft, key), here)
        dict.__setitem__(draft, admitted, value)
        keys[admitted] = None
        patch.append(("set", (*path, admitted), value))
    draft.assigned = keys
    for key, child in draft.touched.items():
        changed = _check_child(child, shape.part(key), (*path, key), patch, ruled)
        if changed is not child:
            draft.touched[key] = changed
            patch.append(("set", (*path, key), changed))


def _check_set(draft: DraftSet, path: Path, patch: Patch) -> None:
    if not draft.changed:
        return
    base = draft._draft_base
    shape = cast(Any, draft._draft_shape)
    removed = base - draft
    added = {shape.item.admit(member, path) for member in set(draft) - base}
    if added or removed:
        set.clear(draft)
        set.update(draft, base - removed, added)
        patch.append(("members", path, added, removed))


def _check_child(child: Any, shape: Shape, path: Path, patch: Patch, ruled: list[Path]) -> Any:
    """Check a touched child of a list or dict; what comes back is another object if it must be set as a whole."""
    mark = len(patch)
    old = tuple(map(_base, child)) if isinstance(child, tuple) else child._draft_base
    _check_parts(child, old, shape, path, patch, ruled)
    if len(patch) == mark or not (shape.guarded or isinstance(child, tuple)):
        return child
    settled = _settle(child)
    admitted = shape.admit(settled, path)
    if admitted == settled and not isinstance(child, tuple):
        return child
    del patch[mark:]
    return admitted


def _check_parts(value: Any, old: Any, shape: Shape, path: Path, patch: Patch, ruled: list[Path]) -> None:
    if isinstance(value, tuple):  # a tuple cannot change, but what is in it can
        for index, part in enumerate(value):
            if part is not old[index]:
                _check_parts(part, old[index], shape, (*path, index), patch, ruled)
    else:
        _check(value, path, patch, ruled)


def _stands(value: Any, old: Any) -> bool:
    """True when `value` is the draft of what stood at its place before."""
    if isinstance(value, tuple):
        return (
            isinstance(old, tuple)
            and len(value) == len(old)
            and all(part is was or _stands(part, was) for part, was in zip(value, old, strict=True))
        )
    return is_draft(value) and value._draft_base is old


def _base(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_base, value))
    return value._draft_base if is_draft(value) else value


def _notice_unseen_edits(draft: DraftList) -> None:
    """See what C code (`heapq`, say) did to the list without calling its methods.

    Only items that can be ordered are of use to such code, so a list of models is not looked through.
    """
    base = draft._draft_base
    if base and isinstance(base[0], BaseModel) and type(base[0]).__lt__ is object.__lt__:
        return
    expected = _edited(base, draft.edits)
    now = list.copy(draft)
    if len(now) == len(expected):
        for index in draft.touched:
            now[index] = expected[index]
        if now == expected:  # compares identities first, so this is one quick pass
            return
    draft.edits = [(0, len(base), list(draft))]
    draft.touched = {}


def _edited(base: list[Any], edits: list[Any]) -> list[Any]:
    items = list.copy(base)
    for edit in edits:
        if isinstance(edit, tuple):
            start, stop, values = edit
            items[start:stop] = values
        else:
            items = [items[index] for index in edit]
    return items


def _settle(value: Any) -> Any:
    """The committed form of a checked value: the base itself where nothing changed."""
    if isinstance(value, DraftModel):
        return _settle_model(value)
    if isinstance(value, DraftList):
        return _settle_list(value)
    if isinstance(value, DraftDict):
        return _settle_dict(value)
    if isinstance(value, DraftSet):
        return set(value) if value.changed and value != value._draft_base else value._draft_base
    if isinstance(value, tuple):
        parts = tuple(map(_settle, value))
        return parts if any(new is not old for new, old in zip(parts, value, strict=True)) else value
    return value


def _settle_model(draft: DraftModel) -> Any:
    base = draft._draft_base
    fields, old = draft.__dict__, base.__dict__
    changed = {}
    for name in draft._draft_shape.fields:
        if fields[name] is not old[name]:
            settled = _settle(fields[name])
            if settled is not old[name]:
                changed[name] = settled
    if not changed:
        return base
    model = draft._draft_model
    made = object.__new__(model)
    put = object.__setattr__
    put(made, "__dict__", {**old, **changed})
    put(made, "__pydantic_fields_set__", base.__pydantic_fields_set__ | changed.keys())
    put(made, "__pydantic_extra__", None)
    put(made, "__pydantic_private__", None)
    return made


def _settle_list(draft: DraftList) -> list[Any]:
    base = draft._draft_base
    children = {index: _settle(child) for index, child in draft.touched.items()}
    if not draft.edits and all(base[index] is child for index, child in children.items()):
        return base
    items = _edited(base, draft.edits)
    for index, child in children.items():
        items[index] = child
    return items


def _settle_dict(draft: DraftDict) -> dict[Any, Any]:
    base = draft._draft_base
    children = {key: _settle(child) for key, child in draft.touched.items()}
    changed = {key: child for key, child in children.items() if base.get(key) is not child}
    if not (changed or draft.assigned or draft.deleted):
        return base
    table = base.copy()
    for key in draft.deleted:
        del table[key]
    for key in draft.assigned:
        table[key] = dict.__getitem__(draft, key)
    table.update(changed)
    return table

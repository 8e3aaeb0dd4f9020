"""Commits: from a draft to a new state that shares what was not touched, and the patch that leads there.

First every change is checked and written down as operations; the values that a tool put in are replaced in the draft
by valid copies. Only then is the new state built, so a bad change leaves nothing behind.
"""

from __future__ import annotations

from functools import partial
from operator import is_
from typing import Any, NamedTuple, TypeVar, cast

from pydantic import ValidationError

from stateroom.errors import InvalidState, Path
from stateroom.state.codec import encode
from stateroom.state.draft import DraftModel, draft_of, is_draft, pool_drafts
from stateroom.state.draft_context import DraftContext
from stateroom.state.draft_list import DraftList
from stateroom.state.draft_table import DraftDict, DraftSet
from stateroom.state.model import State
from stateroom.state.patch import Patch
from stateroom.state.shape import ModelShape, Shape
from stateroom.state.values import detach, invalid

S = TypeVar("S", bound=State)

ENDED = "this call has ended: its state can no longer be changed"


class Change(NamedTuple):
    """A new state, and the patch that leads to it."""

    state: Any
    patch: Patch


def commit(draft: S) -> Change:
    """End a draft, check it, and give the new state with the patch that leads to it."""
    context: DraftContext = draft._draft_context  # type: ignore[attr-defined]
    context.closed = ENDED  # before it is checked: what another thread changes meanwhile would go unchecked
    patch: Patch = []
    ruled: list[Path] = []
    _check_model(cast(Any, draft), (), patch, ruled)
    state = _freeze_model(cast(Any, draft))
    if not ruled:
        if context.pool is not None and draft._draft_shape.branches:  # type: ignore[attr-defined]
            pool_drafts(draft, state)
        return Change(state, patch)
    follow_up = _keep_rules(state, ruled)
    return Change(follow_up.state, patch + follow_up.patch)


def changes_in(draft: Any) -> Patch:
    """The changes of a draft so far, checked; the draft stays open."""
    patch: Patch = []
    _check_model(draft, (), patch, [])
    return patch


def ensure_untampered(draft: Any) -> None:
    """Raise if C code may have handed out committed items of a list in a draft, which a tool could have changed."""
    if isinstance(draft, DraftModel):
        base, fields = draft._draft_base.__dict__, draft.__dict__
        children = [fields[name] for name in draft._draft_shape.branches if fields[name] is not base[name]]
    elif isinstance(draft, DraftList | DraftDict):
        if isinstance(draft, DraftList):
            draft.look_for_unseen_edits()
        children = list(draft.touched.values())
    else:
        children = list(draft) if isinstance(draft, tuple) else []
    for child in children:
        ensure_untampered(child)


def _keep_rules(state: Any, ruled: list[Path]) -> Change:
    """Run the model validators of what changed, innermost first; what they adjust becomes part of the commit."""
    draft = draft_of(state, DraftContext())
    for path in ruled:
        model: Any = draft
        for step in path:
            model = model[cast(Any, step)] if isinstance(model, dict | list) else getattr(model, cast(str, step))
        for rule in model._draft_shape.rules:
            try:
                adjusted = rule(model)
            except (ValueError, AssertionError) as error:  # what a pydantic validator may raise
                raise InvalidState(path, str(error)) from None
            if adjusted is not model:
                for name in model._draft_shape.fields:
                    setattr(model, name, getattr(adjusted, name))
    patch: Patch = []
    _check(draft, (), patch, [])
    state = _freeze(draft)
    draft._draft_context.closed = ENDED
    return Change(state, patch)


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
    shape, trusted = draft._draft_shape, draft._draft_shape.trusted_fields
    base, fields = draft._draft_base.__dict__, draft.__dict__
    checked: dict[str, Any] = {}
    touched: list[str] = []
    put = object.__setattr__
    put(draft, "_draft_checked", checked)
    put(draft, "_draft_touched", touched)
    before = len(patch)
    for name in shape.fields:
        value, old = fields[name], base[name]
        looks_at_change = name in shape.context_validated_fields and len(patch) > before
        if value is old and not looks_at_change:
            continue
        touched.append(name)
        here, mark = (*path, name), (len(patch), len(ruled))
        stands = value is old or (not shape.fields[name].leaf and _stands(value, old))
        if stands and value is not old:
            _check_parts(value, old, here, patch, ruled)
        if stands and not looks_at_change:
            if len(patch) == mark[0]:
                continue
            if not (isinstance(value, tuple) or name in shape.guards or _is_guarded(shape.fields[name], value)):
                continue
        if not stands and type(value) in trusted.get(name, ()):
            checked[name] = value
            patch.append(("set", here, value))
            continue
        frozen = _freeze_over(value, old) if stands else value
        before_it = _before(draft, name) if name in shape.context_validated_fields else {}
        admitted = shape.admit_field(name, frozen, before_it, here)
        if stands and _is_same(admitted, frozen) and not (isinstance(value, tuple) and len(patch) > mark[0]):
            continue  # the smaller operations say it all
        del patch[mark[0] :], ruled[mark[1] :]
        checked[name] = admitted
        patch.append(("set", here, admitted))
    if len(patch) > before:
        if shape.guarded:
            _check_whole(draft, shape, path, patch, ruled)
        if shape.rules:
            ruled.append(path)


def _check_whole(draft: DraftModel, shape: ModelShape, path: Path, patch: Patch, ruled: list[Path]) -> None:
    """Run the validators that must see the whole model; a field that they replace is set."""
    frozen = _freeze(draft)
    fields = {name: detach(part, (*path, name)) for name, part in frozen.__dict__.items()}
    try:
        whole = shape.model.__pydantic_validator__.validate_python(fields, by_name=True, by_alias=False)
    except ValidationError as error:
        raise invalid(error, path, frozen) from None
    for name, value in shape.freeze(whole, path).__dict__.items():
        if not _is_same(value, frozen.__dict__[name]):
            here = (*path, name)
            draft._draft_checked[name] = value
            patch.append(("set", here, value))
            ruled[:] = [inner for inner in ruled if inner[: len(here)] != here]  # all in it has just been validated


def _before(draft: DraftModel, name: str) -> dict[str, Any]:
    """The fields that the validator of a field may look at: those before it, as they are now."""
    names = list(draft._draft_shape.fields)
    now, base, checked = draft.__dict__, draft._draft_base.__dict__, draft._draft_checked
    return {
        each: checked[each] if each in checked else _freeze_over(now[each], base[each])
        for each in names[: names.index(name)]
    }


def _is_same(one: Any, other: Any) -> bool:
    """Whether two values of one place are stored alike: `==` says so of 1 and 1.0, and of dicts in another order."""
    return one is other or encode(one) == encode(other)


def _check_list(draft: DraftList, path: Path, patch: Patch, ruled: list[Path]) -> None:
    item, at = draft.item, partial(list.__getitem__, draft)
    draft.checked = {}
    splices, order = draft.changes(path)
    for start, stop, places in splices:
        values = [item.validate_copy(at(place), (*path, place)) for place in places]
        draft.checked.update(zip(places, values, strict=True))
        patch.append(("splice", path, start, stop, values))
    if order is not None:
        patch.append(("order", path, order))
    for place in sorted(draft.kept):
        child = at(place)
        changed = _check_child(child, item, (*path, place), patch, ruled)
        if changed is not child:
            draft.checked[place] = changed
            patch.append(("splice", path, place, place + 1, [changed]))


def _check_dict(draft: DraftDict, path: Path, patch: Patch, ruled: list[Path]) -> None:
    shape = cast(Any, draft._draft_shape)
    checked = draft.checked = {}
    for key in draft.deleted:
        patch.append(("del", (*path, key)))
    base = draft._draft_base
    for key in draft.assigned:
        here, value, part = (*path, key), dict.__getitem__(draft, key), shape.part(key)
        if type(key) is str and key in base and key not in draft.deleted:
            checked[key] = _replaced(base[key], value, part, here, patch)
            continue
        admitted = shape.key.validate_copy(key, here)
        checked[admitted] = part.validate_copy(value, here)
        patch.append(("set", (*path, admitted), checked[admitted]))
    for key, child in draft.touched.items():
        if key in checked:  # assigned in another spelling of the key
            continue
        changed = _check_child(child, shape.part(key), (*path, key), patch, ruled)
        if changed is not child:
            checked[key] = changed
            patch.append(("set", (*path, key), changed))


def _replaced(old: Any, value: Any, shape: Shape, path: Path, patch: Patch) -> Any:
    """The replacement of an entry, checked.

    Of a frozen record that is a changed copy of the old one, only what differs is checked and written down.
    """
    if isinstance(shape, ModelShape) and shape.is_checked_by_fields and type(value) is shape.model:
        before, after = old.__dict__, value.__dict__
        names = [name for name in shape.fields if after.get(name) is not before[name]]
        if len(names) < len(shape.fields) and after.keys() >= shape.fields.keys():
            changes = {name: shape.admit_field(name, after[name], {}, (*path, name)) for name in names}
            patch += [("set", (*path, name), change) for name, change in changes.items()]
            return shape.changed(old, changes)
    admitted = shape.validate_copy(value, path)
    patch.append(("set", path, admitted))
    return admitted


def _check_set(draft: DraftSet, path: Path, patch: Patch) -> None:
    if not draft.changed:
        return
    base = draft._draft_base
    shape = cast(Any, draft._draft_shape)
    removed = base - draft
    added = {shape.item.validate_copy(member, path) for member in set(draft) - base}
    if added or removed:
        set.clear(draft)
        set.update(draft, base - removed, added)
        patch.append(("members", path, added, removed))


def _check_child(child: Any, shape: Shape, path: Path, patch: Patch, ruled: list[Path]) -> Any:
    """Check a touched child of a list or dict; what comes back is another object if it must be set as a whole."""
    mark = len(patch), len(ruled)
    _check_parts(child, _base(child), path, patch, ruled)
    if len(patch) == mark[0]:
        return child
    is_tuple = isinstance(child, tuple)
    if not is_tuple and not _is_guarded(shape, child):
        return child
    frozen = _freeze(child)
    admitted = shape.validate_copy(frozen, path)
    if not is_tuple and _is_same(admitted, frozen):
        return child  # the smaller operations say it all
    del patch[mark[0] :], ruled[mark[1] :]
    return admitted


def _check_parts(value: Any, old: Any, path: Path, patch: Patch, ruled: list[Path]) -> None:
    if isinstance(value, tuple):  # a tuple cannot change, but what is in it can
        for index, part in enumerate(value):
            if part is not old[index]:
                _check_parts(part, old[index], (*path, index), patch, ruled)
    else:
        _check(value, path, patch, ruled)


def _is_guarded(shape: Shape, draft: Any) -> bool:
    """True when this place, or the member of a union that stands here, is checked as a whole."""
    member = shape.member(type(draft._draft_base))
    return shape.guarded or (member.guarded and not isinstance(member, ModelShape))


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


def _freeze(value: Any) -> Any:
    """The committed form of a checked value: the base itself where nothing changed."""
    if isinstance(value, DraftModel):
        return _freeze_model(value)
    if isinstance(value, DraftList):
        return _freeze_list(value)
    if isinstance(value, DraftDict):
        return _freeze_dict(value)
    if isinstance(value, DraftSet):
        return set(value) if value.changed and value != value._draft_base else value._draft_base
    return tuple(map(_freeze, value)) if isinstance(value, tuple) else value


def _freeze_over(value: Any, old: Any) -> Any:
    """The committed form of what now stands where `old` stood; a tuple of unchanged parts is the old tuple."""
    if isinstance(value, tuple) and isinstance(old, tuple) and len(value) == len(old):
        parts = tuple(map(_freeze_over, value, old))
        return old if all(map(is_, parts, old)) else parts
    return _freeze(value)


def _freeze_model(draft: DraftModel) -> Any:
    base: Any = draft._draft_base
    changed, shape, fields, old = draft._draft_checked, draft._draft_shape, draft.__dict__, base.__dict__
    for name in draft._draft_touched:
        if name not in changed:
            frozen = _freeze_over(fields[name], old[name])
            if frozen is not old[name]:
                changed = {**changed, name: frozen}
    return shape.changed(base, changed) if changed else base


def _freeze_list(draft: DraftList) -> list[Any]:
    base, size = draft._draft_base, len(draft)
    children = {place: _freeze_over(draft.touched[origin], base[origin]) for place, origin in draft.kept.items()}
    if draft.places is None:
        items = list.copy(draft)
    elif size == len(base) and not draft.checked and all(base[place] is child for place, child in children.items()):
        return base
    else:
        items = draft.copy_of_base()
        items[size:] = [None] * (size - len(base))
    for place, value in (children | draft.checked).items():
        items[place] = value
    return items


def _freeze_dict(draft: DraftDict) -> dict[Any, Any]:
    base, checked = draft._draft_base, draft.checked
    children = {key: _freeze_over(child, base[key]) for key, child in draft.touched.items() if key not in checked}
    changed = {key: child for key, child in children.items() if base.get(key) is not child}
    if not (changed or checked or draft.deleted):
        return base
    table = draft.copy_of_base()
    for key in draft.deleted:
        del table[key]
    table.update(checked)
    table.update(changed)
    return table

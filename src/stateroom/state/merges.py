"""Merging: how two changes of one state become one, where its fields say how."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel

from stateroom.errors import DefinitionError, InvalidState
from stateroom.state.commits import Change, commit
from stateroom.state.draft import draft_of
from stateroom.state.draft_context import DraftContext
from stateroom.state.model import State

S = TypeVar("S", bound=State)

Rule = Literal["sum", "append", "union", "last"]

RULES: tuple[Rule, ...] = get_args(Rule)


@dataclass(frozen=True)
class Merge:
    """How to merge two concurrent changes of a field: `visits: Annotated[int, Merge("sum")] = 0`.

    | rule | for | result |
    |---|---|---|
    | `sum` | numbers | both differences added up |
    | `append` | lists | the new items of both, the first writer's first |
    | `union` | sets, dicts | all additions and changes of both, without the removals of either |
    | `last` | anything | the last writer's value |
    """

    rule: Rule

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise DefinitionError(f"unknown merge rule {self.rule!r}; choose from {', '.join(RULES)}")


class _Apart(Exception):
    """Two changes that the rule cannot merge."""


def merge_rules(state: type[BaseModel]) -> dict[str, Rule]:
    """The rules of a state's fields; raises `DefinitionError` if a rule does not fit its field's type."""
    rules: dict[str, Rule] = {}
    for name, field in state.model_fields.items():
        for mark in field.metadata:
            if isinstance(mark, Merge):
                kind = get_origin(field.annotation) or field.annotation
                _, suited = _RULES[mark.rule]
                if suited and not (isinstance(kind, type) and issubclass(kind, suited)):
                    wanted = " or ".join(suit.__name__ for suit in suited)
                    raise DefinitionError(f"{state.__name__}.{name}: Merge({mark.rule!r}) needs a field of {wanted}")
                rules[name] = mark.rule
    return rules


def merge(base: S, mine: S, theirs: S) -> Change | None:
    """My change of `base`, made to what others have made of it; None if a field that I changed has no rule for it."""
    rules = merge_rules(type(base))
    old, new, now = base.__dict__, mine.__dict__, theirs.__dict__
    changed = [name for name in type(base).model_fields if new[name] is not old[name] and new[name] != old[name]]
    draft = draft_of(theirs, DraftContext())
    try:
        for name in changed:
            setattr(draft, name, _RULES[rules[name]][0](old[name], new[name], now[name]))
        return commit(draft)
    except (KeyError, _Apart, InvalidState):  # a field without a rule, or both are well but not together
        return None


def _sum(base: Any, mine: Any, theirs: Any) -> Any:
    return theirs + (mine - base)


def _append(base: list[Any], mine: list[Any], theirs: list[Any]) -> list[Any]:
    if mine[: len(base)] != base:
        raise _Apart  # an entry that was there before is gone
    return [*theirs, *mine[len(base) :]]


def _union(base: Any, mine: Any, theirs: Any) -> Any:
    if isinstance(base, dict):
        kept = {key: value for key, value in theirs.items() if key in mine or key not in base}
        return {**kept, **{key: mine[key] for key in mine if key not in base or mine[key] != base[key]}}
    return (theirs - (base - mine)) | (mine - base)


def _last(base: Any, mine: Any, theirs: Any) -> Any:
    return mine


_RULES: dict[Rule, tuple[Callable[[Any, Any, Any], Any], tuple[type, ...]]] = {
    "sum": (_sum, (int, float, Decimal)),
    "append": (_append, (list,)),
    "union": (_union, (set, dict)),
    "last": (_last, ()),
}
"""The function of each rule, and the types that it is for; `last` is for any."""

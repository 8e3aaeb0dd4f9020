"""`compare`: the differences between a state and the expected one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel

from stateroom.errors import DefinitionError, Path, format_path
from stateroom.state.comparison.changes import Changes, Crowd, Entry, Spot, Table
from stateroom.state.comparison.names import (
    ABSENT,
    Names,
    NewValue,
    Place,
    Side,
    form_of,
    form_of_entry,
    names_of,
    place_of,
)
from stateroom.state.compiler import shape_of
from stateroom.state.descriptions import Difference, brief, brief_pair, diff, readable
from stateroom.state.draft import is_draft, thaw
from stateroom.state.model import State

ALIKE_SHARE = 0.5
"""The share of equal fields from which on an unexpected record is shown as a missing one gone wrong."""

MAX_RECORD_CHARACTERS = 200
"""Characters to which longer records are cut."""


def shown(value: Any, place: Place, own: Any = None) -> Any:
    """The compared part of a value, as JSON data, without a record's `own` id."""
    data = _counting(value, place)
    if own is not None and isinstance(value, BaseModel):
        data = {name: part for name, part in data.items() if type(part) is not type(own) or part != own}
    return readable(data)


def lines(missing: Iterable[Difference], extra: Iterable[Difference]) -> list[str]:
    """The differences as text, one per line."""
    texts: list[str] = []
    others = list(extra)
    for difference in missing:
        twin = _twin(difference, others)
        if twin is None:
            texts.append(_line(difference, gone="missing {}", new="expected to be gone, found {}"))
            continue
        others.remove(twin)
        parts = diff(difference.before, twin.after, twin.place)
        texts += [_changed(part) for part in parts] or [_about_another(twin)]
    return texts + [_line(other, gone="expected {}, found nothing", new="unexpected {}") for other in others]


def _line(difference: Difference, *, gone: str, new: str) -> str:
    """A difference in words, with those for a record that is gone and for one that is new."""
    if difference.kind == "changed":
        return _changed(difference)
    words, record = (gone, difference.before) if difference.kind == "gone" else (new, difference.after)
    return f"{_where(difference)}: {words.format(brief(record, MAX_RECORD_CHARACTERS))}"


def _where(difference: Difference) -> str:
    return format_path(difference.place) or "state"


def _about_another(difference: Difference) -> str:
    """The text for a record that looks as expected, but refers to other new records."""
    record = brief(difference.after, MAX_RECORD_CHARACTERS)
    return f"{_where(difference)}: {record} refers to another new record than expected"


def _changed(difference: Difference) -> str:
    if difference.kind == "changed" and repr(difference.before) == repr(difference.after):  # 1 is not True
        return _about_another(difference)
    expected, found = brief_pair(difference.before, difference.after)
    expected = "nothing" if difference.kind == "new" else expected
    found = "nothing" if difference.kind == "gone" else found
    return f"{_where(difference)}: expected {expected}, found {found}"


def _twin(missing: Difference, extra: Iterable[Difference]) -> Difference | None:
    """A record that stands, it seems, where the missing one should."""
    if missing.kind != "gone" or not isinstance(missing.before, dict):
        return None
    rated = [
        (_likeness(missing.before, each.after), each)
        for each in extra
        if each.kind == "new" and each.place[:-1] == missing.place and isinstance(each.after, dict)
    ]
    likeness, best = max(rated, key=lambda pair: pair[0], default=(0.0, None))
    return best if likeness >= ALIKE_SHARE else None


def _likeness(one: dict[str, Any], other: dict[str, Any]) -> float:
    names = one.keys() | other.keys()
    equal = [name in one and name in other and one[name] == other[name] for name in names]
    return equal.count(True) / max(len(names), 1)


def _counting(value: Any, place: Place) -> Any:
    """A copy of a value without what is ignored, and with models as dicts."""
    if isinstance(value, BaseModel):
        places = ((name, place.at(name)) for name in type(value).__pydantic_fields__)
        return {name: _counting(value.__dict__[name], where) for name, where in places if not where.ignored}
    if isinstance(value, dict | list | tuple) and place.each.ignored:
        return type(value)()
    if isinstance(value, dict):
        return {key: _counting(part, place.each) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_counting(part, place.each) for part in value)
    return value


S = TypeVar("S", bound=State)

MAX_LINES = 20


@dataclass(frozen=True)
class Comparison:
    """The differences between a state and the expected one; the `before` of a difference is the expected value."""

    missing: list[Difference]
    """Expected changes that were not made, or made differently."""
    extra: list[Difference]
    """Unexpected changes."""

    @property
    def same(self) -> bool:
        """Whether the states are the same."""
        return not (self.missing or self.extra)

    def text(self, most: int = MAX_LINES) -> str:
        """The differences as text, one per line."""
        texts = lines(self.missing, self.extra)
        if len(texts) > most:
            texts[most:] = [f"… and {len(texts) - most:,} more"]
        return "\n".join(texts) or "all as expected"


def compare(base: S, found: S, gold: S, *, ignore: Iterable[str] = (), by_content: Iterable[str] = ()) -> Comparison:
    """Compare the state that was `found` with the expected one, `gold`.

    `base` is the seeded state from which both came. Each may be a state as a verifier gets it, or a plain instance. A
    place that `gold` changed, and where `found` differs, is `missing`; a place that only `found` changed is `extra`.

    ```python
    found = compare(
        episode.states()[0], state, gold, ignore=("drafts", "mails.*.sent_at"), by_content=("mails", "tickets")
    )
    return Verdict(float(found.same), {"goal": float(not found.missing), "untouched": float(not found.extra)})
    ```

    `ignore` names the places to skip: `"drafts"` is a field, `"mails.*.sent_at"` a field of each record in a dict or
    list, and `"*.*.updated_at"` that field of all records. A `*` matches any one step; write it for the entries of a
    dict or list.

    `by_content` names dicts whose keys depend on order and chance, such as ids, and lists whose order does not matter.
    Their new entries are matched by content, so independent actions may come in any order.

    - In a new record, its own id is ignored.
    - A reference to a new record elsewhere, as a value, a key or a member of a set, must refer to the matching record.
      An id within a longer text is not recognised as a reference. The items of a list have no ids.
    - Ids should be unique texts, such as those from `new_id`. If ids are numbers, every equal number counts as a
      reference.

    In all other dicts the keys are compared, and in all other lists the order. Numbers must be equal; NaN equals
    itself. Raises `DefinitionError` for a pattern that matches no place in the state's class.

    Shared parts cost nothing, so compare states that were derived from each other.
    """
    base, found, gold = (_committed(each) for each in (base, found, gold))
    kinds = dict.fromkeys(type(each) for each in (base, found, gold))
    kind = next(iter(kinds))
    if len(kinds) > 1 or not issubclass(kind, State):
        raise DefinitionError(
            f"compare needs three states of the same class, not of {', '.join(each.__name__ for each in kinds)}"
        )
    changes = Changes(Spot((), place_of(shape_of(kind), ignore, by_content), base, gold, found))
    judge = _Judge(*names_of(Side(_units(changes, "gold")), Side(_units(changes, "found"))))
    judge.judge(changes)
    return Comparison(judge.missing, judge.extra)


def _committed(state: Any) -> Any:
    """The state itself, if this is a draft of it."""
    if not is_draft(state):
        return state
    return thaw(state) if state._draft_context.closed is None else state._draft_base


def _units(changes: Changes, side: str) -> Iterator[NewValue]:
    for spot in changes.spots:
        if (value := getattr(spot, side)) is not ABSENT:
            yield NewValue(spot.path, spot.place, value)
    for table in changes.tables:
        for key, value in getattr(table, side):
            yield NewValue(table.path, table.place, value, key)
    for crowd in changes.crowds:
        for key, value in getattr(crowd, side):
            yield NewValue(crowd.path, crowd.place, value, crowd.id(key), is_record=True)


class _Judge:
    """Sorts what was changed into what is as expected, missing and extra."""

    def __init__(self, gold: Names, found: Names) -> None:
        self.gold = gold
        self.found = found
        self.missing: list[Difference] = []
        self.extra: list[Difference] = []

    def judge(self, changes: Changes) -> None:
        for spot in changes.spots:
            self._judge_spot(spot)
        for table in changes.tables:
            self._judge_table(table)
        for crowd in changes.crowds:
            self._judge_crowd(crowd)

    def _judge_spot(self, spot: Spot) -> None:
        path, place, base, gold, found = spot
        expected = form_of(gold, place, self.gold)
        if expected == form_of(found, place, self.found):
            return
        difference = _difference(path, place, gold, found)
        is_goal = expected != form_of(base, place)
        if is_goal:
            self.missing.append(difference)
        if not is_goal or (found is ABSENT and base is not ABSENT):
            self.extra.append(difference)

    def _judge_table(self, table: Table) -> None:
        path, place = table.path, table.place
        founds = {form_of(key, place, self.found): (key, value) for key, value in table.found}
        for key, value in table.gold:
            twin = founds.pop(form_of(key, place, self.gold), None)
            if twin is None:
                self.missing.append(_difference((*path, key), place, value, ABSENT))
            else:
                self.judge(Changes(Spot((*path, twin[0]), place, ABSENT, value, twin[1])))
        self.extra += [_difference((*path, key), place, ABSENT, value) for key, value in founds.values()]

    def _judge_crowd(self, crowd: Crowd) -> None:
        path, place = crowd.path, crowd.place
        bases = _by_form(crowd, crowd.base, {})
        golds = _by_form(crowd, crowd.gold, self.gold)
        founds = _by_form(crowd, crowd.found, self.found)
        for form in dict.fromkeys((*golds, *bases, *founds)):
            base, gold, found = bases[form], golds[form], founds[form]
            for key, value in gold[max(len(found), len(base)) :]:
                self.missing.append(_difference(path, place, value, ABSENT, crowd.id(key)))
            for key, value in found[len(gold) : len(base)]:
                self.missing.append(_difference((*path, key), place, ABSENT, value))
            for key, value in base[len(found) : len(gold)]:
                self.extra.append(_difference((*path, key), place, value, ABSENT))
            for key, value in found[max(len(gold), len(base)) :]:
                self.extra.append(_difference((*path, key), place, ABSENT, value, crowd.id(key)))


def _by_form(crowd: Crowd, entries: Iterable[Entry], names: Names) -> dict[Hashable, list[Entry]]:
    forms: dict[Hashable, list[Entry]] = defaultdict(list)
    for key, value in entries:
        forms[form_of_entry(crowd.id(key), value, crowd.place, names)].append((key, value))
    return forms


def _difference(path: Path, place: Place, gold: Any, found: Any, own: Any = None) -> Difference:
    if gold is ABSENT:
        return Difference(path, "new", None, shown(found, place, own))
    if found is ABSENT:
        return Difference(path, "gone", shown(gold, place, own), None)
    return Difference(path, "changed", shown(gold, place), shown(found, place))

"""Matching of new records between two states, whatever their ids.

The ids of new records depend on order and chance, so they are not compared. Two new records are the same if they say
the same, and the same is said of them. A record may mention further new records: so their ids get colours, at first by
what the records say themselves, then again and again by what mentions them, in the colours found so far, until no more
of them can be distinguished. Where two are still alike it does not matter which is which, so one pair is chosen, which
may distinguish others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from pydantic import BaseModel

from stateroom.errors import DefinitionError, Path
from stateroom.state.shape import (
    DictShape,
    JsonShape,
    ListShape,
    ModelShape,
    Shape,
    TupleShape,
)
from stateroom.state.union import UnionShape

ANY = "*"

Pattern = tuple[str, ...]


class Place:
    """The patterns for one place, and for the places in it."""

    __slots__ = ("_by_content", "_ignore", "_parts", "by_content", "ignored")

    def __init__(self, ignore: frozenset[Pattern], by_content: frozenset[Pattern]) -> None:
        self.ignored = () in ignore
        self.by_content = () in by_content
        self._ignore = ignore
        self._by_content = by_content
        self._parts: dict[str, Place] = {}

    def at(self, name: str) -> Place:
        """The place of a field."""
        known = self._parts.get(name)
        if known is None:
            known = self._parts[name] = Place(_after(name, self._ignore), _after(name, self._by_content))
        return known

    @property
    def each(self) -> Place:
        """The place of any entry of a dict, list or tuple."""
        return self.at(ANY)


def place_of(shape: ModelShape, ignore: Iterable[str], by_content: Iterable[str]) -> Place:
    """The place of a whole state; `DefinitionError` if a pattern names nothing in it."""
    ignored = [_read("ignore", pattern, shape) for pattern in _several("ignore", ignore)]
    free = [_read("by_content", pattern, shape) for pattern in _several("by_content", by_content)]
    return Place(frozenset(ignored), frozenset(free))


def _after(step: str, patterns: frozenset[Pattern]) -> frozenset[Pattern]:
    return frozenset(pattern[1:] for pattern in patterns if pattern and pattern[0] in (ANY, step))


def _several(option: str, patterns: Iterable[str]) -> Iterable[str]:
    if isinstance(patterns, str):
        raise DefinitionError(f"{option} takes several patterns: {option}=({patterns!r},)")
    return patterns


def _read(option: str, text: str, shape: ModelShape) -> Pattern:
    pattern = tuple(text.split("."))
    why: list[str] = []
    reached = list(_reached(shape, pattern, shape.model.__name__, why))
    if not reached:
        raise DefinitionError(f"{option}: {text!r} is not a place in {shape.model.__name__}: {why[0]}")
    if option == "by_content" and not any(isinstance(each, DictShape | ListShape | JsonShape) for each in reached):
        raise DefinitionError(f"by_content: {text!r} is not a dict or a list")
    return pattern


def _reached(shape: Shape, pattern: Pattern, where: str, why: list[str]) -> Iterator[Shape]:
    """The shapes to which a pattern leads; `why` says where it leads nowhere."""
    if isinstance(shape, UnionShape):
        for member in shape.members:
            yield from _reached(member, pattern, where, why)
    elif not pattern:
        yield shape
    elif isinstance(shape, ModelShape):
        step, *rest = pattern
        names = list(shape.fields) if step == ANY else [step] if step in shape.fields else []
        if not names:
            why.append(f"{where} has no field {step!r}; its fields are {', '.join(shape.fields)}")
        for name in names:
            yield from _reached(shape.fields[name], tuple(rest), f"{where}.{name}", why)
    elif isinstance(shape, DictShape | ListShape | TupleShape | JsonShape):
        step, *rest = pattern
        if step != ANY:
            why.append(f"write '*' for the entries of {where}, not {step!r}")
        elif isinstance(shape, JsonShape):
            yield from _reached(shape, tuple(rest), f"{where}.*", why)
        else:
            for item in shape.items if isinstance(shape, TupleShape) else (shape.part(0),):
                yield from _reached(item, tuple(rest), f"{where}.*", why)
    else:
        why.append(f"{where} has no parts")


ABSENT: Any = type("Absent", (), {"__repr__": lambda self: "ABSENT"})()
"""Stands where there is nothing."""

Names = Mapping[Any, Hashable]
"""The names that stand for ids of new records."""

_NO_NAMES: Names = {}
_OWN = "own"


def form_of(value: Any, place: Place, names: Names = _NO_NAMES, own: Names = _NO_NAMES) -> Hashable:
    """The form of a value: without what is ignored, and with names in the place of ids.

    `own` has the ids of the new records that the value is in: what a record says of itself is the same in each.
    """
    kind = type(value)
    if kind is str or kind is int:
        return own.get(value) or names.get(value) or (kind, value)
    if issubclass(kind, BaseModel):
        fields = value.__dict__
        parts = [(fields[name], place.at(name)) for name in kind.__pydantic_fields__]
        return kind, tuple([form_of(part, where, names, own) for part, where in parts if not where.ignored])
    if kind is dict:
        return kind, _form_of_dict(value, place, names, own)
    if kind is list or kind is tuple:
        forms = () if (each := place.each).ignored else [form_of(part, each, names, own) for part in value]
        return kind, multiset(forms) if place.by_content else tuple(forms)
    if kind is set or kind is frozenset:
        return kind, frozenset(form_of(part, place.each, names, own) for part in value)
    if value != value:  # noqa: PLR0124 - not a number
        return kind, None
    return kind, value


def _form_of_dict(value: dict[Any, Any], place: Place, names: Names, own: Names) -> Hashable:
    each = place.each
    if each.ignored:
        return None
    if place.by_content:
        return multiset(form_of_entry(key, part, each, names, own) for key, part in value.items())
    return frozenset((form_of(key, each, names, own), form_of(part, each, names, own)) for key, part in value.items())


def form_of_entry(key: Any, value: Any, place: Place, names: Names = _NO_NAMES, own: Names = _NO_NAMES) -> Hashable:
    """The form of an entry whose key does not count, but for the name that it may have."""
    within = own if key is None else {**own, key: (_OWN, len(own))}
    return names.get(key), form_of(value, place, names, within)


def multiset(forms: Iterable[Hashable]) -> Hashable:
    return frozenset(Counter(forms).items())


def mentions_in(value: Any, place: Place, own: frozenset[Any] = frozenset()) -> Iterator[Any]:
    """Every str and int in a value that may be the id of another record."""
    kind = type(value)
    if kind is str or kind is int:
        if value not in own:
            yield value
    elif issubclass(kind, BaseModel):
        for name in kind.__pydantic_fields__:
            if not (where := place.at(name)).ignored:
                yield from mentions_in(value.__dict__[name], where, own)
    elif kind is dict:
        for key, part in value.items():
            if place.by_content:
                yield from mentions_in(part, place.each, own | {key})
            else:
                yield from mentions_in(key, place, own)
                yield from mentions_in(part, place.each, own)
    elif kind in (list, tuple, set, frozenset):
        for part in value:
            yield from mentions_in(part, place.each, own)


def ids_in(value: Any, place: Place) -> Iterator[Any]:
    """The ids of the new records that a new value holds."""
    kind = type(value)
    if issubclass(kind, BaseModel):
        for name in kind.__pydantic_fields__:
            yield from ids_in(value.__dict__[name], place.at(name))
    elif kind is dict:
        if place.by_content:
            yield from value
        for part in value.values():
            yield from ids_in(part, place.each)
    elif kind is list or kind is tuple:
        for part in value:
            yield from ids_in(part, place.each)


Colours = dict[Any, Hashable]

_UNKNOWN = ("new",)
_HERE = ("this",)


class NewValue(NamedTuple):
    """Something that one state has and the base has not: a new record with its id, or a value somewhere else."""

    path: Path
    place: Place
    value: Any
    key: Any = None
    is_record: bool = False

    def form(self, names: Names) -> Hashable:
        if self.is_record:
            return self.path, form_of_entry(self.key, self.value, self.place, names)
        return self.path, form_of(self.key, self.place, names), form_of(self.value, self.place, names)

    def ids(self) -> Iterator[Any]:
        """The ids of the records that are in it."""
        if self.is_record and self.key is not None:
            yield self.key
        yield from ids_in(self.value, self.place)

    def mentions(self) -> Iterator[Any]:
        """Possible ids of other records."""
        if self.is_record:
            yield from mentions_in(self.value, self.place, frozenset((self.key,)))
        else:
            yield from mentions_in(self.key, self.place)
            yield from mentions_in(self.value, self.place)


class Side:
    """The units of one state, and where the ids of its new records stand in them."""

    def __init__(self, units: Iterable[NewValue]) -> None:
        units = list(units)
        self.homes: dict[Any, list[NewValue]] = defaultdict(list)
        """The units in which the records are, by their ids."""
        for unit in units:
            for key in unit.ids():
                if type(key) in (str, int):
                    self.homes[key].append(unit)
        self.mentioned: dict[Any, list[NewValue]] = defaultdict(list)
        """The units that mention them."""
        for unit in units if self.homes else ():
            for key in self.homes.keys() & set(unit.mentions()):
                self.mentioned[key].append(unit)

    def first_colours(self) -> Colours:
        """By what the records say."""
        return self._seen(dict.fromkeys(self.homes, _UNKNOWN), self.homes)

    def next_colours(self, colours: Colours) -> Colours:
        """By what mentions them."""
        homes, contexts = self._seen(colours, self.homes), self._seen(colours, self.mentioned)
        return {key: (colour, homes[key], contexts.get(key)) for key, colour in colours.items()}

    def _seen(self, colours: Colours, units: Mapping[Any, list[NewValue]]) -> Colours:
        return {key: multiset(unit.form({**colours, key: _HERE}) for unit in each) for key, each in units.items()}


def names_of(gold: Side, found: Side) -> tuple[Names, Names]:
    """Names for the ids of both sides: two ids have one name if their records are taken for the same.

    Ids that nothing mentions need none: their records say it all.
    """
    names: tuple[dict[Any, Hashable], dict[Any, Hashable]] = (
        {key: ("expected", key) for key in gold.mentioned},
        {key: ("found", key) for key in found.mentioned},
    )
    if any(names):
        for number, (one, other) in enumerate(_pairs(gold, found, _colourings(gold, found)).items()):
            if one in gold.mentioned or other in found.mentioned:
                names[0][one] = names[1][other] = ("same", number)
    return names


def _colourings(gold: Side, found: Side) -> list[tuple[Colours, Colours]]:
    """The colours of both sides' ids, ever finer."""
    colourings = [_numbered(gold.first_colours(), found.first_colours())]
    while True:
        colours = colourings[-1]
        finer = _numbered(gold.next_colours(colours[0]), found.next_colours(colours[1]))
        if _count(finer) == _count(colours):
            chosen = _choice(gold, found, finer)
            if chosen is None:
                return colourings
            for side, key in zip(finer, chosen, strict=True):
                side[key] = ("chosen", len(colourings))
        colourings.append(finer)


def _numbered(*sides: Colours) -> tuple[Colours, Colours]:
    """The same colours as short ones."""
    numbers: dict[Hashable, Hashable] = {}
    one, other = ({key: numbers.setdefault(c, ("colour", len(numbers))) for key, c in side.items()} for side in sides)
    return one, other


def _count(colours: tuple[Colours, Colours]) -> int:
    return len({*colours[0].values(), *colours[1].values()})


def _choice(gold: Side, found: Side, colours: tuple[Colours, Colours]) -> tuple[Any, Any] | None:
    """Two ids, one of either side, of a colour that several have; None if no such choice matters."""
    groups: dict[Hashable, tuple[list[Any], list[Any]]] = defaultdict(lambda: ([], []))
    for number, side in enumerate((gold, found)):
        for key in side.mentioned:
            groups[colours[number][key]][number].append(key)
    return next(((ones[0], others[0]) for ones, others in groups.values() if len(ones) * len(others) > 1), None)


def _pairs(gold: Side, found: Side, colourings: list[tuple[Colours, Colours]]) -> Mapping[Any, Any]:
    """Which id of the one side is which of the other: the finest colours decide, then what they were before."""
    pairs: dict[Any, Any] = {}
    taken: set[Any] = set()
    for ones, others in reversed(colourings):
        free: dict[Hashable, list[Any]] = defaultdict(list)
        for key in reversed(found.homes):
            if key not in taken:
                free[others[key]].append(key)
        for key in gold.homes:
            if key not in pairs and free[ones[key]]:
                pairs[key] = free[ones[key]].pop()
                taken.add(pairs[key])
    return pairs

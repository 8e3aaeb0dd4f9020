"""Places of a state by pattern: what is not compared, and where new entries are told apart by content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stateroom.errors import DefinitionError
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
    """What the patterns say of one place, and of the places in it."""

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
        raise DefinitionError(f"{option} has {text!r}, which is no place in {shape.model.__name__}: {why[0]}")
    if option == "by_content" and not any(isinstance(each, DictShape | ListShape | JsonShape) for each in reached):
        raise DefinitionError(f"by_content has {text!r}, which is neither a dict nor a list")
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
            why.append(f"{where} has no field {step!r}, but {', '.join(shape.fields)}")
        for name in names:
            yield from _reached(shape.fields[name], tuple(rest), f"{where}.{name}", why)
    elif isinstance(shape, DictShape | ListShape | TupleShape | JsonShape):
        step, *rest = pattern
        if step != ANY:
            why.append(f"the entries of {where} are all called '*', so that is not {step!r}")
        elif isinstance(shape, JsonShape):
            yield from _reached(shape, tuple(rest), f"{where}.*", why)
        else:
            for item in shape.items if isinstance(shape, TupleShape) else (shape.part(0),):
                yield from _reached(item, tuple(rest), f"{where}.*", why)
    else:
        why.append(f"{where} has no parts")

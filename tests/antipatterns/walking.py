"""What the modules of Stateroom remember: every object that can be reached from their names, and what it holds."""

import importlib
import pkgutil
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from importlib.util import find_spec
from itertools import chain
from logging import Logger
from random import Random
from types import CellType, FunctionType, MappingProxyType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import stateroom
from stateroom import SessionLimits

LEAVES = (str, bytes, int, float, bool, complex, type(None), Enum)
TABLES = (dict, MappingProxyType, WeakKeyDictionary, WeakValueDictionary)
ROWS = (list, tuple, set, frozenset, deque, WeakSet)

ADDED = {
    "ray": ("rollout.engines.ray",),
    "torch": ("model.transformers", "training.learner", "training.loop"),
    "trl": ("adapters.trl",),
    "verl": ("adapters.verl",),
}
"""Packages that need not be there, and the modules that import them."""

JUSTIFIED = {
    "stateroom.session.runner._garbage.collected": "Python collects garbage for the whole process, at its own times",
    "stateroom.store.redis.layout.keys_of": "the keys of a session's name, a bounded cache of a pure function",
    ".__stateroom_shape__": "what a class of the author's compiles to, made once and kept on the class",
    ".__stateroom_schema__": "the same of its schema",
}
"""All that may change by use, and why."""


def modules() -> list[ModuleType]:
    """All modules of Stateroom but those of packages which are not there, with the names that it loads on first use."""
    left_out = ("__main__", *chain.from_iterable(ADDED[each] for each in ADDED if not find_spec(each)))
    names = sorted(found.name for found in pkgutil.walk_packages(stateroom.__path__, "stateroom."))
    found = [importlib.import_module(name) for name in names if not any(each in name for each in left_out)]
    for name in vars(stateroom)["__all__"]:
        getattr(stateroom, name)
    SessionLimits()  # pydantic completes a class of options when it is first used
    return [stateroom, *found]


def memory(seen: Iterable[ModuleType]) -> dict[str, str]:
    """What is at each place that can be reached from the names of some modules, in short."""
    return dict(_Walk().modules(seen))


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    """The places that hold something else than before."""
    return {place for place in before.keys() | after.keys() if before.get(place) != after.get(place)}


def unjustified(places: Iterable[str]) -> list[str]:
    """Those of the places that nothing says may change."""
    return sorted(place for place in places if not any(known in place for known in JUSTIFIED))


Found = Iterator[tuple[str, str]]


class _Walk:
    def __init__(self) -> None:
        self._seen: dict[int, Any] = {}
        """What was met, held on to, so that no other object gets its id meanwhile."""

    def modules(self, modules: Iterable[ModuleType]) -> Found:
        for module in modules:
            for name, value in sorted(vars(module).items()):
                if name not in ("__builtins__", "__warningregistry__"):
                    yield from self.place(f"{module.__name__}.{name}", value)

    def place(self, path: str, value: Any) -> Found:
        if isinstance(value, LEAVES):
            yield path, repr(value)
            return
        yield path, f"{type(value).__name__} at {id(value)}"
        if id(value) not in self._seen and not isinstance(value, ModuleType | Logger):
            self._seen[id(value)] = value
            yield from self.inside(path, value)

    def inside(self, path: str, value: Any) -> Found:
        if isinstance(value, TABLES):
            for key, part in list(value.items()):
                yield from self.place(f"{path}[{key!r:.80}]", part)
        elif isinstance(value, ROWS):
            yield path + ".members", str(sorted(map(id, value)) if isinstance(value, set | frozenset) else len(value))
            for index, part in enumerate(list(value)):
                yield from self.place(f"{path}[{index}]", part)
        elif isinstance(value, Random):
            yield path + ".state", str(hash(value.getstate()))
        elif hasattr(value, "cache_info"):
            if _is_ours(value):
                yield path + ".cache", str(value.cache_info().currsize)
        elif isinstance(value, FunctionType):
            yield from self.inside(path + ".defaults", [value.__defaults__, value.__kwdefaults__, value.__dict__])
            yield from self.inside(path + ".closure", [_content(cell) for cell in value.__closure__ or ()])
        elif isinstance(value, staticmethod | classmethod):
            yield from self.place(path, value.__func__)
        elif isinstance(value, type):
            yield from self.attributes(path, value, vars(value)) if _is_ours(value) else ()
        elif _is_ours(type(value)):
            yield from self.attributes(path, value, getattr(value, "__dict__", {}))
        else:
            yield path + ".said", f"{value!r:.200}"  # which tells how far an iterator has come

    def attributes(self, path: str, owner: Any, own: Mapping[str, Any]) -> Found:
        for name, part in list(own.items()):
            if not name.startswith(("__pydantic", "_abc_", "__weakref__", "__dict__", "__annotations__")):
                yield from self.place(f"{path}.{name}", part)
        for kind in () if isinstance(owner, type) else type(owner).__mro__:
            for name in getattr(kind, "__slots__", ()):
                if hasattr(owner, name):
                    yield from self.place(f"{path}.{name}", getattr(owner, name))


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it was never filled
        return None


def _is_ours(made: Any) -> bool:
    """Whether a class or a function was written here."""
    return str(made.__module__).partition(".")[0] == "stateroom"

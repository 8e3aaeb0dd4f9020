"""Packages that import their parts on first use, so that a program loads only what it needs."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy(package: str, *modules: str) -> Callable[[str], Any]:
    """A package's `__getattr__`: it takes a name from the first of the modules that exports it.

    List light modules first: the search imports each module up to the one with the name.
    """

    def load(name: str) -> Any:
        # A module is no attribute of its package until it is imported: `from package import module` relies on that.
        if not name.startswith("_") and f"{package}.{name}" not in modules:
            for module in map(import_module, modules):
                if name in getattr(module, "__all__", vars(module)):
                    value = vars(import_module(package))[name] = getattr(module, name)  # once per name
                    return value
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return load

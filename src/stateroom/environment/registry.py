"""Environments, and other classes, by name or `module:Class`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from stateroom.environment.environment import Environment
from stateroom.errors import NotFound, StateroomError
from stateroom.session import contained

GROUP = "stateroom.environments"
"""The entry-point group of environments."""


def registered() -> dict[str, str]:
    """The registered environments: `module:Class` by name."""
    return {point.name: point.value for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def find_environment(reference: str) -> type[Environment[Any, Any]]:
    """The environment class of a `name`, `module:Class` or `path.py:Class`. Raises `NotFound`."""
    found: Any
    if ":" in reference:
        found = load_class(reference)
    else:
        known = registered()
        if reference not in known:
            raise NotFound(
                f"no environment is named {reference!r}; there are: {', '.join(known) or 'none'}. "
                "Name your own as module:Class or path.py:Class"
            )
        found = load_class(known[reference])
    if not (isinstance(found, type) and issubclass(found, Environment)) or found is Environment:
        raise NotFound(f"{reference} is not an Environment class")
    return found


def load_class(reference: str) -> Any:
    """The class of a `module:Class` or `path.py:Class`. Raises `NotFound`."""
    where, _, name = reference.rpartition(":")
    if not where or not name or where.startswith("."):
        raise NotFound(f"{reference!r} is not of the form module:Class or path.py:Class")
    module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where)
    if not hasattr(module, name):
        classes = [
            key
            for key, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        raise NotFound(f"{where} has no {name!r}; its classes are: {', '.join(classes) or 'none'}")
    return getattr(module, name)


def _load_module(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")  # a module in the current folder, as with `python -m`
    try:
        with contained:
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise NotFound(
                f"there is no module {name!r}; is its package installed, or its folder the current one?"
            ) from None
        raise _broken(name, error) from error
    except StateroomError:
        raise
    except Exception as error:
        raise _broken(name, error) from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise NotFound(f"there is no file {path}")
    name = f"stateroom_user_{path.stem}_{abs(hash(path.resolve())):x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pydantic looks up types by their module
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # so that it can import its neighbours, as with `python path.py`
    try:
        with contained:
            spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, StateroomError) or not isinstance(error, Exception):
            raise
        raise _broken(str(path), error) from error
    return module


def _broken(where: str, error: Exception) -> NotFound:
    return NotFound(f"{where} cannot be imported: {type(error).__name__}: {error}")

"""Environments, and other classes, by name or `module:Class`; and instances of them, with constructor arguments.

The arguments come from a command line, from Python, or from a task row.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from stateroom.environment.environment import ENV_ARGS, Environment
from stateroom.errors import BadTask, CannotImport, DefinitionError, InvalidEnvironment, NotFound, StateroomError
from stateroom.session import contained

GROUP = "stateroom.environments"
"""The entry-point group of environments."""

NO_ARGUMENTS: Mapping[str, Any] = {}


def registered() -> dict[str, str]:
    """Return the registered environments: `module:Class` by name."""
    return {point.name: point.value for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)}


def find_environment(reference: str) -> type[Environment[Any, Any]]:
    """Find the class of a `name`, `module:Class` or `path.py:Class`. Raises `NotFound` or `InvalidEnvironment`."""
    environment: Any
    if ":" in reference:
        environment = load_class(reference)
    else:
        known = registered()
        if reference not in known:
            raise NotFound(
                f"unknown environment {reference!r}; registered: {', '.join(known) or 'none'}. "
                "To use your own, write module:Class or path.py:Class"
            )
        environment = load_class(known[reference], in_folder=False)
    if not (isinstance(environment, type) and issubclass(environment, Environment)) or environment is Environment:
        raise InvalidEnvironment(f"{reference} is not an Environment class")
    return environment


def load_class(reference: str, *, in_folder: bool = True) -> Any:
    """Load the class of a `module:Class` or `path.py:Class`. Raises `NotFound` or `CannotImport`.

    With `in_folder`, the module may be in the current folder.
    """
    where, _, name = reference.rpartition(":")
    if not where or not name or where.startswith("."):
        raise NotFound(f"{reference!r} must have the form module:Class or path.py:Class")
    module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where, in_folder)
    if not hasattr(module, name):
        classes = [
            key
            for key, value in vars(module).items()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        raise NotFound(f"{where} has no {name!r}; it defines: {', '.join(classes) or 'no classes'}")
    return getattr(module, name)


def _load_module(name: str, in_folder: bool) -> ModuleType:
    if in_folder and "" not in sys.path:
        sys.path.insert(0, "")  # a module in the current folder, as with `python -m`
    try:
        with contained:
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise NotFound(
                f"module {name!r} not found; install its package, or run in the folder that contains it"
            ) from None
        raise _broken(name, error) from error
    except StateroomError:
        raise
    except Exception as error:
        raise _broken(name, error) from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise NotFound(f"file {path} does not exist")
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


def _broken(where: str, error: Exception) -> CannotImport:
    return CannotImport(f"{where} cannot be imported: {type(error).__name__}: {error}")


class TypedText(str):
    """A value as a user typed it: JSON where the parameter is not a text."""


def make_environment(
    environment: str | type[Environment[Any, Any]] | Environment[Any, Any],
    arguments: Mapping[str, Any] = NO_ARGUMENTS,
) -> Environment[Any, Any]:
    """Make an instance of an environment: a registered name, `module:Class`, `path.py:Class`, a class or an instance.

    The `arguments` are validated against the annotations of its constructor. Raises `NotFound` for an unknown
    environment or argument, `DefinitionError` if an argument is missing or invalid, and `InvalidEnvironment`.
    """
    if isinstance(environment, Environment):
        if arguments:
            name = type(environment).__name__
            raise DefinitionError(f"env_args cannot change an instance; pass the class {name}, or omit env_args")
        return environment
    if isinstance(environment, str):
        environment = find_environment(environment)
    if not (isinstance(environment, type) and issubclass(environment, Environment)):
        raise InvalidEnvironment(
            f"{environment!r} is not an environment: pass a name, module:Class, a class or an instance"
        )
    given = _checked(environment, arguments)
    try:
        with contained:
            made = environment(**given)
    except StateroomError:
        raise
    except Exception as error:
        where = f"{environment.__module__}.{environment.__qualname__}"
        how = f" with {', '.join(given)}" if given else " without arguments"
        raise InvalidEnvironment(f"{where} cannot be created{how}: {type(error).__name__}: {error}") from error
    vars(made)["made_with"] = given  # not an assignment, of which an instance in use would warn
    return made


def variant_of(environment: Environment[Any, Any], row: Mapping[str, Any]) -> Environment[Any, Any]:
    """The instance in which a task row runs: with the row's `env_args`, if it has some. Raises `BadTask`.

    There is one instance for each combination of arguments.
    """
    given = environment.arguments_of(row)
    if not given:
        return environment
    if environment.made_with is None:
        name = type(environment).__name__
        raise BadTask(f"{ENV_ARGS}: a task cannot change the arguments of an instance; run the class {name} instead")
    key = json.dumps(given, sort_keys=True)
    if key not in environment.variants:
        arguments = {**environment.made_with, **given}
        try:
            made = make_environment(type(environment), arguments)
        except (NotFound, DefinitionError, InvalidEnvironment) as error:
            raise BadTask(f"{ENV_ARGS}: {error}") from error
        vars(made)["made_with"] = arguments  # as the row has them
        environment.variants[key] = made
    return environment.variants[key]


def accepted_arguments(environment: str | type[Environment[Any, Any]], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those arguments that the constructor of an environment takes."""
    kind = find_environment(environment) if isinstance(environment, str) else environment
    named, takes_any = _parameters(kind)
    return {name: value for name, value in arguments.items() if takes_any or name in named}


def _parameters(environment: type[Environment[Any, Any]]) -> tuple[dict[str, inspect.Parameter], bool]:
    """The parameters of the constructor by name, and whether it takes others too."""
    parameters = inspect.signature(environment).parameters.values()
    named = {each.name: each for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)}
    return named, any(each.kind == each.VAR_KEYWORD for each in parameters)


def _checked(environment: type[Environment[Any, Any]], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as the constructor's annotations want them."""
    named, takes_any = _parameters(environment)
    if not takes_any and (unknown := [name for name in arguments if name not in named]):
        known = ", ".join(named) or "none"
        raise NotFound(f"{environment.__name__} has no argument {unknown[0]!r}; its arguments are: {known}")
    missing = [name for name, each in named.items() if each.default is each.empty and name not in arguments]
    if missing:
        name = missing[0]
        raise DefinitionError(f"{environment.__name__} needs the argument {name!r}; add it to `env_args`")
    hints = _hints(environment) if arguments else {}
    return {
        name: _value(environment, name, value, hints.get(name, _type_of_default(named.get(name))))
        for name, value in arguments.items()
    }


def _hints(environment: type[Environment[Any, Any]]) -> dict[str, Any]:
    try:
        return get_type_hints(environment.__init__, include_extras=True)
    except (NameError, TypeError) as error:
        where = f"{environment.__name__}.__init__"
        raise DefinitionError(f"{where}: cannot read its annotations: {error}") from None


def _type_of_default(parameter: inspect.Parameter | None) -> Any:
    if parameter is None or parameter.default is parameter.empty or parameter.default is None:
        return Any
    return type(parameter.default)


def _value(environment: type[Environment[Any, Any]], name: str, value: Any, kind: Any) -> Any:
    """A value, validated; one that was typed may also be the JSON of what is wanted."""
    try:
        try:
            adapter = TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
        except PydanticUserError:  # a type with a config of its own
            adapter = TypeAdapter(kind)
        if isinstance(value, TypedText) and kind is Any:
            return _json_or_text(value)
        try:
            return adapter.validate_python(str(value) if isinstance(value, TypedText) else value)
        except ValidationError:
            if not isinstance(value, TypedText):
                raise
            return adapter.validate_python(_json_or_text(value))
    except ValidationError as error:
        why = "; ".join(problem["msg"] for problem in error.errors(include_url=False, include_context=False))
        raise DefinitionError(f"argument {name!r} of {environment.__name__} is invalid: {why}") from None


def _json_or_text(text: TypedText) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return str(text)

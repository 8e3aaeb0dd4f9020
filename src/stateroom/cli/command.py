"""`command`: turns a function into a command. Its options come from classes of options, and it returns its output.

For a parameter whose type is a class of options, the command line gets an option per field, with its help, bounds and
short flag. With `OptionSources[…]` of a class, the function itself merges the options of a configuration file.
The function may be async. If it returns an `Output`, the command also has `--json`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from inspect import Parameter, iscoroutine, signature
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import typer
from annotated_types import Ge, Le

from stateroom.cli.output import print_json
from stateroom.errors import InvalidOption, StateroomError
from stateroom.options import OptionField, are_options, flag_of, make_options, option_fields

F = TypeVar("F", bound=Callable[..., Any])
O = TypeVar("O")  # noqa: E741 - for options

AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Output(NamedTuple):
    """The result of a command."""

    data: Callable[[], Any]
    """For programs, with `--json`."""
    show: Callable[[], None]
    """For a person."""
    code: int = 0
    """The exit code."""


@dataclass(frozen=True)
class OptionSources(Generic[O]):
    """The options of a class that the command line and environment variables set."""

    kind: type[O]
    typed: Mapping[str, Any]
    """On the command line."""
    variables: Mapping[str, Any]
    """In environment variables."""

    def options(self, in_file: Mapping[str, Any], **own: Any) -> O:
        """The merged options: the command line wins over a file, and a file over variables. `own` wins over all."""
        return make_options(self.kind, **{**self.variables, **in_file, **self.typed, **own})


class Commands(typer.Typer):
    """A group of commands, each a function; see `command`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(no_args_is_help=True, **settings)

    def add(self, function: F, *before: type[Any], name: str | None = None, **settings: Any) -> F:
        """Add a command, by default with the function's name."""
        super().command(name, **settings)(command(function, *before))
        return function

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        """A decorator that adds a command."""
        return lambda function: self.add(function, name=name, **settings)


def command(function: Callable[..., Any], *before: type[Any]) -> Callable[..., None]:
    """A function as a command for typer; options of the classes `before` are called first."""
    hints = get_type_hints(function, include_extras=True)
    gives_output = hints.pop("return", None) is Output
    kinds = {name: kind for name, hint in hints.items() if (kind := _kind(hint)) is not None}
    fields = {name for kind in (*kinds.values(), *before) for name in option_fields(kind)}

    def run(context: typer.Context, **words: Any) -> None:
        try:
            for kind in before:
                _given(kind, context, words).options({})(words)
            own = {name: words[name] for name in hints if name not in kinds}
            for name, kind in kinds.items():
                given = _given(kind, context, words)
                own[name] = given if get_origin(hints[name]) is OptionSources else given.options({})
            output = function(**own)
            output = asyncio.run(output) if iscoroutine(output) else output
        except StateroomError as error:
            error.args = (_with_flags(error, context, fields),)
            raise
        if gives_output:
            _print(output, as_json=words["json_output"])

    run.__name__, run.__doc__ = function.__name__, function.__doc__
    parameters = [Parameter("context", Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    parameters += _parameters(function, hints, kinds)
    if gives_output:
        parameters.append(Parameter("json_output", Parameter.KEYWORD_ONLY, default=False, annotation=AsJSON))
    for kind in before:
        parameters += map(_parameter, option_fields(kind).values())
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__signature__ = signature(function).replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def _print(output: Output, *, as_json: bool) -> None:
    if as_json:
        print_json(output.data())
    else:
        output.show()
    if output.code:
        raise typer.Exit(output.code)


def _with_flags(error: StateroomError, context: typer.Context, fields: Container[str]) -> str:
    """The text of an error, with flags in place of Python names such as `env_args`."""
    shown = {str(each.name): _shown(each) for each in context.command.params}
    text = str(error)
    if isinstance(error, InvalidOption):
        text = f"{shown.get(error.option) or flag_of(error.option)}: {error.message}"
    return re.sub(r"`(\w+)`", lambda match: shown[match[1]] if match[1] in fields else match[0], text)


def _shown(parameter: Any) -> str:
    """A parameter as written on the command line."""
    if parameter.param_type_name == "option":
        return str(parameter.opts[0])
    return parameter.metavar or str(parameter.name).upper()


def _kind(hint: Any) -> type[Any] | None:
    """The class of options that a type names, if it names one."""
    kind = get_args(hint)[0] if get_origin(hint) is OptionSources else hint
    return kind if are_options(kind) else None


def _parameters(
    function: Callable[..., Any], hints: Mapping[str, Any], kinds: Mapping[str, type[Any]]
) -> Iterator[Parameter]:
    for each in signature(function).parameters.values():
        if each.name in kinds:
            yield from map(_parameter, option_fields(kinds[each.name]).values())
        else:
            yield each.replace(annotation=hints[each.name], kind=Parameter.KEYWORD_ONLY)


def _parameter(field: OptionField) -> Parameter:
    """An option as a parameter that typer reads."""
    option, default = field.option, field.default
    about: dict[str, Any] = {"help": field.description, "metavar": option.metavar, "envvar": option.variable}
    about |= {"min": field.bound(Ge), "max": field.bound(Le)}
    kind = field.kind
    if kind == dict[str, Any]:
        kind, default = list[str], None
        about["help"] += " Format: NAME=VALUE. Repeatable."
    elif kind == list[str]:
        default = None
        about["help"] += "" if field.is_positional else " Repeatable."
    if default is None:
        kind, about["show_default"] = kind | None, False
    flag = f"{field.flag}/{flag_of(f'no_{field.name}')}" if default is True else field.flag
    flags = [flag, *([option.short] if option.short else [])]
    info = typer.Argument(**about) if field.is_positional else typer.Option(*flags, **about)
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def _given(kind: type[O], context: typer.Context, words: Mapping[str, Any]) -> OptionSources[O]:
    sources: dict[str, dict[str, Any]] = {"COMMANDLINE": {}, "ENVIRONMENT": {}}
    for field in option_fields(kind).values():
        source = context.get_parameter_source(field.name)
        if source is not None and source.name in sources:
            sources[source.name][field.name] = _value(field, words[field.name])
    return OptionSources(kind, sources["COMMANDLINE"], sources["ENVIRONMENT"])


def _value(field: OptionField, given: Any) -> Any:
    """Convert the words on the command line to a value."""
    if field.kind != dict[str, Any]:
        return given
    value = field.option.value
    return {name: value(text) for name, text in pairs(given, field.name, field.option.example)}


def pairs(given: list[str] | None, option: str, example: str) -> Iterator[tuple[str, str]]:
    """Parse NAME=VALUE texts of an option."""
    for text in given or ():
        name, is_there, value = text.partition("=")
        if not (name and is_there):
            raise InvalidOption(option, f"{text!r} is not NAME=VALUE, such as {example}")
        yield name, value

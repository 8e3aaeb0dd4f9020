"""`stateroom config`, and the sections of configuration files, which have the options of `run` and `serve`."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple, get_args

import typer
import yaml
from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema, to_jsonable_python
from rich.text import Text

from stateroom.cli.command import Commands, OptionSources, Output
from stateroom.cli.options import ServeWithStudio
from stateroom.cli.output import note, say
from stateroom.config import Node, import_gym, merged, overrides_of, read_document
from stateroom.errors import BadConfig, InvalidOption, format_path
from stateroom.jsonl import replace_lines
from stateroom.options import option_fields, suggestion
from stateroom.rollout import EnvironmentOptions, ModelOptions, RunOptions, ensure_new, new_path
from stateroom.store import HIDDEN, hide_secrets

app = Commands(help="Show, describe and import configuration files.")

ConfigFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--config",
        help="A configuration file; options on the command line override it. Repeatable: later files win.",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="With --config: override a value of the file, such as run.repeats=8.",
        show_default=False,
        metavar="KEY=VALUE",
    ),
]

NOT_IN_NAMES = re.compile(r"[^\w.-]")
"""Characters of an environment's name that become `_` in its file names."""

FREE = (("args",), ("settings",))
"""Keys with arbitrary values, which may be secrets."""


class Section(BaseModel):
    """A mapping in a configuration file."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class EnvironmentSection(Section):
    """An environment with its constructor arguments and tasks."""

    environment: str | None = Field(
        None, description="A registered name, module:Class or path.py:Class; by default the name of this entry."
    )
    args: dict[str, Any] = Field({}, description="Constructor arguments.")
    input: Path | None = Field(None, description="Tasks as JSONL; by default the environment's examples.")


ENVIRONMENTS = "Names of `environments`, registered names, module:Class or path.py:Class."


def fields_of(kind: type[Any], *left_out: type[Any]) -> dict[str, Any]:
    """The options of a class as fields of a section, without those of other classes."""
    aside = {name for each in left_out for name in option_fields(each)}
    fields = {}
    for name, each in option_fields(kind).items():
        if each.option.stored and name not in aside:
            bounds = {"ge": each.bound(Ge), "le": each.bound(Le)}
            default = each.default
            kind = each.kind if default is not None else each.kind | None
            fields[name] = (kind, Field(default, description=each.description, **bounds))
    return fields


@cache
def config_type() -> type[Section]:
    """The type of a whole configuration file."""
    of_models = fields_of(ModelOptions)
    settings = {"settings": fields_of(RunOptions)["settings"]}
    model = create_model(
        "ModelSection",
        __base__=Section,
        __doc__="A model with its API key, price, limits and settings.",
        **{**of_models, **settings, "model": (str, Field(description=of_models["model"][1].description))},
    )
    one_run = create_model(
        "RunSection",
        __base__=Section,
        __doc__="Episodes of one or more environments with one model.",
        environments=(list[str], Field(min_length=1, description=ENVIRONMENTS)),
        model=of_models["model"],
        **fields_of(RunOptions, EnvironmentOptions, ModelOptions),
    )
    serving = create_model(
        "ServeSection",
        __base__=Section,
        __doc__="The options of `stateroom serve`.",
        environments=(list[str], Field([], description=ENVIRONMENTS)),
        **fields_of(ServeWithStudio),
    )
    files = "Files to include, with paths relative to this one; its values win."
    return create_model(
        "Configuration",
        __base__=Section,
        __doc__="A configuration of Stateroom.",
        include=(str | list[str] | None, Field(None, description=files)),
        environments=(dict[str, EnvironmentSection | None], Field({}, description="Environments by name.")),
        models=(dict[str, model], Field({}, description="Models by name.")),
        stores=(dict[str, str], Field({}, description="Store URLs by name.")),
        runs=(dict[str, one_run], Field({}, description="Runs by name.")),
        serve=(serving | None, Field(None, description="The options of stateroom serve.")),
    )


@dataclass(frozen=True)
class Configuration:
    """A validated configuration of files and overrides."""

    values: Any
    """The sections."""
    document: Node
    """The values with their origins."""

    @classmethod
    def load(cls, files: Sequence[Path], overrides: Sequence[str] = (), name: str | None = None) -> Configuration:
        """Read files. An override `run.KEY=VALUE` changes the run with this name, or the only one.

        Raises `BadConfig` with all problems.
        """
        document = read_document(files)
        runs = document.at(["runs"])
        names = [*runs.value] if runs is not None and isinstance(runs.value, dict) else []
        changes = [_of_run(each, names, name) for each in overrides]
        document = merged(document, overrides_of(changes))
        try:
            return cls(config_type().model_validate(document.plain()), document)
        except ValidationError as error:
            problems = error.errors(include_url=False, include_context=False, include_input=False)
            lines = (_problem(document, each["loc"], each["type"], each["msg"]) for each in problems)
            raise BadConfig("\n".join(lines)) from None

    def run_named(self, name: str | None) -> str:
        """Check the name of a run; None means the only one."""
        names: list[str] = [*self.values.runs]
        if name is None and len(names) == 1:
            return names[0]
        known = f"available: {', '.join(names)}" if names else "it has none; add one under `runs`"
        if name is None:
            raise BadConfig(f"name a run of the file; {known}")
        if name not in names:
            raise BadConfig(f"the file has no run {name!r}; {suggestion(name, names)}")
        return name

    def model(self, name: str | None) -> dict[str, Any]:
        """The options of a model in the file; a spec in place of a name gives only itself."""
        section = self.values.models.get(name)
        return {"model": name} if section is None else _given(section)

    def store(self, name: str | None) -> str | None:
        """The URL of a store by name; a URL is returned unchanged."""
        return self.values.stores.get(name, name)  # type: ignore[no-any-return]

    def environment(self, name: str) -> EnvironmentSection:
        """The section of an environment; without one, the name is the environment itself."""
        section = self.values.environments.get(name) or EnvironmentSection()
        return section.model_copy(update={"environment": section.environment or name})


def _of_run(override: str, names: list[str], chosen: str | None) -> str:
    """An override with `run` replaced by the name of the run."""
    path, _, value = override.partition("=")
    first, _, rest = path.partition(".")
    if first != "run":
        return override
    if chosen is None and len(names) != 1:
        known = ", ".join(f"runs.{name}.{rest}" for name in names)
        raise BadConfig(f"{path}: name the run: {known or 'the file has none'}")
    return f"runs.{chosen or names[0]}.{rest}={value}"


def _problem(document: Node, place: tuple[str | int, ...], kind: str, message: str) -> str:
    """A problem with its file, line and key."""
    known = next(node for end in range(len(place), -1, -1) if (node := document.at(place[:end])) is not None)
    if kind == "extra_forbidden":
        keys = _keys_at(config_type(), place[:-1])
        message = f"unknown key; {suggestion(str(place[-1]), keys)}"
    return f"{known.origin}: {format_path(place)}: {message}"


def _keys_at(kind: Any, place: Sequence[str | int]) -> list[str]:
    """The keys of the section at a place."""
    for step in place:
        fields = getattr(kind, "model_fields", None)
        kind = get_args(kind)[-1] if fields is None else fields[step].annotation
        kind = get_args(kind)[0] if isinstance(kind, UnionType) else kind
    return [*kind.model_fields]


def _given(section: BaseModel) -> dict[str, Any]:
    """The values of a section that are set."""
    return {name: getattr(section, name) for name in section.model_fields_set}


def names_and_overrides(words: Sequence[str], files: Sequence[Path] | None) -> tuple[list[str], list[str]]:
    """Separate the arguments of a command into names and overrides of a configuration."""
    names = [word for word in words if word and "=" not in word]
    overrides = [word for word in words if "=" in word]
    if overrides and not files:
        raise BadConfig(f"{overrides[0]}: an override needs a configuration; give one with --config")
    return names, overrides


def run_options(configuration: Configuration, name: str, given: OptionSources[RunOptions]) -> dict[str, RunOptions]:
    """The options of each environment of a run in a file, by the environment's name."""
    section = _given(configuration.values.runs[name])
    names = section.pop("environments")
    _ensure_one(names, given.typed)
    known = {**given.variables, **section, **given.typed}
    model = configuration.model(known.get("model"))
    settings = {**model.pop("settings", {}), **section.pop("settings", {}), **given.typed.get("settings", {})}
    chosen = {"model": model.pop("model"), "settings": settings, "store": configuration.store(known.get("store"))}
    folder = _folder(known.get("output"), name) if len(names) > 1 else None
    options = {}
    for each in names:
        entry = configuration.environment(each)
        own: dict[str, Any] = {
            "environment": entry.environment,
            "env_args": {**entry.args, **given.typed.get("env_args", {})},
        }
        if folder is not None:
            own["output"] = folder / f"{NOT_IN_NAMES.sub('_', each)}.jsonl"
        options[each] = given.options({"input": entry.input, **section, **model}, **chosen, **own)
    return options


def serve_options(
    configuration: Configuration, names: Sequence[str], given: OptionSources[ServeWithStudio]
) -> ServeWithStudio:
    """The options of a server for the environments with these names or, by default, all of the file."""
    section = {} if configuration.values.serve is None else _given(configuration.values.serve)
    own = section.pop("environments", [])
    entries = [configuration.environment(each) for each in names or own]
    _ensure_one(entries, given.typed)
    known = {**given.variables, **section, **given.typed}
    models = {role: configuration.model(known[role]) for role in ("model", "agent") if role in known}
    keys = sorted({each["api_key_env"] for each in models.values() if "api_key_env" in each})
    if len(keys) > 1 and "api_key_env" not in given.typed:
        raise BadConfig(f"serve: the model and the agent must share one key variable, not {' and '.join(keys)}")
    chosen: dict[str, Any] = {role: each["model"] for role, each in models.items()}
    if "store" in known:
        chosen["store"] = configuration.store(known["store"])
    return given.options(
        {**section, **({"api_key_env": keys[0]} if keys else {})},
        **chosen,
        environments=[entry.environment for entry in entries],
        env_args=[{**entry.args, **given.typed.get("env_args", {})} for entry in entries],
    )


def _ensure_one(environments: Sequence[Any], chosen: Container[str]) -> None:
    """Refuse options for a single environment if there are several."""
    for name in ("env_args", "input"):
        if len(environments) > 1 and name in chosen:
            raise InvalidOption(
                name, "this option is for a single environment; put it under `environments` in the file"
            )


def _folder(output: Path | None, name: str) -> Path:
    """The folder for the files of a run of several environments."""
    if output is not None and output.suffix == ".jsonl":
        raise InvalidOption("output", f"{output}: for several environments, name a folder")
    return output or new_path(NOT_IN_NAMES.sub("_", name))


@app.command()
def show(overrides: Overrides = None, config: ConfigFiles = None) -> Output:
    """Print the merged configuration, with the origin of each value. Secrets are hidden.

    By default it reads stateroom.yaml in the current folder.

    Example: stateroom config show

    Example: stateroom config show --config base.yaml --config mine.yaml run.repeats=8
    """
    configuration = Configuration.load(config or [Path("stateroom.yaml")], overrides or ())
    values = [*_values(configuration.values, configuration.document, ())]
    return Output(
        lambda: [{"key": ".".join(each.path), "value": each.shown, "origin": each.origin} for each in values],
        lambda: _print(values),
    )


@app.command()
def schema() -> None:
    """Print the JSON Schema of configuration files, for editors.

    Example: stateroom config schema > stateroom.schema.json
    """
    typer.echo(json.dumps(config_type().model_json_schema(schema_generator=_Schema), indent=2, ensure_ascii=False))


@app.command("import")
def import_(
    files: Annotated[
        list[Path],
        typer.Argument(help="Configuration files of NeMo Gym; later ones win.", show_default=False, metavar="FILE..."),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write; by default standard output.", show_default=False),
    ] = None,
) -> None:
    """Convert a configuration of NeMo Gym. Remaining steps are listed on standard error.

    Example: stateroom config import counter.yaml --output stateroom.yaml
    """
    imported = import_gym(files)
    text = yaml.safe_dump(imported.config, sort_keys=False, allow_unicode=True, width=1000)
    if output is None:
        typer.echo(text, nl=False)
    else:
        ensure_new(output)
        replace_lines(output, [text.encode()])
    for problem in imported.notes:
        note(f"to do: {problem}")


class _Schema(GenerateJsonSchema):
    """A schema in which numbers and booleans may also be environment variables."""

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return _or_variable(super().int_schema(schema))

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return _or_variable(super().float_schema(schema))

    def bool_schema(self, schema: core_schema.BoolSchema) -> JsonSchemaValue:
        return _or_variable(super().bool_schema(schema))


def _or_variable(schema: JsonSchemaValue) -> JsonSchemaValue:
    return {"anyOf": [schema, {"type": "string", "pattern": r"^\$\{env:\w+(,.*)?\}$"}]}


class _Value(NamedTuple):
    """A printable value."""

    path: tuple[str, ...]
    shown: Any
    origin: str


def _values(value: Any, document: Node, path: tuple[str, ...]) -> Iterator[_Value]:
    """The values of a configuration that are set or have a default."""
    parts = dict(value) if isinstance(value, BaseModel | dict) else {}
    if parts:
        for name, part in parts.items():
            yield from _values(part, document, (*path, str(name)))
        return
    node = document.at(path)
    if node is not None:
        yield _Value(path, _shown(value, node, path), str(node.origin))
    elif value is not None and value != {}:
        yield _Value(path, to_jsonable_python(value), "default")


def _shown(value: Any, node: Node, path: tuple[str, ...]) -> Any:
    """A value without secrets: a text from the environment is shown as the reference in the file.

    For keys with arbitrary values, every value from the environment is treated as a secret.
    """
    is_free = path[2:3] in FREE
    if is_free and _from_environment(node) and not isinstance(value, bool):
        return HIDDEN
    return hide_secrets(_written(to_jsonable_python(value), node), " ".join(path[3:]) if is_free else "")


def _written(value: Any, node: Node) -> Any:
    """A value with texts from the environment replaced by their references; numbers and booleans stay."""
    if isinstance(value, list) and isinstance(node.value, list) and len(value) == len(node.value):
        return [_written(part, each) for part, each in zip(value, node.value, strict=True)]
    is_text = not isinstance(value, bool | int | float | None)
    return node.origin.written if is_text and _from_environment(node) else value


def _from_environment(node: Node) -> bool:
    below = node.value.values() if isinstance(node.value, dict) else node.value if isinstance(node.value, list) else ()
    return bool(node.origin.variables) or any(map(_from_environment, below))


def _yaml(value: Any) -> str:
    """A value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10**6)
    lines = text.removesuffix("...\n").splitlines()
    return lines[0] if len(lines) == 1 else json.dumps(value)


def _print(values: Sequence[_Value]) -> None:
    """Print values as YAML, with their origins as comments."""
    lines: list[tuple[str, str]] = []
    sections: set[tuple[str, ...]] = set()
    for each in values:
        for depth, name in enumerate(each.path[:-1]):
            if each.path[: depth + 1] not in sections:
                sections.add(each.path[: depth + 1])
                lines.append((f"{'  ' * depth}{name}:", ""))
        lines.append((f"{'  ' * (len(each.path) - 1)}{each.path[-1]}: {_yaml(each.shown)}", each.origin))
    width = max((len(text) for text, origin in lines if origin), default=0)
    for text, origin in lines:
        comment = (f"{'':{width - len(text)}}  # {origin}", "dim") if origin else ""
        say(Text.assemble(text, comment))

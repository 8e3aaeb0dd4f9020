"""Configuration files: their sections, made of the options of `run` and `serve`, and what they say to these."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args

import typer
from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from stateroom.cli.command import OptionSources
from stateroom.cli.options import ServeWithStudio
from stateroom.config import Node, merged, overrides_of, read_document
from stateroom.errors import BadConfig, InvalidOption, format_path
from stateroom.options import option_fields, suggestion
from stateroom.rollout import EnvironmentOptions, ModelOptions, RunOptions, new_path

ConfigFiles = Annotated[
    list[Path] | None,
    typer.Option(
        "--config",
        help="A configuration file. Options on the command line win over it. Repeatable: later files win.",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="With --config: KEY=VALUE changes the file, such as run.repeats=8.",
        show_default=False,
        metavar="KEY=VALUE",
    ),
]

NOT_IN_NAMES = re.compile(r"[^\w.-]")
"""Characters of an environment's name that its files have as `_`."""


class Section(BaseModel):
    """A mapping in a configuration file."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class EnvironmentSection(Section):
    """An environment, with the arguments of its constructor and its tasks."""

    environment: str | None = Field(
        None, description="A registered name, module:Class or path.py:Class; by default the name of this entry."
    )
    args: dict[str, Any] = Field({}, description="Arguments of the constructor.")
    input: Path | None = Field(None, description="Tasks as JSONL; by default the environment's examples.")


ENVIRONMENTS = "Names of `environments`, registered names, module:Class or path.py:Class."


def fields_of(kind: type[Any], *left_out: type[Any]) -> dict[str, Any]:
    """The options of a class as fields of a section, without those of other classes."""
    aside = {name for each in left_out for name in option_fields(each)}
    found = {}
    for name, each in option_fields(kind).items():
        if each.option.stored and name not in aside:
            bounds = {"ge": each.bound(Ge), "le": each.bound(Le)}
            default = each.default
            kind = each.kind if default is not None else each.kind | None
            found[name] = (kind, Field(default, description=each.description, **bounds))
    return found


@cache
def config_type() -> type[Section]:
    """The type of a whole configuration file."""
    of_models = fields_of(ModelOptions)
    settings = {"settings": fields_of(RunOptions)["settings"]}
    model = create_model(
        "ModelSection",
        __base__=Section,
        __doc__="A model, with its key, price, limits and settings.",
        **{**of_models, **settings, "model": (str, Field(description=of_models["model"][1].description))},
    )
    one_run = create_model(
        "RunSection",
        __base__=Section,
        __doc__="Episodes of one or several environments, by one model.",
        environments=(list[str], Field(min_length=1, description=ENVIRONMENTS)),
        model=of_models["model"],
        **fields_of(RunOptions, EnvironmentOptions, ModelOptions),
    )
    serving = create_model(
        "ServeSection",
        __base__=Section,
        __doc__="What `stateroom serve` serves, and how.",
        environments=(list[str], Field([], description=ENVIRONMENTS)),
        **fields_of(ServeWithStudio),
    )
    files = "Files that this one is added to, relative to it."
    return create_model(
        "Configuration",
        __base__=Section,
        __doc__="A configuration of Stateroom.",
        include=(str | list[str] | None, Field(None, description=files)),
        environments=(dict[str, EnvironmentSection | None], Field({}, description="Environments by name.")),
        models=(dict[str, model], Field({}, description="Models by name.")),
        stores=(dict[str, str], Field({}, description="URLs of stores by name.")),
        runs=(dict[str, one_run], Field({}, description="Runs by name.")),
        serve=(serving | None, Field(None, description="How to serve.")),
    )


@dataclass(frozen=True)
class Configuration:
    """What some files and overrides say, checked."""

    values: Any
    """The sections."""
    document: Node
    """The same, with the origin of each value."""

    @classmethod
    def load(cls, files: Sequence[Path], overrides: Sequence[str] = (), name: str | None = None) -> Configuration:
        """Read files. `run.KEY=VALUE` among the overrides is about the run of this name, or the only one.

        `BadConfig` lists all problems.
        """
        document = read_document(files)
        runs = document.at(["runs"])
        names = [*runs.value] if runs is not None and isinstance(runs.value, dict) else []
        changes = [_of_run(each, names, name) for each in overrides]
        document = merged(document, overrides_of(changes))
        try:
            return cls(config_type().model_validate(document.plain()), document)
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            told = (_problem(document, each["loc"], each["type"], each["msg"]) for each in found)
            raise BadConfig("\n".join(told)) from None

    def run_named(self, name: str | None) -> str:
        """The name of a run of the file; None is the only one."""
        names: list[str] = [*self.values.runs]
        if name is None and len(names) == 1:
            return names[0]
        known = f"it has {', '.join(names)}" if names else "it has none; add one under `runs`"
        if name is None:
            raise BadConfig(f"say which run of the file: {known}")
        if name not in names:
            raise BadConfig(f"the file has no run {name!r}; {suggestion(name, names)}")
        return name

    def model(self, name: str | None) -> dict[str, Any]:
        """What the file says of a model, as options; only its spec if that is given in place of a name."""
        section = self.values.models.get(name)
        return {"model": name} if section is None else _given(section)

    def store(self, name: str | None) -> str | None:
        """The URL of a store, by its name or as it is."""
        return self.values.stores.get(name, name)  # type: ignore[no-any-return]

    def environment(self, name: str) -> EnvironmentSection:
        """What the file says of an environment; by default it is what its name says."""
        section = self.values.environments.get(name) or EnvironmentSection()
        return section.model_copy(update={"environment": section.environment or name})


def _of_run(override: str, names: list[str], chosen: str | None) -> str:
    """An override with the name of the run that `run` stands for."""
    path, _, value = override.partition("=")
    first, _, rest = path.partition(".")
    if first != "run":
        return override
    if chosen is None and len(names) != 1:
        known = ", ".join(f"runs.{name}.{rest}" for name in names)
        raise BadConfig(f"{path}: say which run: {known or 'the file has none'}")
    return f"runs.{chosen or names[0]}.{rest}={value}"


def _problem(document: Node, place: tuple[str | int, ...], kind: str, message: str) -> str:
    """A problem with its file, line and key."""
    known = next(node for end in range(len(place), -1, -1) if (node := document.at(place[:end])) is not None)
    if kind == "extra_forbidden":
        keys = _keys_at(config_type(), place[:-1])
        message = f"there is no such key; {suggestion(str(place[-1]), keys)}"
    return f"{known.origin}: {format_path(place)}: {message}"


def _keys_at(kind: Any, place: Sequence[str | int]) -> list[str]:
    """The keys of the section at a place."""
    for step in place:
        fields = getattr(kind, "model_fields", None)
        kind = get_args(kind)[-1] if fields is None else fields[step].annotation
        kind = get_args(kind)[0] if isinstance(kind, UnionType) else kind
    return [*kind.model_fields]


def _given(section: BaseModel) -> dict[str, Any]:
    """The values of a section that were given."""
    return {name: getattr(section, name) for name in section.model_fields_set}


def names_and_overrides(words: Sequence[str], files: Sequence[Path] | None) -> tuple[list[str], list[str]]:
    """The names, and the overrides of a configuration, among the arguments of a command."""
    names = [word for word in words if word and "=" not in word]
    overrides = [word for word in words if "=" in word]
    if overrides and not files:
        raise BadConfig(f"{overrides[0]}: it changes a configuration, and there is none; give one with --config")
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
    found = {}
    for each in names:
        entry = configuration.environment(each)
        own: dict[str, Any] = {
            "environment": entry.environment,
            "env_args": {**entry.args, **given.typed.get("env_args", {})},
        }
        if folder is not None:
            own["output"] = folder / f"{NOT_IN_NAMES.sub('_', each)}.jsonl"
        found[each] = given.options({"input": entry.input, **section, **model}, **chosen, **own)
    return found


def serve_options(
    configuration: Configuration, names: Sequence[str], given: OptionSources[ServeWithStudio]
) -> ServeWithStudio:
    """The options of a server: of the environments with these names or, by default, those of the file."""
    section = {} if configuration.values.serve is None else _given(configuration.values.serve)
    own = section.pop("environments", [])
    entries = [configuration.environment(each) for each in names or own]
    _ensure_one(entries, given.typed)
    known = {**given.variables, **section, **given.typed}
    models = {role: configuration.model(known[role]) for role in ("model", "agent") if role in known}
    keys = sorted({each["api_key_env"] for each in models.values() if "api_key_env" in each})
    if len(keys) > 1 and "api_key_env" not in given.typed:
        raise BadConfig(f"serve: its model and its agent have keys in different variables: {', '.join(keys)}")
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
    """Refuse options that are about one environment if there are several."""
    for name in ("env_args", "input"):
        if len(environments) > 1 and name in chosen:
            raise InvalidOption(name, "for one environment; there are several: put it under `environments` in the file")


def _folder(output: Path | None, name: str) -> Path:
    """The folder with the files of a run of several environments."""
    if output is not None and output.suffix == ".jsonl":
        raise InvalidOption("output", f"{output}: for several environments this is a folder")
    return output or new_path(NOT_IN_NAMES.sub("_", name))

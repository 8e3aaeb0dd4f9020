"""`stateroom config`: show, describe and import configuration files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import yaml
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema, to_jsonable_python
from rich.text import Text

from stateroom.cli.command import Commands, Output
from stateroom.cli.configuration import ConfigFiles, Configuration, Overrides, config_type
from stateroom.cli.output import note, say
from stateroom.config import Node, import_gym
from stateroom.jsonl import replace_lines
from stateroom.rollout import ensure_new
from stateroom.store import HIDDEN, hide_secrets

FREE = (("args",), ("settings",))
"""Keys whose values may be anything, also secrets."""

app = Commands(help="Show, describe and import configuration files.")


@app.command()
def show(overrides: Overrides = None, config: ConfigFiles = None) -> Output:
    """Print what configuration files come to, with the origin of each value. No secret is shown.

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
        typer.Option("--output", "-o", help="The file to write; by default it is printed.", show_default=False),
    ] = None,
) -> None:
    """Convert a configuration of NeMo Gym. What is left to do is told on standard error.

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
    """A schema in which an environment variable may stand for a number or a boolean."""

    def int_schema(self, schema: core_schema.IntSchema) -> JsonSchemaValue:
        return _or_variable(super().int_schema(schema))

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        return _or_variable(super().float_schema(schema))

    def bool_schema(self, schema: core_schema.BoolSchema) -> JsonSchemaValue:
        return _or_variable(super().bool_schema(schema))


def _or_variable(schema: JsonSchemaValue) -> JsonSchemaValue:
    return {"anyOf": [schema, {"type": "string", "pattern": r"^\$\{env:\w+(,.*)?\}$"}]}


class _Value(NamedTuple):
    """A value, as it may be shown."""

    path: tuple[str, ...]
    shown: Any
    origin: str


def _values(value: Any, document: Node, path: tuple[str, ...]) -> Iterator[_Value]:
    """The values of a configuration; what is neither given nor has a default is left out."""
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
    """A value without secrets: a text from the environment is shown as it is written, with the variable's name.

    Where anything may stand, all that is from the environment is taken for a secret.
    """
    is_free = path[2:3] in FREE
    if is_free and _from_environment(node) and not isinstance(value, bool):
        return HIDDEN
    return hide_secrets(_written(to_jsonable_python(value), node), " ".join(path[3:]) if is_free else "")


def _written(value: Any, node: Node) -> Any:
    """A value in which texts from the environment are as they are written; numbers and booleans stay."""
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

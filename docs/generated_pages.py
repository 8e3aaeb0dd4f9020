"""Pages made from the code: the commands, the environments of the gallery, and the map of the packages."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.main import get_command

from stateroom.cli.app import app
from stateroom.environment import Environment, Task, find_environment, registered
from stateroom.model import text_of
from stateroom.rollout import find_tasks
from stateroom.session import Sessions
from stateroom.state import State, encode
from stateroom.store import open_store

SOURCE = Path(__file__).resolve().parents[1] / "src" / "stateroom"

LAYERS = (
    *("state", "store", "session", "environment", "model", "agent", "rollout", "data", "training", "adapters"),
    *("server", "studio", "config", "cli", "gallery"),
)
"""The packages, each above those that it may import."""

SHARED = ("errors", "jsonl", "locks", "lru", "options", "pauses", "version")
"""Modules that any package may import."""

PROMPT_CHARACTERS = 240
"""Characters of a task's prompt that a card shows."""

TOOLS_SHOWN = 6
"""Tools that a card lists at once; more are folded away."""


# Markdown.


def escaped(text: str) -> str:
    """Text as Markdown that shows it, on one line; what is in backticks stays code."""
    code_or_text = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(
        part if number % 2 else re.sub(r"([\\*_\[\]|])", r"\\\1", part).replace("<", "&lt;")
        for number, part in enumerate(code_or_text)
    )


def table(header: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A Markdown table of cells that are Markdown."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def first_sentence(text: str | None) -> str:
    """The first sentence of a docstring, on one line."""
    paragraph = " ".join((text or "").strip().partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0]


# The commands.


def commands_page(command: Any = None) -> str:
    """The reference of the command line: of each command its help, usage, arguments and options."""
    commands = dict(commands_below(get_command(app) if command is None else command))
    overview = table(
        ("command", "does"),
        (
            (f"[`{_name(words)}`](#{_name(words).replace(' ', '-')})", escaped(first_sentence(each.help)))
            for words, each in commands.items()
            if not hasattr(each, "commands")
        ),
    )
    sections = [_command_section(_name(words), each) for words, each in commands.items()]
    intro = "Each command prints its part of this page with `--help`."
    return "\n".join([f"# Commands\n\n{intro}\n", overview, "", *sections])


def _name(words: str) -> str:
    return f"stateroom {words}".rstrip()


def commands_below(command: Any, *words: str) -> Iterator[tuple[str, Any]]:
    """A command and all commands below it, each with its words."""
    if not command.hidden:
        yield " ".join(words), command
        for word, inner in getattr(command, "commands", {}).items():
            yield from commands_below(inner, *words, word)


def _command_section(name: str, command: Any) -> str:
    context = typer.Context(command, info_name=name)
    text, examples = _help(command.help or "")
    parts = [f"## `{name}`", text]
    parameters = [each for each in command.get_params(context) if not each.hidden and each.name != "help"]
    arguments = {_argument(each): each for each in parameters if each.param_type_name == "argument"}
    options = [each for each in parameters if each.param_type_name == "option"]
    if not hasattr(command, "commands"):
        usage = [argument if each.required else f"[{argument}]" for argument, each in arguments.items()]
        parts.append(f"```text\n{' '.join([name, *(['[OPTIONS]'] if options else []), *usage])}\n```")
    parts += [f"{title}:\n\n```console\n{commands}```" for title, commands in examples.items()]
    if arguments:
        rows = [(f"`{argument}`", _about(each)) for argument, each in arguments.items()]
        parts.append(table(("argument", "is"), rows))
    if options:
        lines = [(_flags(each, context), _about(each), _default(each)) for each in options]
        parts.append(table(("option", "does", "default"), lines))
    return "\n\n".join(parts) + "\n"


def _help(text: str) -> tuple[str, dict[str, str]]:
    """The paragraphs of a help text, and the commands of its examples by their titles."""
    paragraphs, examples = [], dict[str, str]()
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        line = " ".join(paragraph.split())
        if example := re.fullmatch(r"([^:]+): (stateroom .+)", line):
            examples[example[1]] = examples.get(example[1], "") + f"$ {example[2]}\n"
        else:
            paragraphs.append(escaped(line))
    return "\n\n".join(paragraphs), examples


def _argument(argument: Any) -> str:
    """An argument as a person writes it."""
    name = str(argument.metavar or argument.name.upper())
    return name if argument.nargs == 1 or name.endswith("...") else f"{name}..."


def _flags(option: Any, context: Any) -> str:
    """The flags of an option, and what follows them."""
    flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
    if option.is_flag:
        return flags
    value = (option.metavar or option.display_type(context)).strip("<>[]").removesuffix(" range").removeprefix("list[")
    return f"{flags} {' or '.join(f'`{choice}`' for choice in value.split('|'))}"


def _about(parameter: Any) -> str:
    about = escaped(parameter.help or "")
    match parameter.min, parameter.max:
        case (None, None):
            pass
        case (least, None):
            about += f" At least {least}."
        case (None, most):
            about += f" At most {most}."
        case (least, most):
            about += f" From {least} to {most}."
    if parameter.required and parameter.param_type_name == "option":
        about += " Required."
    return about + (f" Environment variable: `{parameter.envvar}`." if parameter.envvar else "")


def _default(option: Any) -> str:
    if option.default is None or option.show_default is False or (option.is_flag and not option.default):
        return ""
    return f"`{(option.opts if option.default else option.secondary_opts)[0] if option.is_flag else option.default}`"


# The gallery.


class Size(NamedTuple):
    """The size of an environment."""

    tools: int
    examples: int
    generates: bool
    multi_turn: bool
    state_bytes: int | None
    """Of the first state, as it is stored; None without a state."""
    records: int
    """Items of the collections in that state, without bytes."""

    def __str__(self) -> str:
        state = "stateless"
        if self.state_bytes is not None:
            state = f"first state of {_bytes(self.state_bytes)}"
            state += f" with {self.records:,} records" if self.records else ""
        generates = "generates more" if self.generates else "generates none"
        turns = "multi-turn" if self.multi_turn else "single-turn"
        tools = "1 tool" if self.tools == 1 else f"{self.tools} tools"
        return f"{tools}; {self.examples} example tasks, {generates}; {turns}; {state}"


def _bytes(number: int) -> str:
    for size, unit in ((1e6, "MB"), (1e3, "kB")):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"


def gallery_page() -> str:
    """A card for each environment of the gallery."""
    cards = [_card(name, kind) for name, kind in gallery().items()]
    intro = (
        "These environments come with Stateroom. `stateroom run NAME` runs the example tasks of one; its code is an "
        "example for your own.\n"
    )
    return "\n".join(
        [
            "---\nhide: [toc]\n---\n",
            "# Gallery\n",
            intro,
            '<div class="grid cards gallery" markdown>\n',
            *cards,
            "</div>\n",
        ]
    )


def gallery() -> dict[str, type[Environment[Any, Any]]]:
    """The registered environments that come with Stateroom, by name."""
    return {name: find_environment(name) for name, at in registered().items() if at.startswith("stateroom.gallery.")}


def _card(name: str, kind: type[Environment[Any, Any]]) -> str:
    environment = kind()
    tasks = find_tasks(environment, None)
    fields = [f"`{field}`" for field in kind.task_type.model_fields if field not in Task.model_fields]
    lines = [
        f"**[{name}](gallery/{name}.md)**",
        "---",
        escaped(first_sentence(inspect.getdoc(kind))),
        f"> {escaped(_prompt(tasks[0]))}",
        f"**Task fields:** {', '.join(fields) or 'none'}",
        _tools(environment),
        f"**Reward:** {escaped(first_sentence(inspect.getdoc(kind.verify)))}",
        f"**Size:** {asyncio.run(size_of(environment))}.",
    ]
    return textwrap.indent("\n\n".join(lines), "    ").replace("    ", "-   ", 1) + "\n"


def _prompt(row: Any) -> str:
    """What the user asks in a task, shortened."""
    asked = row["responses_create_params"]["input"]
    text = asked if isinstance(asked, str) else text_of([item for item in asked if item["role"] == "user"][-1])
    return textwrap.shorten(text, PROMPT_CHARACTERS, placeholder=" …")


def _tools(environment: Environment[Any, Any]) -> str:
    names = [
        f"`{name}({', '.join(tool.parameters['properties'])})` {tool.effect}"
        for name, tool in environment.tools.items()
    ]
    if len(names) <= TOOLS_SHOWN:
        return f"**Tools:** {' · '.join(names)}"
    items = "\n".join(f"- {each}" for each in names)
    return f'<details markdown="1">\n<summary>{len(names)} tools</summary>\n\n{items}\n\n</details>'


async def size_of(environment: Environment[Any, Any]) -> Size:
    """The size of an environment; its state is that of its first example."""
    kind, tasks = type(environment), find_tasks(environment, None)
    state_bytes, records = None, 0
    if kind.state_type is not None:
        async with open_store("memory://") as store:
            state = (await Sessions[Any](environment, store).seed(tasks[0])).state
            state_bytes, records = len(encode(state.model_dump())), _records(state)
    generates = kind.generate.__func__ is not Environment.generate.__func__  # type: ignore[attr-defined]
    return Size(len(environment.tools), len(tasks), generates, environment.reply_tool is not None, state_bytes, records)


def _records(state: State) -> int:
    collections = [each for _, each in state if isinstance(each, dict | list | set | tuple)]
    return sum(not isinstance(item, bytes) for each in collections for item in each)


# The map.


def map_page() -> str:
    """The packages in the order of their layers, each with its modules."""
    sections = [
        f"## `{package}`\n\n{escaped(sentence_of(SOURCE / package / '__init__.py'))}\n\n{_modules(package)}\n"
        for package in LAYERS
    ]
    top = (path for path in sorted(SOURCE.glob("*.py")) if path.stem != "__init__")
    rows = ((f"`{path.stem}`", escaped(sentence_of(path))) for path in top)
    shared = f"## Modules beside the packages\n\n{table(('module', 'holds'), rows)}\n"
    intro = (
        "The packages of `src/stateroom`, from the bottom to the top: a package imports only packages above it on this "
        f"page, and the shared modules {', '.join(f'`{name}`' for name in SHARED)}. Nothing else imports `adapters`.\n"
    )
    return "\n".join(["# Map of the packages\n", intro, *sections, shared])


def modules_of(package: str) -> list[Path]:
    """The modules of a package, and of those inside it; a package inside stands for itself."""
    folder = SOURCE / package
    paths = sorted(folder.rglob("*.py"), key=lambda path: path.with_suffix("").parts)
    return [path for path in paths if path != folder / "__init__.py" and path.stem != "__main__"]


def sentence_of(module: Path) -> str:
    """The first sentence of a module's docstring."""
    return first_sentence(ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))))


def _modules(package: str) -> str:
    rows = []
    for path in modules_of(package):
        name = path.relative_to(SOURCE / package).as_posix().removesuffix(".py")
        rows.append((f"`{name.removesuffix('__init__')}`", escaped(sentence_of(path))))
    return table(("module", "holds"), rows)


GENERATED: dict[str, Callable[[], str]] = {
    "commands.md": commands_page,
    "gallery.md": gallery_page,
    "map.md": map_page,
}
"""What makes each page, by its place on the site."""

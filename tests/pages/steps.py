"""A page as steps: Python that runs, files that are written, commands with their outputs."""

import json
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]

FENCE = re.compile(
    r"^(?P<indent> *)(?P<ticks>`{3,})(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=indent)(?P=ticks) *$", re.M | re.S
)
TITLE = re.compile(r'\btitle="([^"]+)"')
UNFENCED = re.compile(r"^ {4,}(?:\$|stateroom) .*$", re.M)
EXIT = re.compile(r"\s#\s*exit (\d+)$")
COMMAND = re.compile(r"^\$ (?P<text>(?:.*\\\n)*.*)\n(?P<shown>(?:(?!\$ ).*\n)*)", re.M)

PARSERS: dict[str, Callable[[str], object]] = {"json": json.loads, "toml": tomllib.loads, "yaml": yaml.safe_load}


class PageError(AssertionError):
    """Something that a page shows is not so."""


@dataclass(frozen=True)
class Code:
    """Python that runs."""

    line: int
    text: str


@dataclass(frozen=True)
class File:
    """A file that is written."""

    line: int
    name: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command, the code that it ends with, and the output that the page shows of it, if it does."""

    line: int
    text: str
    exit: int = 0
    shown: str = ""

    @property
    def goes_on(self) -> bool:
        return self.text.endswith("&")


Step = Code | File | Command


def is_set_up(command: Command) -> bool:
    """Whether a command sets this project up: it would need a network, or has been done, and so it does not run.

    Raises:
        PageError: It would not work, or shows an output that nobody checks.
    """
    match command.text.split():
        case ["make", target]:
            possible = target in re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
        case ["pip" | ".venv/bin/pip", "install", *_]:
            extras = re.search(r"\[(.*)\]", command.text)
            possible = not extras or set(extras[1].split(",")) <= _extras()
        case ["git", "clone", _] | ["python3" | "python", "-m", "venv", _] | ["." | "source", ".venv/bin/activate"]:
            possible = True
        case _:
            return False
    if not possible:
        raise PageError(f"{command.text}\nis not possible")
    if command.shown:
        raise PageError(f"{command.text}\nshows an output that nobody checks")
    return True


def steps_of(page: str) -> list[Step]:
    """What a reader of a page does, in order."""
    steps: list[Step] = []
    for line, info, body in _blocks(page):
        language, title = info.split(" ")[0], TITLE.search(info)
        if title:
            _check_syntax(language, body, line)
            steps.append(File(line, title[1], body))
        elif language == "python":
            steps.append(Code(line, body))
        elif language == "console":
            steps += _commands(line, body)
        elif language in PARSERS:
            _check_syntax(language, body, line)
        elif language not in ("text", "mermaid"):
            raise PageError(f"line {line - 1}: a block in {language or 'no language'} is not run by anything")
    return steps


def check_that_files_are_used(steps: list[Step]) -> None:
    """A file that nothing else names, and that is no test which is run, is code that does not run."""
    for file in steps:
        if isinstance(file, File):
            uses = rf"\b({re.escape(Path(file.name).stem)}|pytest)\b"
            if not any(re.search(uses, step.text) for step in steps if step is not file):
                raise PageError(f"line {file.line}: {file.name} is not used by anything on the page")


def _blocks(page: str) -> Iterator[tuple[int, str, str]]:
    """Each fenced block: the number of its first line, what stands behind its fence, and its text."""
    for block in FENCE.finditer(page):
        yield page[: block.start("body")].count("\n") + 1, block["info"].strip(), textwrap.dedent(block["body"])
    if lost := UNFENCED.search(FENCE.sub("", page)):
        raise PageError(f"a command that is in no console block: {lost[0].strip()}")


def _check_syntax(language: str, text: str, line: int) -> None:
    try:
        if language == "python":
            compile(text, "block", "exec")
        elif language in PARSERS:
            PARSERS[language](text)
        elif language == "jsonl":
            [json.loads(row) for row in text.splitlines()]
    except (ValueError, SyntaxError, yaml.YAMLError) as error:
        raise PageError(f"line {line}: this is not {language}: {error}") from error


def _commands(line: int, block: str) -> list[Command]:
    """The commands of a console block, each with the lines that follow it."""
    found = list(COMMAND.finditer(block))
    if not found or found[0].start():
        raise PageError(f"line {line}: a console block begins with `$ ` and a command")
    commands: list[Command] = []
    for command in found:
        code = EXIT.search(command["text"].rstrip())
        text = EXIT.sub("", command["text"].rstrip()).rstrip()
        number = line + block[: command.start()].count("\n")
        commands.append(Command(number, text, int(code[1]) if code else 0, command["shown"].strip()))
    return commands


def _extras() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return set(project["optional-dependencies"])

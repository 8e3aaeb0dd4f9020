"""The commands of the command line, by their words."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from stateroom.cli.app import app


def below(command: Any, *words: str) -> Iterator[tuple[str, Any]]:
    """A command and all commands below it, each with its words."""
    yield " ".join(words), command
    for word, inner in getattr(command, "commands", {}).items():
        yield from below(inner, *words, word)


COMMANDS = dict(below(get_command(app)))
"""The command itself (no words), those that only hold others, and those that do something."""

LEAVES = {words for words, command in COMMANDS.items() if not hasattr(command, "commands")}
"""What one can run: "run", "sessions list", …"""

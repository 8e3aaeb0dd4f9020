"""The commands of the command line, by their words."""

from typer.main import get_command

from docs.generated_pages import commands_below
from stateroom.cli.app import app

COMMANDS = dict(commands_below(get_command(app)))
"""The command itself (no words), those that only hold others, and those that do something."""

LEAVES = {words for words, command in COMMANDS.items() if not hasattr(command, "commands")}
"""What one can run: "run", "sessions list", …"""

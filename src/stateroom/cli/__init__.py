"""The command line: the `stateroom` command and its subcommands."""

from stateroom.cli.app import main

__all__ = ["main"]

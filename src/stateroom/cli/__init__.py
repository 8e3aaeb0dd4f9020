"""The command line."""

from stateroom.cli.app import main

__all__ = ["main"]

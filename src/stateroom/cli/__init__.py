"""How a person drives Stateroom."""

from stateroom.cli.app import main

__all__ = ["main"]

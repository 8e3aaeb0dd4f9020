"""How it is reached: environments over HTTP and MCP."""

from stateroom.server.app import Application
from stateroom.server.keys import Key, read_keys
from stateroom.server.options import Limits, Options

__all__ = ["Application", "Key", "Limits", "Options", "read_keys"]

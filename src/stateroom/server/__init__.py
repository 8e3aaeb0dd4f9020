"""How it is reached: environments over HTTP and MCP."""

from stateroom.server.app import Application
from stateroom.server.options import Limits, Options

__all__ = ["Application", "Limits", "Options"]

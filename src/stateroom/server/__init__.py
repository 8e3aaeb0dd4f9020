"""How it is reached: environments and models over HTTP, MCP and OpenAI's APIs."""

from stateroom.server.access import (
    hosts_at,
    is_loopback,
)
from stateroom.server.app import Application
from stateroom.server.keys import (
    Key,
    read_keys,
)
from stateroom.server.launch import serve
from stateroom.server.model.app import (
    ModelApplication,
    run_model,
)
from stateroom.server.options import (
    Limits,
    Options,
)
from stateroom.server.process import (
    ApplicationFactory,
    bind,
    run,
    run_stdio,
)
from stateroom.server.tokens import find_secrets

__all__ = [
    "Application",
    "ApplicationFactory",
    "Key",
    "Limits",
    "ModelApplication",
    "Options",
    "bind",
    "find_secrets",
    "hosts_at",
    "is_loopback",
    "read_keys",
    "run",
    "run_model",
    "run_stdio",
    "serve",
]

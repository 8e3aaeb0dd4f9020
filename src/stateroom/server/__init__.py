"""How it is reached: environments and models over HTTP, MCP and OpenAI's APIs."""

from stateroom.server.access import (
    check_operator,
    hosts_at,
    is_for_this_machine,
    is_loopback,
)
from stateroom.server.admin import AdminAPI
from stateroom.server.admin_actions import Action
from stateroom.server.agent import agent_for
from stateroom.server.app import Application
from stateroom.server.environment import ServedEnvironment
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
from stateroom.server.request import HTTPRequest
from stateroom.server.routes import Extension
from stateroom.server.services import Services
from stateroom.server.tokens import find_secrets

__all__ = [
    "Action",
    "AdminAPI",
    "Application",
    "ApplicationFactory",
    "Extension",
    "HTTPRequest",
    "Key",
    "Limits",
    "ModelApplication",
    "Options",
    "ServedEnvironment",
    "Services",
    "agent_for",
    "bind",
    "check_operator",
    "find_secrets",
    "hosts_at",
    "is_for_this_machine",
    "is_loopback",
    "read_keys",
    "run",
    "run_model",
    "run_stdio",
    "serve",
]

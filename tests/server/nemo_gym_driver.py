"""NeMo Gym's own servers, as released, in a Python of their own: `nemo_gym.py` starts them.

It does what Gym does to serve an agent or an environment server, except that it starts no Ray cluster, which these have
no use for, and that one process serves all. The configuration comes in the environment variable in which Gym itself
gives it to its servers. Each argument is the file descriptor of a socket, a name in the configuration, and the server's
class: `3,agent,responses_api_agents.simple_agent.app:SimpleAgent`.
"""

import asyncio
import os
import socket
import sys
from contextlib import nullcontext
from importlib import import_module
from typing import Any

import uvicorn
from nemo_gym.global_config import get_global_config_dict
from nemo_gym.server_utils import ServerClient


def made(name: str, path: str, client: ServerClient) -> Any:
    """The application of one server."""
    module, _, kind = path.partition(":")
    os.environ["NEMO_GYM_CONFIG_PATH"] = name
    server_type = getattr(import_module(module), kind)
    server = server_type(config=server_type.load_config_from_global_config(), server_client=client)
    app = server.setup_webserver()
    server.setup_liveness(app)
    server.setup_exception_middleware(app)
    return app


async def main() -> None:
    client = ServerClient(
        head_server_config=ServerClient.load_head_server_config(), global_config_dict=get_global_config_dict()
    )
    serving = []
    for descriptor, name, path in (argument.split(",") for argument in sys.argv[1:]):
        server = uvicorn.Server(uvicorn.Config(made(name, path, client), log_level="warning"))
        server.capture_signals = nullcontext  # type: ignore[method-assign,assignment] # a signal ends the process
        serving.append(server.serve([socket.socket(fileno=int(descriptor))]))
    await asyncio.gather(*serving)


if __name__ == "__main__":
    asyncio.run(main())

"""`stateroom serve`: put environments on the wire."""

from __future__ import annotations

from typing import Annotated

import typer

from stateroom.cli.output import console
from stateroom.environment import find_environment
from stateroom.server.options import Options
from stateroom.server.running import Served, addresses, bind
from stateroom.server.running import run as run_server
from stateroom.server.tokens import find_secrets


def serve(
    envs: Annotated[list[str], typer.Argument(help="Registered names, module:Class or path.py:Class.")],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    store: Annotated[str, typer.Option(help="Where state lives, as a URL.")] = "sqlite:///stateroom.db",
    workers: Annotated[int, typer.Option(min=1, help="Processes.")] = 1,
) -> None:
    """Serve environments over HTTP."""
    secrets, _ = find_secrets()
    served = Served(tuple(envs), Options(tuple(secrets), store))
    listening = bind(host, port)
    for name, url in addresses(listening, [find_environment(env).name for env in envs]).items():
        console.print(f"{name} at {url}")
    run_server(served, listening, workers)

"""`stateroom model`: put a model on the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from stateroom.cli.options import STORE_VARIABLE
from stateroom.cli.output import console
from stateroom.environment import find_environment, registered
from stateroom.errors import NotFound, needs
from stateroom.model import ModelSource, open_model

if TYPE_CHECKING:
    from socket import socket

OTHER_KINDS = frozenset({"openai", "responses", "chat", "replay", "local"})
"""What comes after these is no environment, whatever it is called."""

app = typer.Typer(help="Models: serve one to other programs.", no_args_is_help=True)


@app.callback()
def model() -> None:
    """Models: serve one to other programs."""


@app.command()
def serve(
    spec: Annotated[
        str,
        typer.Argument(
            help="POLICY:ENV (reference:counter, noisy:counter), replay:FILE, local, local:PATH.gguf, module:Class "
            "or path.py:Class.",
            show_default=False,
        ),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 9000,
    max_calls: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 1024,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name that requests may be for, besides localhost. Repeatable.", show_default=False),
    ] = None,
    store: Annotated[
        str, typer.Option(envvar=STORE_VARIABLE, help="Where conversations are kept, as a store's URL.")
    ] = "memory://",
) -> None:
    """Serve a model by OpenAI's APIs, Responses, Chat Completions and Conversations, under /v1. No key is asked for.

    Example: stateroom model serve reference:counter

    A small model of this machine: stateroom model serve local --port 9001
    """
    with needs("to serve", "server"):
        from stateroom.server import Limits, bind, hosts_at, run_model  # noqa: PLC0415 - not every command needs it
    source = _open(spec)
    listening = bind(host, port)
    hosts = hosts_at(listening.getsockname()[0], allow_host or ())
    run_model(source, listening, Limits(max_calls=max_calls), hosts, lambda: _announce(source, listening), store)


def _open(spec: str) -> ModelSource:
    """The model that a spec stands for: a policy of an environment's, or any that can be chosen for a run."""
    kind, _, env = spec.partition(":")
    if kind in OTHER_KINDS:
        return open_model(spec, {})
    if env not in registered():
        try:
            return open_model(spec, {})
        except NotFound as error:
            known = ", ".join(registered()) or "none"
            raise NotFound(f"{error}; a policy is served as POLICY:ENV, of one of the environments {known}") from None
    policies = {f"{name}:{env}": policy for name, policy in find_environment(env).policies.items()}
    if spec not in policies:
        raise NotFound(f"{env} has no policy {kind!r}; there are: {', '.join(policies) or 'none'}")
    return open_model(spec, policies)


def _announce(source: ModelSource, listening: socket) -> None:
    host, port = listening.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
    env = source.name.rpartition(":")[2]
    run = f"stateroom run {env if env in registered() else 'ENV'} --model 'chat:{source.name}@{url}'"
    console.print(f"{source.name}: {url}", soft_wrap=True)
    console.print(f"try: {run}   stop with Ctrl-C", soft_wrap=True)

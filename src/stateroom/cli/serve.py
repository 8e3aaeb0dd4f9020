"""`stateroom serve`: serve environments over HTTP."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stateroom.cli.options import KeyVariable, StoreURL
from stateroom.cli.output import console, errors
from stateroom.environment import Environment, find_environment
from stateroom.errors import DefinitionError, NotFound
from stateroom.session import WEEK
from stateroom.store import open_store, store_class, without_secrets

if TYPE_CHECKING:
    from socket import socket

    from stateroom.server import Application, Options


def serve(
    envs: Annotated[
        list[str],
        typer.Argument(help="Registered names, module:Class or path.py:Class.", show_default=False, metavar="ENV..."),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    store: StoreURL = "sqlite:///stateroom.db",
    workers: Annotated[int, typer.Option(min=1, help="Worker processes; each of them serves any session.")] = 1,
    ttl: Annotated[float, typer.Option(min=0.1, help="Seconds that a session lives after its last use.")] = WEEK,
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds that a tool may take.")] = 30.0,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A host name that the server answers to, besides localhost; with another --host it answers to these "
            "names only. Repeatable.",
            show_default=False,
        ),
    ] = None,
    api_keys: Annotated[
        Path | None,
        typer.Option(
            help="A file of API keys, one per line: NAME SHA256 [sessions=N] [calls=N]. A client needs one to create "
            "a session or a thread; N is its limit per minute.",
            show_default=False,
        ),
    ] = None,
    admin_token: Annotated[
        str | None,
        typer.Option(
            envvar="STATEROOM_ADMIN_TOKEN",
            help="The bearer token of /admin; without one it answers on this machine only.",
            show_default=False,
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="The model that answers in /threads: openai:NAME, responses:NAME@URL, chat:NAME@URL, local, "
            "replay:FILE, module:Class, path.py:Class, or a policy of the environment.",
            show_default=False,
        ),
    ] = None,
    api_key_env: KeyVariable = None,
    context_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a thread that the model sees; the oldest are left out first.")
    ] = None,
    max_body: Annotated[int, typer.Option(min=1024, help="Bytes of a request's body.")] = 16 * 2**20,
    max_state: Annotated[int, typer.Option(min=1024, help="Bytes of a state, as it is stored.")] = 64 * 2**20,
    max_log: Annotated[int, typer.Option(min=1024, help="Bytes that are stored for one session in total.")] = 2**30,
    max_sessions: Annotated[int, typer.Option(min=1, help="Live sessions.")] = 1_000_000,
    max_calls: Annotated[int, typer.Option(min=1, help="Requests in flight, per worker.")] = 1024,
    receive_timeout: Annotated[
        float, typer.Option(min=0.01, help="Seconds in which a request must arrive completely.")
    ] = 60.0,
    send_timeout: Annotated[
        float, typer.Option(min=0.01, help="Seconds after which a client that does not read its reply is dropped.")
    ] = 30.0,
    access_log: Annotated[
        Literal["text", "json"] | None,
        typer.Option(help="Write a line for each request to standard error.", show_default=False),
    ] = None,
) -> None:
    """Serve environments over HTTP and MCP: one at the root, several under /NAME/.

    Session tokens are signed with STATEROOM_SECRET, or with a secret that is made on first use and kept in your data
    folder. Several secrets, separated by commas, let a new one take over: the first signs.

    Example: stateroom serve counter

    Example: stateroom serve counter weather --store sqlite:///rooms.db --workers 4 --port 9000

    With a model that answers in threads: stateroom serve counter --model chat:qwen3@http://127.0.0.1:9000/v1
    """
    try:
        from stateroom import server  # noqa: PLC0415 - not every command needs a server
    except ImportError as error:
        raise NotFound(f"to serve needs {error.name}: pip install 'stateroom[server]'") from error
    environments = [find_environment(env) for env in envs]
    _check_store(store, workers, environments)
    secrets, origin = server.find_secrets()
    limits = server.Limits(
        body=max_body,
        state=max_state,
        log=max_log,
        sessions=max_sessions,
        calls=max_calls,
        seconds=timeout,
        receive=receive_timeout,
        send=send_timeout,
    )
    options = server.Options(
        tuple(secrets),
        store=store,
        ttl=ttl,
        admin_token=admin_token or None,
        keys=() if api_keys is None else server.read_keys(api_keys),
        hosts=tuple(allow_host or ()),
        limits=limits,
        model=model,
        api_key_env=api_key_env,
        context_tokens=context_tokens,
        access_log=access_log,
    )
    made = server.ApplicationFactory(tuple(envs), options).application()  # errors are shown once, not by each worker
    asyncio.run(_try(store, made))
    listening = server.bind(host, port)
    address = listening.getsockname()[0]
    options = replace(options, hosts=server.hosts_at(address, allow_host or ()))
    if api_keys is not None and api_keys.stat().st_mode & 0o077:
        _warn(f"{api_keys} can be read by others: chmod 600 it")
    if not server.is_loopback(address) and (missing := _missing(options, origin)):
        _warn(f"{host} can be reached from elsewhere; {'; and '.join(missing)}")
    _announce(listening, environments, options, workers)
    server.run(server.ApplicationFactory(tuple(envs), options), listening, workers)


def _check_store(url: str, workers: int, environments: list[type[Environment[Any, Any]]]) -> None:
    if workers > 1 and not store_class(url).shared and any(environment.state_type for environment in environments):
        raise DefinitionError(
            f"{without_secrets(url)} is seen by one process only, so with {workers} workers a session would be lost "
            "whenever another worker is asked: use sqlite:///FILE or another store that is shared, or --workers 1"
        )


async def _try(url: str, made: Application) -> None:
    """Open the store and the models once, so that errors show early; each worker opens its own."""
    async with open_store(url), made.thread_models:
        pass


def _announce(
    listening: socket, environments: list[type[Environment[Any, Any]]], options: Options, workers: int
) -> None:
    host, port = listening.getsockname()[:2]
    root = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    for environment in environments:
        path = f"/{environment.name}" if len(environments) > 1 else ""
        console.print(f"{environment.name}: {root}{path}", soft_wrap=True)
    store = without_secrets(options.store)
    console.print(f"docs: {root}/docs   store: {store}   workers: {workers}   stop with Ctrl-C", soft_wrap=True)


def _warn(problem: str) -> None:
    errors.print(f"warning: {problem}", style="bold yellow", soft_wrap=True)


def _missing(options: Options, origin: str) -> list[str]:
    """What makes a server that others can reach less safe."""
    complaints = []
    if options.admin_token is None:
        complaints.append("there is no --admin-token, so /admin is closed to all but this machine")
    if origin != "STATEROOM_SECRET":
        complaints.append(f"session tokens are signed with the secret in {origin}, which other hosts do not share")
    if not options.keys:
        answered = "" if options.model is None else ", and let --model answer in them"
        complaints.append(f"there are no --api-keys, so anybody can create sessions and threads{answered}")
    return complaints

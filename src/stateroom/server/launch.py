"""Starting a server: checking its options, and printing what a person should know."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stateroom.environment import Environment, make_environment
from stateroom.errors import IS_POSIX, InvalidOption
from stateroom.options import common_options
from stateroom.server.access import hosts_at, is_loopback, read_keys
from stateroom.server.options import ApplicationOptions, ServeOptions
from stateroom.server.process import ApplicationFactory, bind, run
from stateroom.server.routes import Extension
from stateroom.server.tokens import find_secrets
from stateroom.session import BackgroundLoop
from stateroom.store import open_store, store_class, without_secrets

if TYPE_CHECKING:
    from socket import socket

    from stateroom.server.app import Application


def start_server(
    given: ServeOptions,
    *,
    for_operator: bool = False,
    extensions: Sequence[Extension] = (),
    say: Callable[[str], None] = print,
    warn: Callable[[str], None] = print,
    exits: bool = False,
) -> None:
    """Serve environments over HTTP and MCP until Ctrl-C; with `extensions`, environments are optional.

    With `for_operator`, the server has no endpoints for agents, and keeps expired sessions. `say` and `warn` print
    messages for a person. With `exits`, the process ends with the server, even if its threads are still running.
    """
    environments, env_args = _environments(given)
    if not environments and not extensions:
        raise InvalidOption("environments", "name an environment to serve")
    if given.reload and (given.workers > 1 or not environments):
        raise InvalidOption("reload", "needs exactly one worker, and at least one environment")
    if (given.reload or given.workers > 1) and not all(isinstance(each, str) for each in environments):
        raise InvalidOption(
            "environments", "pass names or module:Class, because other processes create their own instances"
        )
    made = [*map(make_environment, environments, env_args)]
    _check_store(given, made)
    secrets, origin = find_secrets()
    options = ApplicationOptions(
        tuple(secrets),
        **{**common_options(given, ApplicationOptions), "admin_token": given.admin_token or None},
        for_operator=for_operator,
        keys=() if given.api_keys is None else read_keys(given.api_keys),
        hosts=tuple(given.allow_host),
    )
    factory = ApplicationFactory(tuple(environments), options, tuple(env_args), tuple(extensions))
    with BackgroundLoop() as loop:
        loop.run(_try(given.store, factory.application()))  # errors are shown once, not by each worker
    with bind(given.host, given.port) as listening:
        address = listening.getsockname()[0]
        for each in extensions:
            each.check_address(address)
        options = replace(options, hosts=hosts_at(address, given.allow_host))
        if IS_POSIX and given.api_keys is not None and given.api_keys.stat().st_mode & 0o077:
            warn(f"other users can read {given.api_keys}; run chmod 600 on it")
        if not is_loopback(address) and not for_operator and (missing := _missing(options, origin)):
            warn(f"other machines can reach {given.host}; {'; and '.join(missing)}")
        if given.reload and not store_class(given.store).shared:
            lost = "loses all sessions when the server restarts; use sqlite:///FILE to keep them"
            warn(f"{without_secrets(given.store)} {lost}")
        _announce(say, listening, made, options, given.workers, extensions)
        folders = sorted({Path(inspect.getfile(type(each))).resolve().parent for each in made}) if given.reload else ()
        run(replace(factory, options=options), listening, given.workers, reload_folders=folders, exits=exits)


def _environments(given: ServeOptions) -> tuple[Sequence[Any], Sequence[Mapping[str, Any]]]:
    """The environments, and the arguments of the constructor of each."""
    several = isinstance(given.environments, Sequence) and not isinstance(given.environments, str)
    environments: Sequence[Any] = given.environments if several else [given.environments]  # type: ignore[assignment]
    if not isinstance(given.env_args, Mapping):
        return environments, given.env_args
    if given.env_args and len(environments) > 1:
        raise InvalidOption("env_args", "can only be used with a single environment")
    return environments, [given.env_args] * len(environments)


def _check_store(given: ServeOptions, environments: list[Environment[Any, Any]]) -> None:
    keep_state = any(environment.state_type for environment in environments)
    if given.workers > 1 and keep_state and not store_class(given.store).shared:
        raise InvalidOption(
            "store",
            f"{without_secrets(given.store)} is not shared between processes, so {given.workers} workers would lose "
            "sessions: use sqlite:///FILE or another shared store, or one worker",
        )


async def _try(url: str, made: Application) -> None:
    """Open the store and the models once, so that errors show early; each worker opens its own."""
    async with open_store(url), AsyncExitStack() as resources:
        await made.open_models(resources)


def _announce(
    say: Callable[[str], None],
    listening: socket,
    environments: list[Environment[Any, Any]],
    options: ApplicationOptions,
    workers: int,
    extensions: Sequence[Extension],
) -> None:
    host, port = listening.getsockname()[:2]
    root = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    for environment in () if options.for_operator else environments:
        path = f"/{environment.name}" if len(environments) > 1 else ""
        say(f"{environment.name}: {root}{path}")
    for each in extensions:
        each.announce(root, say)
    store = without_secrets(options.store)
    say(f"docs: {root}/docs   store: {store}   workers: {workers}   stop with Ctrl-C")


def _missing(options: ApplicationOptions, origin: str) -> list[str]:
    """The security problems of a server for agents that other machines can reach."""
    complaints = []
    if options.admin_token is None:
        complaints.append("without an admin token, /admin only answers on this machine")
    if origin != "STATEROOM_SECRET":
        complaints.append(f"session tokens are signed with the secret in {origin}, which other hosts do not share")
    if not options.keys:
        answered = "" if options.model is None else ", and let the model answer in them"
        run = "" if options.agent is None else ", and let the agent run episodes"
        complaints.append(f"without API keys, anyone can create sessions and threads{answered}{run}")
    return complaints

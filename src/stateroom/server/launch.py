"""Starting a server: the options of `stateroom serve`, checked, and what a person is told."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stateroom.environment import Environment, make_environment
from stateroom.errors import DefinitionError
from stateroom.server.access import hosts_at, is_loopback
from stateroom.server.keys import read_keys
from stateroom.server.options import Limits, Options
from stateroom.server.process import ApplicationFactory, bind, run
from stateroom.server.routes import Extension
from stateroom.server.tokens import find_secrets
from stateroom.session import WEEK, BackgroundLoop
from stateroom.store import open_store, store_class, without_secrets

if TYPE_CHECKING:
    from socket import socket

    from stateroom.server.app import Application

NO_ARGUMENTS: Mapping[str, Any] = {}


def serve(
    *environments: str | type[Environment[Any, Any]] | Environment[Any, Any],
    env_args: Mapping[str, Any] | Sequence[Mapping[str, Any]] = NO_ARGUMENTS,
    host: str = "127.0.0.1",
    port: int = 8000,
    store: str = "sqlite:///stateroom.db",
    workers: int = 1,
    reload: bool = False,
    ttl: float = WEEK,
    timeout: float = 30.0,
    allow_host: Sequence[str] = (),
    api_keys: str | PathLike[str] | None = None,
    admin_token: str | None = None,
    model: str | None = None,
    agent: str | None = None,
    tokens: bool = False,
    api_key_env: str | None = None,
    context_tokens: int | None = None,
    max_body: int = 16 * 2**20,
    max_state: int = 64 * 2**20,
    max_log: int = 2**30,
    max_sessions: int = 1_000_000,
    max_calls: int = 1024,
    receive_timeout: float = 60.0,
    send_timeout: float = 30.0,
    access_log: Literal["text", "json"] | None = None,
    extra_arguments: Literal["refuse", "ignore"] = "refuse",
    gym_compat: bool = False,
    choose_task: bool = False,
    for_operator: bool = False,
    extensions: Sequence[Extension] = (),
    say: Callable[[str], None] = print,
    warn: Callable[[str], None] = print,
    exits: bool = False,
) -> None:
    """Serve environments over HTTP and MCP until Ctrl-C; the names and defaults are those of `stateroom serve`.

    Each environment is a registered name, `module:Class`, `path.py:Class`, a class or an instance; with `extensions`
    there may be none. `env_args` are arguments of the constructor of one environment, or a list of those of each.
    `for_operator`, there are no endpoints for agents, and expired sessions stay in the store. With `reload`, the server
    restarts when source beside an environment changes. `say` and `warn` get what a person should read. With `exits`,
    the process ends with the server, whatever its threads still do.
    """
    if not environments and not extensions:
        raise DefinitionError("say which environment to serve")
    if isinstance(env_args, Mapping):
        if env_args and len(environments) > 1:
            raise DefinitionError("--env-arg: only when one environment is served")
        env_args = [env_args] * len(environments)
    if reload and (workers > 1 or not environments):
        raise DefinitionError("--reload: only with one worker, and an environment whose source can change")
    if (reload or workers > 1) and not all(isinstance(each, str) for each in environments):
        raise DefinitionError("other processes make their own instances: give names or module:Class, or workers=1")
    made = [*map(make_environment, environments, env_args)]
    _check_store(store, workers, made)
    secrets, origin = find_secrets()
    keys = None if api_keys is None else Path(api_keys)
    options = Options(
        tuple(secrets),
        store=store,
        ttl=ttl,
        for_operator=for_operator,
        admin_token=admin_token or None,
        keys=() if keys is None else read_keys(keys),
        hosts=tuple(allow_host),
        limits=Limits(
            body=max_body,
            state=max_state,
            log=max_log,
            sessions=max_sessions,
            calls=max_calls,
            seconds=timeout,
            receive=receive_timeout,
            send=send_timeout,
        ),
        model=model,
        agent=agent,
        tokens=tokens,
        api_key_env=api_key_env,
        context_tokens=context_tokens,
        access_log=access_log,
        extra_arguments=extra_arguments,
        gym_compat=gym_compat,
        choose_task=choose_task,
    )
    factory = ApplicationFactory(tuple(environments), options, tuple(env_args), tuple(extensions))
    with BackgroundLoop() as loop:
        loop.run(_try(store, factory.application()))  # errors are shown once, not by each worker
    with bind(host, port) as listening:
        address = listening.getsockname()[0]
        for each in extensions:
            each.check_address(address)
        options = replace(options, hosts=hosts_at(address, allow_host))
        if keys is not None and keys.stat().st_mode & 0o077:
            warn(f"{keys} can be read by others: chmod 600 it")
        if not is_loopback(address) and not for_operator and (missing := _missing(options, origin)):
            warn(f"{host} can be reached from elsewhere; {'; and '.join(missing)}")
        _announce(say, listening, made, options, workers, extensions)
        if reload and not store_class(store).shared:
            warn(
                f"{without_secrets(store)} loses all sessions when the server restarts; use sqlite:///FILE to keep them"
            )
        folders = sorted({Path(inspect.getfile(type(each))).resolve().parent for each in made}) if reload else ()
        run(replace(factory, options=options), listening, workers, reload_folders=folders, exits=exits)


def _check_store(url: str, workers: int, environments: list[Environment[Any, Any]]) -> None:
    if workers > 1 and not store_class(url).shared and any(environment.state_type for environment in environments):
        raise DefinitionError(
            f"{without_secrets(url)} is seen by one process only, so with {workers} workers a session would be lost "
            "whenever another worker is asked: use sqlite:///FILE or another store that is shared, or --workers 1"
        )


async def _try(url: str, made: Application) -> None:
    """Open the store and the models once, so that errors show early; each worker opens its own."""
    async with open_store(url), made.thread_models, made.agent_models:
        pass


def _announce(
    say: Callable[[str], None],
    listening: socket,
    environments: list[Environment[Any, Any]],
    options: Options,
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


def _missing(options: Options, origin: str) -> list[str]:
    """What makes a server for agents that others can reach less safe."""
    complaints = []
    if options.admin_token is None:
        complaints.append("there is no --admin-token, so /admin is closed to all but this machine")
    if origin != "STATEROOM_SECRET":
        complaints.append(f"session tokens are signed with the secret in {origin}, which other hosts do not share")
    if not options.keys:
        answered = "" if options.model is None else ", and let --model answer in them"
        run = "" if options.agent is None else ", and let --agent run episodes"
        complaints.append(f"there are no --api-keys, so anybody can create sessions and threads{answered}{run}")
    return complaints

"""`stateroom serve`, `studio`, `mcp` and `model`: serve other programs, or a person in a browser."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from pydantic import Field
from typer.core import TyperCommand

from stateroom.cli.command import Commands, OptionSources
from stateroom.cli.config import ConfigFiles, Configuration, names_and_overrides, serve_options
from stateroom.cli.options import (
    STORE_VARIABLE,
    ServeWithStudio,
    StoreURL,
    StudioOptions,
    TaskNumber,
    check_exists,
    task_of,
)
from stateroom.cli.output import complain, say, warn
from stateroom.environment import find_environment, registered
from stateroom.errors import InvalidOption, NotFound, needs
from stateroom.model import ModelSource, open_model
from stateroom.options import Option, common_options, options
from stateroom.rollout import EnvironmentOptions, EnvironmentSpec, find_tasks
from stateroom.server import ListenOptions, ServeOptions
from stateroom.store import without_secrets

if TYPE_CHECKING:
    from socket import socket

    from stateroom.server import Extension

STORE, RUNS = "sqlite:///stateroom.db", Path("rollouts")
"""The folder that `stateroom serve` and `stateroom run` write to."""


class ServeCommand(TyperCommand):
    """The command, whose `--studio` needs no value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for place, each in enumerate(args):
            if each == "--studio" and args[place + 1 : place + 2] not in (["read"], ["full"]):
                args = [*args[:place], "--studio=full", *args[place + 1 :]]
        return super().parse_args(ctx, args)


def serve(given: OptionSources[ServeWithStudio], config: ConfigFiles = None) -> None:
    """Serve environments over HTTP and MCP: a single one at the root, several under /NAME/.

    Session tokens are signed with STATEROOM_SECRET, or with a secret that is created on first use and kept in your data
    folder. To rotate secrets, separate them by commas: the first one signs, and all are accepted.

    Example: stateroom serve counter

    Example: stateroom serve counter weather --store sqlite:///rooms.db --workers 4 --port 9000

    With a model that answers in threads: stateroom serve counter --model chat:qwen3@http://127.0.0.1:9000/v1

    With an agent for NeMo Gym's rollout collection: stateroom serve counter --agent reference

    With Studio, a web page: stateroom serve counter --studio

    While you write an environment: stateroom serve mine.py:MyEnvironment --reload

    Environments from a file: stateroom serve --config stateroom.yaml NAME serve.port=9000
    """
    names, changes = names_and_overrides(given.typed.get("environments", ()), config)
    chosen = serve_options(Configuration.load(config, changes), names, given) if config else given.options({})
    start(chosen, [] if chosen.studio is None else [studio_of(chosen.studio, chosen)])


@options
class OpenOptions(StudioOptions, ListenOptions):
    """The sessions and runs that Studio shows, and its address."""

    store: Annotated[
        str | None,
        Field(description=f"The store's URL; by default {STORE}, where stateroom serve keeps its sessions."),
        Option(variable=STORE_VARIABLE),
    ] = None
    model: Annotated[
        str | None,
        Field(
            description="The model that continues sessions: openai:NAME, responses:NAME@URL, chat:NAME@URL, local, "
            "replay:FILE, module:Class, path.py:Class, or a policy of the environment."
        ),
        Option("-m"),
    ] = None
    api_key_env: Annotated[str | None, Field(description="The environment variable with the model's API key.")] = None
    port: Annotated[int, Field(ge=0, le=65535, description="The port; 0 chooses a free one.")] = 8008
    mode: Annotated[
        Literal["read", "full"], Field(description="The mode of Studio: read-only, or full to also change sessions.")
    ] = "full"
    browser: Annotated[bool, Field(description="Open the page in a browser if there is a display.")] = True


def studio(given: OpenOptions) -> None:
    """Open Studio, a web page for the sessions of a store and the runs in a folder.

    Studio does not remove expired sessions.

    Example: stateroom studio --store sqlite:///rooms.db

    To play and change sessions of an environment: stateroom studio counter --runs rollouts

    And to let a model continue them: stateroom studio counter --model reference
    """
    if given.store is not None and not given.environments:  # an environment could fill a new store
        check_exists(given.store)
    extension = studio_of(given.mode, given, opens_browser=given.browser and _has_display())
    served = {**common_options(given, ServeOptions), "store": given.store or _default_store(given)}
    start(ServeOptions(**served), [extension], for_operator=True)


def start(given: ServeOptions, extensions: Sequence[Extension], *, for_operator: bool = False) -> None:
    """Start a server that reports to the terminal."""
    with needs("to serve", "server"):
        from stateroom.server import start_server  # noqa: PLC0415 - not every command needs a server
    start_server(
        given,
        for_operator=for_operator,
        extensions=extensions,
        say=say,
        warn=warn,
        exits=True,
    )


def studio_of(mode: Literal["read", "full"], given: StudioOptions, *, opens_browser: bool = False) -> Extension:
    """Studio as an extension of a server, with these options."""
    with needs("Studio", "server"):
        from stateroom.studio import Studio  # noqa: PLC0415 - not every command needs a server
    if given.runs is not None and not given.runs.is_dir():
        raise InvalidOption("runs", f"the folder {str(given.runs)!r} does not exist")
    folder = given.runs or (RUNS if RUNS.is_dir() else None)
    return Studio(mode, given.studio_token or None, None if folder is None else folder.resolve(), opens_browser)


def _default_store(given: OpenOptions) -> str:
    """The store of `stateroom serve`; in memory if its file does not exist, because reading must not create one."""
    return STORE if given.environments or Path("stateroom.db").exists() else "memory://"


def _has_display() -> bool:
    """Whether a person at a terminal can see a browser."""
    displays = sys.platform in ("darwin", "win32") or not os.environ.keys().isdisjoint({"DISPLAY", "WAYLAND_DISPLAY"})
    return sys.stdout.isatty() and displays


@options
class MCPOptions(EnvironmentOptions):
    """The environment of an MCP server, its tasks, and the store of its session."""

    environment: EnvironmentSpec = field(kw_only=False)
    store: StoreURL = STORE


def mcp(options: MCPOptions, task: TaskNumber = 0) -> None:
    """Serve an environment over MCP on standard input and output, in a new session.

    MCP clients start this command themselves; add it to their list of servers.
    The session is for the first task, or for --task N, and its prompt becomes
    the server's instructions. The session stays in the store when the client
    disconnects. For MCP over HTTP, use `stateroom serve`.

    Example: stateroom mcp counter

    Example: stateroom mcp mine.py:MyEnvironment --task 3 --store sqlite:////home/me/rooms.db
    """
    with needs("MCP", "mcp"):
        from stateroom.server import run_stdio  # noqa: PLC0415 - not every command needs a server
    environment = options.make_environment()
    row = task_of(find_tasks(environment, options.input), task)

    def announce(session: str) -> None:
        place = "" if environment.state_type is None else f" in {without_secrets(options.store)}"
        complain(f"{environment.name}, task {task}: session {session}{place}", "")

    run_stdio(environment, options.store, row, announce)


OTHER_KINDS = frozenset({"openai", "responses", "chat", "replay", "local"})
"""Prefixes of specs that never name an environment."""

models = Commands(help="Serve a model to other programs.", callback=lambda: None)


@models.command("serve")
def serve_model(
    spec: Annotated[
        str,
        typer.Argument(
            help="POLICY:ENV (reference:counter, noisy:counter), replay:FILE, local, local:PATH.gguf, module:Class "
            "or path.py:Class.",
            show_default=False,
        ),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 chooses a free one.")] = 9000,
    max_calls: Annotated[int, typer.Option(min=1, help="The maximum number of concurrent requests.")] = 1024,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="An allowed host name, besides localhost. Repeatable.", show_default=False),
    ] = None,
    store: Annotated[
        str, typer.Option(envvar=STORE_VARIABLE, help="The URL of the store for conversations.")
    ] = "memory://",
) -> None:
    """Serve a model with OpenAI's APIs (Responses, Chat Completions, Conversations) under /v1, without authentication.

    Example: stateroom model serve reference:counter

    A small model on this machine: stateroom model serve local --port 9001
    """
    with needs("to serve", "server"):
        from stateroom.server import Limits, bind, hosts_at, run_model  # noqa: PLC0415 - not every command needs it
    source = _open(spec)
    listening = bind(host, port)
    hosts = hosts_at(listening.getsockname()[0], allow_host or ())
    run_model(source, listening, Limits(max_calls=max_calls), hosts, lambda: _announce(source, listening), store)


def _open(spec: str) -> ModelSource:
    """The model for a spec: a policy of an environment, or any model of a run."""
    kind, _, env = spec.partition(":")
    if kind in OTHER_KINDS:
        return open_model(spec, {})
    if env not in registered():
        try:
            return open_model(spec, {})
        except NotFound as error:
            known = ", ".join(registered()) or "none"
            raise NotFound(
                f"{error}; to serve a policy, give POLICY:ENV with one of the environments {known}"
            ) from None
    policies = {f"{name}:{env}": policy for name, policy in find_environment(env).policies.items()}
    if spec not in policies:
        raise NotFound(f"{env} has no policy {kind!r}; available: {', '.join(policies) or 'none'}")
    return open_model(spec, policies)


def _announce(source: ModelSource, listening: socket) -> None:
    host, port = listening.getsockname()[:2]
    url = f"http://{f'[{host}]' if ':' in host else host}:{port}/v1"
    env = source.name.rpartition(":")[2]
    run = f"stateroom run {env if env in registered() else 'ENV'} --model 'chat:{source.name}@{url}'"
    say(f"{source.name}: {url}")
    say(f"try: {run}   (stop with Ctrl-C)")

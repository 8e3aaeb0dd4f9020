"""`stateroom serve`: serve environments over HTTP."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from stateroom.cli.options import EnvArgs, KeyVariable, StoreURL, env_args_of
from stateroom.cli.output import console, warn
from stateroom.cli.studio import Reload, Runs, StudioToken, studio_of
from stateroom.errors import NotFound
from stateroom.session import WEEK


class ServeCommand(TyperCommand):
    """The command, whose `--studio` needs no value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for place, each in enumerate(args):
            if each == "--studio" and args[place + 1 : place + 2] not in (["read"], ["full"]):
                args = [*args[:place], "--studio=full", *args[place + 1 :]]
        return super().parse_args(ctx, args)


def serve(
    envs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Registered names, module:Class or path.py:Class; with --config also names and KEY=VALUE of the file.",
            show_default=False,
            metavar="ENV...",
        ),
    ] = None,
    env_arg: EnvArgs = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    store: StoreURL = "sqlite:///stateroom.db",
    workers: Annotated[int, typer.Option(min=1, help="Worker processes; each of them serves any session.")] = 1,
    reload: Reload = False,
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
    agent: Annotated[
        str | None,
        typer.Option(
            "--agent",
            help="The model that runs whole episodes at /run, as in NeMo Gym's agent servers; one that --model of "
            "stateroom run takes.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        bool,
        typer.Option("--tokens", help="The agent's answers have their exact tokens, as NeMo RL reads them from /run."),
    ] = False,
    api_key_env: KeyVariable = None,
    context_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a conversation that the model sees; the oldest are left out first."),
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
    extra_arguments: Annotated[
        Literal["refuse", "ignore"],
        typer.Option(help="What to do with arguments of a call that the tool does not have."),
    ] = "refuse",
    gym_compat: Annotated[
        bool,
        typer.Option(
            "--gym-compat",
            help="Allow what NeMo Gym's own servers allow: calls and verify without a session, a second seed with the "
            "same cookie, extra arguments.",
        ),
    ] = False,
    choose_task: Annotated[
        bool,
        typer.Option(
            "--choose-task",
            help="An MCP client that starts a session chooses its task: an example, or a row of its own. Else it gets "
            "the first example.",
        ),
    ] = False,
    studio: Annotated[
        Literal["read", "full"] | None,
        typer.Option(
            metavar="[read|full]",
            help="Serve Studio at /studio/, to read sessions or (by default) also to change them.",
            show_default=False,
        ),
    ] = None,
    studio_token: StudioToken = None,
    runs: Runs = None,
) -> None:
    """Serve environments over HTTP and MCP: one at the root, several under /NAME/.

    Session tokens are signed with STATEROOM_SECRET, or with a secret that is made on first use and kept in your data
    folder. Several secrets, separated by commas, let a new one take over: the first signs.

    Example: stateroom serve counter

    Example: stateroom serve counter weather --store sqlite:///rooms.db --workers 4 --port 9000

    With a model that answers in threads: stateroom serve counter --model chat:qwen3@http://127.0.0.1:9000/v1

    With an agent for NeMo Gym's rollout collection: stateroom serve counter --agent reference

    With a page for people: stateroom serve counter --studio

    While you write an environment: stateroom serve mine.py:MyEnvironment --reload

    As a file says: stateroom serve --config stateroom.yaml serve.port=9000
    """
    options = dict(locals())
    start(options)


def start(options: Mapping[str, Any]) -> None:
    """Serve, by the options of the command; a configuration adds `env_args`, those of each environment."""
    try:
        from stateroom import server  # noqa: PLC0415 - not every command needs a server
    except ImportError as error:
        raise NotFound(f"to serve needs {error.name}: pip install 'stateroom[server]'") from error
    same = {name: options[name] for name in signature(server.serve).parameters if name in options}
    env_args: Any = env_args_of(options["env_arg"])
    if "env_args" in options:
        env_args = [{**each, **env_args} for each in options["env_args"]]
    studio = options["studio"]
    changed = {
        "env_args": env_args,
        "allow_host": options["allow_host"] or (),
        "extensions": [] if studio is None else [studio_of(studio, options["studio_token"], options["runs"])],
        "say": lambda line: console.print(line, soft_wrap=True),
        "warn": warn,
        "exits": True,
    }
    server.serve(*(options["envs"] or ()), **{**same, **changed})

"""`stateroom studio`: open the page on a store and a folder of runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from stateroom.cli.options import STORE_VARIABLE, EnvArgs, KeyVariable, env_args_of
from stateroom.cli.output import console, warn
from stateroom.cli.sessions import check_exists
from stateroom.errors import NotFound

if TYPE_CHECKING:
    from stateroom.server import Extension

STORE, RUNS = "sqlite:///stateroom.db", Path("rollouts")
"""Where `stateroom serve` and `stateroom run` write."""

Runs = Annotated[
    Path | None,
    typer.Option(
        exists=True,
        file_okay=False,
        help="The folder with the runs that Studio shows; by default rollouts, if it is there.",
        show_default=False,
    ),
]
Reload = Annotated[
    bool,
    typer.Option(
        "--reload",
        help="Restart when source in the folder of an environment, or below it, changes; sessions stay in the store.",
    ),
]
StudioToken = Annotated[
    str | None,
    typer.Option(
        envvar="STATEROOM_STUDIO_TOKEN",
        help="The token that opens Studio; without one it answers on this machine only.",
        show_default=False,
    ),
]


def studio(
    envs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Environments whose sessions can be played and changed: registered names, module:Class or "
            "path.py:Class. Without one, sessions can be read.",
            show_default=False,
            metavar="ENV...",
        ),
    ] = None,
    env_arg: EnvArgs = None,
    store: Annotated[
        str | None,
        typer.Option(
            envvar=STORE_VARIABLE,
            help=f"The store's URL; by default {STORE}, where stateroom serve keeps its sessions.",
            show_default=False,
        ),
    ] = None,
    runs: Runs = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            help="The model that continues sessions: openai:NAME, responses:NAME@URL, chat:NAME@URL, local, "
            "replay:FILE, module:Class, path.py:Class, or a policy of the environment.",
            show_default=False,
        ),
    ] = None,
    api_key_env: KeyVariable = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8008,
    reload: Reload = False,
    studio_token: StudioToken = None,
    mode: Annotated[
        Literal["read", "full"], typer.Option(help="What Studio allows: to read, or also to change sessions.")
    ] = "full",
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the page in a browser, if there is a display.")
    ] = True,
) -> None:
    """Open Studio, a web page, on the sessions of a store and the runs in a folder.

    Sessions that have expired stay in the store: Studio removes nothing by itself.

    Example: stateroom studio --store sqlite:///rooms.db

    To play and change sessions of an environment: stateroom studio counter --runs rollouts

    And to let a model continue them: stateroom studio counter --model reference
    """
    if store is not None and not envs:  # with an environment, sessions can be made in a new one
        check_exists(store)
    extension = studio_of(mode, studio_token, runs, opens_browser=browser and _has_display())
    from stateroom import server  # noqa: PLC0415 - not every command needs a server

    server.serve(
        *(envs or ()),
        env_args=env_args_of(env_arg),
        host=host,
        port=port,
        reload=reload,
        store=store or _default_store(envs),
        model=model,
        api_key_env=api_key_env,
        for_operator=True,
        extensions=[extension],
        say=lambda line: console.print(line, soft_wrap=True),
        warn=warn,
        exits=True,
    )


def studio_of(
    mode: Literal["read", "full"], token: str | None, runs: Path | None, *, opens_browser: bool = False
) -> Extension:
    """Studio as an extension of a server, with these options."""
    try:
        from stateroom.studio import Studio  # noqa: PLC0415 - not every command needs a server
    except ImportError as error:
        raise NotFound(f"Studio needs {error.name}: pip install 'stateroom[server]'") from error
    folder = runs or (RUNS if RUNS.is_dir() else None)
    return Studio(mode, token or None, None if folder is None else folder.resolve(), opens_browser)


def _default_store(envs: list[str] | None) -> str:
    """The file that `stateroom serve` writes; where there is none, reading makes none."""
    return STORE if envs or Path("stateroom.db").exists() else "memory://"


def _has_display() -> bool:
    """Whether a person at a terminal can see a browser."""
    displays = sys.platform in ("darwin", "win32") or not os.environ.keys().isdisjoint({"DISPLAY", "WAYLAND_DISPLAY"})
    return sys.stdout.isatty() and displays

"""`stateroom studio`: open the page on a store and a folder of runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from stateroom.cli.options import STORE_VARIABLE
from stateroom.cli.output import console, warn
from stateroom.cli.sessions import check_exists
from stateroom.errors import InvalidOption, needs
from stateroom.options import Option, common_options, options
from stateroom.server import ListenOptions, ServeOptions

if TYPE_CHECKING:
    from stateroom.server import Extension

STORE, RUNS = "sqlite:///stateroom.db", Path("rollouts")
"""Where `stateroom serve` and `stateroom run` write."""


@options
class StudioOptions:
    """What Studio shows, and to whom."""

    runs: Annotated[
        Path | None,
        Field(description="The folder with the runs that Studio shows; by default rollouts, if it is there."),
    ] = None
    studio_token: Annotated[
        str | None,
        Field(description="The token that opens Studio; without one it answers on this machine only."),
        Option(variable="STATEROOM_STUDIO_TOKEN", stored=False),
    ] = field(default=None, repr=False)


@options
class ServeWithStudio(StudioOptions, ServeOptions):
    """The options of a server, with Studio or without."""

    studio: Annotated[
        Literal["read", "full"] | None,
        Field(description="Serve Studio at /studio/, to read sessions or (by default) also to change them."),
        Option(metavar="[read|full]"),
    ] = None


@options
class OpenOptions(StudioOptions, ListenOptions):
    """Which sessions and runs Studio is opened on, and where."""

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
    api_key_env: Annotated[
        str | None, Field(description="The environment variable with the key of the model's server.")
    ] = None
    port: Annotated[int, Field(ge=0, le=65535, description="The port; 0 takes a free one.")] = 8008
    mode: Annotated[
        Literal["read", "full"], Field(description="What Studio allows: to read, or also to change sessions.")
    ] = "full"
    browser: Annotated[bool, Field(description="Open the page in a browser, if there is a display.")] = True


def studio(given: OpenOptions) -> None:
    """Open Studio, a web page, on the sessions of a store and the runs in a folder.

    Sessions that have expired stay in the store: Studio removes nothing by itself.

    Example: stateroom studio --store sqlite:///rooms.db

    To play and change sessions of an environment: stateroom studio counter --runs rollouts

    And to let a model continue them: stateroom studio counter --model reference
    """
    if given.store is not None and not given.environments:  # with an environment, sessions can be made in a new one
        check_exists(given.store)
    extension = studio_of(given.mode, given, opens_browser=given.browser and _has_display())
    served = {**common_options(given, ServeOptions), "store": given.store or _default_store(given)}
    start(ServeOptions(**served), [extension], for_operator=True)


def start(given: ServeOptions, extensions: Sequence[Extension], *, for_operator: bool = False) -> None:
    """Start a server that tells at the terminal what a person should read."""
    with needs("to serve", "server"):
        from stateroom.server import start_server  # noqa: PLC0415 - not every command needs a server
    start_server(
        given,
        for_operator=for_operator,
        extensions=extensions,
        say=lambda line: console.print(line, soft_wrap=True),
        warn=warn,
        exits=True,
    )


def studio_of(mode: Literal["read", "full"], given: StudioOptions, *, opens_browser: bool = False) -> Extension:
    """Studio as an extension of a server, with these options."""
    with needs("Studio", "server"):
        from stateroom.studio import Studio  # noqa: PLC0415 - not every command needs a server
    if given.runs is not None and not given.runs.is_dir():
        raise InvalidOption("runs", f"there is no folder {str(given.runs)!r}")
    folder = given.runs or (RUNS if RUNS.is_dir() else None)
    return Studio(mode, given.studio_token or None, None if folder is None else folder.resolve(), opens_browser)


def _default_store(given: OpenOptions) -> str:
    """The file that `stateroom serve` writes; where there is none, reading makes none."""
    return STORE if given.environments or Path("stateroom.db").exists() else "memory://"


def _has_display() -> bool:
    """Whether a person at a terminal can see a browser."""
    displays = sys.platform in ("darwin", "win32") or not os.environ.keys().isdisjoint({"DISPLAY", "WAYLAND_DISPLAY"})
    return sys.stdout.isatty() and displays

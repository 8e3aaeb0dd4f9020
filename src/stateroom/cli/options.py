"""Options that several commands share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote

import typer
from pydantic import Field

from stateroom.cli.output import warn
from stateroom.environment import Environment, make_environment
from stateroom.errors import NotFound
from stateroom.options import Option, options
from stateroom.rollout import EnvArgs, missing_prompts
from stateroom.server import ServeOptions
from stateroom.store import Store, open_store, without_secrets

ENVIRONMENT = "The environment: a registered name, module:Class or path.py:Class."

EnvArgument = Annotated[str, typer.Argument(help=ENVIRONMENT, show_default=False)]
OnlyEnv = Annotated[str | None, typer.Option("--env", "-e", help="Only sessions of this environment.")]
TaskNumber = Annotated[int, typer.Option("--task", min=0, help="The index of the task for the session.")]
RunPath = Annotated[
    Path, typer.Argument(help="A run: its rollouts file, the name without .jsonl, or the folder.", show_default=False)
]

STORE_VARIABLE = "STATEROOM_STORE"
"""The environment variable for the store's URL, used without `--store`."""

StoreURL = Annotated[
    str, Field(description="The store's URL, such as sqlite:///rooms.db."), Option(variable=STORE_VARIABLE)
]


@options
class StoreOptions:
    """An existing store."""

    store: StoreURL

    def open(self) -> AbstractAsyncContextManager[Store]:
        """The store."""
        return existing_store(self.store)


@options
class NamedEnvironment:
    """An environment by name, with its constructor arguments."""

    environment: Annotated[str, Field(description=ENVIRONMENT), Option(metavar="ENV")] = field(kw_only=False)
    env_args: EnvArgs = field(default_factory=dict)

    def make(self) -> Environment[Any, Any]:
        """The environment."""
        return make_environment(self.environment, self.env_args)


@options
class StudioOptions:
    """What Studio shows, and who can open it."""

    runs: Annotated[
        Path | None,
        Field(description="The folder with the runs to show in Studio; by default rollouts, if it exists."),
    ] = None
    studio_token: Annotated[
        str | None,
        Field(description="The access token for Studio; without one, Studio is available on this machine only."),
        Option(variable="STATEROOM_STUDIO_TOKEN", stored=False),
    ] = field(default=None, repr=False)


@options
class ServeWithStudio(StudioOptions, ServeOptions):
    """The options of a server, optionally with Studio."""

    studio: Annotated[
        Literal["read", "full"] | None,
        Field(description="Serve Studio at /studio/: read-only, or full (the default) to also change sessions."),
        Option(metavar="[read|full]"),
    ] = None


def existing_store(url: str) -> AbstractAsyncContextManager[Store]:
    """Open the store at a URL. Raises `NotFound` instead of creating a missing store on this disk."""
    check_exists(url)
    return open_store(url)


def check_exists(url: str) -> None:
    """Raise `NotFound` if a store on this disk does not exist."""
    for scheme, what in (("sqlite:///", "file"), ("file://", "folder")):
        path = Path(unquote(url.removeprefix(scheme).partition("?")[0]))
        if url.startswith(scheme) and path.name and not path.exists():
            raise NotFound(f"cannot open the store {without_secrets(url)}: the {what} {path} does not exist")


def task_of(tasks: Sequence[dict[str, Any]], number: int) -> dict[str, Any]:
    """The task with an index."""
    if number >= len(tasks):
        raise NotFound(f"task {number} does not exist; choose 0 to {len(tasks) - 1}")
    return tasks[number]


def warn_of_missing_prompts(environment: Environment[Any, Any], tasks: Iterable[dict[str, Any]]) -> None:
    """Print a warning if tasks have no prompt."""
    if problem := missing_prompts(environment, tasks):
        warn(problem)

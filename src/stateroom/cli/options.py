"""The options that several commands take, and what they stand for."""

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

ENVIRONMENT = "A registered name, module:Class or path.py:Class."

EnvArgument = Annotated[str, typer.Argument(help=ENVIRONMENT, show_default=False)]
OnlyEnv = Annotated[str | None, typer.Option("--env", "-e", help="Only sessions of the environment with this name.")]
TaskNumber = Annotated[int, typer.Option("--task", min=0, help="The number of the task that the session is for.")]
RunPath = Annotated[
    Path, typer.Argument(help="The rollouts file of a run, its name without .jsonl, or its folder.", show_default=False)
]

STORE_VARIABLE = "STATEROOM_STORE"
"""The environment variable with the store's URL, for a command without `--store`."""

StoreURL = Annotated[
    str, Field(description="The store's URL, such as sqlite:///rooms.db."), Option(variable=STORE_VARIABLE)
]


@options
class StoreOptions:
    """A store that is there."""

    store: StoreURL

    def open(self) -> AbstractAsyncContextManager[Store]:
        """The store."""
        return existing_store(self.store)


@options
class NamedEnvironment:
    """An environment by its name, with the arguments of its constructor."""

    environment: Annotated[str, Field(description=ENVIRONMENT), Option(metavar="ENV")] = field(kw_only=False)
    env_args: EnvArgs = field(default_factory=dict)

    def make(self) -> Environment[Any, Any]:
        """The environment."""
        return make_environment(self.environment, self.env_args)


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


def existing_store(url: str) -> AbstractAsyncContextManager[Store]:
    """The store of a URL; one on this disk that is not there is a mistake, and not made: there is nothing in it."""
    check_exists(url)
    return open_store(url)


def check_exists(url: str) -> None:
    """Raise `NotFound` if a store on this disk is not there."""
    for scheme, what in (("sqlite:///", "file"), ("file://", "folder")):
        path = Path(unquote(url.removeprefix(scheme).partition("?")[0]))
        if url.startswith(scheme) and path.name and not path.exists():
            raise NotFound(f"there is no store {without_secrets(url)}: the {what} {path} does not exist")


def task_of(tasks: Sequence[dict[str, Any]], number: int) -> dict[str, Any]:
    """The task with a number."""
    if number >= len(tasks):
        raise NotFound(f"there is no task {number}; the tasks are 0 to {len(tasks) - 1}")
    return tasks[number]


def warn_of_missing_prompts(environment: Environment[Any, Any], tasks: Iterable[dict[str, Any]]) -> None:
    """Print a warning if some tasks ask nothing of the model."""
    if problem := missing_prompts(environment, tasks):
        warn(problem)

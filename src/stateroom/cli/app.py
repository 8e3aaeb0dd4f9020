"""The `stateroom` command."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from enum import StrEnum
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.main import get_command

from stateroom.cli import (
    branch,
    chat,
    check,
    compare,
    config,
    data,
    demo,
    environments,
    export,
    init,
    mcp,
    migrate,
    model,
    profile,
    replay,
    reverify,
    runs,
    serve,
    sessions,
    show,
    store,
    studio,
    train,
    tree,
)
from stateroom.cli.options import with_options
from stateroom.cli.output import errors
from stateroom.environment import find_environment, registered
from stateroom.errors import EngineFailed, StateroomError, shortened
from stateroom.version import __version__


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"stateroom {__version__}")
        raise typer.Exit


def command(
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Stateful environments for agents: every episode gets its own room."""


class Level(StrEnum):
    """The levels of Python's `logging`."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


LogLevel = Annotated[
    Level | None,
    typer.Option(
        case_sensitive=False,
        help="What is logged to the terminal; by default warnings, and errors of Stateroom itself.",
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose", "-v", help="Short for --log-level info: with a traceback of everything that your code raises."
    ),
]
AcceptDefaults = Annotated[
    bool,
    typer.Option(
        "--accept-defaults",
        help="For development: read sessions from before a field with a default was added, and take the default.",
    ),
]


class TerminalHandler(logging.Handler):
    """Prints log records on standard error, above a progress bar.

    By default these are warnings, and only errors of the framework: it tells its user what matters in other ways.
    """

    def emit(self, record: logging.LogRecord) -> None:
        is_ours = record.name.partition(".")[0] == "stateroom"
        if self.level or record.levelno >= (logging.ERROR if is_ours else logging.WARNING):
            errors.print(shortened(self.format(record)), soft_wrap=True)


def log_to_terminal(level: int = logging.NOTSET) -> None:
    """Log to the terminal from a level on, the same for all loggers; by default as the handler has it."""
    handler = TerminalHandler(level)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    others = [other for other in logging.root.handlers if not isinstance(other, TerminalHandler)]
    logging.root.handlers = [*others, handler]
    logging.root.setLevel(level or logging.WARNING)


def runs_author_code(command: Callable[..., None]) -> Callable[..., None]:
    """A command with two more options: how much is shown of what an author's code logs and raises."""

    def call(given: dict[str, Any]) -> None:
        level, verbose = given.pop("log_level"), given.pop("verbose")
        if level is not None or verbose:
            log_to_terminal(logging.getLevelNamesMapping()[(level or Level.INFO).upper()])
        command(**given)

    return with_options(command, call, log_level=(LogLevel, None), verbose=(Verbose, False))


def reads_sessions(command: Callable[..., None]) -> Callable[..., None]:
    """A command with one more option: whether sessions may lack fields that their state has a default for."""

    def call(given: dict[str, Any]) -> None:
        if given.pop("accept_defaults"):
            if given.get("config"):
                raise typer.BadParameter("not together with --config", param_hint="--accept-defaults")
            named = [given["env"]] if isinstance(given["env"], str) else given["env"]
            for found in map(find_environment, registered() if named is None else named):
                for kind in (found.state_type, *found.shared_types.values()):
                    if kind is not None:
                        kind.accept_defaults()
        command(**given)

    return with_options(command, call, accept_defaults=(AcceptDefaults, False))


app = typer.Typer(
    callback=command,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo.demo)
app.command()(init.init)
app.command()(runs_author_code(check.check))
app.command()(runs_author_code(reads_sessions(config.configured_run)))
app.command()(runs_author_code(branch.branch))
app.command()(runs_author_code(reads_sessions(chat.chat)))
app.command()(runs.runs)
app.command()(show.show)
app.command()(compare.compare)
app.command()(profile.profile)
app.command()(export.export)
app.command()(runs_author_code(train.train))
app.command()(tree.tree)
app.command()(runs_author_code(reads_sessions(reverify.reverify)))
app.command()(runs_author_code(reads_sessions(replay.replay)))
app.command()(studio.studio)
app.command(cls=serve.ServeCommand)(config.configured_serve)
app.command()(mcp.mcp)
app.command()(environments.environments)
app.command()(environments.tasks)
app.command()(runs_author_code(reads_sessions(migrate.migrate)))
app.add_typer(sessions.app, name="sessions")
app.add_typer(store.app, name="store")
app.add_typer(model.app, name="model")
app.add_typer(data.app, name="data")
app.add_typer(config.app, name="config")


def _command() -> Any:
    """The command, with flags that show no type in the help: typer would print `<bool>` after each."""
    command = get_command(app)
    waiting: list[Any] = [command]
    while waiting:
        each = waiting.pop()
        waiting += getattr(each, "commands", {}).values()
        for option in each.get_params(typer.Context(each)):
            if getattr(option, "is_flag", False):
                option.metavar = ""
    return command


def main() -> None:
    """Run the command; a user's mistake is a message and not a traceback."""
    log_to_terminal()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # what a terminal cannot show must not end the command
    try:
        _command()()
    except OSError as error:
        errors.print(
            f"error: {error.strerror or error}: {error.filename or ''}".rstrip(": "), style="red", soft_wrap=True
        )
        sys.exit(2)
    except StateroomError as error:
        errors.print(f"error: {error}", style="red", soft_wrap=True)
        sys.exit(1 if isinstance(error, EngineFailed) else 2)

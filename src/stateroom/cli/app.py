"""The `stateroom` command."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from io import TextIOWrapper
from typing import Annotated, Any, Literal

import typer
from pydantic import Field
from typer.main import get_command

from stateroom.cli import (
    branch,
    chat,
    config,
    data,
    demo,
    environments,
    recorded,
    run,
    runs,
    serve,
    sessions,
    store,
    train,
)
from stateroom.cli.command import Commands
from stateroom.cli.output import complain
from stateroom.environment import find_environment, registered
from stateroom.errors import EngineFailed, InvalidOption, StateroomError, shortened
from stateroom.options import Option, options
from stateroom.version import __version__


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"stateroom {__version__}")
        raise typer.Exit


def stateroom(
    show_version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Stateful environments for agents: every episode gets its own room."""


@options
class LogOptions:
    """How much of the log is shown."""

    log_level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"] | None,
        Field(description="The lowest level to log; by default warning, or error for messages of Stateroom itself."),
    ] = None
    verbose: Annotated[
        bool,
        Field(description="Short for --log-level info: also shows tracebacks of errors in your code."),
        Option("-v"),
    ] = False

    def __call__(self, words: Mapping[str, Any]) -> None:
        if self.log_level is not None or self.verbose:
            log_to_terminal(logging.getLevelNamesMapping()[(self.log_level or "info").upper()])


@options
class ReadOptions:
    """Whether stored sessions may lack fields with a default."""

    accept_defaults: Annotated[
        bool,
        Field(
            description="For development: read sessions that were stored before a field with a default was added, "
            "using the default."
        ),
    ] = False

    def __call__(self, words: Mapping[str, Any]) -> None:
        if not self.accept_defaults:
            return
        if words.get("config"):
            raise InvalidOption("accept_defaults", "cannot be combined with a configuration")
        given = words["environment"] if "environment" in words else words["env"]
        named = [given] if isinstance(given, str) else given
        for environment in map(find_environment, registered() if named is None else named):
            for kind in (environment.state_type, *environment.shared_types.values()):
                if kind is not None:
                    kind.accept_defaults()


class TerminalHandler(logging.Handler):
    """Prints log records on standard error, above a progress bar.

    By default it prints warnings, but only errors of Stateroom, whose commands report the rest themselves.
    """

    def emit(self, record: logging.LogRecord) -> None:
        is_ours = record.name.partition(".")[0] == "stateroom"
        if self.level or record.levelno >= (logging.ERROR if is_ours else logging.WARNING):
            complain(shortened(self.format(record)), "")


def log_to_terminal(level: int = logging.NOTSET) -> None:
    """Log to the terminal from a level on, for all loggers; by default, the handler decides."""
    handler = TerminalHandler(level)
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    others = [other for other in logging.root.handlers if not isinstance(other, TerminalHandler)]
    logging.root.handlers = [*others, handler]
    logging.root.setLevel(level or logging.WARNING)


app = Commands(callback=stateroom, add_completion=False, pretty_exceptions_enable=False)
app.add(demo.demo)
app.add(environments.init)
app.add(environments.check, LogOptions)
app.add(run.run, LogOptions, ReadOptions)
app.add(branch.branch, LogOptions)
app.add(chat.chat, LogOptions, ReadOptions)
app.add(runs.runs)
app.add(runs.show)
app.add(runs.compare)
app.add(runs.profile)
app.add(train.export)
app.add(train.train, LogOptions)
app.add(branch.tree)
app.add(recorded.reverify, LogOptions, ReadOptions)
app.add(recorded.replay, LogOptions, ReadOptions)
app.add(serve.studio)
app.add(serve.serve, cls=serve.ServeCommand)
app.add(serve.mcp)
app.add(environments.environments)
app.add(environments.tasks)
app.add(store.migrate, LogOptions, ReadOptions)
app.add_typer(sessions.app, name="sessions")
app.add_typer(store.app, name="store")
app.add_typer(serve.models, name="model")
app.add_typer(data.app, name="data")
app.add_typer(config.app, name="config")


def _command() -> Any:
    """The command, without the `<bool>` that typer prints after each flag in the help."""
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
    """Run the command; a user error prints a message instead of a traceback."""
    log_to_terminal()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A character that the terminal cannot show must not end the command.
            stream.reconfigure(errors="backslashreplace")
    try:
        _command()()
    except OSError as error:
        complain(f"error: {error.strerror or error}: {error.filename or ''}".rstrip(": "))
        sys.exit(2)
    except StateroomError as error:
        complain(f"error: {error}")
        sys.exit(1 if isinstance(error, EngineFailed) else 2)

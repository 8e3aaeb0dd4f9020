"""The `stateroom` command."""

from __future__ import annotations

import logging
import sys
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.main import get_command

from stateroom.cli import (
    branch,
    check,
    compare,
    demo,
    environments,
    init,
    mcp,
    migrate,
    model,
    replay,
    reverify,
    run,
    runs,
    serve,
    sessions,
    show,
    store,
    tree,
)
from stateroom.cli.output import errors
from stateroom.errors import StateroomError
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


app = typer.Typer(
    callback=command,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command()(demo.demo)
app.command()(init.init)
app.command()(check.check)
app.command()(run.run)
app.command()(branch.branch)
app.command()(runs.runs)
app.command()(show.show)
app.command()(compare.compare)
app.command()(tree.tree)
app.command()(reverify.reverify)
app.command()(replay.replay)
app.command()(serve.serve)
app.command()(mcp.mcp)
app.command()(environments.environments)
app.command()(environments.tasks)
app.command()(migrate.migrate)
app.add_typer(sessions.app, name="sessions")
app.add_typer(store.app, name="store")
app.add_typer(model.app, name="model")


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
    logging.basicConfig(level=logging.ERROR, format="%(name)s: %(message)s")
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
        sys.exit(2)

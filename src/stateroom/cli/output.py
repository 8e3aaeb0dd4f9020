"""What the commands print: tables, log entries and numbers."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from stateroom.session import LogEntry
from stateroom.state.describe import brief

# Most of what is printed is the user's, so nothing in it is taken for markup or an emoji.
console = Console(highlight=False, markup=False, emoji=False)
errors = Console(stderr=True, highlight=False, markup=False, emoji=False)


def print_json(value: Any) -> None:
    """One JSON value on a line of its own, for machines."""
    typer.echo(json.dumps(value, default=str, ensure_ascii=False))


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table; a column whose name ends in `#` holds numbers, and one that ends in `!` is never broken."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    made.box, made.padding, made.pad_edge, made.show_edge = SIMPLE_HEAD, (0, 1, 0, 0), False, False
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.endswith("#") else "left"
        made.add_column(column.rstrip("#!"), justify=justify, overflow="fold", no_wrap=column.endswith("!"))
    return made


def when(seconds: float) -> str:
    """A point in time, in UTC."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def number(value: float) -> str:
    """A metric, with as many digits as one reads."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def entry_line(entry: LogEntry) -> str:
    """A log entry on one line."""
    facts = entry.facts
    if entry.kind == "call":
        return f"{entry.name}({_arguments(entry.input)}) → {brief(entry.output)}"
    if entry.kind == "started":
        return f"{entry.name}({_arguments(entry.input)}) started"
    if entry.kind == "failed":
        return f"{entry.name}({_arguments(entry.input)}) failed: {facts['error']}"
    if entry.kind == "seed":
        task = {key: value for key, value in entry.input.items() if not key.startswith("_")}
        return brief({key: value for key, value in task.items() if key not in ("responses_create_params", "agent_ref")})
    if entry.kind == "rewind":
        return f"back to revision {facts['to']}"
    if entry.kind == "verdict":
        verdict = facts["verdict"]
        return f"reward {number(verdict['reward'])}" + (f": {verdict['reason']}" if verdict["reason"] else "")
    return entry.name or ""


def _arguments(given: dict[str, Any]) -> str:
    return ", ".join(f"{name}={brief(value)}" for name, value in given.items())

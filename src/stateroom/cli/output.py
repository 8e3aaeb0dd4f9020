"""What the commands print: tables, log entries and numbers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from math import inf
from typing import Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from stateroom.model import Item
from stateroom.rollout import BAR_DELAY_SECONDS, CONTROLS, ProgressBar, RunFiles, Terminal, visible
from stateroom.session import LogEntry, cut, item_lines, written_arguments
from stateroom.state import brief

console = Terminal()
errors = Terminal(stderr=True)

ID_LENGTH = 24
"""Characters of a session's id, unless the id was chosen by a client."""

ESCAPES = {code: f"\\u{code:04x}" for code in CONTROLS if code > 0x20}
"""Control characters that JSON allows in strings, as escapes."""


def warn(problem: str) -> None:
    """Print a warning."""
    errors.print(f"warning: {problem}", style="bold yellow", soft_wrap=True)


def print_json(value: Any) -> None:
    """Print a JSON value on a line of its own. Control characters are escapes there, so that it stays the same."""
    typer.echo(json.dumps(value, default=str, ensure_ascii=False).translate(ESCAPES))


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table. A column whose name ends in `#` has numbers, and one that ends in `!` is never wrapped."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    made.box, made.padding, made.pad_edge, made.show_edge = SIMPLE_HEAD, (0, 1, 0, 0), False, False
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.endswith("#") else "left"
        made.add_column(column.rstrip("#!"), justify=justify, overflow="fold", no_wrap=column.endswith("!"))
    return made


def folded(text: str, width: int = ID_LENGTH) -> str:
    """A text on lines of at most this width, so that a long id leaves other columns room; whole on a wide terminal."""
    if console.width > 100:
        return text
    return "\n".join(text[place : place + width] for place in range(0, len(text), width))


def when(seconds: float) -> str:
    """A point in time, in UTC, to the minute."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def number(value: float) -> str:
    """A metric, with three digits at most."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def with_error(metrics: Mapping[str, float], key: str, name: str) -> str:
    """A metric with the standard error of its mean, if that is known: `0.5 ± 0.1`."""
    error = metrics.get(f"stderr/{name}")
    return number(metrics[key]) + ("" if error is None else f" ± {number(error)}")


def measured_speed(elapsed: float, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """How long some episodes took in all, and what they have cost, as far as that is known."""
    costs = [row["cost"] for row in rows if "cost" in row]
    return {"elapsed": round(elapsed, 3), **({"cost": sum(costs)} if costs else {})}


def show_speed(elapsed: float, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print how long some episodes took, how many a second that is, and what they have cost."""
    parts = [f"{elapsed:,.1f} s", f"{len(rows) / max(elapsed, 1e-9):,.1f} episodes/s"] if rows else []
    if tokens := sum(row.get("input_tokens", 0) + row.get("output_tokens", 0) for row in rows):
        parts.append(f"{tokens / max(elapsed, 1e-9):,.0f} tokens/s")
    measured = measured_speed(elapsed, rows)
    if "cost" in measured:
        each = measured["cost"] / len(rows)
        parts.append(f"cost {measured['cost']:,.4g}, {each:,.3g} per episode")
    if parts:
        console.print(", ".join(parts))


def size(bytes_: int) -> str:
    """A number of bytes, with its unit."""
    value, unit = float(bytes_), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"


def counted(number: int, one: str, many: str) -> str:
    """A number with its noun: `1 entry`, `1,234 entries`."""
    return f"{number:,} {one if number == 1 else many}"


def show_files(files: RunFiles) -> None:
    """Print the files of a run that exist."""
    there_are = files.as_dict()
    width = max(9, *map(len, there_are))
    for name, path in there_are.items():
        console.print(f"{name:>{width}}: {path}", soft_wrap=True)


@asynccontextmanager
async def shown_progress(what: str, total: int | None = None) -> AsyncIterator[Callable[[], None]]:
    """Progress of work that takes longer than two seconds; gives a function that counts one step."""
    bar = ProgressBar(what, total)
    timer = asyncio.get_running_loop().call_later(BAR_DELAY_SECONDS, bar.start)
    try:
        yield bar.advance
    finally:
        timer.cancel()
        bar.stop()


def asides(entry: LogEntry) -> list[str]:
    """What else an entry has: who made it, events, moves of the agent, other sessions, a migrated state."""
    lines = [f"{name}({written_arguments(fields)})" for name, _, fields in entry.facts.get("events", ())]
    person = entry.facts.get("person" if entry.kind == "message" else "by")
    if person is not None and entry.kind != "abandoned":  # by another process
        lines.append(f"by {person}")
    if (user := entry.facts.get("user")) is not None and entry.kind != "message":  # whose items have the name
        lines.append(f"for {user}")
    if entry.kind == "record":
        lines.append(f"at {when(entry.at)} UTC")
    if moves := entry.facts.get("moves"):
        lines.append(f"{', '.join(moves)}: the agent is {entry.facts['agent'].get('phase', 'idle')}")
    if told := entry.facts.get("instructions"):
        lines.append(f"the environment tells the agent: {cut(told)}")
    others = {"world": "it starts from", "replaces": "it takes the place of", "replaced_by": "its place was taken by"}
    lines += [f"{words} {entry.facts[fact]}" for fact, words in others.items() if fact in entry.facts]
    if "schema" in entry.facts and entry.kind != "seed":
        lines.append(f"the state was migrated to version {entry.facts['schema'][0]}")
    return lines


def print_line(speaker: str, line: str, style: str = "") -> None:
    """Print a line of a conversation in the width of the terminal, indented after its speaker."""
    print_hanging(Text(visible(f"{speaker:>9}  "), "bold"), line, style)


def print_hanging(label: Text, text: str, style: str = "", *, wrap: bool = True) -> None:
    """Print a text after a label. Its further lines are indented by more, so that none can pose as another entry."""
    indent = Text(" " * (len(label) + 2))
    whole = Text(visible(text), style)
    parts = whole.wrap(console, max(console.width - len(indent), 20)) if wrap else whole.split("\n", allow_blank=True)
    for part in parts or [Text()]:
        line = Text.assemble(label, part)
        line.rstrip()
        console.print(line, soft_wrap=True)
        label = indent


def print_said(said: Iterable[tuple[Item, Sequence[str]]], longest: int | None = None) -> None:
    """Print items of a conversation, each with what it changed in the state; at most `longest` characters of each."""
    for item, changes in said:
        left = inf if longest is None else longest
        for speaker, line in item_lines(item):
            if len(line) > left:
                print_line(speaker, f"{line[: int(left)]}…")
                print_line("", "and more; --json has all", "dim")
                break
            print_line(speaker, line)
            left -= len(line)
        for change in changes:
            print_line("", change, "green")


def print_state(state: Mapping[str, Any]) -> None:
    """Print the fields of a state."""
    for name, value in state.items():
        console.print(f"  {name}: {brief(value)}", soft_wrap=True)

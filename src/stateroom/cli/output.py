"""Printed output of the commands: tables, log entries and numbers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from itertools import islice
from math import inf
from typing import Any, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from stateroom.model import Item
from stateroom.rollout import BAR_DELAY_SECONDS, CONTROLS, ProgressBar, Report, RunFiles, Terminal, TreeReport, visible
from stateroom.session import LogEntry, cut, item_lines, written_arguments
from stateroom.state import brief

T = TypeVar("T")

console = Terminal()
errors = Terminal(stderr=True)

ID_LENGTH = 24
"""Characters of a session's id, unless a client chose the id."""

MAX_ROWS = 20
"""Rows shown of a long table; --json has all."""

ESCAPES = {code: f"\\u{code:04x}" for code in CONTROLS if code > 0x20}
"""Escapes for control characters that JSON allows in strings."""


def say(text: str | Text, style: str = "") -> None:
    """Print a text as one line, however long, so it can be copied from the terminal."""
    console.print(text, style=style, soft_wrap=True)


def complain(problem: str, style: str = "red") -> None:
    """Print a problem on standard error."""
    errors.print(problem, style=style, soft_wrap=True)


def note(text: str) -> None:
    """Print a note on standard error."""
    complain(text, "yellow")


def warn(problem: str) -> None:
    """Print a warning."""
    complain(f"warning: {problem}", "bold yellow")


def print_json(value: Any) -> None:
    """Print a JSON value on one line, with control characters as escapes."""
    typer.echo(json.dumps(value, default=str, ensure_ascii=False).translate(ESCAPES))


def table(*columns: str, title: str | None = None) -> Table:
    """An empty table. After a column's name, `#` marks numbers, and `!` a column that never wraps."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    made.box, made.padding, made.pad_edge, made.show_edge = SIMPLE_HEAD, (0, 1, 0, 0), False, False
    for column in columns:
        name = column.rstrip("#!")
        marks = column.removeprefix(name)
        made.add_column(name, justify="right" if "#" in marks else "left", overflow="fold", no_wrap="!" in marks)
    return made


def print_table(
    columns: Iterable[str], rows: Collection[Sequence[Any]], *, title: str | None = None, most: int | None = None
) -> None:
    """Print at most `most` rows as a table; nothing without rows."""
    if rows:
        made = table(*columns, title=title)
        for row in islice(rows, most):
            made.add_row(*map(_cell, row))
        console.print(made)
    if most is not None:
        print_hidden(len(rows) - most)


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return number(value)
    return f"{value:,}" if isinstance(value, int) else value


def print_hidden(count: int, how: str = "--json lists them all") -> None:
    """Print how many rows are hidden, and how to see them."""
    if count > 0:
        say(f"and {count:,} more; {how}", "dim")


def folded(text: str, width: int = ID_LENGTH) -> str:
    """A text wrapped to a width, to leave room for other columns; unchanged on a wide terminal."""
    if console.width > 100:
        return text
    return "\n".join(text[place : place + width] for place in range(0, len(text), width))


def when(seconds: float) -> str:
    """A point in time, in UTC, to the minute."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def number(value: float) -> str:
    """A metric, with at most three digits."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def known_number(metrics: Mapping[str, float], key: str, otherwise: str = "") -> str:
    """A metric, or a placeholder for a missing one."""
    return number(metrics[key]) if key in metrics else otherwise


def with_error(metrics: Mapping[str, float], key: str, name: str) -> str:
    """A metric with the standard error of its mean, if known: `0.5 ± 0.1`."""
    error = known_number(metrics, f"stderr/{name}")
    return number(metrics[key]) + (f" ± {error}" if error else "")


def measured_speed(elapsed: float, rows: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The total time and, if known, the cost of episodes."""
    costs = [row["cost"] for row in rows if "cost" in row]
    return {"elapsed": round(elapsed, 3), **({"cost": sum(costs)} if costs else {})}


def show_speed(elapsed: float, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the total time, the rate and the cost of episodes."""
    parts = [f"{elapsed:,.1f} s", f"{len(rows) / max(elapsed, 1e-9):,.1f} episodes/s"] if rows else []
    if tokens := sum(row.get("input_tokens", 0) + row.get("output_tokens", 0) for row in rows):
        parts.append(f"{tokens / max(elapsed, 1e-9):,.0f} tokens/s")
    measured = measured_speed(elapsed, rows)
    if "cost" in measured:
        parts.append(f"cost {measured['cost']:,.4g}, {measured['cost'] / len(rows):,.3g} per episode")
    if parts:
        console.print(", ".join(parts))


def failure_lines(report: Report | TreeReport) -> Iterator[Text]:
    """The failures of a run."""
    if report.first_error:
        yield Text(f"first failure: {report.first_error}", "red")
    if report.tool_failures:
        yield Text(str(report.tool_failures), "red")


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


def some(numbers: Sequence[int], most: int = 10) -> str:
    """The first numbers, and how many more there are."""
    more = f" and {len(numbers) - most:,} more" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + more


def show_files(files: RunFiles) -> None:
    """Print the files of a run that exist."""
    there_are = files.as_dict()
    width = max(9, *map(len, there_are))
    for name, path in there_are.items():
        say(f"{name:>{width}}: {path}")


@contextmanager
def progress_bar(what: str, total: int | None = None) -> Iterator[ProgressBar]:
    """A progress bar, hidden until it is started."""
    bar = ProgressBar(what, total)
    try:
        yield bar
    finally:
        bar.stop()


@asynccontextmanager
async def shown_progress(what: str, total: int | None = None) -> AsyncIterator[Callable[[], None]]:
    """Show progress of work that takes longer than two seconds; yields a function that counts one step."""
    with progress_bar(what, total) as bar:
        timer = asyncio.get_running_loop().call_later(BAR_DELAY_SECONDS, bar.start)
        try:
            yield bar.advance
        finally:
            timer.cancel()


def with_progress(what: str, rows: Iterable[T]) -> Iterator[T]:
    """Iterate over rows, with progress if that takes longer than two seconds."""
    with progress_bar(what) as bar:
        for row in rows:
            yield row
            bar.advance()
            if bar.seconds > BAR_DELAY_SECONDS:
                bar.start()


@contextmanager
def interruptible(what_is_kept: Callable[[], str]) -> Iterator[None]:
    """End the command on Ctrl-C with a message instead of a traceback."""
    try:
        yield
    except KeyboardInterrupt:
        complain(f"interrupted; {what_is_kept()}")
        raise typer.Exit(130) from None


def asides(entry: LogEntry) -> list[str]:
    """Further facts of an entry: its author, events, moves of the agent, other sessions, a migrated state."""
    lines = [f"{name}({written_arguments(fields)})" for name, _, fields in entry.facts.get("events", ())]
    person = entry.facts.get("person" if entry.kind == "message" else "by")
    if person is not None and entry.kind != "abandoned":  # by another process
        lines.append(f"by {person}")
    if (user := entry.facts.get("user")) is not None and entry.kind != "message":  # a message's items have the name
        lines.append(f"for {user}")
    if entry.kind == "record":
        lines.append(f"at {when(entry.at)} UTC")
    if moves := entry.facts.get("moves"):
        lines.append(f"{', '.join(moves)}: the agent is {entry.facts['agent'].get('phase', 'idle')}")
    if instructions := entry.facts.get("instructions"):
        lines.append(f"instructions for the agent: {cut(instructions)}")
    others = {"world": "starts from", "replaces": "replaces", "replaced_by": "replaced by"}
    lines += [f"{words} {entry.facts[fact]}" for fact, words in others.items() if fact in entry.facts]
    if "schema" in entry.facts and entry.kind != "seed":
        lines.append(f"the state was migrated to version {entry.facts['schema'][0]}")
    return lines


def print_line(speaker: str, line: str, style: str = "") -> None:
    """Print a line of a conversation in the width of the terminal, indented after its speaker."""
    print_hanging(Text(visible(f"{speaker:>9}  "), "bold"), line, style)


def print_hanging(label: Text, text: str, style: str = "", *, wrap: bool = True) -> None:
    """Print a text after a label. Further lines are indented more, so none can pose as another entry."""
    indent = Text(" " * (len(label) + 2))
    whole = Text(visible(text), style)
    parts = whole.wrap(console, max(console.width - len(indent), 20)) if wrap else whole.split("\n", allow_blank=True)
    for part in parts or [Text()]:
        line = Text.assemble(label, part)
        line.rstrip()
        console.print(line, soft_wrap=True)
        label = indent


def print_conversation(items: Iterable[tuple[Item, Sequence[str]]], longest: int | None = None) -> None:
    """Print items of a conversation with their state changes; at most `longest` characters of each."""
    for item, changes in items:
        left = inf if longest is None else longest
        for speaker, line in item_lines(item):
            if len(line) > left:
                print_line(speaker, f"{line[: int(left)]}…")
                print_line("", "… cut; --json has all", "dim")
                break
            print_line(speaker, line)
            left -= len(line)
        for change in changes:
            print_line("", change, "green")


def print_state(state: Mapping[str, Any]) -> None:
    """Print the fields of a state."""
    for name, value in state.items():
        say(f"  {name}: {brief(value)}")

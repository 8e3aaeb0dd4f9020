"""`make bench`, or `python -m benchmarks [NAME…]`: measures every bar, and fails when one is missed.

Each result is shown as soon as it is there, and written to `RESULTS.md` below the docstring of its benchmark. A
benchmark whose packages are not installed is left out; one that raises does not stop the others, but the exit code is 1
too. One without bars has its own table.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from inspect import getdoc

from rich.console import Console
from rich.table import Table

from benchmarks.results import write_section
from benchmarks.timing import Figure, NotInstalled

BENCHMARKS = {
    "updates": "state.updates",
    "edits": "state.edits",
    "reads": "state.reads",
    "forks": "state.forks_and_rewinds",
    "growth": "disk.growth",
    "commits": "disk.commits",
    "calls": "calls.calls",
    "imports": "process.imports",
    "memory": "process.memory",
    "data": "data.check",
    "http": "http.requests",
    "episodes": "http.episodes",
    "idle": "http.idle",
    "start": "http.start",
    "redis": "servers.on_redis",
    "postgresql": "servers.on_postgresql",
    "steps": "peers.steps",
    "conversation": "history.conversation",
    "large": "history.forks",
    "cold": "history.cold",
    "rewards": "reverify.rewards",
    "retail": "retail.retail",
    "scaling": "http.scaling",
    "travel": "travel.travel",
    "turns": "agent.conversation",
    "overhead": "agent.overhead",
    "waiting": "agent.waiting",
    "patterns": "patterns.patterns",
    "places": "places.places",
    "office": "office.bars",
    "shown": "office.shown",
    "runs_index": "rollouts.runs_index",
    "engines": "engines.engines",
    "ray": "engines.on_ray",
    "tokens": "tokens.tokens",
    "digests": "tokens.digests",
    "credit": "credit.credit",
    "studio": "studio.studio",
}
"""The function of each: its module is imported when it runs, since it may need a package that is not there."""

INSTALLS = {"ray": ".venv/bin/pip install --editable '.[ray]'"}
"""How to install what is not in `make .venv/ready-to-measure`."""

OWN = ("benchmarks", "stateroom", "tests")


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"there is no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    console = Console()
    figures: list[Figure] = []
    left_out: list[str] = []
    failed: list[str] = []
    chosen = names or list(BENCHMARKS)
    for number, name in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {name} …", flush=True)  # also where it goes to a file
        try:
            about, found = asyncio.run(measure(name))
        except NotInstalled as missing:
            left_out.append(f"{name}: {missing}")
            print(f"left out: {missing}", flush=True)
        except Exception as error:  # noqa: BLE001 (whatever it is, the others can be measured)
            failed.append(f"{name}: {type(error).__name__}: {error}")
            console.print_exception()
        else:
            table = found if isinstance(found, Table) else figure_table(found)
            figures += [] if isinstance(found, Table) else found
            console.print(table)
            write_section(name, about, table, BENCHMARKS)
    missed = [figure.what for figure in figures if not figure.met]
    print(f"{len(figures) - len(missed)} limits met, {len(missed)} missed")
    for heading, lines in (("missed", missed), ("left out", left_out), ("failed", failed)):
        for line in lines:
            print(f"{heading}: {line}")
    return 1 if missed or failed else 0


def figure_table(figures: list[Figure]) -> Table:
    table = Table("what", "ratio", "limit", "measured", "", pad_edge=False)
    for figure in figures:
        mark = "[green]met[/green]" if figure.met else "[red]missed[/red]"
        table.add_row(figure.what, f"{figure.ratio:.2f}", f"{figure.kind} {figure.bar:g}", figure.detail, mark)
    return table


async def measure(name: str) -> tuple[str, list[Figure] | Table]:
    """Run a benchmark: its docstring, and what it has measured.

    Raises `NotInstalled` if it needs a package that is not there.
    """
    module, _, function = BENCHMARKS[name].partition(".")
    try:
        benchmark: Callable[[], Awaitable[list[Figure] | Table]]
        benchmark = getattr(import_module(f"benchmarks.{module}"), function)
        return getdoc(benchmark) or "", await benchmark()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in OWN:
            raise
        raise NotInstalled(error.name or str(error), INSTALLS.get(package, "make .venv/ready-to-measure")) from None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

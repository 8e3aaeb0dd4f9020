"""`make bench`, or `python -m benchmarks [NAME…]`: measures every bar, and fails when one is missed.

A benchmark without bars has a table of its own.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

from rich.console import Console
from rich.table import Table

from benchmarks import (
    agent,
    calls,
    credit,
    data,
    disk,
    engines,
    history,
    http,
    office,
    patterns,
    peers,
    places,
    process,
    reverify,
    rollouts,
    servers,
    state,
    studio,
    tokens,
    travel,
)
from benchmarks.timing import Figure

BENCHMARKS: dict[str, Callable[[], Awaitable[list[Figure] | Table]]] = {
    "updates": state.updates,
    "edits": state.edits,
    "reads": state.reads,
    "forks": state.forks_and_rewinds,
    "growth": disk.growth,
    "commits": disk.commits,
    "calls": calls.calls,
    "imports": process.imports,
    "memory": process.memory,
    "data": data.check,
    "http": http.requests,
    "episodes": http.episodes,
    "idle": http.idle,
    "start": http.start,
    "redis": servers.on_redis,
    "postgresql": servers.on_postgresql,
    "steps": peers.steps,
    "conversation": history.conversation,
    "large": history.forks,
    "cold": history.cold,
    "rewards": reverify.rewards,
    "scaling": http.scaling,
    "travel": travel.travel,
    "turns": agent.conversation,
    "overhead": agent.overhead,
    "waiting": agent.waiting,
    "patterns": patterns.patterns,
    "places": places.places,
    "office": office.bars,
    "shown": office.shown,
    "runs_index": rollouts.runs_index,
    "engines": engines.engines,
    "tokens": tokens.tokens,
    "digests": tokens.digests,
    "credit": credit.credit,
    "studio": studio.studio,
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"there is no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    console = Console()
    table = Table("what", "ratio", "bar", "measured", "", pad_edge=False)
    figures: list[Figure] = []
    without_bars: list[Table] = []
    chosen = names or list(BENCHMARKS)
    for number, name in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {name} …", flush=True)  # also where it goes to a file
        found = asyncio.run(_measure(name))
        if isinstance(found, Table):
            without_bars.append(found)
            continue
        for figure in found:
            mark = "[green]met[/green]" if figure.met else "[red]missed[/red]"
            table.add_row(figure.what, f"{figure.ratio:.2f}", f"{figure.kind} {figure.bar:g}", figure.detail, mark)
        figures += found
    for shown in (*([table] if figures else ()), *without_bars):
        console.print(shown)
    return 0 if all(figure.met for figure in figures) else 1


async def _measure(name: str) -> list[Figure] | Table:
    return await BENCHMARKS[name]()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`make bench`, or `python -m benchmarks [NAME…]`: measures every bar, and fails when one is missed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable

from rich.console import Console
from rich.table import Table

from benchmarks import agent, calls, disk, history, http, peers, process, reverify, servers, state, travel
from benchmarks.timing import Figure

BENCHMARKS: dict[str, Callable[[], Awaitable[list[Figure]]]] = {
    "updates": state.updates,
    "forks": state.forks_and_rewinds,
    "growth": disk.growth,
    "commits": disk.commits,
    "calls": calls.calls,
    "imports": process.imports,
    "memory": process.memory,
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
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        print(f"there is no benchmark {', '.join(unknown)}; there are: {', '.join(BENCHMARKS)}", file=sys.stderr)
        return 2
    console = Console()
    table = Table("what", "ratio", "bar", "measured", "", pad_edge=False)
    figures: list[Figure] = []
    for name in names or BENCHMARKS:
        with console.status(f"measuring {name}"):
            found = asyncio.run(_measure(name))
        for figure in found:
            mark = "[green]met[/green]" if figure.met else "[red]missed[/red]"
            table.add_row(figure.what, f"{figure.ratio:.2f}", f"{figure.kind} {figure.bar:g}", figure.detail, mark)
        figures += found
    console.print(table)
    return 0 if all(figure.met for figure in figures) else 1


async def _measure(name: str) -> list[Figure]:
    return await BENCHMARKS[name]()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

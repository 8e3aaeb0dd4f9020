"""A server on which sessions come and end, wave after wave: what it has taken it gives back.

After each wave there are no live sessions. Over the waves, memory, threads and open files come to a plateau.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from tests.server.test_protocol import get
from tests.soak.fuzz import CALLS, Client, Server, serving, trouble
from tests.soak.rounds import Round

SESSIONS, ATTACKS = 100, 4
"""In each wave: so many that the server gives their memory back to the system."""
PADDING = "x" * 50_000
"""Makes a session that is not given back weigh something."""
TTL = 0.2
SLACK = {"KiB": 8 * 1024, "threads": 30, "files": 10}
"""What may be more in the last quarter of the waves than in the second one: an allocator's caches, a pool's threads."""
SHORTEST_TREND = 8
PATIENCE = 60.0


async def use(server: Server, luck: Random) -> None:
    """One session: seeded, used, and then judged, closed, or left to expire."""
    client = Client(server, luck.choice(["counter", "refund"]))
    await client.begin(padding=PADDING)
    requests = [client.post(path, body, client.cookie) for path, body in CALLS[client.environment].items()]
    endings: dict[str, Any] = {
        "verify": {"response": {"output": []}},
        "close_session": {"resources_session_id": client.id},
        "": None,
    }
    ending, body = luck.choice([*endings.items()])
    for request in (*requests, client.mcp("tools/list"), *([client.post(ending, body, client.cookie)] if body else [])):
        await server.ask(request)


async def measure(server: Server) -> dict[str, int]:
    """What the server's process has, once no session lives."""
    async with asyncio.timeout(PATIENCE):
        while True:
            if b"\nstateroom_sessions_live 0.0\n" in (await server.ask(get("/metrics"))).body:
                break
            await asyncio.sleep(TTL / 3)
    process = Path(f"/proc/{server.command.process.pid}")
    status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
    files = len(os.listdir(process / "fd"))
    return {"KiB": int(status["VmRSS"].split()[0]), "threads": int(status["Threads"]), "files": files}


async def watch(round: Round, server: Server) -> None:
    luck = Random(round.seed)
    found = []
    for wave in range(round.steps):
        await asyncio.gather(*(use(server, luck) for _ in range(SESSIONS)))
        await asyncio.gather(*(trouble(server, f"{round.seed}/{wave}/{number}") for number in range(ATTACKS)))
        while server.deaf:
            server.deaf.pop().close()
        found.append(await measure(server))
        round.tally.operations += SESSIONS + ATTACKS
    await server.check()
    if round.steps >= SHORTEST_TREND:
        check_plateau(found)


def check_plateau(found: list[dict[str, int]]) -> None:
    """Refuse what still grows between the second quarter of the waves and the last one."""
    quarter = len(found) // 4
    for what, slack in SLACK.items():
        values = [each[what] for each in found]
        early, late = median(values[quarter : 2 * quarter]), median(values[-quarter:])
        assert late <= early + slack, f"{what} grew from {early} to {late}: {values}"


def play(round: Round) -> None:
    """Watch a server through `steps` waves of sessions."""
    with serving(round, "--ttl", str(TTL)) as server:
        round.place.runner.run(watch(round, server))

"""Workers that make calls with ids in shared sessions, and are killed, paused and cut off; their servers, too.

Whatever happens: what was acknowledged is in the log once, nothing is there that nobody sent, and the state is what
the log comes to.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from random import Random
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any
from unittest.mock import patch

from stateroom import Session, open_store
from stateroom.store import Store
from tests.faults import worker
from tests.faults.conftest import Nursery, nursing
from tests.faults.test_workers import counting, problems
from tests.servers.s3 import S3Server
from tests.session.travel_model import fold
from tests.soak.rounds import Round, Tally

WORKERS, ROOMS = 3, 4
BREATH = 0.3
"""Seconds that something stands still, at most."""


class Crew(Nursery):
    """Workers as tasks of this process, the only one that sees a memory store; to kill one is to cancel it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.tasks: list[asyncio.Task[None]] = []
        self.lines: asyncio.Queue[list[str]] = asyncio.Queue()
        self.said = []

    def say(self, *words: object) -> None:
        self.lines.put_nowait(" ".join(map(str, words)).split())

    async def start(self, *job: object) -> int:
        name, *arguments = map(str, job)
        task = asyncio.create_task(getattr(worker, name)(counting(self.store), *arguments))
        task.add_done_callback(lambda done: done.cancelled() or self.say("failed", repr(done.exception())))
        self.tasks.append(task)
        return len(self.tasks) - 1

    async def read(self) -> list[str]:
        return await self.lines.get()

    def signal(self, pid: int, what: Any) -> None:
        if what is SIGKILL:
            self.tasks[pid].cancel()

    async def end(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        while not self.lines.empty():
            self.said.append(self.lines.get_nowait())


@asynccontextmanager
async def gathered(store: Store) -> AsyncIterator[Crew]:
    """A crew that ends with the block, as `nursing` has it."""
    crew = Crew(store)
    with patch.object(worker, "say", crew.say):
        try:
            yield crew
        finally:
            await crew.end()


class Storm:
    """The workers of one round, and what befalls them."""

    def __init__(self, round: Round, nursery: Nursery) -> None:
        self.round = round
        self.nursery = nursery
        self.luck = Random(round.seed)
        self.jumps = self.luck.randrange(2)
        self.pids: dict[str, int] = {}

    async def start(self, name: str) -> None:
        """Start a worker; it begins with what its predecessor had not got an answer to."""
        sent = [line[2] for line in self.nursery.said if line[0] == "sent" and line[2].startswith(f"{name}/")]
        first = sent[-1].partition("/")[2] if sent else 0
        self.pids[name] = await self.nursery.start("press_on", name, first, self.round.seed, ROOMS, self.jumps)

    async def rage(self) -> None:
        """Let the workers work, and let something happen to one of them again and again."""
        for number in range(WORKERS):
            await self.start(f"w{number}")
        can_pause, server = self.round.store != "memory", self.round.place.servers.get(self.round.store)
        acts = ["kill"] * 5 + ["pause"] * can_pause + ["restart"] * (server is not None)
        for _ in range(self.round.steps):
            await self.progress(self.luck.randrange(1, 60))
            name = self.luck.choice(sorted(self.pids))
            match self.luck.choice(acts):
                case "kill":
                    self.nursery.signal(self.pids[name], SIGKILL)
                    await self.start(name)
                case "pause":
                    self.nursery.signal(self.pids[name], SIGSTOP)
                    with suppress(TimeoutError):  # it may stand in everybody's way
                        async with asyncio.timeout(BREATH):
                            await self.progress(20)
                    self.nursery.signal(self.pids[name], SIGCONT)
                case "restart" if isinstance(server, S3Server):  # it has everything in its memory
                    server.pause()
                    await asyncio.sleep(BREATH)
                    server.resume()
                case "restart" if server is not None:
                    await asyncio.to_thread(server.restart)
            self.round.tally.kills += 1
        await self.progress(30)

    async def progress(self, calls: int) -> None:
        for _ in range(calls):
            await self.nursery.hear("acknowledged")


async def account(store: Store, said: list[list[str]], tally: Tally) -> None:
    """Compare what the workers said with what the store has."""
    failed = [" ".join(line[1:]) for line in said if line[0] == "failed"]
    acknowledged = {(int(line[1]), line[2]): line[3] for line in said if line[0] == "acknowledged"}
    sent = {(int(line[1]), line[2]) for line in said if line[0] == "sent"}
    logged: Counter[tuple[int, str]] = Counter()
    wrong = []
    for room in range(ROOMS):
        session: Session[Any] = await counting(store).open(f"room {room}")
        entries = [entry async for entry in session.log()]  # what a dead worker sent may still come in behind them
        log = {(room, str(entry.call_id)): entry.output for entry in entries if entry.kind == "call"}
        logged.update((room, str(entry.call_id)) for entry in entries if entry.kind == "call")
        state = await session.state_at(entries[-1].revision)
        folded = (await fold(store, session))[entries[-1].revision - 1]
        if not (state.model_dump() == folded and [*log.values()] == [*range(1, state.value + 1)]):
            wrong.append((room, f"{len(log)} calls, and {state.value} by the state, {folded['value']} by the log"))
        wrong += [call for call in log if str(log[call]) != acknowledged.get(call, str(log[call]))]
        for call in [call for call in acknowledged if call[0] == room][-5:]:
            again = await worker.persist(partial(session.call, "increment", call_id=call[1]))
            wrong += [call] if str(again.output) != acknowledged[call] else []
    lost, unsent = acknowledged.keys() - logged.keys(), logged.keys() - sent
    doubled = [call for call, times in logged.items() if times > 1]
    tally.operations += len(sent)
    tally.lost += len(lost)
    tally.doubled += len(doubled)
    found = {"failed": failed, "lost": lost, "doubled": doubled, "never sent": unsent, "wrong": wrong}
    found["problems"] = await problems(store)
    assert not any(found.values()), {what: list(calls)[:5] for what, calls in found.items() if calls}


def play(round: Round) -> None:
    """Have workers make calls while `steps` of them, or of their servers, are killed, paused or restarted."""
    with round.place.fresh_store(round.store) as url:
        round.place.runner.run(storm(round, url))


async def storm(round: Round, url: str) -> None:
    async with open_store(url) as store:
        for room in range(ROOMS):
            await counting(store).seed({}, session_id=f"room {room}")
        async with gathered(store) if round.store == "memory" else nursing(url) as nursery:
            await Storm(round, nursery).rage()
        await account(store, nursery.said, round.tally)

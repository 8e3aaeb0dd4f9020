"""A process of its own that adds to sessions, which move down and up all the time. Says what is acknowledged."""

import asyncio
import sys
from importlib import import_module

from stateroom.errors import Conflict
from stateroom.store import Commit, Entry, Store, open_store


async def add(store: Store, room: str, call_id: str, now: float) -> None:
    while True:
        head = await store.head(room)
        entry = Entry(head.revision + 1, "call", now, b"body", call_id)
        try:
            return await store.append(Commit(room, entry, fence=head.fence))
        except Conflict:
            continue


async def work(url: str, name: str) -> None:
    vars(import_module("stateroom.store.tiered.transfer"))["TAKEOVER_SECONDS"] = 0.05  # nobody waits long for the dead
    async with open_store(url) as store:
        now, number = 2_000.0, 0
        while True:
            for room in [head.id for head in await store.heads()]:
                await add(store, room, f"{name}/{number}", now)
                sys.stdout.write(f"{room}:{name}/{number}\n")
                sys.stdout.flush()
                number += 1
            now += 10
            await store.sweep(now)


if __name__ == "__main__":
    asyncio.run(work(*sys.argv[1:]))

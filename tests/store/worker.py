"""A process of its own that uses a store, for tests of several processes. Says "ready", and begins when told to."""

import asyncio
import resource
import sys

from stateroom.errors import Conflict, StoreUnavailable
from stateroom.store import Commit, Entry, Head, Store, open_store

FAR = 1e12


def say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def create(url: str, name: str) -> None:
    """Open a store that may not be there yet, and add a session."""
    async with open_store(url) as store:
        await store.create(Head(name, "env", "owner", 0.0, FAR, 1), [Entry(1, "seed", 0.0, name.encode())])


async def append(url: str, name: str) -> None:
    """Add a hundred entries to the session `room`, and try again whenever somebody was quicker."""
    async with open_store(url) as store:
        for number in range(100):
            await append_one(store, f"{name}/{number}")


async def append_one(store: Store, call_id: str) -> None:
    while True:
        revision = (await store.head("room")).revision + 1
        try:
            return await store.append(Commit("room", Entry(revision, "call", 0.0, b"body", call_id), expires=FAR))
        except Conflict:
            continue


async def write_for_ever(url: str, name: str) -> None:
    """Add entries, and say each revision once it is acknowledged."""
    async with open_store(url) as store:
        revision = (await store.head("room")).revision
        while True:
            revision += 1
            await store.append(Commit("room", Entry(revision, "call", 0.0, name.encode() * 500), expires=FAR))
            say(revision)


async def fill_the_disk(url: str, name: str) -> None:
    """Write until the disk has no more room, say how far that went, and go on when there is room again."""
    async with open_store(url) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, resource.RLIM_INFINITY))
        revision = 1
        try:
            while revision < 100:
                entry = Entry(revision + 1, "call", 0.0, b"x" * 20_000, f"{name}/{revision + 1}")
                await store.append(Commit("room", entry, expires=FAR))
                revision += 1
        except StoreUnavailable as error:
            say(error)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        say((await store.head("room")).revision == revision)
        await store.append(
            Commit("room", Entry(revision + 1, "call", 0.0, b"after", f"{name}/{revision + 1}"), expires=FAR)
        )
        say(revision + 1)


if __name__ == "__main__":
    say("ready")
    sys.stdin.readline()
    asyncio.run(globals()[sys.argv[1]](*sys.argv[2:]))

"""Studio on a live store, while sessions are changed through it and by another process's worker.

Its streams have every entry once and in order, also for those who come back after an interruption; its lists, logs and
states are those of the store; and no request fails that should not.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from random import Random
from typing import Any
from unittest.mock import patch

from yarl import URL

from stateroom import Sessions
from stateroom.errors import Conflict, SessionSealed
from stateroom.gallery import CounterEnvironment
from stateroom.server import Application, ApplicationOptions, stream as stream_module
from stateroom.store import Store, open_store
from stateroom.studio import Studio
from tests.patience import PATIENCE
from tests.server.conftest import SECRET, Served, running
from tests.server.test_admin_stream import ROW, Stream
from tests.soak.rounds import Round

AT_ONCE = 4
ACTIONS = ["seed", "call", "call", "other call", "other call", "fork", "rewind", "undo", "redo", "verify", "look"]
REFUSED = 409
"""A session has its verdict, or another writer was first."""


class Page:
    """A person with Studio open, who follows every session."""

    def __init__(self, round: Round, served: Served, store: Store) -> None:
        self.round = round
        self.served = served
        self.store = store
        self.others = Sessions(CounterEnvironment(), store)
        """What another process does in the same store."""
        self.followers: dict[str, asyncio.Task[list[int]]] = {}

    async def ask(self, method: str, path: str, **options: Any) -> Any:
        """The reply, or None if the session does not allow it any more."""
        self.round.tally.operations += 1
        async with self.served.client.request(method, f"{self.served.url}/studio/api{path}", **options) as reply:
            body = await reply.json()
            assert reply.status in (200, REFUSED), f"{method} {path}: {reply.status}: {body}"
            return body if reply.status == 200 else None

    async def act(self, path: str, **body: Any) -> Any:
        return await self.ask("POST", f"/sessions{path}", json={"by": "ada", **body})

    def follow(self, session: str) -> None:
        self.followers[session] = asyncio.create_task(self.revisions(session, len(self.followers)))

    async def revisions(self, session: str, number: int) -> list[int]:
        """The revisions that a session's stream tells of; now and then the connection breaks, and begins again."""
        luck, found, last = Random(f"{self.round.seed}/follower {number}"), list[int](), dict[str, str]()
        where = URL(f"{self.served.url}/studio/api/sessions/{session}/log/stream", encoded=True)
        while True:
            async with self.served.client.get(where, headers=last) as reply:
                assert reply.status == 200
                stream = Stream(reply)
                for _ in range(luck.randrange(1, 20)):
                    event = await stream.next()
                    last = {"Last-Event-ID": event["id"]}
                    if event["event"] == "end":
                        assert event["data"]["status"] == "closed", event
                        return found
                    found.append(event["data"]["entry"]["revision"])

    async def step(self, number: int) -> None:
        luck = Random(f"{self.round.seed}/{number}")
        action = luck.choice(ACTIONS) if self.followers else "seed"
        if action == "seed":
            self.follow((await self.act("", environment="counter", row=ROW))["id"])
            return
        session = luck.choice([*self.followers])
        match action:
            case "call":
                await self.act(f"/{session}/call", name="increment_counter", arguments={"count": luck.randrange(9)})
            case "other call":
                other = await self.others.open(session)
                with suppress(SessionSealed, Conflict):
                    await other.call("increment_counter", {"count": luck.randrange(9)})
            case "fork":
                for fork in (await self.act(f"/{session}/fork", at=1))["sessions"]:
                    self.follow(fork["id"])
            case "rewind":
                await self.act(f"/{session}/rewind", to=1)
            case "undo" | "redo" | "verify":
                await self.act(f"/{session}/{action}")
            case _:
                await self.look(session)

    async def look(self, session: str) -> None:
        """What is shown of a session at a revision is what the store has there."""
        shown = await self.ask("GET", f"/sessions/{session}")
        state = await self.ask("GET", f"/sessions/{session}/state?at={shown['revision']}")
        stored = await (await self.others.open(session)).state_at(shown["revision"])
        assert state["state"] == stored.model_dump(), session

    async def end(self) -> None:
        """Close every session, and compare what was followed with what there is."""
        for session in self.followers:
            await self.look(session)
            await self.act(f"/{session}/close")
        async with asyncio.timeout(PATIENCE):
            followed = dict(zip(self.followers, await asyncio.gather(*self.followers.values()), strict=True))
        listed, cursor = set[str](), ""
        while cursor is not None:
            page = await self.ask("GET", "/sessions", params={"limit": 5} | ({"cursor": cursor} if cursor else {}))
            listed |= {session["id"] for session in page["sessions"]}
            cursor = page["next"]
        assert listed == {*followed}
        for session, revisions in followed.items():
            own = [entry.revision for entry in await self.store.entries(session)]
            assert revisions[-len(own) :] == own, session
            assert revisions == [*range(1, own[-1] + 1)], session
            log = await self.ask("GET", f"/sessions/{session}/log", params={"limit": 1000})
            assert [entry["revision"] for entry in log["entries"]] == revisions, session

    async def leave(self) -> None:
        for follower in self.followers.values():
            follower.cancel()
        await asyncio.gather(*self.followers.values(), return_exceptions=True)


def play(round: Round) -> None:
    """Take `steps` steps, some at once, on a fresh store."""
    with round.place.fresh_store(round.store) as url:
        round.place.runner.run(visit(round, url))


async def visit(round: Round, url: str) -> None:
    app = Application((CounterEnvironment(),), ApplicationOptions((SECRET,), store=url), extensions=(Studio(),))
    with patch.object(stream_module, "POLL_SECONDS", 0.01):
        async with running(app) as served, AsyncExitStack() as stack:
            is_shared = round.store != "memory"
            store = await stack.enter_async_context(open_store(url)) if is_shared else served.services.store
            page = Page(round, served, store)
            stack.push_async_callback(page.leave)
            for first in range(0, round.steps, AT_ONCE):
                numbers = range(first, min(first + AT_ONCE, round.steps))
                await asyncio.gather(*(page.step(number) for number in numbers))
            await page.end()

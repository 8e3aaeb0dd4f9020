"""The sessions that are kept: what they go through."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

from stateroom import Session, SessionLimits, Sessions
from stateroom.agent import Agent, Context, run
from stateroom.model import Scripted, function_call, message
from stateroom.session import Migrator
from stateroom.store import Store
from tests.corpus.environment import BEGAN, CabinetEnvironment
from tests.corpus.errand import ErrandEnvironment
from tests.corpus.settling import VillageEnvironment
from tests.corpus.sharing import ShopEnvironment
from tests.corpus.telling import own, readable, tell
from tests.corpus.voyage import FirstVoyageEnvironment, Ship, VoyageEnvironment

CENTURY = 100 * 365 * 24 * 3600.0
"""How long the sessions live: for as long as anybody will read them."""
LARGE = 70_000
"""So many bytes are kept outside the log, by versions that do so."""


class Seeding:
    """Seeds the sessions in a store, each under a label."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.environment = CabinetEnvironment()
        self.sessions = Sessions(self.environment, store, SessionLimits(ttl=CENTURY))
        self.ids: dict[str, str] = {}
        self.stances: dict[str, dict[str, Any]] = {}
        """Where agents stand."""

    def label(self, name: str, session: Session[Any]) -> Session[Any]:
        self.ids[name] = session.id
        return session

    async def new(self, name: str, **task: Any) -> Session[Any]:
        row = {"drawer": name, **task}
        return self.label(name, await self.sessions.seed(row, owner=f"owner of {name}", seed=7, began=BEGAN))

    async def cabinets(self) -> dict[str, Any]:
        """Sessions of the cabinet, and what they come to."""
        await self.long()
        filled = await self.filled()
        await self.branches(filled)
        await self.posted()
        await self.ended()
        await self.pruned()
        return await self.tell(Sessions(CabinetEnvironment(), self.store, SessionLimits(ttl=CENTURY)), [*self.ids])

    async def tell(self, sessions: Sessions[Any], names: list[str]) -> dict[str, Any]:
        """What sessions come to, as those tell it who have nothing of them at hand."""
        labels = {session: label for label, session in self.ids.items()}
        opened = {name: await sessions.open(self.ids[name], include_closed=True) for name in names}
        return {name: own(await tell(session, labels)) for name, session in opened.items()}

    async def long(self) -> None:
        """Long enough for snapshots."""
        session = await self.new("long", wanted=1, more={"nested": [1, None, "ü"]})
        for number in range(30):
            text = f"{number} and so on, " * 20
            await done(session, "enlarge", {"size": number * 16, "text": text}, call_id=f"long {number}")
        snapshot = (await self.store.load(session.id, 25)).snapshot
        assert snapshot is not None
        assert snapshot.revision > 1, "there is a snapshot besides the first"

    async def filled(self) -> Session[Any]:
        """All types, there and back."""
        session = await self.new("filled")
        await done(session, "relabel", {"number": 3, "price": "19.90"}, call_id="relabel")
        await done(session, "arrange", {"key": "a/b", "name": "lamp"})
        point = await session.checkpoint("arranged")
        await done(session, "draw", call_id="draw ü")
        await done(session, "enlarge", {"size": LARGE, "text": "large " * (LARGE // 6)})
        assert not (await session.call("discard", {"key": "never"})).ok
        await done(session, "discard", {"key": "a/b"})
        await session.rewind(to=point)
        await done(session, "arrange", {"key": "", "name": "empty"})
        await session.rewind(to=6)
        await done(session, "draw")
        return session

    async def branches(self, filled: Session[Any]) -> None:
        """Forks, of forks too, that went on and did not."""
        branch = self.label("branch", await filled.fork(at=6))
        await done(branch, "write", {"line": "on a branch"}, call_id="branch")
        await branch.rewind(to=3)
        await done(branch, "draw")
        twig = self.label("twig", await branch.fork(at=7))
        await done(twig, "enlarge", {"size": LARGE + 256, "text": "short"})
        for number, fork in enumerate(await branch.fork(n=2)):
            self.label(f"bare {number}", fork)

    async def posted(self) -> None:
        """External calls that ended well, badly, and never."""
        session = await self.new("posted")
        await done(session, "post", {"to": "somebody"}, call_id="well")
        assert not (await session.call("post", {"to": "nobody"}, call_id="badly")).ok
        lost = asyncio.create_task(session.call("post", {"to": "nowhere"}, call_id="never"))
        await self.environment.reached.wait()
        lost.cancel()
        with suppress(asyncio.CancelledError):
            await lost

    async def ended(self) -> None:
        """A session that was judged, one that was closed, and a fork of it."""
        judged = await self.new("judged", wanted=2)
        await done(judged, "write", {"line": "one"})
        assert (await judged.verify({"output": []})).reward == 1.0
        closed = await self.new("closed", wanted=2)
        await done(closed, "write", {"line": "one"}, call_id="c1")
        self.label("heir", await closed.fork())
        await closed.verify()
        await closed.close()

    async def pruned(self) -> None:
        """One that has lost its past, and was held."""
        session = await self.new("pruned")
        async with session.lease():
            for number in range(30):
                await done(session, "enlarge", {"size": 0, "text": f"{number} and so forth, " * 20})
        snapshot = (await self.store.load(session.id, 25)).snapshot
        assert snapshot is not None
        assert await self.store.prune(session.id, snapshot.revision) > 1

    async def shops(self) -> dict[str, Any]:
        """Sessions that share states; what these come to."""
        sessions = Sessions(ShopEnvironment(), self.store, SessionLimits(ttl=CENTURY, shared_ttl=CENTURY))
        for name in ("visit", "second visit"):
            session = self.label(name, await sessions.seed({"user": "ann"}, seed=7, began=BEGAN))
            for _ in range(2):
                await done(session, "buy", {"what": "tea"})
        user, app = await session.user(), await session.app()
        return {"user": readable(user.model_dump()), "app": readable(app.model_dump())}

    async def voyages(self) -> dict[str, Any]:
        """Sessions of two generations of code, with events and a folder, and what they come to."""
        before = [*self.ids]
        first = Sessions(FirstVoyageEnvironment(), self.store, SessionLimits(ttl=CENTURY))
        second = Sessions(VoyageEnvironment(), self.store, SessionLimits(ttl=CENTURY))
        for name in ("migrated voyage", "continued voyage", "old voyage"):
            session = self.label(name, await first.seed({}, seed=7, began=BEGAN))
            await done(session, "sail", {"to": "Lisbon", "miles": "1000.5"}, call_id="sail")
            await session.checkpoint("port")
            if name == "migrated voyage":
                _ = [found async for found in Migrator(self.store, {"voyage": Ship}, time.time).carry_out()]
            elif name == "continued voyage":
                await done(await second.open(session.id), "sail", {"to": "Goa", "miles": "7000"})
        voyage = self.label("voyage", await second.seed({}, seed=7, began=BEGAN))
        await done(voyage, "write", {"name": "letter", "text": "dear all"})
        await voyage.checkpoint("port")
        await done(voyage, "sail", {"to": "Lisbon", "miles": "1000.5"})
        await done(voyage, "write", {"name": "letter", "text": "dear none"})
        self.label("other voyage", await voyage.fork(at="port"))
        await voyage.rewind("port")
        await done(voyage, "sail", {"to": "Cork", "miles": "200"})
        await second.stop()
        third = Sessions(VoyageEnvironment(), self.store, SessionLimits(ttl=CENTURY))
        told = await self.tell(third, [name for name in self.ids if name not in before])
        await third.stop()
        return told

    async def errands(self) -> dict[str, Any]:
        """Sessions with agents: one that waits, told and not, one that is done, cancelled, rewound; and forks."""
        before = [*self.ids]
        sessions = Sessions(ErrandEnvironment(), self.store, SessionLimits(ttl=CENTURY))
        row = {"responses_create_params": {"input": "Run my errands."}}
        calls = [function_call("buy", "a", price=3), function_call("buy", "b", price=7), function_call("foresee", "c")]
        waiting = self.label("waiting errand", await sessions.seed(row, seed=7, began=BEGAN))
        assert (await run(Agent(Scripted([calls])), waiting)).question == "Spend 7?"
        for name in ("told errand", "done errand", "cancelled errand"):
            self.label(name, await waiting.fork())
        told, finished, cancelled = [
            await sessions.open(self.ids[name]) for name in ("told errand", "done errand", "cancelled errand")
        ]
        await told.agent.answer("yes")
        await finished.agent.answer("yes")
        rest = Scripted([calls, [message("One. " * 500)], [message("Two.")]])
        assert (await run(Agent(rest, context=Context(1000)), finished)).status == "completed"
        assert finished.agent.status.view > 0
        await cancelled.agent.cancel("no more money")
        posted = self.label("posted errand", await sessions.seed(row, seed=7, began=BEGAN))
        assert (await run(Agent(Scripted([[function_call("post", "d", to="Ann")]])), posted)).question == "Shall I?"
        await posted.agent.answer("yes")
        again = self.label("rewound errand", await finished.fork(at=6))
        await again.rewind(2)
        names = [name for name in self.ids if name not in before]
        self.stances = {name: (await sessions.open(self.ids[name])).agent.status.plain() for name in names}
        return await self.tell(Sessions(ErrandEnvironment(), self.store, SessionLimits(ttl=CENTURY)), names)

    async def villages(self) -> dict[str, Any]:
        """Sessions that start from a world, and a fork of one."""
        before = [*self.ids]
        sessions = Sessions(VillageEnvironment(), self.store, SessionLimits(ttl=CENTURY))
        for number, name in enumerate(("quiet village", "village")):
            self.label(name, await sessions.seed({"house": number}, seed=7, began=BEGAN))
        village = await sessions.open(self.ids["village"])
        await done(village, "invite", {"house": 7, "guest": "ann"}, call_id="ann")
        await done(village, "invite", {"house": 1, "guest": "ben"})
        fork = self.label("other village", await village.fork(at=2))
        await done(fork, "invite", {"house": 7, "guest": "cem"})
        await village.rewind(to=1)
        again = Sessions(VillageEnvironment(), self.store, SessionLimits(ttl=CENTURY))
        return await self.tell(again, [name for name in self.ids if name not in before])


async def done(session: Session[Any], tool: str, arguments: Any = None, **more: Any) -> None:
    result = await session.call(tool, arguments, **more)
    assert result.ok, result.error

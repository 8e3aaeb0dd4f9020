"""Several users in the same sessions, at the same time and through several workers, beside a sum for each user.

Whoever else is there: each user's state has what their calls and their messages came to, once.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import Any

from hypothesis import strategies as st

from stateroom import Session, open_store
from stateroom.agent import Agent, Threads
from stateroom.store import Store
from tests.agent.test_several_users import Spender, opened
from tests.faults.worker import persist
from tests.soak.programs import search
from tests.soak.rounds import Round

WORKERS, USERS = 3, ("ann", "bob", "cy")

calls = st.tuples(
    st.integers(0, WORKERS - 1),
    st.integers(0, 2),
    st.sampled_from(USERS),
    st.sampled_from(["spend", "spend", "send"]),
    st.integers(1, 9),
    st.booleans(),
)
"""By which worker, in which session, whose, by which tool, how much, and whether it is sent twice."""
programs = st.lists(
    st.one_of(
        st.lists(calls, min_size=1, max_size=6),
        st.tuples(st.just("turn"), st.integers(0, 2), st.sampled_from(USERS)),
        st.tuples(st.just("fork"), st.integers(0, 2)),
        st.tuples(st.just("reopen")),
    ),
    min_size=3,
    max_size=15,
)
"""Calls at once, or a turn of the agent, a fork, or new workers."""


class Crowd:
    """Users in sessions, and what they must have spent."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.workers = [opened(store) for _ in range(WORKERS)]
        self.sessions: list[str] = []
        self.spent: Counter[str] = Counter()
        """By user: a user's state is the same in all sessions."""
        self.notes: list[Counter[str]] = []
        """By session."""
        self.number = 0

    async def run(self, program: list[Any]) -> None:
        first = await self.workers[0].seed({})
        self.sessions, self.notes = [first.id], [Counter()]
        for step in program:
            if isinstance(step, list):
                await asyncio.gather(*(self.call(*call) for call in step))
            else:
                await getattr(self, step[0])(*step[1:])
            await self.check()

    async def call(self, worker: int, number: int, user: str, tool: str, amount: int, twice: bool) -> None:
        at = number % len(self.sessions)
        self.number += 1
        call_id = f"call {self.number}"
        session: Session[Any] = await self.workers[worker].open(self.sessions[at])
        send = partial(persist, partial(session.call, tool, {"amount": amount}, user=user, call_id=call_id))
        results = await asyncio.gather(*(send() for _ in range(1 + (twice and tool == "spend"))))
        assert len({(result.ok, result.output) for result in results}) == 1, results
        if tool == "send" and results[0].code in ("shared_conflict", "tool_failed"):
            return  # others wrote meanwhile: an effect outside does not run again, and its change is refused
        assert results[0].ok, results
        self.spent[user] += amount
        self.notes[at][f"{user} {amount}"] += tool == "spend"

    async def turn(self, number: int, user: str) -> None:
        at = number % len(self.sessions)
        threads = Threads(self.workers[at % WORKERS])
        await threads.add(self.sessions[at], "go", user=user)
        await threads.run(self.sessions[at], Agent(Spender()))
        self.spent[user] += 1
        self.notes[at][f"{user} 1"] += 1

    async def fork(self, number: int) -> None:
        at = number % len(self.sessions)
        fork = await (await self.workers[0].open(self.sessions[at])).fork()
        self.sessions.append(fork.id)
        self.notes.append(self.notes[at].copy())

    async def reopen(self) -> None:
        self.workers = [opened(self.store) for _ in range(WORKERS)]

    async def check(self) -> None:
        for at, id in enumerate(self.sessions):
            session = await self.workers[at % WORKERS].open(id)
            assert Counter((await session.state_at()).notes) == +self.notes[at]
            for user in USERS:
                assert (await session.user(user)).spent == self.spent[user], user


def play(round: Round) -> None:
    """Run `steps` programs on a store."""

    async def carry_out(url: str, program: list[Any]) -> None:
        async with open_store(url) as store:
            await Crowd(store).run(program)

    def holds(data: st.DataObject) -> None:
        with round.place.fresh_store(round.store) as url:
            asyncio.run(carry_out(url, data.draw(programs)))

    search(round, holds)

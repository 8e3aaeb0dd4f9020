"""Threads: conversations that go on from call to call and from process to process, and are never sent again.

A thread is a session. What was said is its log, and what its tools do is its state.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, TypeVar

import msgspec

from stateroom.agent.agent import Agent
from stateroom.agent.given import given_items
from stateroom.agent.loop import WAITING, Trajectory, act
from stateroom.agent.record import Record
from stateroom.agent.talk import asked_in, talk
from stateroom.agent.units import kind_of
from stateroom.environment import Environment
from stateroom.errors import (
    BadTask,
    DefinitionError,
    InvalidArguments,
    InvalidMove,
    SessionClosed,
    SessionError,
    SessionExpired,
    UnknownSession,
)
from stateroom.model import Item, text_of
from stateroom.session import AgentStatus, History, LogEntry, Session, Sessions, Update
from stateroom.session.log import read_entry
from stateroom.session.sessions import WEEK
from stateroom.state import State
from stateroom.store import Head, Store, open_store

SCANNED = 1000
SCANS = 10
"""A page of a list looks at so many sessions, so many times, at most; then the next page goes on."""

T = TypeVar("T")

Cursor = tuple[float, str]
"""Where a list goes on: when a thread was created, and its id."""

OnItems = Callable[[Sequence[Item]], Awaitable[None]]
"""Is given the items of a conversation as they are committed."""


class Nothing(State):
    """The state of a thread that has no tools."""


class Conversing(Environment[Nothing]):
    """Talk: a conversation without tools."""

    name = "thread"


class Thread(msgspec.Struct, frozen=True):
    """What there is to know of a thread."""

    id: str
    environment: str
    user: str | None
    metadata: dict[str, Any]
    phase: str
    """What its agent is doing: see `Lifecycle`."""
    question: str | None
    """What its agent waits to be told."""
    revision: int
    created: float
    expires: float
    parent: tuple[str, int] | None
    """For a fork: the thread and the revision that it branched from."""


Which = Thread | str
"""A thread, or its id."""


class Page(msgspec.Struct, Generic[T], frozen=True):
    """A part of a list of threads. It may have fewer than were asked for, or none, and not be the last."""

    found: list[T]
    next: Cursor | None
    """Where the next page goes on, if there may be one."""


class Items(msgspec.Struct, frozen=True):
    """A part of a conversation."""

    items: list[Item]
    revisions: list[int]
    """At which revision each of them was said."""
    next: int | None
    """The revision that the next part comes after, if there is one."""


class Threads:
    """The threads of one environment in one store. It keeps nothing of them in memory that is not in the store."""

    def __init__(self, sessions: Sessions[Any]) -> None:
        if sessions.environment.state_type is None:
            raise DefinitionError(
                f"{sessions.environment.name} has no state, so nothing of a thread would be kept: "
                "write Environment[YourState]"
            )
        self.sessions = sessions

    @classmethod
    @asynccontextmanager
    async def open(
        cls, store_url: str, environment: Environment[Any, Any] | None = None, *, ttl: float = WEEK
    ) -> AsyncIterator[Threads]:
        """The threads in a store, by its URL: of an environment, or else without tools.

        `ttl` is how many seconds a thread lives after its last use.
        """
        async with open_store(store_url) as store:
            sessions = Sessions[Any](environment or Conversing(), store, ttl=ttl)
            try:
                yield cls(sessions)
            finally:
                await sessions.stop()

    @property
    def store(self) -> Store:
        """Where they are kept."""
        return self.sessions.store

    # A thread's life.

    async def create(
        self,
        user: str | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        instructions: str = "",
        task: Mapping[str, Any] | None = None,
    ) -> Thread:
        """A new thread, of a user's if one is named.

        `metadata` is kept with it, `instructions` are a system message that it begins with, and `task` is the row that
        the environment seeds its state by.
        """
        row = dict(task or {})
        row |= {"user": user} if user is not None else {}
        row |= {"metadata": dict(metadata)} if metadata else {}
        if instructions:
            told: Item = {"type": "message", "role": "system", "content": instructions}
            row["responses_create_params"] = {**_request(row), "input": [told, *asked_in(row)]}
        session = await self.sessions.seed(row, owner=user or "")
        return await self.get(session.id)

    async def get(self, thread: Which) -> Thread:
        """What there is to know of a thread."""
        return await self._described(await self._head(thread))

    async def list(self, user: str | None = None, *, after: Cursor | None = None, limit: int = 20) -> Page[Thread]:
        """Threads, the newest first; only a user's, if one is named. `after` is the `next` of the page before."""
        heads, following = await self._heads(user, after, limit)
        found = await asyncio.gather(*map(self._if_there, heads))
        return Page([thread for thread in found if thread is not None], following)

    async def fork(self, thread: Which, at: int | str | None = None) -> Thread:
        """A new thread that goes on from where this one stands, or from where it stood at a revision or checkpoint."""
        session = await self._session(thread)
        return await self.get((await session.fork(at)).id)

    async def delete(self, thread: Which) -> None:
        """Remove a thread at once, with all that was said. Its forks stay."""
        head = await self._head(thread, ended_too=True)
        await self.store.delete(head.id)
        self.sessions.forget(head.id)

    # The conversation.

    async def add(self, thread: Which, message: str | Item | Sequence[Item], *, pin: bool = False) -> AgentStatus:
        """Say something in a thread: a text of the user's, an item or several. It is answered by `run`.

        An agent that waits for input is given it. One that is at work cannot be told anything: `InvalidMove`, or
        `SessionLeased` if it has just begun. The model is always shown what is pinned, however long the conversation.
        """
        items = given_items(message)
        session = await self._session(thread)
        stance = session.agent.status
        pinned = range(len(items)) if pin else ()
        if stance.phase == WAITING:
            return await self._answer(session, stance, items, pinned)
        if stance.phase == "planning":  # it was told something before, and nobody has begun with it
            async with session.lease():
                return await session.agent.say(Update(items, "user", (), pinned=[*pinned]), after=stance)
        return await session.agent.say(Update(items, "user", ("new_task",), pinned=[*pinned]), after=stance)

    async def _answer(
        self, session: Session[Any], stance: AgentStatus, items: Sequence[Item], pinned: range | tuple[()]
    ) -> AgentStatus:
        """Give an agent what it waits for."""
        if stance.asking is None and not stance.open:  # nobody in particular has asked
            return await session.agent.say(
                Update([*items], "user", ("input_received",), pinned=[*pinned]), after=stance
            )
        if len(items) != 1 or kind_of(items[0]) != "user" or pinned:
            raise InvalidArguments(
                f"thread {session.id!r} waits for the answer to a question, {stance.question!r}: give one text, "
                "and do not pin it"
            )
        return await session.agent.answer(text_of(items[0]))

    async def run(self, thread: Which, agent: Agent, *, on_items: OnItems | None = None) -> Trajectory:
        """Let an agent answer what is new in a thread; gives what came to be said since.

        A turn that was interrupted goes on where it was, and one that failed is tried again. Meanwhile nobody else can
        run it: `SessionLeased`. `on_items` is given the items as they are committed.
        """
        session = await self._session(thread)
        async with session.lease():
            asked = asked_in(session.task.model_dump(include={"responses_create_params"}))
            await self._begin(session, asked)
            record: Record = session.agent if on_items is None else _Overheard(session.agent, on_items)
            return await act(session, record, agent, session.tools, asked)

    async def _begin(self, session: Session[Any], asked: Sequence[Item]) -> None:
        """See that there is something to be answered."""
        stance, lifecycle = session.agent.status, self.sessions.environment.lifecycle
        if stance.phase == "failed":
            await session.agent.say(Update([], "agent", ("new_task",)), after=stance)
        elif stance.phase == lifecycle.start and "user" not in map(kind_of, asked):
            raise InvalidMove(stance.phase, "plan_ready", ", ".join(lifecycle.possible(stance.phase)))

    async def cancel(self, thread: Which, reason: str = "") -> AgentStatus:
        """End what the agent of a thread is doing, whichever process runs it; that finds out before its next step."""
        return await (await self._session(thread)).agent.cancel(reason)

    async def items(self, thread: Which, *, after: int = 0, limit: int | None = None) -> Items:
        """The conversation, or what was said of it after a revision.

        With a `limit`, nothing more is begun once there are so many; what was said at once is not taken apart.
        """
        head = await self._head(thread)
        items: list[Item] = []
        revisions: list[int] = []
        for said in await talk(self.store, head.id, after):
            if limit is not None and len(items) >= limit:
                return Items(items, revisions, revisions[-1])
            items += said.items
            revisions += [said.revision] * len(said.items)
        return Items(items, revisions, None)

    # In the store.

    async def _session(self, thread: Which) -> Session[Any]:
        return await self.sessions.open(_id(thread))

    async def _head(self, thread: Which, *, ended_too: bool = False) -> Head:
        head, environment = await self.store.head(_id(thread)), self.sessions.environment.name
        if head.environment != environment:
            raise SessionError(head.id, f"session {head.id!r} is of {head.environment}, not of {environment}")
        status = head.status(self.sessions.runtime.now())
        if status != "live" and not ended_too:
            raise SessionClosed(head.id) if status == "closed" else SessionExpired(head.id)
        return head

    async def _if_there(self, head: Head) -> Thread | None:
        with suppress(UnknownSession):  # it was deleted just now
            return await self._described(head)
        return None

    async def _described(self, head: Head) -> Thread:
        history = History(self.store)
        document, seeded = await asyncio.gather(history.document(head.id), history.seed(head))
        metadata, stance = read_entry(seeded).input.get("metadata"), document.progress.agent
        return Thread(
            id=head.id,
            environment=head.environment,
            user=head.owner or None,
            metadata=metadata if isinstance(metadata, dict) else {},
            phase=stance.phase,
            question=stance.question,
            revision=document.head.revision,
            created=head.created,
            expires=head.expires,
            parent=None if head.parent is None else (head.parent, head.parent_revision),
        )

    async def _heads(self, user: str | None, after: Cursor | None, limit: int) -> tuple[Sequence[Head], Cursor | None]:
        """The heads of a page, and where the next one goes on."""
        now, environment = self.sessions.runtime.now(), self.sessions.environment.name
        before = None if after is None else Head(after[1], "", "", after[0], 0.0, 0)
        found: list[Head] = []
        for _ in range(SCANS):
            page = await self.store.heads(environment=environment, before=before, limit=SCANNED)
            for head in page:
                if head.status(now) == "live" and user in (None, head.owner):
                    if len(found) == limit:
                        return found, (found[-1].created, found[-1].id)
                    found.append(head)
            if len(page) < SCANNED:
                return found, None
            before = page[-1]
        return found, None if before is None else (before.created, before.id)


def _request(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a task's row asks for; `BadTask` if that cannot be."""
    request = row.get("responses_create_params", {})
    if not isinstance(request, dict):
        raise BadTask("responses_create_params: should be an object")
    return request


def _id(thread: Which) -> str:
    return thread if isinstance(thread, str) else thread.id


class _Overheard:
    """The record of a session, whose items somebody is told of when they are there for good."""

    def __init__(self, record: Record, on_items: OnItems) -> None:
        self._record = record
        self._on_items = on_items

    @property
    def status(self) -> AgentStatus:
        return self._record.status

    async def say(self, update: Update, *, after: AgentStatus | None = None, **changes: Any) -> AgentStatus:
        status = await self._record.say(update, after=after, **changes)
        if update.items:
            await self._on_items(update.items)
        return status

    async def compact(self, window: dict[str, Any], *, after: AgentStatus | None = None) -> AgentStatus:
        return await self._record.compact(window, after=after)

    async def said(self, since: int = 0) -> list[LogEntry]:
        return await self._record.said(since)

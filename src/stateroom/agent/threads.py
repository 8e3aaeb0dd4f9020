"""`Threads`: conversations that continue across calls and processes; the caller sends only new messages.

A thread is a session: its log holds the conversation, and its state what the tools do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from stateroom.agent.agent import Agent, WrappedWorkspace
from stateroom.agent.loop import WAITING, OnItems, Trajectory, act
from stateroom.agent.transcripts import task_items, transcript
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
from stateroom.model import Item, checked_items, kind_of, text_of
from stateroom.session import WEEK, AgentStatus, History, Session, SessionLimits, Sessions, Update, read_entry
from stateroom.state import State
from stateroom.store import Head, HeadFilter, Store, open_store

Cursor = tuple[float, str]
"""Where the next page starts: a thread's creation time and id."""


class ThreadState(State):
    """The state of a thread without tools: nothing."""


class ThreadEnvironment(Environment[ThreadState]):
    """A conversation without tools."""

    name = "thread"


class Thread(msgspec.Struct, frozen=True):
    """A thread's metadata and status."""

    id: str
    environment: str
    user: str | None
    metadata: dict[str, Any]
    phase: str
    """The phase of its agent; see `Lifecycle`."""
    question: str | None
    """The agent's question that waits for an answer."""
    revision: int
    created: float
    expires: float
    parent: tuple[str, int] | None
    """For a fork: the thread and the revision that it was forked from."""


ThreadOrID = Thread | str


class ThreadPage(msgspec.Struct, frozen=True):
    """A page of threads. A page may have fewer than asked for, or none, and still not be the last."""

    threads: list[Thread]
    next: Cursor | None
    """The cursor of the next page; None on the last."""


class ItemPage(msgspec.Struct, frozen=True):
    """A page of a conversation."""

    items: list[Item]
    revisions: list[int]
    """The revision of each item."""
    next: int | None
    """The `after` of the next page; None on the last."""


class Threads:
    """The threads of one environment in one store. Everything is in the store; memory holds only a cache."""

    def __init__(self, sessions: Sessions[Any]) -> None:
        if sessions.environment.state_type is None:
            raise DefinitionError(
                f"{sessions.environment.name} has no state, so its threads would not be stored; "
                "write Environment[YourState]"
            )
        self.sessions = sessions

    @classmethod
    @asynccontextmanager
    async def open(
        cls, store_url: str, environment: Environment[Any, Any] | None = None, *, ttl: float = WEEK
    ) -> AsyncIterator[Threads]:
        """Open the threads of an environment in a store, by its URL; without an environment, threads have no tools.

        `ttl` is a thread's time to live after its last use, in seconds.
        """
        async with open_store(store_url) as store:
            sessions = Sessions[Any](environment or ThreadEnvironment(), store, SessionLimits(ttl=ttl))
            try:
                yield cls(sessions)
            finally:
                await sessions.stop()

    @property
    def store(self) -> Store:
        """The store of the threads."""
        return self.sessions.store

    # Threads.

    async def create(
        self,
        user: str | None = None,
        *,
        metadata: Mapping[str, Any] | None = None,
        instructions: str = "",
        task: Mapping[str, Any] | None = None,
    ) -> Thread:
        """Create a thread, for a user if one is named.

        `metadata` is stored with it, `instructions` become its first message, of the role `system`, and `task` is the
        row from which the environment seeds its state.
        """
        row = dict(task or {})
        row |= {"user": user} if user is not None else {}
        row |= {"metadata": dict(metadata)} if metadata else {}
        if instructions:
            first: Item = {"type": "message", "role": "system", "content": instructions}
            row["responses_create_params"] = {**_request(row), "input": [first, *task_items(row)]}
        session = await self.sessions.seed(row, owner=user or "")
        return await self.get(session.id)

    async def get(self, thread: ThreadOrID) -> Thread:
        """Return a thread."""
        return await self._described(await self._head(thread))

    async def list(self, user: str | None = None, *, after: Cursor | None = None, limit: int = 20) -> ThreadPage:
        """Return a page of threads, newest first, of a user if one is named. `after` is the `next` of the last page."""
        environment, now = self.sessions.environment.name, self.sessions.runtime.now()
        wanted = HeadFilter(environment=environment, owner=user, status="live", at=now)
        last = None if after is None else Head(after[1], "", "", after[0], 0.0, 0)
        heads = await self.store.heads(wanted, after=last, limit=limit + 1)
        following = heads[limit - 1].age if len(heads) > limit else None
        threads = await asyncio.gather(*map(self._if_there, heads[:limit]))
        return ThreadPage([thread for thread in threads if thread is not None], following)

    async def fork(self, thread: ThreadOrID, at: int | str | None = None) -> Thread:
        """Fork a thread at its newest revision, or at an earlier revision or checkpoint."""
        session = await self._session(thread)
        return await self.get((await session.fork(at)).id)

    async def delete(self, thread: ThreadOrID) -> None:
        """Delete a thread and its conversation. Its forks stay."""
        head = await self._head(thread, include_ended=True)
        await self.store.delete(head.id)
        self.sessions.forget(head.id)

    # The conversation.

    async def add(
        self, thread: ThreadOrID, message: str | Item | Sequence[Item], *, user: str | None = None, pin: bool = False
    ) -> AgentStatus:
        """Add a user message, an item or several to a thread; `run` answers them.

        `user` names who says it, if the thread has several users: the model sees the name, and the agent's tools get
        that user's state. A message can also have the name as its `name`.
        If the agent waits for input, the message is its answer. While an agent works, this raises `InvalidMove`, or
        `SessionLeased` if it has just begun. The model always sees pinned items, however long the conversation.
        """
        items = [_named(item, user) for item in checked_items(message)]
        session = await self._session(thread)
        status = session.agent.status
        names = [item["name"] for item in items if kind_of(item) == "user" and item.get("name")]
        update = Update(items, "user", pinned=[*range(len(items))] if pin else [], user=names[-1] if names else user)
        if status.phase == WAITING:
            return await self._answer(session, status, update)
        if status.phase == "planning":  # a message waits, and no agent has begun to answer it
            async with session.lease():
                return await session.agent.say(update, after=status)
        return await session.agent.say(msgspec.structs.replace(update, moves=("new_task",)), after=status)

    async def _answer(self, session: Session[Any], status: AgentStatus, update: Update) -> AgentStatus:
        """Give an agent the input that it waits for."""
        if status.asking is None and not status.open:  # no tool and no call waits for it
            return await session.agent.say(msgspec.structs.replace(update, moves=("input_received",)), after=status)
        items = update.items
        if len(items) != 1 or kind_of(items[0]) != "user" or update.pinned:
            raise InvalidArguments(
                f"thread {session.id!r} waits for an answer to {status.question!r}: send a single text, not pinned"
            )
        return await session.agent.answer(text_of(items[0]), user=update.user)

    async def run(
        self, thread: ThreadOrID, agent: Agent, *, on_items: OnItems | None = None, simulated_user: bool = True
    ) -> Trajectory:
        """Run an agent on the new messages of a thread, and return the trajectory.

        An interrupted turn continues, and a failed one runs again. Meanwhile a second `run` raises `SessionLeased`.
        `on_items` is called with the items when they are committed. With `simulated_user=False`, the environment's
        `reply` is not called: `add` the user's messages.
        """
        session = await self._session(thread)
        async with session.lease():
            asked = task_items(session.task.model_dump(include={"responses_create_params"}))
            await self._begin(session, asked)
            workspace = session if simulated_user else _InPerson(session)
            return await act(workspace, session.agent, agent, session.tools, asked, on_items=on_items)

    async def _begin(self, session: Session[Any], asked: Sequence[Item]) -> None:
        """Raise `InvalidMove` if there is nothing to answer; move a failed agent on."""
        status, lifecycle = session.agent.status, self.sessions.environment.lifecycle
        if status.phase == "failed":
            await session.agent.say(Update([], "agent", ("new_task",)), after=status)
        elif status.phase == lifecycle.start and "user" not in map(kind_of, asked):
            raise InvalidMove(status.phase, "plan_ready", ", ".join(lifecycle.possible(status.phase)))

    async def cancel(self, thread: ThreadOrID, reason: str = "") -> AgentStatus:
        """Cancel the agent of a thread; the process that runs it stops before its next step."""
        return await (await self._session(thread)).agent.cancel(reason)

    async def items(self, thread: ThreadOrID, *, after: int = 0, limit: int | None = None) -> ItemPage:
        """Return the conversation after a revision.

        A page ends after `limit` items; items that were added together stay on one page.
        """
        head = await self._head(thread)
        items: list[Item] = []
        revisions: list[int] = []
        for utterance in await transcript(self.store, head.id, after):
            if limit is not None and len(items) >= limit:
                return ItemPage(items, revisions, revisions[-1])
            items += utterance.items
            revisions += [utterance.revision] * len(utterance.items)
        return ItemPage(items, revisions, None)

    # The store.

    async def _session(self, thread: ThreadOrID) -> Session[Any]:
        return await self.sessions.open(_id(thread))

    async def _head(self, thread: ThreadOrID, *, include_ended: bool = False) -> Head:
        head, environment = await self.store.head(_id(thread)), self.sessions.environment.name
        if head.environment != environment:
            raise SessionError(
                head.id, f"session {head.id!r} belongs to the environment {head.environment!r}, not {environment!r}"
            )
        status = head.status(self.sessions.runtime.now())
        if status != "live" and not include_ended:
            raise SessionClosed(head.id) if status == "closed" else SessionExpired(head.id)
        return head

    async def _if_there(self, head: Head) -> Thread | None:
        with suppress(UnknownSession):  # deleted just now
            return await self._described(head)
        return None

    async def _described(self, head: Head) -> Thread:
        history = History(self.store)
        document, seeded = await asyncio.gather(history.document(head.id), history.seed(head))
        metadata, status = read_entry(seeded).input.get("metadata"), document.progress.agent
        return Thread(
            id=head.id,
            environment=head.environment,
            user=head.owner or None,
            metadata=metadata if isinstance(metadata, dict) else {},
            phase=status.phase,
            question=status.question,
            revision=document.head.revision,
            created=head.created,
            expires=head.expires,
            parent=None if head.parent is None else (head.parent, head.parent_revision),
        )


def _request(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `responses_create_params` of a task row. Raises `BadTask`."""
    request = row.get("responses_create_params", {})
    if not isinstance(request, dict):
        raise BadTask("responses_create_params: should be an object")
    return request


def _named(item: Item, user: str | None) -> Item:
    """A user's message with the name of the user, if one is named."""
    return item if user is None or kind_of(item) != "user" else {**item, "name": user}


def _id(thread: ThreadOrID) -> str:
    return thread if isinstance(thread, str) else thread.id


class _InPerson(WrappedWorkspace):
    """A session in which a person takes the place of the simulated user."""

    replies = False
    opens = False

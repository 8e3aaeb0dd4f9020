"""OpenAI's Conversations API: conversations that the server keeps, each of them a thread in a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import groupby
from typing import Annotated, Any, Literal

import msgspec
from pydantic import ConfigDict, Field

from stateroom.agent import Threads
from stateroom.environment import Environment, Task
from stateroom.errors import NotFound, SessionError
from stateroom.model import Answer, Item, Request as ToModel
from stateroom.server import api
from stateroom.server.http import wrong_field
from stateroom.server.model import responses
from stateroom.server.model.request import ModelResponse
from stateroom.server.operation import Operation, delete, get, post
from stateroom.server.sweep import SessionCount
from stateroom.session import Session, Sessions, Update
from stateroom.state import State

PATH = "/v1/conversations"

PREFIX = "conv_"
"""Start of the ids of conversations; the id of the thread follows."""

CLIENT = "client"
"""Who changes metadata and deletes items, in the log."""

Reply = dict[str, Any]

Ask = Callable[[ToModel], Awaitable[Answer]]
"""Lets the model answer."""


class ConversationState(State):
    metadata: dict[str, str] = {}
    deleted: dict[str, bool] = {}
    """The ids of items that were deleted. They stay in the log, and nobody is shown them."""


class ConversationTask(Task):
    metadata: dict[str, str] = {}


class ConversationEnvironment(Environment[ConversationState, ConversationTask]):
    """A conversation that OpenAI's clients continue."""

    name = "conversation"

    def seed(self, task: ConversationTask) -> ConversationState:
        return ConversationState(metadata=task.metadata)


# Parameters.

Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]], Field(max_length=16)
]


class NewConversation(api.Parameters):
    items: list[dict[str, Any]] | None = None
    metadata: Metadata | None = None


class NewMetadata(api.Parameters):
    metadata: Metadata | None


class NewItems(api.Parameters):
    items: Annotated[list[dict[str, Any]], Field(min_length=1)]


class Ignored(api.Parameters):
    """Parameters that add nothing here, such as `include`."""

    model_config = ConfigDict(extra="ignore")


class ItemList(Ignored):
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "desc"


class Conversations:
    """The conversations in a store, and their endpoints."""

    def __init__(self, sessions: Sessions[ConversationState], count: SessionCount) -> None:
        self.sessions = sessions
        self.threads = Threads(sessions)
        self.count = count

    def operations(self) -> list[Operation]:
        """The endpoints."""
        one = f"{PATH}/{{conversation:id}}"
        return [
            post(PATH, self.create),
            get(one, self.show),
            post(one, self.update),
            delete(one, self.delete),
            get(f"{one}/items", self.list_items),
            post(f"{one}/items", self.create_items),
            get(f"{one}/items/{{item:id}}", self.show_item),
            delete(f"{one}/items/{{item:id}}", self.delete_item),
        ]

    async def answer(self, conversation: str, body: Mapping[str, Any], ask: Ask, model: str) -> ModelResponse:
        """Let the model answer in a conversation, which gets the input of the request and the answer."""
        async with self._changing(conversation) as session:
            before = [item for item, *_ in await self._items(session)]
            asked = responses.read(body, before)
            answer = await ask(asked.request)
            new = asked.request.items[len(before) :]
            usage = None if answer.usage is None else msgspec.to_builtins(answer.usage)
            moves = ("plan_ready", "task_complete")
            await self._say(session, Update([*new, *answer.items], "model", moves, usage=usage))
            return ModelResponse(
                asked, answer, model, _batch(session.id, session.revision), first=len(new), conversation=conversation
            )

    # Conversations.

    async def create(self, body: NewConversation) -> Reply:
        items = responses.checked_items(body.items or (), "items")
        async with self.count.admit():
            thread = await self.threads.create(metadata=body.metadata or {})
        session = await self.sessions.open(thread.id)
        if items:
            await self._say(session, Update(items, "user"))
        return await self._described(session)

    async def show(self, conversation: str, query: Ignored) -> Reply:
        return await self._described(await self._session(conversation))

    async def update(self, conversation: str, body: NewMetadata) -> Reply:
        async with self._changing(conversation) as session:
            await session.edit([{"place": ["metadata"], "value": body.metadata or {}}], by=CLIENT)
            return await self._described(session)

    async def delete(self, conversation: str, query: Ignored) -> Reply:
        await self.threads.delete((await self._session(conversation)).id)
        self.count.remove()
        return {"id": conversation, "object": "conversation.deleted", "deleted": True}

    async def _described(self, session: Session[ConversationState]) -> Reply:
        created = int((await self.sessions.store.head(session.id)).created)
        described = {"id": PREFIX + session.id, "object": "conversation", "created_at": created}
        return {**described, "metadata": session.state.metadata}

    # Items.

    async def create_items(self, conversation: str, body: NewItems) -> Reply:
        items = responses.checked_items(body.items, "items")
        async with self._changing(conversation) as session:
            await self._say(session, Update(items, "user"))
            batch = _batch(session.id, session.revision)
        return _page([responses.shown(item, batch, place) for place, item in enumerate(items)])

    async def list_items(self, conversation: str, query: ItemList) -> Reply:
        items = await self._shown(conversation)
        if query.order == "desc":
            items.reverse()
        if query.after is not None:
            places = [place for place, item in enumerate(items) if item["id"] == query.after]
            if not places:
                raise wrong_field("after", f"unknown item {query.after!r:.200} in this conversation")
            items = items[places[0] + 1 :]
        return _page(items[: query.limit], has_more=len(items) > query.limit)

    async def show_item(self, conversation: str, item: str, query: Ignored) -> Reply:
        return _found(await self._shown(conversation), item)

    async def delete_item(self, conversation: str, item: str, query: Ignored) -> Reply:
        deleted = _found(await self._shown(conversation), item)
        async with self._changing(conversation) as session:
            await session.edit([{"place": ["deleted", deleted["id"]], "value": True}], by=CLIENT)
            return await self._described(session)

    # The store.

    async def _session(self, conversation: str) -> Session[ConversationState]:
        with suppress(SessionError):  # it is gone, or is not a conversation
            if conversation.startswith(PREFIX):
                return await self.sessions.open(conversation.removeprefix(PREFIX))
        raise NotFound(f"unknown conversation {conversation!r:.200}")

    @asynccontextmanager
    async def _changing(self, conversation: str) -> AsyncIterator[Session[ConversationState]]:
        """A conversation that no other request changes meanwhile."""
        session = await self._session(conversation)
        async with session.lease():
            yield session

    async def _say(self, session: Session[ConversationState], update: Update) -> None:
        """Add items; those of a user wait for an answer."""
        status = session.agent.status
        begins = () if status.phase == "planning" else ("new_task",)
        await session.agent.say(msgspec.structs.replace(update, moves=(*begins, *update.moves)), after=status)

    async def _items(self, session: Session[ConversationState]) -> list[tuple[Item, str, int]]:
        """The items that were not deleted, as they are stored, each with its batch and its place there."""
        page, deleted = await self.threads.items(session.id), session.state.deleted
        batches = groupby(zip(page.items, page.revisions, strict=True), lambda each: each[1])
        items = [
            (item, _batch(session.id, revision), place)
            for revision, batch in batches
            for place, (item, _) in enumerate(batch)
        ]
        return [each for each in items if responses.item_id(*each) not in deleted]

    async def _shown(self, conversation: str) -> list[Item]:
        """The items of a conversation as clients see them."""
        session = await self._session(conversation)
        return [responses.shown(*each) for each in await self._items(session)]


def _batch(session: str, revision: int) -> str:
    """The part of the ids of items that were added together."""
    return f"{session}_{revision}"


def _found(items: list[Item], name: str) -> Item:
    for item in items:
        if item["id"] == name:
            return item
    raise NotFound(f"unknown item {name!r:.200} in this conversation")


def _page(items: list[Item], *, has_more: bool = False) -> Reply:
    first, last = (items[0]["id"], items[-1]["id"]) if items else ("", "")
    return {"object": "list", "data": items, "first_id": first, "last_id": last, "has_more": has_more}

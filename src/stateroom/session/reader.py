"""Stored sessions as the author's types, with migrations for data that older code wrote."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from stateroom.errors import InvalidState, SchemaChanged, UnknownSession
from stateroom.lru import LRU
from stateroom.session.containment import contained
from stateroom.session.history import History
from stateroom.session.log import Document, WorldStart, world_is_gone
from stateroom.session.progress import Progress
from stateroom.state import (
    State,
    fill_defaults,
    fingerprint_of,
    first_difference,
    only_adds,
    patched,
    schema_of,
    shape_of,
)
from stateroom.store import Store

MAX_WORLDS = 4
"""Maximum number of worlds in memory (the current one, and those of sessions seeded by older code)."""


class StateAt(msgspec.Struct, frozen=True, gc=False):
    """The state and progress of a session at one revision."""

    state: Any
    """None when it was not read."""
    progress: Progress
    outdated: bool = False
    """Whether the state is stored in an older schema than this: then nothing can build on that."""


class Reader:
    """Reads sessions with one type of state. Their worlds are read once, and shared."""

    def __init__(self, store: Store, state_type: type[State]) -> None:
        self.store = store
        self.state_type = state_type
        self._worlds: LRU[str, State] = LRU(MAX_WORLDS)
        self._reading = asyncio.Lock()
        """One task reads a world; the others wait, and share that one."""

    async def read(self, session: str, revision: int | None = None) -> tuple[StateAt, Document]:
        """The session at a revision, by default the newest, and its document."""
        document = await History(self.store).outline(session, revision)
        return await self.understood(document), document

    async def understood(self, document: Document) -> StateAt:
        """A document, or an outline of one, in the author's type."""
        schema = schema_of(self.state_type)
        lacks = _lacks_fields(document, self.state_type)
        if lacks:
            await self._accept(document)
        outdated = lacks or document.version < schema.version
        if document.start is not None and not outdated:
            return StateAt(await self._followed(document, document.start), document.progress)
        document = await History(self.store).completed(document)
        return StateAt(typed(document, self.state_type), document.progress, outdated)

    async def _accept(self, document: Document) -> None:
        """Raise unless a document only lacks fields whose defaults are accepted."""
        places = await _stored_places(History(self.store), document)
        accepted = self.state_type.__migrations__.accepts_defaults
        if not (accepted and places and only_adds(places, schema_of(self.state_type).places)):
            raise _other_schema(places, document, self.state_type)

    def keep(self, world: str, state: State) -> None:
        """Keep a world in memory."""
        self._worlds.keep(world, state)

    def forget(self) -> None:
        """Keep no world in memory."""
        self._worlds.clear()

    async def _world(self, world: str) -> State:
        async with self._reading:
            state = self._worlds.get(world)
            if state is None:
                state = (await self.read(world))[0].state
            self.keep(world, state)
        return state

    async def _followed(self, document: Document, start: WorldStart) -> State:
        """The state that follows from a world, with which it shares all that has not changed."""
        try:
            world = await self._world(start.world)
        except UnknownSession:
            raise world_is_gone(document.head.id, start.world) from None
        try:
            return patched(world, start.changes)
        except InvalidState as error:  # not by the code that it names
            message = f"the stored state of session {document.head.id!r} is not valid: {error}"
            raise InvalidState((), message) from error


def typed(document: Document, state_type: type[State]) -> State:
    """The state in a document as the author's type."""
    session = document.head.id
    try:
        with contained:
            data = state_type.__migrations__.upgrade(document.state, document.version)
            if lacks := _lacks_fields(document, state_type):
                fill_defaults(shape_of(state_type), data)
    except SchemaChanged as error:
        raise SchemaChanged(f"the state of session {session!r} cannot be read: {error}") from error.__cause__
    is_old = lacks or document.version < state_type.__migrations__.version
    how = f", migrated from version {document.version}," if is_old else ""
    shape = shape_of(state_type)
    try:
        with contained:
            state: State = shape.adopt(data) if is_old or document.fingerprint is None else shape.read(data)
    except Exception as error:
        problem = error if isinstance(error, InvalidState) else f"{type(error).__name__}: {error}"
        raise InvalidState((), f"the stored state of session {session!r}{how} is not valid: {problem}") from error
    return state


def schema_facts(state_type: type[State]) -> list[Any]:
    """The facts of an entry about the schema of the state from there on."""
    schema = schema_of(state_type)
    return [schema.version, schema.places]


def _lacks_fields(document: Document, state_type: type[State]) -> bool:
    """Whether a document is of the version of a class, but of other fields."""
    schema = schema_of(state_type)
    return document.version == schema.version and document.fingerprint not in (None, schema.fingerprint)


async def _stored_places(history: History, document: Document) -> dict[str, str]:
    """The places of a document's schema; none if the log no longer says."""
    stored: dict[str, str] = {}
    async for entry in history.entries(document.head.id):
        version, places = entry.facts.get("schema", (0, {}))
        if version == document.version and fingerprint_of(places) == document.fingerprint:
            stored = places
    return stored


def _other_schema(places: dict[str, str], document: Document, state_type: type[State]) -> SchemaChanged:
    """Why a document cannot be read, with the field that has changed since it was written."""
    name, now = state_type.__name__, schema_of(state_type).places
    difference = (first_difference(places, now) if places else None) or "its fields differ"
    development = "; while you develop, `accept_defaults` takes the defaults of new fields"
    return SchemaChanged(
        f"the state of session {document.head.id!r} was stored by a different {name}: {difference}. Give the "
        f"class a new version, class {name}(State, version={document.version + 1}), and a migration, "
        f"@{name}.migration({document.version}){development if places and only_adds(places, now) else ''}"
    )

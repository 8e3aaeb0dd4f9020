"""From what is stored of a session to the author's types, by migrations if older code has written it."""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import ValidationError

from stateroom.errors import InvalidState, SchemaChanged, format_path
from stateroom.session.history import Document, History
from stateroom.session.moment import Moment
from stateroom.state import State, fingerprint_of, first_difference, schema_of, shape_of
from stateroom.state.missing import first_missing
from stateroom.state.shape import invalid
from stateroom.store import Store


class Standing(msgspec.Struct, frozen=True):
    """Where a session stands at a revision."""

    state: Any
    """None when it was not read."""
    moment: Moment
    outdated: bool = False
    """Whether the state is stored in an older schema than this: then nothing can build on that."""


async def read(
    store: Store, session: str, state_type: type[State], revision: int | None = None
) -> tuple[Standing, Document]:
    """What a session was at a revision, the newest by default, and the document that says so."""
    document = await History(store).document(session, revision)
    return await understood(store, document, state_type), document


async def understood(store: Store, document: Document, state_type: type[State]) -> Standing:
    """What a document says, in the author's type."""
    schema = schema_of(state_type)
    if document.version == schema.version and document.fingerprint not in (None, schema.fingerprint):
        raise await _other_schema(History(store), document, state_type)
    return Standing(typed(document, state_type), document.moment, document.version < schema.version)


def typed(document: Document, state_type: type[State]) -> State:
    """The state in a document as the author's type."""
    session = document.head.id
    try:
        data = state_type.__migrations__.upgrade(document.state, document.version)
    except SchemaChanged as error:
        raise SchemaChanged(f"the state of session {session!r} cannot be read: {error}") from error.__cause__
    is_old = document.version < state_type.__migrations__.version
    how = f", migrated from version {document.version}," if is_old else ""
    refused = f"the stored state of session {session!r}{how} is not valid"
    if missing := first_missing(data, shape_of(state_type)):  # else its default would take its place
        raise InvalidState((), f"{refused}: {format_path(missing)}: Field required")
    try:
        state: State = state_type.__pydantic_validator__.validate_python(data, by_name=True, by_alias=False)
    except Exception as error:
        found = invalid(error, (), data) if isinstance(error, ValidationError) else f"{type(error).__name__}: {error}"
        raise InvalidState((), f"{refused}: {found}") from error
    return state


def schema_facts(state_type: type[State]) -> list[Any]:
    """What an entry says of the schema of the state from there on."""
    schema = schema_of(state_type)
    return [schema.version, schema.places]


async def _other_schema(history: History, document: Document, state_type: type[State]) -> SchemaChanged:
    """Why a document cannot be read, with the field that has changed since it was written."""
    found = "its fields differ"
    async for entry in history.entries(document.head.id):
        version, places = entry.facts.get("schema", (0, {}))
        if version == document.version and fingerprint_of(places) == document.fingerprint:
            found = first_difference(places, schema_of(state_type).places) or found
    name = state_type.__name__
    return SchemaChanged(
        f"the state of session {document.head.id!r} was stored by another {name} than this one: {found}. Give the "
        f"class a new version, class {name}(State, version={document.version + 1}), and a migration, "
        f"@{name}.migration({document.version})"
    )

"""What a session comes to, as readable JSON: told once by the version that wrote it, and again by every later one."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from hashlib import sha256
from typing import Any
from uuid import UUID

from stateroom import Session
from stateroom.errors import SessionError, UnknownRevision
from stateroom.store import Store

LONGEST = 100
"""Of a longer text, or more bytes, a digest is told."""


def readable(value: Any) -> Any:
    """A value as JSON, which is another one for every other value, and for the same value of another type."""
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or type(value) in (bool, int, float):
        return value
    if type(value) is str:
        return value if len(value) <= LONGEST else f"{len(value)} characters {_digest(value.encode())}"
    if type(value) is bytes:
        return f"bytes {value.hex() if len(value) <= LONGEST else f'{len(value)} {_digest(value)}'}"
    if type(value) in (datetime, date, timedelta, UUID, Decimal):
        return f"{type(value).__name__} {value}"
    if isinstance(value, Mapping):
        plain = all(type(key) is str for key in value)
        return {key if plain else repr(readable(key)): readable(part) for key, part in value.items()}
    if isinstance(value, set | frozenset):
        return [type(value).__name__, *sorted(map(readable, value), key=repr)]
    if isinstance(value, tuple):
        return ["tuple", *map(readable, value)]
    return [readable(part) for part in value]


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()[:16]


async def tell(session: Session[Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """All that can be read of a session; `labels` has a name for each id, since ids differ from store to store."""
    store: Store = session._open.runtime.store
    head = await store.head(session.id)
    return {
        "revision": session.revision,
        "parent": None if session.parent is None else [labels[session.parent[0]], session.parent[1]],
        "owner": head.owner,
        "closed": head.closed,
        "phase": head.phase,
        "reward": head.reward,
        "task": readable(session.task.model_dump()),
        "states": await _states(session),
        "log": [_step(entry) async for entry in session.log()],
        "next": await _next(session),
    }


def own(told: dict[str, Any]) -> dict[str, Any]:
    """What is told of a session, less what it shares with the one that it was forked from."""
    shared = told["parent"][1] if told["parent"] else 0
    return {**told, "states": told["states"][shared:], "log": told["log"][shared:]}


def whole(told: Mapping[str, dict[str, Any]], label: str) -> dict[str, Any]:
    """All that is told of a session, where of each only what is its own is told."""
    own = told[label]
    if own["parent"] is None:
        return own
    above, shared = whole(told, own["parent"][0]), own["parent"][1]
    return {**own, **{part: above[part][:shared] + own[part] for part in ("states", "log")}}


async def _states(session: Session[Any]) -> list[dict[str, Any] | None]:
    """For each revision the fields that have changed since the one before; None where it was pruned."""
    told: list[dict[str, Any] | None] = []
    before: dict[str, Any] = {}
    for revision in range(1, session.revision + 1):
        try:
            state = readable((await session.state_at(revision)).model_dump())
        except UnknownRevision:
            told.append(None)
            continue
        told.append({name: value for name, value in state.items() if name not in before or before[name] != value})
        before = state
    return told


def _step(entry: Any) -> dict[str, Any]:
    facts = {name: fact for name, fact in entry.facts.items() if name != "seconds"}  # which were measured
    said = {"kind": entry.kind, **readable(facts)}
    if entry.call_id is not None and not entry.call_id.startswith("\n"):  # else it is nobody's, and not always there
        said["call id"] = entry.call_id
    return said


async def _next(session: Session[Any]) -> Any:
    """What the next call would see of luck and time; None where there can be none."""
    try:
        return (await session.call("foresee")).output
    except SessionError:  # it is sealed, or closed
        return None

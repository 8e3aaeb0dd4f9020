"""Calls by chance: mostly such as a session layer makes, now and then one that must be refused."""

from __future__ import annotations

import random
from typing import Any

from stateroom.store.conformance.creation import make_blobs, make_entry, make_head
from stateroom.store.conformance.reference import Reference
from stateroom.store.contract import Commit, Snapshot

WEIGHTS = {
    "create": 5, "append": 18, "touch": 1, "lease": 3, "release": 1, "head": 1, "heads": 1, "children": 1, "load": 3,
    "entries": 2, "find_call": 2, "blobs": 2, "sweep": 2, "delete": 1, "count": 1, "export": 2, "restore": 2,
    "prune": 1, "size": 1, "orphans": 1, "vacuum": 0.2,
}  # fmt: skip
"""How often each method is called."""


def choose_call(model: Reference, chance: random.Random, now: float) -> tuple[str, dict[str, Any]]:
    """The name of a method, and its arguments."""
    name = chance.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
    records = [record for record in model.records if model.can_tell(record)]
    if name == "restore" and not records:
        name = "export"
    session = chance.choice([*model.sessions, *model.sessions, "room 0"]) if model.sessions else "room 0"
    if name == "create":
        return name, _choose_session(model, chance, now, session)
    if name == "append":
        return name, _choose_append(model, chance, now, session)
    of_the_store: dict[str, dict[str, Any]] = {
        "heads": {"environment": chance.choice([None, "a", "b"])},
        "sweep": {"now": now},
        "count": {"now": now},
        "restore": {"record": chance.choice(records)} if records else {},
        "orphans": {},
        "vacuum": {},
    }
    if name in of_the_store:
        return name, of_the_store[name]
    found = model.sessions.get(session)
    revision = found.head.revision if found else 0
    of_the_session: dict[str, dict[str, Any]] = {
        "touch": {"now": now, "expires": _choose_expiry(chance, now)},
        "lease": {"holder": chance.choice("abc"), "now": now, "until": now + chance.choice([2.0, 10.0])},
        "release": {"holder": chance.choice("abc")},
        "load": {"at": chance.choice([None, chance.randint(0, revision)])},
        "entries": {
            "after": chance.randint(0, revision + 1),
            "until": chance.choice([None, chance.randint(0, revision + 1)]),
        },
        "find_call": {"call_id": _choose_call_id(chance) or "call"},
        "blobs": {"digests": [*_choose_blobs(chance, 5)]},
        "prune": {"below": chance.choice([*(found.snapshots if found else ()), revision])},
    }
    return name, {"session": session, **of_the_session.get(name, {})}


def _choose_session(model: Reference, chance: random.Random, now: float, parent: str) -> dict[str, Any]:
    made = f"room {chance.randrange(12)}"
    # Of two reasons to refuse, the contract does not say which comes first: a fork gets an id that is free.
    forks = made not in model.sessions and chance.random() < 0.6
    revision = model.sessions[parent].head.revision if parent in model.sessions else 0
    first = max(0, revision + chance.choice([-2, -1, 0, 0, 0, 1])) if forks else 0
    last = first + chance.randrange(3)
    head = make_head(
        made,
        environment=chance.choice(["a", "b"]),
        created=now,  # no two sessions of one id have the same, or one could be restored over the other
        expires=_choose_expiry(chance, now),
        revision=last,
        parent=parent if forks else None,
        parent_revision=first,
        fence=chance.choice([0, 3]),
    )
    return {
        "head": head,
        "entries": [make_entry(number, at=now, body=chance.randbytes(9)) for number in range(first + 1, last + 1)],
        "snapshot": Snapshot(last, chance.randbytes(9)) if chance.random() < 0.3 else None,
        "blobs": _choose_blobs(chance, 1),
    }


def _choose_append(model: Reference, chance: random.Random, now: float, session: str) -> dict[str, Any]:
    head = model.sessions[session].head if session in model.sessions else make_head(session)
    revision = max(0, head.revision + chance.choice([1] * 12 + [0, 2]))
    commit = Commit(
        session,
        make_entry(revision, _choose_call_id(chance), at=now, body=chance.randbytes(9)),
        expires=chance.choice([_choose_expiry(chance, now), _choose_expiry(chance, now), None]),
        fence=head.fence + chance.choice([0] * 12 + [-1, 1]),
        snapshot=Snapshot(revision, chance.randbytes(9)) if chance.random() < 0.2 else None,
        blobs=_choose_blobs(chance, 2),
        closes=chance.random() < 0.01,
    )
    return {"commit": commit}


def _choose_expiry(chance: random.Random, now: float) -> float:
    return now + chance.choice([5.0, 60.0, 200.0])


def _choose_call_id(chance: random.Random) -> str | None:
    return chance.choice([None, None, f"call {chance.randrange(6)}"])


def _choose_blobs(chance: random.Random, most: int) -> dict[str, bytes]:
    return make_blobs(*(b"blob %d" % chance.randrange(6) for _ in range(chance.randint(0, most))))

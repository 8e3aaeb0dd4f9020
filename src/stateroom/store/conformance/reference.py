"""A model of a store in plain dicts, and random calls, to compare a store with."""

from __future__ import annotations

import random
from typing import Any

from msgspec.structs import replace

from stateroom.errors import (
    Conflict,
    DuplicateCall,
    OutdatedRecord,
    SessionLeased,
    StateroomError,
    StoreError,
    UnknownRevision,
    UnknownSession,
)
from stateroom.store import ALL_SESSIONS, Blobs, Commit, Entry, Head, HeadFilter, Loaded, Order, Record, Snapshot, Store
from stateroom.store.conformance import make
from stateroom.store.conformance.helpers import outcome

MAINTENANCE = ("export", "orphans", "sizes", "vacuum")

WEIGHTS = {
    "create": 5, "append": 18, "touch": 1, "lease": 3, "release": 1, "head": 1, "heads": 2,
    "children": 1, "load": 3, "entries": 2, "find_call": 2, "blobs": 2, "sweep": 2, "delete": 1, "count": 1,
    "export": 2, "restore": 2, "prune": 1, "size": 1, "orphans": 1, "vacuum": 0.2,
}  # fmt: skip
"""How often each method is called."""


class _Session:
    """One session of the model."""

    def __init__(self, head: Head) -> None:
        self.head = head
        self.entries: dict[int, Entry] = {}
        self.snapshots: dict[int, Snapshot] = {}
        self.blobs: dict[str, bytes] = {}

    def add(self, entries: list[Entry], snapshots: list[Snapshot], blobs: Blobs) -> None:
        self.entries.update({entry.revision: entry for entry in entries})
        self.snapshots.update({snapshot.revision: snapshot for snapshot in snapshots})
        self.blobs.update(blobs)


class Reference:
    """A store at its plainest: each answer is worked out anew from everything that is kept."""

    def __init__(self) -> None:
        self.sessions: dict[str, _Session] = {}
        self.records: list[Record] = []
        """Sessions as they were when they were exported."""

    def answer(self, name: str, arguments: dict[str, Any]) -> Any:
        """The result of the call, or the class of its error."""
        try:
            return getattr(self, name)(**arguments)
        except StateroomError as error:
            return type(error)

    def find(self, session: str) -> _Session:
        if session not in self.sessions:
            raise UnknownSession(session)
        return self.sessions[session]

    def create(self, head: Head, entries: list[Entry], snapshot: Snapshot | None, blobs: Blobs) -> None:
        if head.id in self.sessions:
            raise StoreError
        self.check_parent(head)
        self.sessions[head.id] = made = _Session(head)
        made.add(entries, [snapshot] if snapshot else [], blobs)

    def check_parent(self, head: Head) -> None:
        if head.parent is not None and head.parent_revision > self.find(head.parent).head.revision:
            raise UnknownRevision(head.parent, "")

    def append(self, commit: Commit) -> None:
        session, entry = commit.session, commit.entry
        kept = self.find(session)
        kept.head.check_live(entry.at)
        if entry.call_id is not None and self.find_call(session, entry.call_id):
            raise DuplicateCall(session, entry.call_id)
        if (kept.head.revision + 1, kept.head.fence) != (entry.revision, commit.fence):
            raise Conflict(session, entry.revision - 1)
        kept.add([entry], [commit.snapshot] if commit.snapshot else [], commit.blobs)
        expires = kept.head.expires if commit.expires is None else commit.expires
        kept.head = replace(kept.head, revision=entry.revision, expires=expires, closed=commit.closes)
        if commit.phase is not None:
            kept.head = replace(kept.head, phase=commit.phase)
        if commit.reward is not None:
            kept.head = replace(kept.head, reward=commit.reward)

    def touch(self, session: str, now: float, expires: float) -> None:
        kept = self.find(session)
        kept.head.check_live(now)
        kept.head = replace(kept.head, expires=expires)

    def lease(self, session: str, holder: str, now: float, until: float) -> Head:
        kept = self.find(session)
        if kept.head.holder != holder:
            if kept.head.holder is not None and now < kept.head.leased_until:
                raise SessionLeased(session)
            kept.head = replace(kept.head, holder=holder, fence=kept.head.fence + 1)
        kept.head = replace(kept.head, leased_until=until)
        return kept.head

    def release(self, session: str, holder: str) -> None:
        kept = self.find(session)
        if kept.head.holder == holder:
            kept.head = replace(kept.head, holder=None, leased_until=0.0)

    def head(self, session: str) -> Head:
        return self.find(session).head

    def heads(self, wanted: HeadFilter = ALL_SESSIONS, order: Order = "newest", limit: int = 100) -> list[Head]:
        heads = [kept.head for kept in self.sessions.values() if wanted.matches(kept.head)]
        heads.sort(key=lambda head: (head.created, head.id), reverse=order != "oldest")
        if order == "reward":
            heads = sorted((head for head in heads if head.reward is not None), key=_reward, reverse=True)
        return heads[:limit]

    def children(self, session: str) -> list[Head]:
        self.find(session)
        return [head for head in self.heads(order="oldest") if head.parent == session]

    def load(self, session: str, at: int | None) -> Loaded:
        kept = self.find(session)
        until = kept.head.revision if at is None else at
        base = max((revision for revision in kept.snapshots if revision <= until), default=0)
        return Loaded(kept.head, kept.snapshots.get(base), self.entries(session, base, until))

    def entries(self, session: str, after: int, until: int | None) -> list[Entry]:
        kept = self.find(session)
        last = kept.head.revision if until is None else until
        return [kept.entries[revision] for revision in sorted(kept.entries) if after < revision <= last]

    def find_call(self, session: str, call_id: str) -> Entry | None:
        return next((entry for entry in self.find(session).entries.values() if entry.call_id == call_id), None)

    def blobs(self, session: str, digests: list[str]) -> dict[str, bytes]:
        kept = self.find(session)
        return {digest: kept.blobs[digest] for digest in digests if digest in kept.blobs}

    def delete(self, session: str) -> None:
        kept = self.find(session)
        if any(other.head.parent == session for other in self.sessions.values()):
            kept.head = replace(kept.head, expires=0.0)
        else:
            del self.sessions[session]

    def count(self, now: float) -> int:
        return sum(kept.head.expires > now and not kept.head.closed for kept in self.sessions.values())

    def sweep(self, now: float) -> int:
        needed = {session for session, kept in self.sessions.items() if kept.head.expires > now}
        for session in [*needed]:
            parent = self.sessions[session].head.parent
            while parent is not None:
                needed.add(parent)
                parent = self.sessions[parent].head.parent
        swept = len(self.sessions) - len(needed)
        self.sessions = {session: self.sessions[session] for session in self.sessions if session in needed}
        return swept

    def look(self, session: str) -> Record:
        """All of a session."""
        kept = self.find(session)
        entries = [kept.entries[revision] for revision in sorted(kept.entries)]
        snapshots = [kept.snapshots[revision] for revision in sorted(kept.snapshots)]
        return Record(kept.head, entries, snapshots, dict(kept.blobs))

    def export(self, session: str) -> Record:
        self.records.append(self.look(session))
        return self.records[-1]

    def restore(self, record: Record) -> None:
        self.check_parent(record.head)
        kept = self.sessions.setdefault(record.head.id, _Session(record.head))
        if not record.head.continues(kept.head):
            raise OutdatedRecord(record.head.id)
        kept.head = record.head
        kept.add(record.entries, record.snapshots, record.blobs)

    def prune(self, session: str, below: int) -> int:
        kept = self.find(session)
        if below not in kept.snapshots:
            raise UnknownRevision(session, "")
        first = min(kept.entries, default=0)
        goes = [revision for revision in kept.entries if first < revision <= below]
        for revision in goes:
            del kept.entries[revision]
        kept.snapshots = {at: body for at, body in kept.snapshots.items() if at >= below}
        # Whether a restore brings back what was pruned, the contract does not say.
        self.records = [record for record in self.records if record.head.id != session]
        return len(goes)

    def size(self, session: str) -> int:
        return len(self.find(session).entries)

    def orphans(self) -> list[str]:
        return []

    def vacuum(self) -> None:
        pass

    def can_tell(self, record: Record) -> bool:
        """Whether there is at most one reason to refuse a record; of two, the contract does not say which is raised."""
        return record.head.id not in self.sessions or self.answer("check_parent", {"head": record.head}) is None


def _reward(head: Head) -> float:
    return head.reward or 0.0


async def ask(store: Store, name: str, arguments: dict[str, Any]) -> Any:
    """A store's answer in a form that can be compared with the model's."""
    name = {"look": "export", "restore": "put"}.get(name, name)
    part: Any = store.maintenance if name in MAINTENANCE else store
    got: Any = await outcome(getattr(part, name)(**arguments))
    if name == "size" and not isinstance(got, type):  # how many bytes they are depends on the store
        return got.rows
    return got


async def compare(store: Store, model: Reference) -> None:
    """Compare all that there is."""
    limit = 1 + len(model.sessions)
    assert await store.heads(limit=limit) == model.heads(limit=limit)
    for session, found in model.sessions.items():
        assert await store.maintenance.export(session) == model.look(session)
        for at in (None, *range(found.head.revision + 1)):
            assert await store.load(session, at) == model.load(session, at), f"{session} at {at}"
    sizes = await store.maintenance.sizes()
    kept = model.sessions.values()
    for kind, filled in (
        ("sessions", bool(kept)),
        ("entries", any(found.entries for found in kept)),
        ("snapshots", any(found.snapshots for found in kept)),
        ("blobs", any(found.blobs for found in kept)),
    ):
        assert (sizes[kind].rows > 0) == filled, f"{kind}: {sizes[kind]}"
    assert await store.maintenance.orphans() == []


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
        "heads": {"wanted": _choose_filter(chance, now), "order": chance.choice(["newest", "oldest", "reward"])},
        "sweep": {"now": now},
        "count": {"now": now},
        "restore": {"record": chance.choice(records)} if records else {},
        "orphans": {},
        "vacuum": {},
    }
    if name in of_the_store:
        return name, of_the_store[name]
    known = model.sessions.get(session)
    revision = known.head.revision if known else 0
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
        "prune": {"below": chance.choice([*(known.snapshots if known else ()), revision])},
    }
    return name, {"session": session, **of_the_session.get(name, {})}


def _choose_session(model: Reference, chance: random.Random, now: float, parent: str) -> dict[str, Any]:
    made = f"room {chance.randrange(12)}"
    # Of two reasons to refuse, the contract does not say which comes first: a fork gets an id that is free.
    forks = made not in model.sessions and chance.random() < 0.6
    revision = model.sessions[parent].head.revision if parent in model.sessions else 0
    first = max(0, revision + chance.choice([-2, -1, 0, 0, 0, 1])) if forks else 0
    last = first + chance.randrange(3)
    head = make.head(
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
        "entries": [make.entry(number, at=now, body=chance.randbytes(9)) for number in range(first + 1, last + 1)],
        "snapshot": Snapshot(last, chance.randbytes(9)) if chance.random() < 0.3 else None,
        "blobs": _choose_blobs(chance, 1),
    }


def _choose_append(model: Reference, chance: random.Random, now: float, session: str) -> dict[str, Any]:
    head = model.sessions[session].head if session in model.sessions else make.head(session)
    revision = max(0, head.revision + chance.choice([1] * 12 + [0, 2]))
    commit = Commit(
        session,
        make.entry(revision, _choose_call_id(chance), at=now, body=chance.randbytes(9)),
        expires=chance.choice([_choose_expiry(chance, now), _choose_expiry(chance, now), None]),
        fence=head.fence + chance.choice([0] * 12 + [-1, 1]),
        snapshot=Snapshot(revision, chance.randbytes(9)) if chance.random() < 0.2 else None,
        blobs=_choose_blobs(chance, 2),
        closes=chance.random() < 0.01,
        phase=chance.choice([None, None, "planning", "done"]),
        reward=chance.choice([None, None, None, 0.0, 1.0]),
    )
    return {"commit": commit}


def _choose_filter(chance: random.Random, now: float) -> HeadFilter:
    return HeadFilter(
        environment=chance.choice([None, "a", "b"]),
        status=chance.choice([None, None, "live", "closed", "expired"]),
        at=now,
        phase=chance.choice([None, None, "planning", "done"]),
        prefix=chance.choice(["", "", "room 1"]),
        min_reward=chance.choice([None, None, 0.5]),
    )


def _choose_expiry(chance: random.Random, now: float) -> float:
    return now + chance.choice([5.0, 60.0, 200.0])


def _choose_call_id(chance: random.Random) -> str | None:
    return chance.choice([None, None, f"call {chance.randrange(6)}"])


def _choose_blobs(chance: random.Random, most: int) -> dict[str, bytes]:
    return make.blobs(*(b"blob %d" % chance.randrange(6) for _ in range(chance.randint(0, most))))

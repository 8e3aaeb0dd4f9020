"""Promises about several stores on one URL, and everything together by chance."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from stateroom.errors import (
    Conflict,
    DuplicateCall,
    SessionClosed,
    UnknownSession,
)
from stateroom.store.conformance.making import (
    LATER,
    NOW,
    Suite,
    asynchronous,
    everything,
    make_entry,
    make_fork,
    make_head,
    make_session,
    outcome,
)
from stateroom.store.conformance.reference import Reference
from stateroom.store.contract import Loaded, Snapshot
from stateroom.store.url import open_store


class SharingPromises(Suite):
    """Stores agree with one another, and with a model in plain dicts."""

    # Several stores on one URL, and one after another.

    @asynchronous
    async def test_stores_on_one_url_see_each_others_commits_at_once(self, url: str) -> None:
        self.needs_shared()
        async with open_store(url) as one, open_store(url) as two:
            await make_session(one)
            for revision in range(2, 12):
                writer, reader = (one, two) if revision % 2 else (two, one)
                snapshot = Snapshot(revision, b"state") if revision == 6 else None
                entry = make_entry(revision, f"call {revision}")
                await writer.append("room", entry, expires=LATER + revision, snapshot=snapshot)
                assert await everything(reader, "room") == await everything(writer, "room")
                assert await reader.find_call("room", f"call {revision}") == entry
            assert await one.count(NOW) == await two.count(NOW) == 1
            await make_session(one, "deleted")
            await two.delete("deleted")
            assert await outcome(one.append("deleted", make_entry(2), expires=LATER)) is UnknownSession
            await two.touch("room", now=NOW, expires=NOW + 1)
            assert await one.sweep(NOW + 1) == 1
            assert await two.heads() == []

    @asynchronous
    async def test_a_load_is_of_one_moment_whatever_others_do_meanwhile(self, url: str) -> None:
        self.needs_shared()
        async with open_store(url) as writer, open_store(url) as reader:
            finished = asyncio.Event()

            async def write() -> None:
                for life in range(40):
                    revision = 1 + life % 3
                    entries = [make_entry(number, body=b"%d" % life) for number in range(1, revision + 1)]
                    head = make_head(owner=str(life), revision=revision)
                    await writer.create(head, entries, Snapshot(1, b"%d" % life))
                    await writer.sweep(LATER)
                finished.set()

            async def read() -> None:
                while not finished.is_set():
                    loaded = await outcome(reader.load("room"))
                    if not isinstance(loaded, Loaded):
                        assert loaded is UnknownSession
                        continue
                    life = loaded.head.owner.encode()
                    assert loaded.snapshot == Snapshot(1, life), "the head and the snapshot are of different sessions"
                    assert loaded.entries == [make_entry(n, body=life) for n in range(2, loaded.head.revision + 1)]

            await asyncio.gather(write(), *(read() for _ in range(4)))

    @asynchronous
    async def test_sessions_survive_closing_and_opening_again(self, url: str) -> None:
        self.needs_durable()
        async with open_store(url) as store:
            await make_session(store, "room", revision=2)
            await store.append("room", make_entry(3, "call"), expires=LATER, snapshot=Snapshot(3, b"state 3"))
            await make_fork(store, "fork", "room", 2, revision=4)
            await make_session(store, "closed", revision=0)
            await store.append("closed", make_entry(1), expires=LATER, closes=True)
            await make_session(store, "deleted")
            await store.delete("deleted")
            sessions = ("room", "fork", "closed")
            before = [await everything(store, session) for session in sessions]
            listed = await store.heads()
        async with open_store(url) as store:
            assert [await everything(store, session) for session in sessions] == before
            assert await store.heads() == listed
            assert await outcome(store.append("room", make_entry(4, "call"), expires=LATER)) is DuplicateCall
            assert await outcome(store.append("room", make_entry(3), expires=LATER)) is Conflict
            assert await outcome(store.append("closed", make_entry(2), expires=LATER)) is SessionClosed
            await store.append("room", make_entry(4), expires=LATER)
            assert await store.sweep(LATER) == 3
        async with open_store(url) as store:
            assert await store.heads() == []

    # Everything together, by chance.

    @pytest.mark.parametrize("seed", range(4))
    @asynchronous
    async def test_any_mixture_of_calls_does_what_a_model_in_plain_dicts_does(self, url: str, seed: int) -> None:
        async with open_store(url) as store:
            reference, chance, now = Reference(), random.Random(seed), NOW
            for step in range(300):
                now += chance.choice([0.0, 0.5, 1.0])
                name, arguments = _choose_call(reference, chance, now)
                expected = reference.answer(name, arguments)
                got = await outcome(getattr(store, name)(**arguments))
                if isinstance(got, list) and name == "heads":  # heads of one age may be listed in any order
                    got.sort(key=lambda head: (head.created, head.id), reverse=True)
                assert got == expected, f"seed {seed}, step {step}: {name}({arguments})"
            for session in reference.sessions:
                for at in (None, *range(reference.sessions[session].head.revision + 1)):
                    assert await store.load(session, at) == reference.load(session, at), (
                        f"seed {seed}: {session} at {at}"
                    )


def _choose_call(reference: Reference, chance: random.Random, now: float) -> tuple[str, dict[str, Any]]:
    """A call: mostly one that a session layer would make, now and then one that must be refused."""
    session = chance.choice([*reference.sessions, *reference.sessions, "room 0"]) if reference.sessions else "room 0"
    revision = reference.sessions[session].head.revision if session in reference.sessions else 0
    expires = now + chance.choice([5.0, 60.0, 200.0])
    renewed = chance.choice([expires, expires, None])
    name = chance.choices(
        ["create", "append", "touch", "head", "heads", "load", "entries", "find_call", "sweep", "delete", "count"],
        [4, 16, 1, 1, 1, 3, 2, 2, 2, 1, 1],
    )[0]
    if name == "create":
        made = f"room {chance.randrange(12)}"
        # Of two reasons to refuse, the contract does not say which comes first: a fork gets an id that is free.
        parent = session if made not in reference.sessions and chance.random() < 0.6 else None
        first = max(0, revision + chance.choice([-2, -1, 0, 0, 0, 1])) if parent else 0
        last = first + chance.randrange(3)
        head = make_head(
            made,
            environment=chance.choice(["a", "b"]),
            created=float(int(now)),
            expires=expires,
            revision=last,
            parent=parent,
            parent_revision=first,
        )
        entries = [make_entry(number, at=now, body=chance.randbytes(9)) for number in range(first + 1, last + 1)]
        snapshot = Snapshot(last, chance.randbytes(9)) if chance.random() < 0.3 else None
        return name, {"head": head, "entries": entries, "snapshot": snapshot}
    if name == "append":
        number = max(0, revision + chance.choice([1] * 12 + [0, 2]))
        entry = make_entry(number, _choose_call_id(chance), at=now, body=chance.randbytes(9))
        snapshot = Snapshot(number, chance.randbytes(9)) if chance.random() < 0.2 else None
        closes = chance.random() < 0.01
        return name, {
            "session": session, "entry": entry, "expires": renewed, "snapshot": snapshot, "closes": closes
        }  # fmt: skip
    others: dict[str, dict[str, Any]] = {
        "touch": {"session": session, "now": now, "expires": expires},
        "head": {"session": session},
        "heads": {"environment": chance.choice([None, "a", "b"])},
        "load": {"session": session, "at": chance.choice([None, chance.randint(0, revision)])},
        "entries": {
            "session": session,
            "after": chance.randint(0, revision + 1),
            "until": chance.choice([None, chance.randint(0, revision + 1)]),
        },
        "find_call": {"session": session, "call_id": _choose_call_id(chance) or "call"},
        "sweep": {"now": now},
        "delete": {"session": session},
        "count": {"now": now},
    }
    return name, others[name]


def _choose_call_id(chance: random.Random) -> str | None:
    return chance.choice([None, None, f"call {chance.randrange(6)}"])

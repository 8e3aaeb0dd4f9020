"""Hypothesis looks for a sequence of calls that a store answers otherwise than a model in plain dicts.

    from stateroom.store.conformance.stateful import check_against_model

    def test_my_store_does_what_a_model_does(tmp_path):
        check_against_model(lambda: f"mystore://{tmp_path}/{uuid4()}")

What it finds it makes as short as it can. Only this module of the suite needs Hypothesis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from stateroom.store import Commit, Head, HeadFilter, Snapshot, open_store
from stateroom.store.conformance import make
from stateroom.store.conformance.helpers import TIMEOUT
from stateroom.store.conformance.make import NOW
from stateroom.store.conformance.reference import Reference, ask, compare

NAMES = ["a", "A", "b/'\n {c}"]
SESSIONS: st.SearchStrategy[str] = st.runner().flatmap(
    lambda machine: st.sampled_from([*machine.model.sessions, *machine.model.sessions, *NAMES])
)
"""Mostly such as there are."""
HOLDERS = st.sampled_from(["me", "another"])
CALL_IDS = st.sampled_from([None, None, "one", "two", "three"])
LIVES = st.sampled_from([2.0, 50.0, 500.0])
RARELY = st.sampled_from([False] * 9 + [True])
PHASES = [None, "planning", None, "done"]
REWARDS = [None, None, 0.5, None]
BODIES = [b"", b"large", b"larger"]
BLOBS = st.sampled_from([make.blobs(), make.blobs(b"large"), make.blobs(b"larger", b""), make.blobs(*BODIES)])


class StoreMachine(RuleBasedStateMachine):
    """A store beside its model: each rule asks both the same, and they must agree."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.model = Reference()
        self.now = NOW
        self.bodies = 0
        self.agree = True
        self.runner = asyncio.Runner()
        self.opening = open_store(url)
        self.store = self.run(self.opening.__aenter__())

    def run(self, call: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(asyncio.wait_for(call, TIMEOUT))

    def both(self, name: str, **arguments: Any) -> None:
        """Ask the store and the model."""
        expected = self.model.answer(name, arguments)
        got = self.run(ask(self.store, name, arguments))
        self.agree = got == expected
        assert self.agree, f"{name}({arguments}): {got}, and not {expected}"

    def change(self, name: str, **arguments: Any) -> None:
        """Have both change a session, and look at all that it is then."""
        self.both(name, **arguments)
        self.both("look", session=arguments["session"])

    def teardown(self) -> None:
        try:
            if self.agree:
                self.run(compare(self.store, self.model))
        finally:
            self.run(self.opening.__aexit__(None, None, None))
            self.runner.close()

    def head(self, session: str) -> Head:
        known = self.model.sessions.get(session)
        return known.head if known else make.head(session)

    def body(self) -> bytes:
        """One that no other entry or snapshot has."""
        self.bodies += 1
        return b"body %d" % self.bodies

    # Sessions come.

    @initialize()
    def begin(self) -> None:
        for session in NAMES[:2]:
            self.make(session, 2, {}, expires=self.now + 500.0)

    @rule(session=SESSIONS, count=st.integers(0, 3), fence=st.sampled_from([0, 7]), blobs=BLOBS, life=LIVES)
    def create(self, session: str, count: int, fence: int, blobs: dict[str, bytes], life: float) -> None:
        self.make(session, count, blobs, fence=fence, expires=self.now + life)

    @precondition(lambda self: len(self.model.sessions) < len(NAMES))
    @rule(parent=SESSIONS, back=st.integers(-1, 2), count=st.integers(0, 2), blobs=BLOBS, life=LIVES)
    def fork(self, parent: str, back: int, count: int, blobs: dict[str, bytes], life: float) -> None:
        # Of two reasons to refuse, the contract does not say which comes first: a fork gets an id that is free.
        session = next(name for name in NAMES if name not in self.model.sessions)
        at = max(0, self.head(parent).revision - back)
        self.make(session, count, blobs, parent=parent, parent_revision=at, expires=self.now + life)

    def make(self, session: str, count: int, blobs: dict[str, bytes], **fields: Any) -> None:
        self.now += 0.25  # no two sessions of one id have the same age, or one could be restored over the other
        first = fields.get("parent_revision", 0)
        head = make.head(session, created=self.now, revision=first + count, **fields)
        entries = [make.entry(number, at=self.now, body=self.body()) for number in range(first + 1, first + count + 1)]
        snapshot = Snapshot(head.revision, self.body()) if count else None
        self.both("create", head=head, entries=entries, snapshot=snapshot, blobs=blobs)

    # They change.

    @rule(session=SESSIONS, call_id=CALL_IDS, life=st.none() | LIVES, snapshot=st.booleans(), blobs=BLOBS)
    def append(
        self, session: str, call_id: str | None, life: float | None, snapshot: bool, blobs: dict[str, bytes]
    ) -> None:
        self.write(session, call_id, life=life, snapshot=snapshot, blobs=blobs)
        self.both("look", session=session)

    @rule(session=SESSIONS, call_ids=st.lists(CALL_IDS, min_size=1, max_size=4), closes=RARELY)
    def append_some(self, session: str, call_ids: list[str | None], closes: bool) -> None:
        for call_id, phase, reward in zip(call_ids, PHASES, REWARDS, strict=False):
            self.write(session, call_id, phase=phase, reward=reward)
        if closes:
            self.write(session, closes=True)
        self.both("look", session=session)

    @rule(session=SESSIONS, ahead=st.integers(-1, 1), above=st.integers(-1, 1), blobs=BLOBS)
    def append_wrongly(self, session: str, ahead: int, above: int, blobs: dict[str, bytes]) -> None:
        self.write(session, ahead=ahead, above=above, blobs=blobs, snapshot=True)
        self.both("look", session=session)

    def write(
        self,
        session: str,
        call_id: str | None = None,
        *,
        life: float | None = None,
        snapshot: bool = False,
        ahead: int = 0,
        above: int = 0,
        **fields: Any,
    ) -> None:
        """Append an entry, possibly one at the wrong revision, or at the wrong fence."""
        head = self.head(session)
        revision = head.revision + 1 + ahead
        commit = Commit(
            session,
            make.entry(revision, call_id, at=self.now, body=self.body()),
            expires=None if life is None else self.now + life,
            fence=head.fence + above,
            snapshot=Snapshot(revision, self.body()) if snapshot else None,
            **fields,
        )
        self.both("append", commit=commit)

    @rule(session=SESSIONS, life=LIVES)
    def touch(self, session: str, life: float) -> None:
        self.change("touch", session=session, now=self.now, expires=self.now + life)

    @rule(session=SESSIONS, holder=HOLDERS, life=LIVES)
    def lease(self, session: str, holder: str, life: float) -> None:
        self.change("lease", session=session, holder=holder, now=self.now, until=self.now + life)

    @rule(session=SESSIONS, holder=HOLDERS)
    def release(self, session: str, holder: str) -> None:
        self.change("release", session=session, holder=holder)

    @rule(session=SESSIONS, data=st.data())
    def prune(self, session: str, data: st.DataObject) -> None:
        known = self.model.sessions.get(session)
        below = data.draw(st.sampled_from([*reversed(known.snapshots if known else ()), 2]))
        self.change("prune", session=session, below=below)

    # They go, and come back.

    @rule(seconds=st.sampled_from([0.25, 2.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def sweep(self) -> None:
        self.both("sweep", now=self.now)

    @rule(session=SESSIONS)
    def delete(self, session: str) -> None:
        self.change("delete", session=session)

    @rule(session=SESSIONS)
    def export(self, session: str) -> None:
        self.both("export", session=session)

    @precondition(lambda self: self.model.records)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        record = data.draw(st.sampled_from(self.model.records[-4:]))
        if self.model.can_tell(record):
            self.both("restore", record=record)
            self.both("look", session=record.head.id)

    # Looking.

    @rule(session=SESSIONS, after=st.integers(0, 4), until=st.none() | st.integers(0, 8))
    def read(self, session: str, after: int, until: int | None) -> None:
        self.both("load", session=session, at=until)
        self.both("entries", session=session, after=after, until=until)
        self.both("blobs", session=session, digests=[*make.blobs(*BODIES)])
        for call_id in ("one", "two", "three"):
            self.both("find_call", session=session, call_id=call_id)
        self.both("children", session=session)
        self.both("size", session=session)

    @rule()
    def look_around(self) -> None:
        self.both("heads")
        live = HeadFilter(status="live", at=self.now, phase="done")
        self.both("heads", wanted=live, order="oldest")
        self.both("heads", wanted=HeadFilter(min_reward=0.0), order="reward")
        self.both("count", now=self.now)
        self.both("orphans")

    @rule()
    def vacuum(self) -> None:
        self.both("vacuum")


def check_against_model(fresh_url: Callable[[], str], *, examples: int = 40, steps: int = 30) -> None:
    """Run sequences of calls, each on a fresh store."""

    class Machine(StoreMachine):
        def __init__(self) -> None:
            super().__init__(fresh_url())

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )

"""Sessions that are called, rewound, forked, named, pruned and reopened, and a model of what they must come to.

The model is plain Python. It knows every state there ever was, and which of them can still be read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import AsyncExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Any

import pytest
from hypothesis import strategies as st

from stateroom import SessionLimits, Sessions, open_store
from stateroom.errors import SessionError, SessionSealed, UnknownRevision
from stateroom.session import Checkpoint, History, Retention, RetentionPolicy, Session
from stateroom.state import apply
from stateroom.store import Store
from tests.session.shelf import Shelf, ShelfEnvironment, expect
from tests.session.stored_sessions import problems


@dataclass
class Branch:
    """What one session must look like."""

    past: list[dict[str, Any]]
    """The state at each revision, with those of its parents."""
    steps: list[int]
    """How many calls had led there: that decides what luck the next one has."""
    revision_kinds: list[str]
    parent: Branch | None = None
    name: str = ""
    forked_at: int = 0
    named: dict[str, tuple[int, Any]] = field(default_factory=dict)
    """Its own call ids and checkpoints: the revision of each, and the output."""
    points: list[Checkpoint] = field(default_factory=list)
    children: list[tuple[str, int]] = field(default_factory=list)
    below: int = 0
    """Of its own past, what was before this was pruned."""
    sealed: bool = False

    @property
    def revision(self) -> int:
        return len(self.past)

    def add(self, kind: str, state: dict[str, Any], steps: int, name: str | None = None, output: Any = None) -> None:
        self.past.append(state)
        self.steps.append(steps)
        self.revision_kinds.append(kind)
        if name is not None:
            self.named[name] = self.revision, output

    def fork(self, name: str, at: int) -> Branch:
        self.children.append((name, at))
        points = [point for point in self.points if point.revision <= at]
        past, steps, kinds = self.past[:at], self.steps[:at], self.revision_kinds[:at]
        return Branch(past, steps, kinds, self, name, at, points=points)

    def find(self, name: str, within: float = inf) -> tuple[int, Any] | None:
        """What a call id or the name of a checkpoint stands for."""
        if name in self.named and self.named[name][0] <= within:
            return self.named[name]
        return None if self.parent is None else self.parent.find(name, min(within, self.forked_at))

    def place(self, place: int | str | tuple[int]) -> tuple[int | str | Checkpoint, int | None]:
        """A place of its past as a session is told of it, and its revision if there is one."""
        if isinstance(place, str):
            found = self.find(place)
            return place, None if found is None else found[0]
        if isinstance(place, tuple) and self.points:
            point = self.points[place[0] % len(self.points)]
            return point, point.revision
        ago = place if isinstance(place, int) else place[0]
        revision = self.revision - (self.revision - self.forked_at - 1 if ago == FIRST else ago) % self.revision
        return revision, revision

    def prune(self, below: int) -> None:
        self.below = below
        self.named = {name: found for name, found in self.named.items() if self.logs(found[0])}

    def reads(self, revision: int) -> bool:
        """Whether the state at a revision is still there."""
        if self.parent is not None and revision <= self.forked_at + 1:
            return self.parent.reads(min(revision, self.forked_at))  # a session's first entry is never pruned
        return revision >= self.below

    def readable(self, since: int) -> list[int]:
        """The revisions, from one on, whose states are still there."""
        return [revision for revision in range(max(since, 1), self.revision + 1) if self.reads(revision)]

    def logs(self, revision: int) -> bool:
        """Whether the entry of a revision is still there."""
        if self.parent is not None and revision <= self.forked_at:
            return self.parent.logs(revision)
        return revision > self.below or revision == self.forked_at + 1

    def log(self) -> list[tuple[int, str]]:
        return [(at, kind) for at, kind in enumerate(self.revision_kinds, 1) if self.logs(at)]


FIRST = -1
"""The place of a session's first entry of its own."""

keys = st.sampled_from("abc")
texts = st.sampled_from(["", "short", "long " * 30, "longer " * 40, "ü" * 80])
calls: st.SearchStrategy[Any] = st.one_of(
    st.tuples(st.just("put"), st.fixed_dictionaries({"key": keys, "name": texts})),
    st.tuples(st.just("tag"), st.fixed_dictionaries({"key": keys, "tag": texts})),
    st.tuples(st.just("drop"), st.fixed_dictionaries({"key": keys})),
    st.tuples(st.just("shuffle"), st.fixed_dictionaries({"number": st.integers(-(2**70), 2**70)})),
    st.tuples(st.just("roll"), st.just({})),
)
which = st.sampled_from([0, 0, 0, 1, 1, 2, 3, 5, 7])
"""The number of a session: some are used so often that they have a past to cut."""
names = st.sampled_from("xy")
places = st.one_of(st.sampled_from([FIRST, 0, 1, 2, 3, 5, 9, 12, 20, 40]), names, st.tuples(which))
"""So many revisions ago, at the checkpoint of a name, or at one of those that there are."""

STEPS = {
    "call": st.tuples(st.just("call"), which, calls, st.sampled_from([None, "c1", "c2"])),
    "calls": st.tuples(st.just("calls"), which, st.lists(calls, min_size=3, max_size=8)),
    "interlude": st.tuples(
        st.just("interlude"), which, places, st.lists(calls, min_size=6, max_size=12), st.integers(1, 3)
    ),
    "rewind": st.tuples(st.just("rewind"), which, places),
    "fork": st.tuples(st.just("fork"), which, st.none() | places, st.none() | st.integers(1, 3)),
    "checkpoint": st.tuples(st.just("checkpoint"), which, names),
    "verify": st.tuples(st.just("verify"), which),
    "check": st.tuples(st.just("check"), which),
    "prune": st.tuples(st.just("prune"), st.integers(0, 4)),
    "sweep": st.tuples(st.just("sweep")),
    "reopen": st.tuples(st.just("reopen"), st.booleans()),
    "change_worker": st.tuples(st.just("change_worker")),
}
OFTEN = [*STEPS, *["call"] * 7, *["calls"] * 3, *["rewind", "fork"] * 2, "rewind", *["checkpoint", "prune"] * 2]
steps = st.sampled_from(OFTEN).flatmap(STEPS.__getitem__)

LATE: dict[str, Callable[[Session[Any]], Awaitable[Any]]] = {
    "call": lambda session: session.call("roll"),
    "calls": lambda session: session.call("nothing"),
    "interlude": lambda session: session.call("roll", call_id="late"),
    "rewind": lambda session: session.rewind(1),
    "checkpoint": lambda session: session.checkpoint("late"),
}
"""What a session that has its verdict refuses."""


class Run:
    """A program's run, side by side with what it must come to."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.branches: dict[str, Branch] = {}
        self.handles: dict[str, Session[Shelf]] = {}
        self.other_handles: dict[str, Session[Shelf]] = {}
        """Those of the worker that does nothing now."""
        self.rolls: dict[int, int] = {}
        self.lasts = not url.startswith("memory")
        self.names = (f"point {number}" for number in count())
        seconds = count(1_000_000)
        self.now = lambda: float(next(seconds))

    async def start(self, stack: AsyncExitStack, large: int = Store.large) -> None:
        self.stack, self.large = stack, large
        await self.open_store()
        self.workers = [self.worker(), self.worker()]
        session = await self.workers[0].seed({})
        self.handles[session.id] = session
        self.branches[session.id] = Branch([Shelf().model_dump()], [0], ["seed"], name=session.id)

    async def open_store(self) -> None:
        self.store: Store = await self.stack.enter_async_context(open_store(self.url))
        self.store.large = self.large

    def worker(self) -> Sessions[Shelf]:
        return Sessions(ShelfEnvironment(), self.store, SessionLimits(hot=2, now=self.now))

    def pick(self, number: int) -> tuple[Session[Shelf], Branch]:
        name = list(self.branches)[number % len(self.branches)]
        return self.handles[name], self.branches[name]

    async def step(self, kind: str, *more: Any) -> None:
        if kind in ("prune", "sweep", "reopen", "change_worker"):
            await getattr(self, kind)(*more)
            return
        session, branch = self.pick(more[0])
        if branch.sealed and kind in LATE:
            with pytest.raises(SessionSealed):
                await LATE[kind](session)
            return
        await getattr(self, kind)(session, branch, *more[1:])

    # In one session.

    async def call(self, session: Session[Shelf], branch: Branch, call: tuple[str, Any], call_id: str | None) -> None:
        name, given = call
        result = await session.call(name, given, call_id=call_id)
        recorded = None if call_id is None else branch.find(call_id)
        if recorded is not None:
            assert (result.ok, result.output) == (True, recorded[1])
            return
        state = deepcopy(branch.past[-1])
        if name == "roll":  # the first to come to a step learns its luck; all others must see the same
            self.rolls.setdefault(branch.steps[-1], result.output)
        ok, output = expect(state, name, given, self.rolls.get(branch.steps[-1], 0))
        assert result.ok == ok
        if ok:
            assert result.output == output
            branch.add("call", state, branch.steps[-1] + 1, call_id, output)

    async def calls(self, session: Session[Shelf], branch: Branch, many: list[tuple[str, Any]]) -> None:
        for call in many:
            await self.call(session, branch, call, None)

    async def interlude(
        self, session: Session[Shelf], branch: Branch, place: Any, many: list[tuple[str, Any]], back: int
    ) -> None:
        """A worker goes back and forth; in between another one goes on, and the past is cut off."""
        await self.rewind(session, branch, place)
        before = branch.revision
        await self.change_worker()
        await self.calls(self.handles[session.id], branch, many)
        await self.prune(0)
        await self.change_worker()
        await self.rewind(session, branch, branch.revision - before + back)

    async def rewind(self, session: Session[Shelf], branch: Branch, place: Any) -> None:
        to, revision = branch.place(place)
        if revision is None or not branch.reads(revision):
            with pytest.raises(UnknownRevision):
                await session.rewind(to)
            return
        await session.rewind(to)
        branch.add("rewind", branch.past[revision - 1], branch.steps[revision - 1])

    async def fork(self, session: Session[Shelf], branch: Branch, place: Any = None, n: int | None = None) -> None:
        at, revision = (None, branch.revision) if place is None else branch.place(place)
        if revision is None or not branch.reads(revision):
            with pytest.raises(UnknownRevision):
                await session.fork(at, n=n)
            return
        forked: Any = await session.fork(at, n=n)
        for fork in [forked] if n is None else forked:
            self.handles[fork.id] = fork
            self.branches[fork.id] = branch.fork(fork.id, revision)

    async def checkpoint(self, session: Session[Shelf], branch: Branch, name: str | None = None) -> None:
        name = name or next(self.names)
        if name in branch.named:
            with pytest.raises(SessionError):
                await session.checkpoint(name)
            return
        branch.points.append(await session.checkpoint(name))
        branch.add("checkpoint", branch.past[-1], branch.steps[-1], name)

    async def verify(self, session: Session[Shelf], branch: Branch) -> None:
        await self.fork(session, branch)  # a verdict seals: the session itself is to go on
        name, judged = list(self.branches.items())[-1]
        assert (await self.handles[name].verify()).reward == judged.past[-1]["total"]
        judged.add("verdict", judged.past[-1], judged.steps[-1])
        judged.sealed = True

    async def check(self, session: Session[Shelf], branch: Branch) -> None:
        """Compare all that can be seen of a session with what it must be."""
        assert (await session.state_at()).model_dump() == session.state.model_dump() == branch.past[-1]
        assert session.revision == branch.revision
        assert session.parent == (None if branch.parent is None else (branch.parent.name, branch.forked_at))
        assert await session.children() == branch.children
        for revision, state in enumerate(branch.past, 1):
            if branch.reads(revision):
                assert (await session.state_at(revision)).model_dump() == state
            else:
                with pytest.raises(UnknownRevision):
                    await session.state_at(revision)
        log = branch.log()
        assert [(entry.revision, entry.kind) async for entry in session.log()] == log
        half = branch.revision // 2
        late = [entry.revision async for entry in session.log(after=half, kinds={"call", "rewind"})]
        assert late == [revision for revision, kind in log if revision > half and kind in ("call", "rewind")]
        await self.check_diff(session, branch)
        if len(log) == branch.revision:
            await self.replay(session, branch)

    async def check_diff(self, session: Session[Shelf], branch: Branch) -> None:
        oldest = branch.readable(1)[0]
        old, new = branch.past[oldest - 1], branch.past[-1]
        found = await session.diff(oldest)
        assert bool(found) == (old != new)
        for place, kind, before, after in found:
            assert kind == "new" or part(old, place) == before
            assert kind == "gone" or part(new, place) == after

    async def replay(self, session: Session[Shelf], branch: Branch) -> None:
        """A snapshot and the patches since come to the same as all patches from the seed on."""
        states = await fold(self.store, session)
        assert states == branch.past
        for revision, state in enumerate(states, 1):
            assert (await History(self.store).document(session.id, revision)).state == state

    # In all of them.

    async def prune(self, keep: int) -> None:
        """Cut off what is old; what each session is to keep stays, also where that is its parents' past."""
        kept = [(branch, branch.readable(branch.revision - keep)) for branch in self.branches.values()]
        async for head, cut in Retention(self.store, RetentionPolicy(keep=keep), self.now).carry_out():
            if cut is not None:
                assert cut.below is not None
                self.branches[head.id].prune(cut.below)
        for branch, revisions in kept:
            assert branch.readable(branch.revision - keep) == revisions

    async def sweep(self) -> None:
        """Look a little later: nothing has expired, but in a store of two tiers what has not changed moves down."""
        assert await self.store.sweep(self.now() + 1000) == 0

    async def reopen(self, store_too: bool) -> None:
        """Go on with what is in the store alone."""
        if store_too and self.lasts:
            await self.stack.aclose()
            await self.open_store()
        self.workers = [self.worker(), self.worker()]
        self.handles, self.other_handles = {}, {}
        await self.change_worker()

    async def change_worker(self) -> None:
        """Go on in another process, as it were, that may have older states at hand."""
        self.workers.reverse()
        self.handles, self.other_handles = self.other_handles, self.handles
        for name in self.branches.keys() - self.handles.keys():
            self.handles[name] = await self.workers[0].open(name)

    async def check_all(self) -> None:
        for name, branch in self.branches.items():
            await self.check(self.handles[name], branch)
        assert await problems(self.store) == {}


async def fold(store: Store, session: Session[Any]) -> list[Any]:
    """The state at each revision, as plain data: the seed's, and what each entry of the log makes of it."""
    states = [(await History(store).document(session.id, 1)).state]
    async for entry in session.log(after=1):
        states.append(deepcopy(states[entry.facts["to"] - 1 if entry.kind == "rewind" else -1]))
        apply(states[-1], entry.patch)
    return states


def part(state: Any, place: Iterable[Any]) -> Any:
    for key in place:
        state = state[key]
    return state

"""Whatever was called, rewound, forked, named and reopened: every revision reads as it was, on every store."""

import asyncio
import tempfile
from contextlib import AsyncExitStack
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from stateroom import Environment, Sessions, State, ToolError, open_store, tool
from stateroom.session import Checkpoint, Session, room
from stateroom.store import Store


class Item(BaseModel):
    name: str
    tags: list[str] = []


class Shelf(State):
    total: int = 0
    items: dict[str, Item] = {}
    order: list[int] = []
    marks: set[str] = set()
    luck: list[int] = []


class ShelfEnvironment(Environment[Shelf]):
    """Changes every kind of container."""

    @tool
    def put(self, state: Shelf, key: str, name: str) -> int:
        """Put an item in."""
        state.items[key] = Item(name=name)
        state.total += 1
        return state.total

    @tool
    def tag(self, state: Shelf, key: str, tag: str) -> list[str]:
        """Tag an item, deep inside."""
        if key not in state.items:
            raise ToolError("no such item")
        state.items[key].tags.append(tag)
        return state.items[key].tags

    @tool
    def drop(self, state: Shelf, key: str) -> None:
        """Take an item out."""
        state.marks.add(key)
        state.items.pop(key, None)

    @tool
    def shuffle(self, state: Shelf, number: int) -> list[int]:
        """Insert a number, and turn the order round."""
        state.order.insert(0, number)
        state.order.reverse()
        return state.order

    @tool
    def roll(self, state: Shelf, rng) -> int:
        """Keep a number that luck decides."""
        state.luck.append(rng.randrange(10**6))
        return state.luck[-1]

    def verify(self, state: Shelf) -> float:
        return float(state.total)


@dataclass
class Branch:
    """What one session must look like, kept in plain Python."""

    past: list[dict[str, Any]]
    steps: list[int]
    calls: dict[str, Any] = field(default_factory=dict)
    call_revisions: dict[str, int] = field(default_factory=dict)
    points: list[Checkpoint] = field(default_factory=list)
    revision_kinds: list[str] = field(default_factory=lambda: ["seed"])

    def add(self, kind: str, state: dict[str, Any], steps: int) -> None:
        self.past.append(state)
        self.steps.append(steps)
        self.revision_kinds.append(kind)

    def cut(self, revision: int) -> "Branch":
        kept = {call: at for call, at in self.call_revisions.items() if at <= revision}
        return Branch(
            self.past[:revision],
            self.steps[:revision],
            {call: self.calls[call] for call in kept},
            kept,
            [point for point in self.points if point.revision <= revision],
            self.revision_kinds[:revision],
        )


def expect(state: dict[str, Any], name: str, given: dict[str, Any], roll: int) -> tuple[bool, Any]:
    """Do to plain data what the tool does to the state."""
    if name == "put":
        state["items"][given["key"]] = {"name": given["name"], "tags": []}
        state["total"] += 1
        return True, state["total"]
    if name == "tag":
        if given["key"] not in state["items"]:
            return False, None
        state["items"][given["key"]]["tags"].append(given["tag"])
        return True, list(state["items"][given["key"]]["tags"])
    if name == "drop":
        state["marks"].add(given["key"])
        state["items"].pop(given["key"], None)
        return True, None
    if name == "shuffle":
        state["order"].insert(0, given["number"])
        state["order"].reverse()
        return True, list(state["order"])
    state["luck"].append(roll)
    return True, roll


keys = st.sampled_from("abc")
texts = st.sampled_from(["", "short", "long " * 30, "longer " * 40, "ü" * 80])
calls = st.one_of(
    st.tuples(st.just("put"), st.fixed_dictionaries({"key": keys, "name": texts})),
    st.tuples(st.just("tag"), st.fixed_dictionaries({"key": keys, "tag": texts})),
    st.tuples(st.just("drop"), st.fixed_dictionaries({"key": keys})),
    st.tuples(st.just("shuffle"), st.fixed_dictionaries({"number": st.integers(-(2**70), 2**70)})),
    st.tuples(st.just("roll"), st.just({})),
)
which = st.integers(0, 50)
steps = st.one_of(
    st.tuples(st.just("call"), which, calls, st.sampled_from([None, None, "c1", "c2", "c3"])),
    st.tuples(st.just("rewind"), which, which),
    st.tuples(st.just("rewind to point"), which, which),
    st.tuples(st.just("fork"), which, st.none() | which),
    st.tuples(st.just("checkpoint"), which),
    st.tuples(st.just("verify"), which),
    st.tuples(st.just("reopen"), st.booleans()),
)


class Run:
    """A program's run, side by side with what it must come to."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.branches: dict[str, Branch] = {}
        self.handles: dict[str, Session[Shelf]] = {}
        self.rolls: dict[int, int] = {}

    async def start(self, stack: AsyncExitStack) -> None:
        self.stack = stack
        self.store: Store = await stack.enter_async_context(open_store(self.url))
        self.sessions: Sessions[Shelf] = Sessions(ShelfEnvironment(), self.store, hot=2)
        session = await self.sessions.seed({})
        self.handles[session.id] = session
        self.branches[session.id] = Branch([Shelf().model_dump()], [0])

    def pick(self, number: int) -> tuple[Session[Shelf], Branch]:
        name = list(self.branches)[number % len(self.branches)]
        return self.handles[name], self.branches[name]

    async def step(self, kind: str, *more: Any) -> None:
        if kind == "reopen":
            await self.reopen(*more)
            return
        session, branch = self.pick(more[0])
        if kind == "call":
            await self.call(session, branch, *more[1:])
        elif kind == "rewind" or (kind == "rewind to point" and branch.points):
            point = 1 + more[1] % len(branch.past) if kind == "rewind" else branch.points[more[1] % len(branch.points)]
            to = point.revision if isinstance(point, Checkpoint) else point
            await session.rewind(to=point)
            branch.add("rewind", branch.past[to - 1], branch.steps[to - 1])
        elif kind == "fork":
            at = None if more[1] is None else 1 + more[1] % len(branch.past)
            fork = await session.fork(at=at)
            self.handles[fork.id] = fork
            self.branches[fork.id] = branch.cut(at or len(branch.past))
        elif kind == "checkpoint":
            branch.points.append(await session.checkpoint("here"))
            branch.add("checkpoint", branch.past[-1], branch.steps[-1])
        elif kind == "verify":
            fork = await session.fork()  # a verdict seals: the session itself is to go on
            assert (await fork.verify()).reward == branch.past[-1]["total"]

    async def call(self, session: Session[Shelf], branch: Branch, call: tuple[str, Any], call_id: str | None) -> None:
        name, given_arguments = call
        result = await session.call(name, given_arguments, call_id=call_id)
        if call_id in branch.calls:
            assert (result.ok, result.output) == (True, branch.calls[call_id])
            return
        state = deepcopy(branch.past[-1])
        if name == "roll":  # the first to come to a step learns its luck; all others must see the same
            self.rolls.setdefault(branch.steps[-1], result.output)
        ok, output = expect(state, name, given_arguments, self.rolls.get(branch.steps[-1], 0))
        assert result.ok == ok
        if ok:
            assert result.output == output
            branch.add("call", state, branch.steps[-1] + 1)
            if call_id is not None:
                branch.calls[call_id] = output
                branch.call_revisions[call_id] = len(branch.past)

    async def reopen(self, store_too: bool) -> None:
        if store_too and self.url.startswith("sqlite"):
            await self.stack.aclose()
            self.store = await self.stack.enter_async_context(open_store(self.url))
        self.sessions = Sessions(ShelfEnvironment(), self.store, hot=2)
        self.handles = {name: await self.sessions.open(name) for name in self.branches}

    async def check(self) -> None:
        for name, branch in self.branches.items():
            session = self.handles[name]
            assert session.revision == len(branch.past)
            assert session.state.model_dump() == branch.past[-1]
            for revision, state in enumerate(branch.past, 1):
                assert (await session.state_at(revision)).model_dump() == state
            assert [entry.kind async for entry in session.log()] == branch.revision_kinds
            assert [entry.revision async for entry in session.log()] == list(range(1, len(branch.past) + 1))


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    program=st.lists(steps, min_size=5, max_size=40),
    smallest=st.sampled_from([1, 60, 300]),
    ratio=st.sampled_from([0, 2]),
)
def test_every_revision_reads_as_it_was(kind: str, program: list[Any], smallest: int, ratio: int) -> None:
    async def run(url: str) -> None:
        async with AsyncExitStack() as stack:
            running = Run(url)
            await running.start(stack)
            for step in program:
                await running.step(*step)
            await running.check()
            await running.reopen(True)
            await running.check()

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "MIN_SNAPSHOT", smallest)
        patch.setattr(room, "SNAPSHOT_RATIO", ratio)
        asyncio.run(run("memory://" if kind == "memory" else f"sqlite:///{Path(folder) / 'rooms.db'}"))

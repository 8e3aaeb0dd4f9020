"""Whatever is done to threads, in whatever order, by whichever of several savers: what is read is what was put."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given, strategies as st
from langgraph.checkpoint.base import WRITES_IDX_MAP

from stateroom.adapters.langgraph import StateroomSaver, thread as thread_module
from stateroom.session import check_session
from stateroom.store import Store, open_store
from tests.adapters.checkpoints import config, put

NAMESPACES = ["", "one:1", "two:2"]
RUNS = ["run-1", "run-2"]
CHANNELS = ["c", "d", "__interrupt__", "__error__"]
KINDS = {"put": 8, "writes": 8, "copy": 1, "delete": 1, "delete_for_runs": 1, "prune": 1}

seeds = st.integers(0, 2**32)
lengths = st.integers(1, 40)


def steps_of(seed: int, length: int) -> list[Any]:
    """So many steps, drawn from a seed: most of them add something for the others to take away."""
    rng = Random(seed)
    return [_step(rng, kind) for kind in rng.choices(list(KINDS), list(KINDS.values()), k=length)]


def _step(rng: Random, kind: str) -> Any:
    thread = rng.choice("aaab")
    name = (thread, rng.choice(NAMESPACES), rng.choice("123"))
    match kind:
        case "put":
            messages = rng.choices(["x" * 90, "y" * 90, 1, 2], k=rng.randrange(8))
            values = rng.choice([{"messages": messages}, {"messages": messages, "count": rng.randrange(9)}, {}])
            return kind, name, rng.choice([None, "1", "2", "3"]), values, rng.choice(RUNS)
        case "writes":
            writes = [(rng.choice(CHANNELS), rng.randrange(9)) for _ in range(rng.randrange(4))]
            return kind, name, rng.choice(["t1", "t2"]), writes
        case "copy":
            return kind, "a", "b"
        case "delete_for_runs":
            return kind, rng.choice(RUNS)
    return kind, thread


@dataclass
class Plain:
    """The same in dicts: for each checkpoint, by thread and name, the values, the parent, the run and the writes."""

    threads: dict[str, dict[tuple[str, str], list[Any]]] = field(default_factory=dict)
    written: dict[tuple[str, str, str], dict[tuple[str, int], tuple[str, Any]]] = field(default_factory=dict)

    def put(self, name: Any, parent: Any, values: Any, run: str) -> None:
        thread, *rest = name
        self.threads.setdefault(thread, {})[tuple(rest)] = [values, parent, run]

    def writes(self, name: Any, task: str, some: Any) -> None:
        self.threads.setdefault(name[0], {})
        known = self.written.setdefault(name, {})
        before = set(known)
        for index, (channel, value) in enumerate(some):
            key = (task, WRITES_IDX_MAP.get(channel, index))
            if key[1] < 0 or key not in before:
                known[key] = (channel, value)

    def forget(self, thread: str, kept: set[tuple[str, str]]) -> None:
        if thread in self.threads:
            self.threads[thread] = {name: each for name, each in self.threads[thread].items() if name in kept}
        self.written = {
            name: each for name, each in self.written.items() if name[0] != thread or (name[1], name[2]) in kept
        }

    def copy(self, source: str, target: str) -> None:
        self.threads[target] = dict(self.threads[source])
        for name, each in list(self.written.items()):
            if name[0] == source:
                self.written[target, name[1], name[2]] = dict(each)

    def delete(self, thread: str) -> None:
        self.threads.pop(thread, None)
        self.written = {name: each for name, each in self.written.items() if name[0] != thread}

    def delete_for_runs(self, run: str) -> None:
        for thread, some in self.threads.items():
            gone = {name for name, each in some.items() if each[2] == run}
            early = {(name[1], name[2]) for name in self.written if name[0] == thread}
            self.forget(thread, (some.keys() | early) - gone)

    def prune(self, thread: str) -> None:
        some = self.threads.get(thread, {})
        latest = {(namespace, max(id for other, id in some if other == namespace)) for namespace, _ in some}
        early = {(name[1], name[2]) for name in self.written if name[0] == thread}
        self.forget(thread, latest | {name for name in early if name[0] not in dict(latest)})

    def expected(self, thread: str) -> dict[tuple[str, str], Any]:
        return {
            name: (values, parent, run, self._written(thread, *name))
            for name, (values, parent, run) in self.threads.get(thread, {}).items()
        }

    def _written(self, *name: str) -> list[Any]:
        some = self.written.get(name, {})  # type: ignore[arg-type]
        return [(task, *some[task, index]) for task, index in sorted(some)]


async def do(saver: StateroomSaver, plain: Plain, step: Any) -> None:
    match step:
        case ("put", (thread, namespace, id), parent, values, run):
            await put(saver, thread, id, values, parent, namespace, run_id=run)
            plain.put((thread, namespace, id), parent, values, run)
        case ("writes", (thread, namespace, id), task, some):
            await saver.aput_writes(config(thread, id, namespace), some, task)
            plain.writes((thread, namespace, id), task, some)
        case ("copy", source, target):
            if source in plain.threads and target not in plain.threads:
                await saver.acopy_thread(source, target)
                plain.copy(source, target)
        case ("delete", thread):
            await saver.adelete_thread(thread)
            plain.delete(thread)
        case ("delete_for_runs", run):
            await saver.adelete_for_runs([run])
            plain.delete_for_runs(run)
        case ("prune", thread):
            await saver.aprune([thread])
            plain.prune(thread)


async def found(saver: StateroomSaver, thread: str) -> dict[tuple[str, str], Any]:
    """All checkpoints of a thread by listing, of which each is the same if it is asked for by its id."""
    some = {}
    async for each in saver.alist({"configurable": {"thread_id": thread}}):
        named = each.config["configurable"]
        assert await saver.aget_tuple(each.config) == each
        parent = each.parent_config["configurable"]["checkpoint_id"] if each.parent_config else None
        content = each.checkpoint["channel_values"], parent, each.metadata["run_id"], each.pending_writes
        some[named["checkpoint_ns"], named["checkpoint_id"]] = content
    return some


async def check(store: Store, saver: StateroomSaver, plain: Plain) -> None:
    for thread in ("a", "b"):
        assert await found(saver, thread) == plain.expected(thread)
    for head in await store.heads():
        assert await check_session(store, head) == []


@pytest.fixture(autouse=True)
def few_open_namespaces() -> Iterator[None]:
    """So few that those not used are closed soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(thread_module, "MAX_OPEN_NAMESPACES", 1)
        yield


@given(seeds, lengths)
def test_what_is_read_is_what_was_put(seed: int, length: int) -> None:
    async def take_steps() -> None:
        plain = Plain()
        async with open_store("memory://") as store:
            savers = [StateroomSaver(store), StateroomSaver(store, hot=1)]
            for number, step in enumerate(steps_of(seed, length)):
                await do(savers[number % 2], plain, step)
                await check(store, savers[number // 2 % 2], plain)
            await check(store, StateroomSaver(store), plain)

    asyncio.run(take_steps())


async def test_what_was_written_to_a_thread_that_another_saver_deleted_is_written_again(store: Store) -> None:
    plain = Plain()
    one, other = StateroomSaver(store), StateroomSaver(store)
    name, writes = ("a", "", "1"), ("writes", ("a", "", "1"), "t1", [("c", 1)])
    await do(one, plain, writes)
    await do(other, plain, ("delete", "a"))
    await do(one, plain, writes)
    await do(one, plain, ("put", name, None, {}, "run"))
    await check(store, other, plain)

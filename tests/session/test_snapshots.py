"""Snapshots: a load reads a bounded tail, and the bytes stored grow with the steps, not with their square."""

from typing import Any

import pytest

from stateroom import Sessions
from stateroom.session import History
from stateroom.store import Store
from tests.session.stored_sessions import NotesEnvironment
from tests.watched import WatchedStore


class CountingStore(WatchedStore):
    """Counts the bytes and the snapshots that are written too."""

    def __init__(self) -> None:
        super().__init__()
        self.written = self.snapshots = 0
        self.after = self._count

    async def _count(self, operation: str, _: str | None, *given: Any) -> None:
        if operation == "append":
            (commit,) = given
            self.written += len(commit.entry.body) + (len(commit.snapshot.body) if commit.snapshot else 0)
            self.snapshots += commit.snapshot is not None


async def written_by(calls: int, size: int, name: str) -> CountingStore:
    store = CountingStore()
    session = await Sessions(NotesEnvironment(), store).seed({"size": size})
    for number in range(calls):
        assert (await session.call(name, {"text": f"{number:050d}"})).ok
    return store


@pytest.mark.parametrize("name", ["add", "replace"])
async def test_bytes_grow_with_the_steps(name: str) -> None:
    few, many = await written_by(500, 0 if name == "add" else 1, name), await written_by(4000, 1, name)
    assert many.snapshots > few.snapshots > 1
    assert many.written < 8 * few.written * 1.5
    assert many.written < 4000 * 400


async def test_a_large_state_is_not_written_again_for_small_changes() -> None:
    store = await written_by(1000, 10_000, "replace")
    assert store.snapshots == 0, "but for the seed's"
    assert store.written < 1_000_000


async def test_a_cold_load_reads_a_bounded_tail() -> None:
    store = CountingStore()
    session = await Sessions(NotesEnvironment(), store).seed({"size": 1})
    for number in range(2000):
        await session.call("replace", {"text": f"{number:050d}"})
    loaded = await store.load(session.id)
    assert sum(len(entry.body) for entry in loaded.entries) <= 4096 + 200
    store.counts.clear()
    again = await Sessions(NotesEnvironment(), store).open(session.id)
    assert again.state.notes == [f"{1999:050d}"]
    assert store.counts["load"] == 1


async def test_many_rewinds_are_loaded_with_few_reads() -> None:
    store = CountingStore()
    session = await Sessions(NotesEnvironment(), store).seed({"size": 1})
    for number in range(200):
        await session.call("add", {"text": str(number)})
        await session.rewind(to=max(1, session.revision - 2))
    store.counts.clear()
    again = await Sessions(NotesEnvironment(), store).open(session.id)
    assert again.state == session.state
    assert store.counts["load"] <= 20


@pytest.mark.every_store
async def test_forks_and_rewinds_cost_no_more_with_a_large_state(store: Store) -> None:
    session = await Sessions(NotesEnvironment(), store).seed({"size": 20_000})
    before = (await History(store).document(session.id)).weight.snapshot
    assert before > 1_000_000
    for _ in range(30):
        fork = await session.fork()
        await fork.call("replace", {"text": "y"})
        await fork.rewind(to=1)
        loaded = await store.load(fork.id)
        assert loaded.snapshot is None
        assert sum(len(entry.body) for entry in loaded.entries) < 1000

"""Snapshots: a load reads a bounded tail, and the bytes stored grow with the steps, not with their square."""

from pathlib import Path

import pytest

from stateroom import Environment, Sessions, State, open_store, tool
from stateroom.session import History, cached_session
from stateroom.store import MemoryStore, Commit, Head, Snapshot, Store


class Notes(State):
    notes: list[str] = []


class NotesEnvironment(Environment[Notes]):
    """Keeps notes."""

    def seed(self, task) -> Notes:
        return Notes(notes=["x" * 100] * task.size)

    @tool
    def add(self, state: Notes, text: str) -> int:
        """Add a note."""
        state.notes.append(text)
        return len(state.notes)

    @tool
    def replace(self, state: Notes, text: str) -> None:
        """Replace the last note."""
        state.notes[-1] = text

    def verify(self) -> float:
        return 0.0


class CountingStore(MemoryStore):
    """Counts what is written and read."""

    written = 0
    snapshots = 0
    loads = 0

    async def create(self, head: Head, entries=(), snapshot: Snapshot | None = None, *more) -> None:
        await super().create(head, entries, snapshot, *more)
        self._count(entries, snapshot)

    async def append(self, commit: Commit) -> None:
        await super().append(commit)
        self._count([commit.entry], commit.snapshot)

    async def load(self, session: str, at: int | None = None):
        self.loads += 1
        return await super().load(session, at)

    def _count(self, entries, snapshot: Snapshot | None) -> None:
        self.written += sum(len(entry.body) for entry in entries)
        if snapshot is not None:
            self.snapshots += 1
            self.written += len(snapshot.body)


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
    assert store.snapshots == 1
    assert store.written < 2_000_000


async def test_a_cold_load_reads_a_bounded_tail() -> None:
    store = CountingStore()
    session = await Sessions(NotesEnvironment(), store).seed({"size": 1})
    for number in range(2000):
        await session.call("replace", {"text": f"{number:050d}"})
    loaded = await store.load(session.id)
    assert sum(len(entry.body) for entry in loaded.entries) <= cached_session.MIN_SNAPSHOT + 200
    store.loads = 0
    again = await Sessions(NotesEnvironment(), store).open(session.id)
    assert again.state.notes == [f"{1999:050d}"]
    assert store.loads == 1


async def test_many_rewinds_are_loaded_with_few_reads() -> None:
    store = CountingStore()
    session = await Sessions(NotesEnvironment(), store).seed({"size": 1})
    for number in range(200):
        await session.call("add", {"text": str(number)})
        await session.rewind(to=max(1, session.revision - 2))
    store.loads = 0
    again = await Sessions(NotesEnvironment(), store).open(session.id)
    assert again.state == session.state
    assert store.loads <= 20


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


async def test_snapshots_are_found_again_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cached_session, "MIN_SNAPSHOT", 1)
    url = f"sqlite:///{tmp_path / 'rooms.db'}"
    async with open_store(url) as store:
        session = await Sessions(NotesEnvironment(), store).seed({"size": 0})
        for number in range(50):
            await session.call("add", {"text": str(number)})
    async with open_store(url) as store:
        loaded = await store.load(session.id)
        assert loaded.snapshot is not None
        assert loaded.snapshot.revision > 25
        again = await Sessions(NotesEnvironment(), store).open(session.id)
        for revision in range(1, 52):
            assert (await again.state_at(revision)).notes == [str(number) for number in range(revision - 1)]

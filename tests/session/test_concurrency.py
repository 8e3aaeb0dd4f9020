"""Calls at the same time: one session's are serialised, and a refused write runs again on fresh state."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stateroom import Environment, Sessions, open_store, tool
from stateroom.errors import Conflict
from stateroom.session import ATTEMPTS, Session
from stateroom.store import Store
from tests.environments import Tally, TallyEnvironment
from tests.messages import raises

pytestmark = pytest.mark.every_store


class Counter(Tally):
    adds: int = 0


class CounterEnvironment(TallyEnvironment, Environment[Counter]):
    """Counts, and gives others a chance to come between."""

    def __init__(self) -> None:
        super().__init__()
        self.running = self.most_at_once = 0
        self.meanwhile: Any = asyncio.sleep

    @tool
    async def increment(self, state: Counter) -> int:
        """Add one."""
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        total = self._add(state, 1)
        await self.meanwhile(0)
        state.adds += 1
        self.running -= 1
        return total

    @tool(effect="read")
    async def look_twice(self, state: Counter) -> list[int]:
        """Whether the total agrees with what was added."""
        before = state.total
        await asyncio.sleep(0)
        return [before, state.total, state.adds]


async def open_elsewhere(store: Store, session: Session[Counter]) -> Session[Counter]:
    return await Sessions(CounterEnvironment(), store).open(session.id)


async def test_two_handles_of_one_session_are_serialised(store: Store) -> None:
    environment = CounterEnvironment()
    sessions = Sessions(environment, store)
    session = await sessions.seed({})
    same = await sessions.open(session.id)
    await asyncio.gather(*(handle.call("increment") for handle in (session, same) for _ in range(20)))
    assert (session.state.total, environment.most_at_once, environment.runs) == (40, 1, 40)


async def test_readers_and_writers_at_once_see_whole_states(store: Store) -> None:
    session = await Sessions(CounterEnvironment(), store).seed({})
    other = await open_elsewhere(store, session)
    calls = [
        handle.call(name) for _ in range(20) for handle in (session, other) for name in ("increment", "look_twice")
    ]
    results = await asyncio.gather(*calls)
    for result in results:
        assert result.ok
        if isinstance(result.output, list):
            before, after, seen = result.output
            assert before == after == seen
    assert (await session.call("look_twice")).output == [40, 40, 40]


async def test_a_refused_write_runs_again_on_fresh_state(store: Store) -> None:
    environment = CounterEnvironment()
    session = await Sessions(environment, store).seed({})
    other = await open_elsewhere(store, session)
    interfered: list[Any] = []

    async def interfere(_: float) -> None:
        if not interfered:
            interfered.append(await other.call("increment"))

    environment.meanwhile = interfere
    assert (await session.call("increment")).output == 2
    assert (environment.runs, session.state.adds) == (2, 2)


async def test_a_session_too_busy_is_a_clear_error(store: Store) -> None:
    environment = CounterEnvironment()
    session = await Sessions(environment, store).seed({})
    other = await open_elsewhere(store, session)

    async def always_interfere(_: float) -> None:
        await other.call("increment")

    environment.meanwhile = always_interfere
    with raises(Conflict):
        await session.call("increment")
    assert environment.runs == ATTEMPTS
    environment.meanwhile = asyncio.sleep
    assert (await session.call("increment")).output == ATTEMPTS + 1


async def test_a_read_sees_what_another_process_committed_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rooms.db"
    async with open_store(f"sqlite:///{path}") as store, open_store(f"sqlite:///{path}") as elsewhere:
        session = await Sessions(CounterEnvironment(), store).seed({})
        other = await open_elsewhere(elsewhere, session)
        await other.call("increment")
        files = {file: file.read_bytes() for file in (path, path.with_name("rooms.db-wal"))}
        assert (await session.call("look_twice")).output == [1, 1, 1]
        assert session.revision == 2
        assert {file: file.read_bytes() for file in files} == files
        assert [entry.kind async for entry in session.log()] == ["seed", "call"]


@pytest.mark.parametrize("act", ["rewind", "checkpoint", "fork", "verify", "close"])
async def test_what_others_committed_is_noticed_by_everything(store: Store, act: str) -> None:
    session = await Sessions(CounterEnvironment(), store).seed({})
    other = await open_elsewhere(store, session)
    await other.call("increment")
    await other.call("increment")
    if act == "rewind":
        await session.rewind(to=2)
        assert (session.revision, session.state.total) == (4, 1)
    elif act == "checkpoint":
        assert (await session.checkpoint("now")).revision == 4
        assert session.state.total == 2
    elif act == "fork":
        assert (await session.fork()).state.total == 2
    elif act == "verify":
        assert (await session.verify()).reward == 2.0
    else:
        await session.close()
        assert session.state.total == 2


async def test_rewinds_and_calls_at_once_keep_the_log_in_order(store: Store) -> None:
    session = await Sessions(CounterEnvironment(), store).seed({})
    other = await open_elsewhere(store, session)
    await asyncio.gather(
        *(handle.call("increment") for handle in (session, other) for _ in range(10)),
        *(handle.rewind(to=1) for handle in (session, other) for _ in range(5)),
    )
    final = await open_elsewhere(store, session)
    assert [entry.revision async for entry in final.log()] == list(range(1, 32))
    await session.call("look_twice")
    assert session.state == final.state


async def test_a_cancelled_call_leaves_the_session_usable(store: Store) -> None:
    session = await Sessions(CounterEnvironment(), store).seed({})
    for pauses in range(12):
        task = asyncio.create_task(session.call("increment", call_id=f"c{pauses}"))
        for _ in range(pauses):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert (await session.call("increment")).ok
    final = await open_elsewhere(store, session)
    assert final.state == session.state
    assert final.state.total == final.revision - 1

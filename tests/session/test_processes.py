"""Several processes on one file, and processes that die without warning."""

import asyncio
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stateroom import Sessions
from stateroom.environment import load_class
from stateroom.session import Session
from stateroom.store import Store
from tests.patience import PATIENCE
from tests.processes import Start, line, starting

WORKER = Path(__file__).with_name("worker.py")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'rooms.db'}"


@pytest.fixture
async def start(url: str) -> AsyncIterator[Start]:
    """Starts a worker with a job."""
    async with starting(str(WORKER), url) as start:
        yield start


def sessions_in(store: Store) -> Sessions[Any]:
    return Sessions(load_class(f"{WORKER}:WorkshopEnvironment")(), store)


@pytest.fixture
async def session(store: Store) -> Session[Any]:
    return await sessions_in(store).seed({})


async def kill(process: Process) -> str:
    """Kill -9; gives what the process had still said."""
    process.kill()
    said, _ = await process.communicate()
    return said.decode()


async def reopened(store: Store, session: Session[Any]) -> Session[Any]:
    return await sessions_in(store).open(session.id)


async def test_processes_that_increment_at_once_lose_nothing(session: Session[Any], store: Store, start: Start) -> None:
    workers = [await start("increment", session.id, name) for name in ("a", "b")]
    for worker in workers:
        assert await line(worker) == "ready"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write(b"go\n")
    for _ in range(20):
        assert (await session.call("increment", {"by": "c"})).ok
    for worker in workers:
        assert await asyncio.wait_for(worker.wait(), PATIENCE) == 0
    final = await reopened(store, session)
    assert (final.state.value, final.revision) == (120, 121)
    assert len(set(final.state.seen) - {"c"}) == 100


async def test_what_was_acknowledged_survives_a_kill_and_nothing_is_doubled(
    session: Session[Any], store: Store, start: Start
) -> None:
    acknowledged: list[str] = []
    for round_number in range(3):
        worker = await start("increment_for_ever", session.id, str(round_number))
        acknowledged += [await line(worker) for _ in range(5 + 7 * round_number)]
        rest = await kill(worker)
        acknowledged += [part for part in rest.split("\n")[:-1] if part]
    final = await reopened(store, session)
    seen = list(final.state.seen)
    assert len(seen) == len(set(seen)) == final.state.value == final.revision - 1
    assert set(acknowledged) <= set(seen)
    assert len(seen) <= len(acknowledged) + 3  # at most one of each round was done and not yet acknowledged
    for call_id in acknowledged:
        assert (await final.call("increment", {"by": "again"}, call_id=call_id)).output == seen.index(call_id) + 1
    assert final.revision == len(seen) + 1


async def test_what_a_killed_process_has_undone_is_redone_by_another(
    session: Session[Any], store: Store, start: Start
) -> None:
    for _ in range(20):
        await session.call("increment", {"by": "me"})
    worker = await start("undo_for_ever", session.id)
    for _ in range(10):
        value = await line(worker)
    rest = await kill(worker)
    reached = int([value, *rest.split("\n")[:-1]][-1])
    final = await reopened(store, session)
    assert abs(final.state.value - reached) <= 2  # one more may have been done, and not yet told
    left = final.state.value
    assert (await final.redo(100), final.state.value) == (20 - left, 20)
    assert (await final.undo(100), final.state.value) == (20, 0)


async def test_a_kill_during_a_call_leaves_the_state_as_before(
    session: Session[Any], store: Store, start: Start
) -> None:
    await session.call("increment", {"by": "me"})
    worker = await start("call", session.id, "hang")
    assert await line(worker) == "inside"
    await kill(worker)
    final = await reopened(store, session)
    assert (final.state.value, final.revision) == (1, 2)
    assert (await final.call("increment", {"by": "me"}, call_id="c")).output == 2


@pytest.mark.parametrize(("name", "sent"), [("send", 1), ("send_again", 2)])
async def test_an_external_call_cut_off_by_a_kill_is_unknown(
    session: Session[Any], store: Store, start: Start, tmp_path: Path, name: str, sent: int
) -> None:
    outbox = tmp_path / "outbox"
    worker = await start("call", session.id, name, str(outbox))
    assert await line(worker) == "inside"
    await kill(worker)
    final = await reopened(store, session)
    assert [entry.kind async for entry in final.log()] == ["seed", "started"]
    result = await final.call(name, {"outbox": str(outbox), "hang": False}, call_id="c")
    assert outbox.read_text() == "sent\n" * sent
    if name == "send":
        assert result.code == "unknown_outcome"
        assert final.state.value == 0
    else:
        assert (result.output, final.state.value) == ("sent", 1)
    again = await reopened(store, session)
    assert await again.call(name, {"outbox": str(outbox), "hang": False}, call_id="c") == result
    assert outbox.read_text() == "sent\n" * sent


async def test_a_process_can_end_while_tools_hang(session: Session[Any], start: Start) -> None:
    worker = await start("spin", session.id)
    said, _ = await asyncio.wait_for(worker.communicate(), PATIENCE)
    assert said.decode().splitlines() == ["spin did not finish within 0.05 s"] * 3
    assert worker.returncode == 0

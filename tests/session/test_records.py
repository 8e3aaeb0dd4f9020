"""What has happened in a session, and when: recorded by name, and found again by kind, name and time."""

from datetime import UTC, datetime
from typing import Any

import pytest

from stateroom import Event, SessionLimits, Sessions, State, applies, tool
from stateroom.errors import InvalidArguments
from stateroom.session import Session
from stateroom.store import Store
from tests.environments import Time, Unjudged


class Opened(Event):
    by: str


class Door(State):
    opened: int = 0

    @applies(Opened)
    def on_opened(self, event: Opened) -> None:
        self.opened += 1


class DoorEnvironment(Unjudged[Door]):
    """Has a door."""

    @tool
    def open_door(self, state: Door, by: str) -> int:
        """Open the door."""
        state.emit(Opened(by=by))
        return state.opened


@pytest.fixture
def clock() -> Time:
    return Time()


@pytest.fixture
async def session(store: Store, clock: Time) -> Session[Door]:
    return await Sessions(DoorEnvironment(), store, SessionLimits(now=clock)).seed({})


async def found(session: Session[Door], **wanted: Any) -> list[tuple[float, str | None, Any]]:
    return [(entry.at, entry.name, entry.data) async for entry in session.log(**wanted)]


@pytest.mark.every_store
async def test_events_are_found_by_kind_name_and_time(session: Session[Door], store: Store, clock: Time) -> None:
    for clock.now, name in ((1001.0, "bell"), (1002.5, "alarm"), (1004.0, "bell")):
        await session.record(name, {"loud": True}, user="ann", by="ada")
    clock.now = 1005.0
    await session.call("open_door", {"by": "ann"})
    fork = await session.fork()
    assert await found(fork, kinds={"record"}, name="bell") == [
        (1001.0, "bell", {"loud": True}), (1004.0, "bell", {"loud": True}),
    ]  # fmt: skip
    assert [at for at, *_ in await found(fork, since=1001.0, before=1004.0)] == [1001.0, 1002.5]
    assert await found(fork, name="open_door", since=1005.0) == [(1005.0, "open_door", None)]
    assert await found(fork, kinds={"record"}, name="bell", after=2) == [(1004.0, "bell", {"loud": True})]
    [entry] = [entry async for entry in fork.log(name="alarm")]
    assert (entry.facts["user"], entry.facts["by"], fork.state.opened) == ("ann", "ada", 1)
    assert [(each.event, each.at) async for each in fork.events()] == [(Opened(by="ann"), 1005.0)]


async def test_what_has_happened_is_not_undone(session: Session[Door]) -> None:
    await session.call("open_door", {"by": "ann"})
    assert await session.record("bell") == 3
    assert (await session.undo(), session.state.opened) == (1, 0)
    assert await session.record("bell") == 5
    assert (await session.redo(), session.state.opened) == (1, 1)  # a record is no step
    assert len(await found(session, kinds={"record"})) == 2


async def test_the_data_of_a_record_is_json(session: Session[Door]) -> None:
    await session.record("lunch", datetime(2026, 1, 2, tzinfo=UTC))
    await session.record("large", "x" * 100_000)
    assert [data for _, _, data in await found(session, kinds={"record"})] == ["2026-01-02T00:00:00Z", "x" * 100_000]
    for name, data in (("bad", object()), ("\n", 1), (3, 1)):
        with pytest.raises(InvalidArguments):
            await session.record(name, data)  # type: ignore[arg-type]
    assert session.revision == 3

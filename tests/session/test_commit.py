"""The one loop in which a session is written: its checks before each attempt, in their order, and when it gives up."""

import pytest

from stateroom import Environment, Session, Sessions, State, tool
from stateroom.errors import Conflict, SessionClosed, SessionLeased, SessionSealed
from stateroom.session import commit as loop
from stateroom.session.commit import ATTEMPTS, RetryCommit, commit
from stateroom.store import Store
from tests.messages import raises


class Counter(State):
    value: int = 0


class CountingEnvironment(Environment[Counter]):
    """Counts."""

    @tool
    def increment(self, state: Counter) -> int:
        """Add one."""
        state.value += 1
        return state.value

    def verify(self, state: Counter) -> float:
        return float(state.value)


class Writer:
    """Attempts to write a session, and what it found in memory each time."""

    def __init__(self, session: Session[Counter], refused: int = 0) -> None:
        self.session = session
        self.cached = session._open.cached
        self.refused = refused
        self.found: list[int] = []

    async def attempt(self) -> str:
        self.found.append(self.cached.state.value)
        if len(self.found) <= self.refused:
            raise RetryCommit
        return "written"

    async def write(self, **options: bool) -> str:
        return await commit(self.cached, self.attempt, "this", **options)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    async def back_off(number: int) -> None:
        """None."""

    monkeypatch.setattr(loop, "back_off", back_off)


@pytest.fixture
async def session(store: Store) -> Session[Counter]:
    return await Sessions(CountingEnvironment(), store).seed({})


@pytest.fixture
async def elsewhere(store: Store, session: Session[Counter]) -> Session[Counter]:
    """The same session, in another process."""
    return await Sessions(CountingEnvironment(), store).open(session.id)


async def test_an_attempt_is_made_on_what_is_in_memory_and_the_next_on_the_newest_state(
    session: Session[Counter], elsewhere: Session[Counter]
) -> None:
    await elsewhere.call("increment")
    writer = Writer(session, refused=1)
    assert await writer.write() == "written"
    assert writer.found == [0, 1]


async def test_after_many_refusals_it_gives_up(session: Session[Counter]) -> None:
    writer = Writer(session, refused=ATTEMPTS)
    with raises(Conflict):
        await writer.write()
    assert len(writer.found) == ATTEMPTS


async def test_a_verdict_is_seen_first_then_a_lease_and_then_the_attempt_is_made(
    session: Session[Counter], elsewhere: Session[Counter]
) -> None:
    writer = Writer(session)
    async with elsewhere.lease():
        session._open.cached.stale = True
        with pytest.raises(SessionLeased):
            await writer.write()
        assert await writer.write(while_leased=True) == "written"
        await elsewhere.verify()
        session._open.cached.stale = True
        with pytest.raises(SessionSealed):
            await writer.write()
        with pytest.raises(SessionLeased):
            await writer.write(after_verdict=True)
        assert await writer.write(after_verdict=True, while_leased=True) == "written"
    assert len(writer.found) == 2, "nothing else was attempted"


async def test_a_closed_session_takes_no_more(session: Session[Counter], elsewhere: Session[Counter]) -> None:
    await elsewhere.close()
    for write in (session.call("increment"), session.checkpoint(), session.rewind(1), session.verify()):
        with pytest.raises(SessionClosed):
            await write

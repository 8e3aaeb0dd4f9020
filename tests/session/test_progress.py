"""rng, clock and new_id: given by the session, and the same again after a fork, a rewind and a restart."""

from datetime import UTC, datetime, timedelta

import pytest

from stateroom import Sessions, State, ToolError, tool
from stateroom.session import Session
from stateroom.store import Store
from tests.environments import Unjudged


class Casino(State):
    rolls: list[int] = []
    ids: list[str] = []
    times: list[datetime] = []


class CasinoEnvironment(Unjudged[Casino]):
    """Rolls dice, hands out ids and tells the time."""

    def seed(self, task, rng, clock, new_id) -> Casino:
        if task.model_extra and task.model_extra.get("early"):
            clock.advance(3600)
        return Casino(rolls=[rng.randrange(10**9)], ids=[new_id(), new_id("seed")], times=[clock.now()])

    @tool
    def play(self, state: Casino, rng, clock, new_id, fail: bool = False) -> None:
        """Roll, and keep what came of it."""
        state.rolls.append(rng.randrange(10**9))
        state.ids += [new_id(), new_id("roll"), new_id()]
        state.times.append(clock.now())
        if fail:
            raise ToolError("no luck")

    @tool
    def wait(self, clock, seconds: float) -> str:
        """Let time pass."""
        clock.advance(seconds)
        return clock.now().isoformat()

    @tool
    def wait_a_day(self, clock) -> str:
        """Let time pass."""
        clock.advance(timedelta(days=1))
        return clock.now().isoformat()

    @tool
    def wait_too_long(self, clock) -> str:
        """Try to wait for what is beyond the calendar, and go on."""
        try:
            clock.advance(1e12)
        except OverflowError:
            return clock.now().isoformat()
        return "waited"

    @tool(effect="read")
    def peek(self, rng, clock, new_id) -> list[object]:
        """What the next play will be."""
        return [rng.randrange(10**9), clock.now(), new_id()]


@pytest.fixture
def sessions(store: Store) -> Sessions[Casino]:
    return Sessions(CasinoEnvironment(), store)


@pytest.fixture
async def session(sessions: Sessions[Casino]) -> Session[Casino]:
    return await sessions.seed({}, seed=7, began=0.0)


async def play(session: Session[Casino], times: int = 3) -> tuple[list[int], list[str], list[datetime]]:
    for _ in range(times):
        assert (await session.call("play")).ok
    state = session.state
    return list(state.rolls), list(state.ids), list(state.times)


async def test_the_same_seed_has_the_same_luck_and_another_seed_another(sessions: Sessions[Casino]) -> None:
    first, same, other = [await sessions.seed({}, seed=seed, began=0.0) for seed in (7, 7, 8)]
    assert await play(first) == await play(same)
    assert first.state.rolls != (await play(other))[0]


async def test_sessions_differ_by_default(sessions: Sessions[Casino]) -> None:
    first, second = await sessions.seed({}), await sessions.seed({})
    assert set((await play(first))[1]).isdisjoint((await play(second))[1])


async def test_luck_changes_from_call_to_call_and_from_the_seed(session: Session[Casino]) -> None:
    rolls, ids, times = await play(session, 5)
    assert len(set(rolls)) == 6
    assert len(set(ids)) == 2 + 5 * 3
    assert times == sorted(times)
    assert ids[3].startswith("roll_")


async def test_forks_rewinds_and_restarts_repeat_what_was_played(session: Session[Casino], store: Store) -> None:
    played = await play(session, 10)
    twins = await session.fork(at=1, n=2)
    await session.rewind(to=4)
    again = await Sessions(CasinoEnvironment(), store).open(session.id)
    assert await play(twins[0], 10) == await play(twins[1], 10) == await play(again, 7) == played


async def test_failures_reads_and_checkpoints_use_no_luck_up(sessions: Sessions[Casino]) -> None:
    plain, disturbed = [await sessions.seed({}, seed=7, began=0.0) for _ in range(2)]
    for _ in range(3):
        assert not (await disturbed.call("play", {"fail": True})).ok
        peeked = (await disturbed.call("peek")).output
        assert peeked == (await disturbed.call("peek")).output
        await disturbed.checkpoint()
        assert await play(plain, 1) == await play(disturbed, 1)
        assert peeked[0] == plain.state.rolls[-1]


async def test_the_clock_moves_on_for_good(session: Session[Casino], store: Store) -> None:
    assert session.state.times == [datetime(1970, 1, 1, tzinfo=UTC)]
    start = datetime.fromisoformat((await session.call("peek")).output[1])
    assert (await session.call("wait", {"seconds": 60})).output == (start + timedelta(seconds=60)).isoformat()
    await session.call("wait_a_day")
    again = await Sessions(CasinoEnvironment(), store).open(session.id)
    for handle in (session, again):
        now = datetime.fromisoformat((await handle.call("peek")).output[1])
        assert now - start == timedelta(days=1, seconds=62)  # and a second for each call
    await again.rewind(to=1)
    assert datetime.fromisoformat((await again.call("peek")).output[1]) == start


async def test_time_that_passes_while_seeding_has_passed(sessions: Sessions[Casino]) -> None:
    session = await sessions.seed({"early": True}, began=0.0)
    assert session.state.times == [datetime(1970, 1, 1, 1, tzinfo=UTC)]
    assert (await session.call("peek")).output[1] == "1970-01-01T01:00:00Z"


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), 1e300])
async def test_time_cannot_go_back_or_beyond_the_calendar(session: Session[Casino], seconds: float) -> None:
    before = (await session.call("peek")).output
    assert not (await session.call("wait", {"seconds": seconds})).ok
    assert (await session.call("peek")).output == before


async def test_the_end_of_the_calendar_ends_no_session(session: Session[Casino]) -> None:
    assert (await session.call("wait_too_long")).output != "waited"
    assert (await session.call("peek")).ok
    left = datetime.max.replace(tzinfo=UTC) - datetime.fromisoformat((await session.call("peek")).output[1])
    assert (await session.call("wait", {"seconds": left.total_seconds() - 1})).ok
    for _ in range(3):
        assert (await session.call("play")).ok
    assert (await session.call("peek")).output[1].startswith("9999-12-31")

"""Everything ends: time to live, renewal by use, and the sweep."""

import pytest

from stateroom import SessionLimits, Sessions
from stateroom.errors import SessionExpired, UnknownSession
from stateroom.store import Store
from tests.environments import Tally, TallyEnvironment, Time
from tests.messages import raises

pytestmark = pytest.mark.every_store

TTL = 100.0


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def sessions(store: Store, time: Time) -> Sessions[Tally]:
    return Sessions(TallyEnvironment(), store, SessionLimits(ttl=TTL, now=time))


async def test_an_expired_session_is_an_error_for_every_use(
    sessions: Sessions[Tally], store: Store, time: Time
) -> None:
    session = await sessions.seed({})
    await session.call("add")
    time.now += TTL
    elsewhere = Sessions(TallyEnvironment(), store, SessionLimits(ttl=TTL, now=time))
    for attempt in (
        session.call("add"),
        session.call("look"),
        session.call("no_such_tool"),
        session.fork(),
        session.rewind(to=1),
        session.checkpoint("late"),
        session.verify(),
        session.close(),
        sessions.open(session.id),
        elsewhere.open(session.id),
    ):
        with raises(SessionExpired):
            await attempt
    assert (await store.head(session.id)).revision == 2


@pytest.mark.parametrize("use", ["add", "look", "open"])
async def test_use_renews_a_session(sessions: Sessions[Tally], time: Time, use: str) -> None:
    session = await sessions.seed({})
    for _ in range(3):
        time.now += TTL * 0.9
        assert await (sessions.open(session.id) if use == "open" else session.call(use))
    assert (await session.call("look")).ok
    time.now += TTL
    with pytest.raises(SessionExpired):
        await session.call("look")


@pytest.mark.parametrize("use", ["add", "look"])
async def test_what_another_process_renewed_lives_on(
    sessions: Sessions[Tally], store: Store, time: Time, use: str
) -> None:
    session = await sessions.seed({})
    other = await Sessions(TallyEnvironment(), store, SessionLimits(ttl=TTL, now=time)).open(session.id)
    time.now += TTL * 0.9
    await other.call("add")
    time.now += TTL * 0.5
    assert (await session.call(use)).ok


async def test_a_sweep_removes_what_has_expired_and_nothing_else(
    sessions: Sessions[Tally], store: Store, time: Time
) -> None:
    old = [await sessions.seed({}) for _ in range(3)]
    time.now += TTL * 0.6
    young = await sessions.seed({})
    await old[0].call("add")
    time.now += TTL * 0.6
    assert await sessions.sweep() == 2
    assert await sessions.sweep() == 0
    for session in old[1:]:
        looks = session.state_at(1), anext(session.log())
        for attempt in (sessions.open(session.id), session.call("add"), session.call("look"), *looks):
            with pytest.raises(UnknownSession):
                await attempt
    assert (await young.call("add")).ok
    assert (await old[0].call("add")).output == 2
    assert len(await store.heads()) == 2


async def test_forks_survive_the_sweep_of_their_parent(sessions: Sessions[Tally], store: Store, time: Time) -> None:
    session = await sessions.seed({})
    first = await session.call("add", call_id="c")
    middle = await session.fork()
    fork = await middle.fork()
    time.now += TTL * 0.9
    await fork.call("add")
    time.now += TTL * 0.9
    assert await sessions.sweep() == 0
    cold = await Sessions(TallyEnvironment(), store, SessionLimits(ttl=TTL, now=time)).open(fork.id)
    assert (cold.state.total, (await cold.state_at(1)).total) == (2, 0)
    assert await cold.call("add", call_id="c") == first
    assert [entry.kind async for entry in cold.log()] == ["seed", "call", "call"]
    await cold.rewind(to=1)
    with pytest.raises(SessionExpired):
        await sessions.open(session.id)
    time.now += TTL
    assert await sessions.sweep() == 3
    assert await store.heads() == []

"""Everything ends: time to live, renewal by use, and the sweep."""

import pytest

from stateroom import Environment, SessionLimits, Sessions, State, tool
from stateroom.errors import SessionExpired, UnknownSession
from stateroom.store import Store
from tests.messages import raises

pytestmark = pytest.mark.every_store

TTL = 100.0


class Counter(State):
    value: int = 0


class CounterEnvironment(Environment[Counter]):
    """Counts."""

    @tool
    def increment(self, state: Counter) -> int:
        """Add one."""
        state.value += 1
        return state.value

    @tool(effect="read")
    def get(self, state: Counter) -> int:
        """The value."""
        return state.value

    def verify(self) -> float:
        return 0.0


class Time:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def sessions(store: Store, time: Time) -> Sessions[Counter]:
    return Sessions(CounterEnvironment(), store, SessionLimits(ttl=TTL, now=time))


async def test_an_expired_session_is_an_error_for_every_use(
    sessions: Sessions[Counter], store: Store, time: Time
) -> None:
    session = await sessions.seed({})
    await session.call("increment")
    time.now += TTL
    elsewhere = Sessions(CounterEnvironment(), store, SessionLimits(ttl=TTL, now=time))
    for attempt in (
        session.call("increment"),
        session.call("get"),
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


@pytest.mark.parametrize("use", ["increment", "get"])
async def test_use_renews_a_session(sessions: Sessions[Counter], time: Time, use: str) -> None:
    session = await sessions.seed({})
    for _ in range(10):
        time.now += TTL * 0.9
        assert (await session.call(use)).ok
    time.now += TTL
    with pytest.raises(SessionExpired):
        await session.call(use)


async def test_any_read_leaves_at_least_half_the_time_to_live(sessions: Sessions[Counter], time: Time) -> None:
    session = await sessions.seed({})
    for _ in range(40):
        time.now += TTL * 0.3
        assert (await session.call("get")).ok
        assert (await sessions.store.head(session.id)).expires >= time.now + TTL / 2


async def test_opening_renews_a_session(sessions: Sessions[Counter], time: Time) -> None:
    session = await sessions.seed({})
    for _ in range(3):
        time.now += TTL * 0.9
        await sessions.open(session.id)
    assert (await session.call("get")).ok


@pytest.mark.parametrize("use", ["increment", "get"])
async def test_what_another_process_renewed_lives_on(
    sessions: Sessions[Counter], store: Store, time: Time, use: str
) -> None:
    session = await sessions.seed({})
    other = await Sessions(CounterEnvironment(), store, SessionLimits(ttl=TTL, now=time)).open(session.id)
    time.now += TTL * 0.9
    await other.call("increment")
    time.now += TTL * 0.5
    assert (await session.call(use)).ok


async def test_a_sweep_removes_what_has_expired_and_nothing_else(
    sessions: Sessions[Counter], store: Store, time: Time
) -> None:
    old = [await sessions.seed({}) for _ in range(3)]
    time.now += TTL * 0.6
    young = await sessions.seed({})
    await old[0].call("increment")
    time.now += TTL * 0.6
    assert await sessions.sweep() == 2
    assert await sessions.sweep() == 0
    for session in old[1:]:
        with pytest.raises(UnknownSession):
            await sessions.open(session.id)
        with pytest.raises(UnknownSession):
            await session.call("increment")
        with pytest.raises(UnknownSession):
            await session.call("get")
    assert (await young.call("increment")).ok
    assert (await old[0].call("increment")).output == 2
    assert len(await store.heads()) == 2


async def test_forks_survive_the_sweep_of_their_parent(sessions: Sessions[Counter], store: Store, time: Time) -> None:
    session = await sessions.seed({})
    first = await session.call("increment", call_id="c")
    middle = await session.fork()
    fork = await middle.fork()
    time.now += TTL * 0.9
    await fork.call("increment")
    time.now += TTL * 0.9
    assert await sessions.sweep() == 0
    cold = await Sessions(CounterEnvironment(), store, SessionLimits(ttl=TTL, now=time)).open(fork.id)
    assert (cold.state.value, (await cold.state_at(1)).value) == (2, 0)
    assert await cold.call("increment", call_id="c") == first
    assert [entry.kind async for entry in cold.log()] == ["seed", "call", "call"]
    await cold.rewind(to=1)
    with pytest.raises(SessionExpired):
        await sessions.open(session.id)
    time.now += TTL
    assert await sessions.sweep() == 3
    assert await store.heads() == []


async def test_a_closed_session_is_swept_when_its_time_is_over(sessions: Sessions[Counter], time: Time) -> None:
    session = await sessions.seed({})
    await session.close()
    assert await sessions.sweep() == 0
    time.now += TTL
    assert await sessions.sweep() == 1


async def test_looking_at_a_swept_session_is_an_error_too(sessions: Sessions[Counter], time: Time) -> None:
    session = await sessions.seed({})
    for _ in range(12):
        await session.call("increment")
    time.now += TTL
    await sessions.sweep()
    with pytest.raises(UnknownSession):
        await session.state_at(1)
    with pytest.raises(UnknownSession):
        [entry async for entry in session.log()]


async def test_a_handle_on_a_session_that_was_deleted_never_touches_another_with_its_id(store: Store) -> None:
    now = 1000.0
    here, elsewhere = [Sessions[Counter](CounterEnvironment(), store, SessionLimits(now=lambda: now)) for _ in range(2)]
    old = await here.seed({}, session_id="same")
    await old.call("increment")
    await store.delete("same")
    now += 1
    new = await elsewhere.seed({}, session_id="same")
    for tool_name in ("get", "increment"):
        with pytest.raises(UnknownSession):
            await old.call(tool_name)
    assert (await (await here.open("same")).call("get")).output == (await new.call("get")).output == 0

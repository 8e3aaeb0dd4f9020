"""A call id that was committed returns its recorded result, and runs nothing."""

import asyncio

import pytest

from stateroom import Environment, Sessions, State, tool
from stateroom.session import Session
from stateroom.store import Store

pytestmark = pytest.mark.every_store


class Counter(State):
    value: int = 0


class CountingEnvironment(Environment[Counter]):
    """Counts its runs outside of the state."""

    def __init__(self) -> None:
        self.runs = 0

    @tool
    async def increment(self, state: Counter) -> dict[str, int]:
        """Add one."""
        self.runs += 1
        await asyncio.sleep(0)
        state.value += 1
        return {"value": state.value}

    @tool(effect="external")
    def send(self, state: Counter) -> dict[str, int]:
        """Add one, and reach outside."""
        self.runs += 1
        state.value += 1
        return {"value": state.value}

    def verify(self) -> float:
        return 0.0


@pytest.fixture(params=["increment", "send"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def session(store: Store) -> Session[Counter]:
    return await Sessions(CountingEnvironment(), store).seed({})


def runs(session: Session[Counter]) -> int:
    return session._open.runtime.environment.runs  # type: ignore[attr-defined]


async def test_a_repeated_call_runs_once(session: Session[Counter], name: str) -> None:
    first = await session.call(name, call_id="c")
    revision = session.revision
    assert await session.call(name, call_id="c") == first
    assert (runs(session), session.revision, session.state.value) == (1, revision, 1)


async def test_calls_without_an_id_are_all_run(session: Session[Counter], name: str) -> None:
    await session.call(name)
    await session.call(name)
    assert session.state.value == 2


async def test_after_a_restart(session: Session[Counter], store: Store, name: str) -> None:
    first = await session.call(name, call_id="c")
    again = await Sessions(CountingEnvironment(), store).open(session.id)
    assert await again.call(name, call_id="c") == first
    assert (runs(again), again.state.value) == (0, 1)


async def test_in_a_fork_of_a_fork(session: Session[Counter], store: Store, name: str) -> None:
    first = await session.call(name, call_id="c")
    fork = await (await session.fork()).fork()
    cold = await Sessions(CountingEnvironment(), store).open(fork.id)
    for twin in (fork, cold):
        assert await twin.call(name, call_id="c") == first
        assert twin.state.value == 1
    assert runs(session) == 1


async def test_a_fork_from_before_the_call_runs_it(session: Session[Counter], store: Store, name: str) -> None:
    await session.call(name, call_id="c")
    fork = await session.fork(at=1)
    cold = await Sessions(CountingEnvironment(), store).open(fork.id)
    assert (await cold.call(name, call_id="c")).output == {"value": 1}
    assert runs(cold) == 1


async def test_a_call_of_the_parent_after_the_fork_is_none_of_the_forks(session: Session[Counter], name: str) -> None:
    fork = await session.fork()
    await session.call(name, call_id="c")
    assert (await fork.call(name, call_id="c")).output == {"value": 1}
    assert runs(session) == 2


async def test_after_a_rewind(session: Session[Counter], name: str) -> None:
    first = await session.call(name, call_id="c")
    await session.rewind(to=1)
    assert await session.call(name, call_id="c") == first
    assert (runs(session), session.state.value) == (1, 0)


async def test_twice_at_once(session: Session[Counter], name: str) -> None:
    results = await asyncio.gather(*(session.call(name, call_id="c") for _ in range(10)))
    assert [result.output for result in results] == [{"value": 1}] * 10
    assert (runs(session), session.state.value) == (1, 1)


async def test_from_two_processes_at_once_one_is_committed(session: Session[Counter], store: Store) -> None:
    others = [await Sessions(CountingEnvironment(), store).open(session.id) for _ in range(3)]
    results = await asyncio.gather(*(handle.call("increment", call_id="c") for handle in (session, *others)))
    assert [result.output for result in results] == [{"value": 1}] * 4
    final = await Sessions(CountingEnvironment(), store).open(session.id)
    assert (final.state.value, final.revision) == (1, 2)


async def test_another_process_committed_it_before(session: Session[Counter], store: Store, name: str) -> None:
    other = await Sessions(CountingEnvironment(), store).open(session.id)
    first = await other.call(name, call_id="c")
    assert await session.call(name, call_id="c") == first
    assert session.state.value == 1


async def test_an_empty_call_id_is_refused(session: Session[Counter]) -> None:
    assert (await session.call("increment", call_id="")).code == "invalid_arguments"
    assert session.revision == 1

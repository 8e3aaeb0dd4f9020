"""A call id that was committed returns its recorded result, and runs nothing."""

import asyncio

import pytest

from stateroom import Sessions
from stateroom.session import Session
from stateroom.store import Store
from tests.environments import Tally, TallyEnvironment

pytestmark = pytest.mark.every_store


@pytest.fixture(params=["add_slowly", "send"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def environment() -> TallyEnvironment:
    return TallyEnvironment()


@pytest.fixture
async def session(store: Store, environment: TallyEnvironment) -> Session[Tally]:
    return await Sessions(environment, store).seed({})


async def test_a_call_runs_once_whoever_repeats_it(
    session: Session[Tally], environment: TallyEnvironment, store: Store, name: str
) -> None:
    before = await Sessions(environment, store).open(session.id)
    first = await session.call(name, call_id="c")
    revision = session.revision
    for handle in (session, before, await Sessions(environment, store).open(session.id)):
        assert await handle.call(name, call_id="c") == first
        assert (environment.runs, handle.state.total, handle.revision) == (1, 1, revision)


async def test_a_call_that_is_not_in_a_forks_past_is_run_there(
    session: Session[Tally], environment: TallyEnvironment, store: Store, name: str
) -> None:
    early = await session.fork()
    await session.call(name, call_id="c")
    late = await Sessions(environment, store).open((await session.fork(at=1)).id)
    assert [(await fork.call(name, call_id="c")).output for fork in (early, late)] == [1, 1]
    assert environment.runs == 3


async def test_in_a_fork_of_a_fork(
    session: Session[Tally], environment: TallyEnvironment, store: Store, name: str
) -> None:
    first = await session.call(name, call_id="c")
    fork = await (await session.fork()).fork()
    cold = await Sessions(TallyEnvironment(), store).open(fork.id)
    for twin in (fork, cold):
        assert await twin.call(name, call_id="c") == first
        assert twin.state.total == 1
    assert environment.runs == 1


async def test_after_a_rewind(session: Session[Tally], environment: TallyEnvironment, name: str) -> None:
    first = await session.call(name, call_id="c")
    await session.rewind(to=1)
    assert await session.call(name, call_id="c") == first
    assert (environment.runs, session.state.total) == (1, 0)


async def test_twice_at_once(session: Session[Tally], environment: TallyEnvironment, name: str) -> None:
    results = await asyncio.gather(*(session.call(name, call_id="c") for _ in range(10)))
    assert [result.output for result in results] == [1] * 10
    assert (environment.runs, session.state.total) == (1, 1)


async def test_from_two_processes_at_once_one_is_committed(session: Session[Tally], store: Store) -> None:
    others = [await Sessions(TallyEnvironment(), store).open(session.id) for _ in range(3)]
    results = await asyncio.gather(*(handle.call("add_slowly", call_id="c") for handle in (session, *others)))
    assert [result.output for result in results] == [1] * 4
    final = await Sessions(TallyEnvironment(), store).open(session.id)
    assert (final.state.total, final.revision) == (1, 2)

"""Changes that get lost, doubled or half made: by two at once, by a tool that breaks off, after a session's end."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from stateroom import SessionLimits, Sessions, State, ToolError, tool
from stateroom.errors import BadTask, SessionClosed, SessionExpired, UnknownSession
from stateroom.store import HeadFilter, Store, open_store
from tests.environments import Time, Unjudged
from tests.messages import raises, says

LIMIT = 20_000


class Purse(State):
    coins: int = 0
    spent: list[int] = []


class Account(State):
    coins: int = 100


class BankEnvironment(Unjudged[Purse]):
    """Moves coins from a user's account into a session's purse."""

    @tool
    async def draw(self, state: Purse, user: Account, coins: int) -> int:
        """Take coins from the account, and dawdle between the look and the change."""
        left = user.coins
        await asyncio.sleep(0)
        user.coins = left - coins
        state.coins += coins
        return user.coins

    @tool
    async def add(self, state: Purse, coins: int) -> int:
        """Put coins in, and dawdle between the look and the change."""
        before = state.coins
        await asyncio.sleep(0)
        state.coins = before + coins
        return state.coins

    @tool
    def spend(self, state: Purse, user: Account, why_not: str) -> int:
        """Change everything, and then break off."""
        state.coins -= 1
        state.spent.append(1)
        user.coins += 1
        match why_not:
            case "refused":
                raise ToolError("the shop is closed")
            case "broken":
                raise ZeroDivisionError
            case "exit":
                raise SystemExit(1)
            case "invalid":
                state.spent.append("a coin")  # type: ignore[arg-type]
            case "unprintable":
                return object()  # type: ignore[return-value]
        return state.coins

    @tool
    def hoard(self, state: Purse, count: int) -> int:
        """Keep all that there ever was."""
        state.spent.extend(range(1000, 1000 + count))
        return len(state.spent)

    @tool(effect="read")
    def look(self, state: Purse, user: Account) -> list[int]:
        """What there is."""
        return [state.coins, len(state.spent), user.coins]


ANN = {"user": "ann"}


@pytest.fixture
def bank(store: Store) -> Sessions[Purse]:
    return Sessions[Purse](BankEnvironment(), store, SessionLimits(max_state=LIMIT))


@pytest.fixture
async def workers(url: str, store: Store) -> AsyncIterator[list[Sessions[Purse]]]:
    """Two that know nothing of each other, as two processes do; in memory, where none can be, on one store."""
    if not store.shared:
        yield [Sessions[Purse](BankEnvironment(), store) for _ in range(2)]
        return
    async with open_store(url) as one, open_store(url) as other:
        yield [Sessions[Purse](BankEnvironment(), each) for each in (one, other)]


@pytest.mark.every_store
async def test_calls_of_one_session_at_once_by_two_workers_lose_nothing(workers: list[Sessions[Purse]]) -> None:
    session = await workers[0].seed(ANN)
    handles = [await worker.open(session.id) for worker in workers]
    results = await asyncio.gather(*(handle.call("add", {"coins": 1}) for handle in handles for _ in range(5)))
    assert sorted(result.output for result in results) == list(range(1, 11))


@pytest.mark.every_store
async def test_two_sessions_on_one_user_s_state_lose_nothing(workers: list[Sessions[Purse]]) -> None:
    sessions = [await worker.seed(ANN) for worker in workers for _ in range(2)]
    results = await asyncio.gather(*(each.call("draw", {"coins": 2}) for each in sessions for _ in range(3)))
    assert sorted(result.output for result in results) == list(range(76, 100, 2))
    assert [(await each.call("look")).output for each in sessions] == [[6, 0, 76]] * 4


@pytest.mark.every_store
async def test_a_call_that_is_sent_twice_is_made_once(workers: list[Sessions[Purse]]) -> None:
    session = await workers[0].seed(ANN)
    handles = [await worker.open(session.id) for worker in workers]
    results = await asyncio.gather(*(each.call("draw", {"coins": 2}, call_id="c1") for each in handles for _ in "ab"))
    assert [result.output for result in results] == [98] * 4
    assert (await session.call("look")).output == [2, 0, 98]


@pytest.mark.parametrize("why_not", ["refused", "broken", "exit", "invalid", "unprintable"])
async def test_a_tool_that_breaks_off_half_way_has_done_nothing(bank: Sessions[Purse], why_not: str) -> None:
    session = await bank.seed(ANN)
    await session.call("draw", {"coins": 5})
    assert not (await session.call("spend", {"why_not": why_not})).ok
    assert (await session.call("look")).output == [5, 0, 95]
    assert (await session.call("spend", {"why_not": ""})).output == 4


async def test_a_state_that_only_grows_comes_to_its_end_before_the_machine_does(bank: Sessions[Purse]) -> None:
    session = await bank.seed(ANN)
    results = [await session.call("hoard", {"count": 1000}) for _ in range(20)]
    first = next(index for index, result in enumerate(results) if not result.ok)
    assert 0 < first < 10
    assert {(result.ok, result.code) for result in results[first:]} == {(False, "too_large")}
    says(f"{results[first].error}")
    assert len(session.state.spent) == 1000 * first
    assert (await session.call("add", {"coins": 1})).ok


@pytest.mark.parametrize("end", ["expired", "swept", "closed", "deleted"])
async def test_a_session_that_is_not_there_is_never_a_fresh_one(store: Store, end: str) -> None:
    time = Time()
    limits = SessionLimits(ttl=10, shared_ttl=10, now=time)
    bank, other, anew = (Sessions[Purse](BankEnvironment(), store, limits) for _ in range(3))
    session = await bank.seed(ANN, session_id="a session")
    await session.call("add", {"coins": 5})
    elsewhere = await other.open(session.id)
    error: type[Exception] = UnknownSession
    match end:
        case "expired":
            time.now, error = 2000.0, SessionExpired
        case "swept":
            time.now = 2000.0
            await bank.sweep()
        case "closed":
            await session.close()
            error = SessionClosed
        case "deleted":
            await store.delete(session.id)
    heads = await store.heads(HeadFilter(environment="bank"))
    for handle in (session, elsewhere):
        for work in (handle.call("add", {"coins": 1}), handle.call("look"), handle.rewind(1)):
            with pytest.raises(error, match="'a session'"):
                await work
    with pytest.raises(error, match="'a session'"):
        await anew.open("a session")
    assert await store.heads(HeadFilter(environment="bank")) == heads


async def test_a_task_without_a_user_is_not_given_somebody_s_state(bank: Sessions[Purse], store: Store) -> None:
    with raises(BadTask):
        await bank.seed({})
    assert await store.heads() == []

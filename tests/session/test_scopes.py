"""State that sessions share: of a user, and of the app."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import new_class
from typing import Annotated, Any

import pytest
from hypothesis import given, settings, strategies as st

from stateroom import Environment, Merge, Session, SessionLimits, Sessions, State, Task, Verdict, open_store, tool
from stateroom.errors import (
    BadTask,
    Conflict,
    DefinitionError,
    EnvironmentFailed,
    ReadOnlyState,
    SessionError,
    SessionSealed,
    StoreUnavailable,
)
from stateroom.store import Store
from tests.environments import Unjudged
from tests.examples import share
from tests.messages import raises, says
from tests.patience import PATIENCE
from tests.session.stored_sessions import prune
from tests.watched import Died, MortalStore, WatchedStore

pytestmark = pytest.mark.every_store


class Trip(State):
    steps: int = 0


class Profile(State):
    nights: int = 0
    notes: list[str] = []


class Stock(State):
    sold: Annotated[int, Merge("sum")] = 0


class HotelTask(Task):
    user: str = "alice"


class HotelEnvironment(Environment[Trip, HotelTask]):
    """Books nights."""

    @tool
    def book(self, state: Trip, user: Profile, nights: int) -> int:
        """Book nights."""
        state.steps += 1
        user.nights += nights
        return user.nights

    @tool
    def sell(self, state: Trip, user: Profile, app: Stock) -> int:
        """Change everything."""
        state.steps += 1
        user.nights += 1
        app.sold += 1
        return app.sold

    @tool
    async def sell_slowly(self, app: Stock) -> int:
        """Give others the time to sell too."""
        app.sold += 1
        await self.pause()
        return app.sold

    @tool
    async def note(self, user: Profile, text: str) -> int:
        """Write down something, slowly."""
        user.notes.append(text)
        await self.pause()
        return len(user.notes)

    @tool(effect="read")
    def nights(self, user: Profile) -> int:
        """How many."""
        return user.nights

    @tool(effect="external")
    async def mail(self, user: Profile, text: str) -> str:
        """Reach outside."""
        user.notes.append(text)
        await self.pause()
        return "sent"

    async def pause(self) -> None:
        """What a test may put in."""

    def verify(self, state: Trip, user: Profile, app: Stock) -> Verdict:
        return Verdict(user.nights, {"sold": app.sold})


@pytest.fixture
def sessions(store: Store) -> Sessions[Trip]:
    return Sessions(HotelEnvironment(), store)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for the dead."""
    monkeypatch.setattr("stateroom.session.shared.GRACE_SECONDS", 0.1)


async def shared(session: Session[Any]) -> tuple[int, int]:
    return (await session.user()).nights, (await session.app()).sold


async def test_a_user_s_state_lives_across_sessions_and_is_nobody_else_s(sessions: Sessions[Trip]) -> None:
    first = await sessions.seed({"user": "alice"})
    assert (await first.call("book", {"nights": 2})).output == 2
    await first.close()
    second = await sessions.seed({"user": "alice"})
    assert (await second.call("nights")).output == 2
    assert (await second.call("book", {"nights": 3})).output == 5
    assert second.state.steps == 1
    other = await sessions.seed({"user": "bob"})
    assert (await other.call("nights")).output == 0
    assert (await second.verify()).reward == 5


async def test_what_is_shared_cannot_be_changed_where_it_is_only_read(sessions: Sessions[Trip]) -> None:
    session = await sessions.seed({})
    with raises(ReadOnlyState):
        (await session.user()).nights = 7


@pytest.mark.parametrize("workers", [1, 4])
async def test_nobody_s_change_is_lost(store: Store, workers: int) -> None:
    many = [Sessions(HotelEnvironment(), store) for _ in range(workers)]
    made = [await many[number % workers].seed({}) for number in range(8)]

    async def work(session: Session[Trip]) -> None:
        for _ in range(5):
            while True:
                with suppress(Conflict):  # too many were quicker
                    assert (await session.call("sell")).ok
                    break

    await asyncio.gather(*map(work, made))
    assert await shared(made[0]) == (40, 40)
    assert [session.state.steps for session in made] == [5] * 8


async def meet(environment: HotelEnvironment, *calls: Callable[[], Awaitable[Any]]) -> list[Any]:
    """Make calls that all have run before the first of them commits."""
    waiting = asyncio.Barrier(len(calls))
    paused = set()

    async def pause() -> None:
        if (task := asyncio.current_task()) not in paused:  # when it runs again it has no one to wait for
            paused.add(task)
            if len(paused) <= len(calls):
                await asyncio.wait_for(waiting.wait(), PATIENCE)

    environment.pause = pause  # type: ignore[method-assign]
    return await asyncio.gather(*(call() for call in calls))


async def test_of_two_changes_the_later_one_is_made_again(store: Store) -> None:
    environment = HotelEnvironment()
    one, two = [await Sessions(environment, store).seed({}) for _ in range(2)]
    results = await meet(environment, lambda: one.call("note", {"text": "a"}), lambda: two.call("note", {"text": "b"}))
    assert sorted(result.output for result in results) == [1, 2], "each saw what was there"
    assert sorted((await one.user()).notes) == ["a", "b"]


async def test_changes_with_a_rule_are_merged_and_the_tool_does_not_run_again(store: Store) -> None:
    environment = HotelEnvironment()
    made = [await Sessions(environment, store).seed({}) for _ in range(3)]
    results = await meet(environment, *[lambda session=session: session.call("sell_slowly") for session in made])
    assert [result.output for result in results] == [1, 1, 1]
    assert (await made[0].app()).sold == 3


class Wallet(State, conflict="reject"):
    money: int = 100


class ShopEnvironment(Unjudged[Trip]):
    """Takes money."""

    gate: asyncio.Barrier

    @tool
    async def pay(self, user: Wallet, state: Trip, amount: int) -> int:
        """Pay."""
        user.money -= amount
        state.steps += 1
        await self.gate.wait()
        return user.money

    def user_of(self, task: Task) -> str:
        return "everybody"


async def test_of_two_changes_the_later_one_is_rejected_if_the_state_says_so(store: Store) -> None:
    environment = ShopEnvironment()
    environment.gate = asyncio.Barrier(2)
    one, two = [await Sessions(environment, store).seed({}) for _ in range(2)]
    results = await asyncio.gather(one.call("pay", {"amount": 10}), two.call("pay", {"amount": 20}))
    refused = next(result for result in results if not result.ok)
    assert refused.code == "shared_conflict"
    says(str(refused.error))
    kept = next(result for result in results if result.ok)
    assert (await one.user()).money == kept.output
    assert one.state.steps + two.state.steps == 1, "the session's change was refused with it"


async def test_an_effect_that_cannot_be_taken_back_is_not_run_again(store: Store) -> None:
    environment = HotelEnvironment()
    one, two = [await Sessions(environment, store).seed({}) for _ in range(2)]
    results = await meet(environment, lambda: one.call("mail", {"text": "a"}), lambda: two.call("mail", {"text": "b"}))
    refused = next(result for result in results if not result.ok)
    assert refused.code == "shared_conflict"
    says(str(refused.error))
    assert len((await one.user()).notes) == 1


# What a crash leaves behind.


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("appends", range(1, 6))
async def test_a_call_lands_in_all_states_or_in_none_wherever_its_process_dies(
    store: Store, appends: int, after: bool
) -> None:
    living = Sessions(HotelEnvironment(), store)
    await living.seed({})
    prior = await living.seed({})
    await prior.call("sell")
    session = await living.seed({})
    dying = Sessions(HotelEnvironment(), MortalStore(store, appends, after=after))
    doomed = await dying.open(session.id)
    with suppress(Died):
        await doomed.call("sell", call_id="c")

    looking = await Sessions(HotelEnvironment(), store).open(session.id)
    landed = looking.state.steps
    assert landed in (0, 1)
    assert await shared(prior) == (1 + landed, 1 + landed)
    result = await looking.call("sell", call_id="c")  # whoever asked asks again
    assert result.ok
    assert looking.state.steps == 1
    assert await shared(prior) == (2, 2), "exactly once"
    assert (await prior.call("sell")).output == 3


@settings(max_examples=share(0.4))
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 7), st.booleans()), max_size=6))
async def test_any_number_of_crashes_loses_and_doubles_nothing(crashes: list[tuple[int, int, bool]]) -> None:
    async with open_store("memory://") as store:
        living = Sessions(HotelEnvironment(), store)
        made = [await living.seed({}) for _ in range(3)]
        for number, (which, appends, after) in enumerate(crashes):
            dying = Sessions(HotelEnvironment(), MortalStore(store, appends, after=after))
            try:
                await (await dying.open(made[which].id)).call("sell", call_id=f"c{number}")
            except Died:
                continue
        for session in made:
            assert (await session.call("sell")).ok
        steps = [session.state.steps for session in made]
        assert await shared(made[0]) == (sum(steps), sum(steps))


async def test_a_session_of_the_same_name_as_one_before_changes_it_too(sessions: Sessions[Trip], store: Store) -> None:
    for nights in (1, 2):
        session = await sessions.seed({}, session_id="room")
        assert (await session.call("book", {"nights": 1})).output == nights
        assert (await asyncio.wait_for(session.user(), PATIENCE)).nights == nights
        await store.delete("room")
        sessions.forget("room")


async def test_a_change_that_makes_it_too_large_is_refused_and_blocks_nobody(store: Store) -> None:
    sessions = Sessions(HotelEnvironment(), store, SessionLimits(max_state=20_000))
    session = await sessions.seed({})
    results = [await session.call("note", {"text": "x" * 6000}) for _ in range(5)]
    assert [result.code for result in results[-1:]] == ["too_large"]
    assert (await (await sessions.seed({})).call("book", {"nights": 1})).ok


async def test_a_session_that_has_expired_decides_nothing_any_more(store: Store) -> None:
    clock = [1000.0]
    slow = WatchedStore(store)
    late = Sessions(HotelEnvironment(), slow, SessionLimits(ttl=10, now=lambda: clock[0]))
    others = Sessions(HotelEnvironment(), store, SessionLimits(ttl=10, now=lambda: clock[0]))
    session = await late.seed({})
    under_way, go = asyncio.Event(), asyncio.Event()

    async def hold(operation: str, name: str, *_: object) -> None:
        if operation == "append" and name == session.id:
            under_way.set()
            await go.wait()

    slow.before = hold
    clock[0] += 9.9
    booking = asyncio.create_task(session.call("book", {"nights": 1}))
    await under_way.wait()
    clock[0] += 1
    assert (await (await others.seed({})).user()).nights == 0
    go.set()
    with pytest.raises(SessionError):
        await booking
    assert (await (await others.seed({})).user()).nights == 0


async def test_a_state_that_is_deleted_while_a_tool_runs_is_made_anew(store: Store) -> None:
    environment = HotelEnvironment()
    session = await Sessions(environment, store).seed({})
    paused = 0

    async def pause() -> None:
        nonlocal paused
        paused += 1
        if paused == 1:
            await store.delete("user:hotel:alice")

    environment.pause = pause  # type: ignore[method-assign]
    assert (await session.call("note", {"text": "a"})).output == 1
    assert (await session.user()).notes == ["a"]


async def test_two_that_find_it_expired_lose_nothing(store: Store) -> None:
    clock = [1000.0]
    seen = WatchedStore(store)
    one = Sessions(HotelEnvironment(), seen, SessionLimits(shared_ttl=100, now=lambda: clock[0]))
    two = Sessions(HotelEnvironment(), store, SessionLimits(shared_ttl=100, now=lambda: clock[0]))
    first, second = await one.seed({}), await two.seed({})
    await first.call("book", {"nights": 1})
    one.cache.shared.forget()
    clock[0] += 101
    looked = 0

    async def book(operation: str, name: str, *_: object) -> None:
        nonlocal looked
        if operation == "head" and name.startswith("user:"):
            looked += 1
            if looked == 1:
                two.cache.shared.forget()
                assert (await second.call("book", {"nights": 5})).output == 5

    seen.after = book
    assert (await first.user()).nights == 5


async def test_an_intent_of_a_session_that_got_its_verdict_does_not_unseal_it(store: Store) -> None:
    environment, dying = HotelEnvironment(), WatchedStore(store)
    here = Sessions(environment, dying)
    session = await here.seed({})
    other = await Sessions(HotelEnvironment(), store).open(session.id)

    async def pause() -> None:
        await other.verify()
        with suppress(SessionSealed):
            await session.call("nights")  # by which this process learns of it

    async def die(operation: str, _: str, *given: Any) -> None:
        if operation == "append" and given[0].entry.kind == "intent":
            raise StoreUnavailable("gone")

    environment.pause = pause  # type: ignore[method-assign]
    dying.after = die
    with suppress(StoreUnavailable):
        await session.call("note", {"text": "a"})
    elsewhere = Sessions(HotelEnvironment(), store)
    await (await elsewhere.seed({})).user()
    with pytest.raises(SessionSealed):
        await (await elsewhere.open(session.id)).call("book", {"nights": 1})


async def test_a_closed_session_is_kept_while_what_it_decided_is_to_be_entered(store: Store) -> None:
    clock = [1000.0]
    failing = WatchedStore(store)
    sessions = Sessions(HotelEnvironment(), failing, SessionLimits(now=lambda: clock[0]))
    session = await sessions.seed({})

    async def fail(operation: str, name: str, *given: Any) -> None:
        if operation == "append" and name.startswith("user:") and given[0].entry.kind == "call":
            raise StoreUnavailable("gone")

    failing.before = fail
    assert (await session.call("book", {"nights": 3})).ok
    await session.close()
    failing.before = None
    clock[0] += 100
    assert await prune(store, lambda: clock[0], closed=10.0) == {}
    assert (await (await sessions.seed({})).user()).nights == 3
    assert list(await prune(store, lambda: clock[0], closed=10.0)) == [session.id]


async def test_a_first_state_that_cannot_be_made_says_why(store: Store) -> None:
    class Broken(HotelEnvironment):
        """Has no first state."""

        def seed_user(self, task: HotelTask) -> Profile:
            raise ValueError("nobody home")

    session = await Sessions(Broken(), store).seed({})
    with raises(EnvironmentFailed):
        await session.call("nights")


async def test_it_is_kept_for_a_time_after_its_last_use(store: Store) -> None:
    clock = [1000.0]
    sessions = Sessions(HotelEnvironment(), store, SessionLimits(ttl=10, shared_ttl=1000, now=lambda: clock[0]))
    await (await sessions.seed({})).call("book", {"nights": 2})
    for _ in range(3):
        clock[0] += 900
        await store.sweep(clock[0])
        assert await (await sessions.seed({})).user() == Profile(nights=2)
    clock[0] += 1001
    assert await (await sessions.seed({})).user() == Profile(), "nobody had used it for that long"


async def test_a_shared_state_is_no_session(sessions: Sessions[Trip]) -> None:
    await (await sessions.seed({})).call("book", {"nights": 2})
    with raises(SessionError):
        await sessions.open("user:hotel:alice")
    with raises(BadTask):
        await sessions.seed({}, session_id="user:hotel:bob")


class Needy(State):
    name: str


async def test_a_user_s_first_state_can_be_made_from_the_task(store: Store) -> None:
    class GreetingEnvironment(Environment[Trip, HotelTask]):
        """Greets."""

        @tool(effect="read")
        def greet(self, user: Needy) -> str:
            """Say hello."""
            return f"hello {user.name}"

        async def seed_user(self, task: HotelTask) -> Needy:
            return Needy(name=task.user.title())

        def verify(self) -> float:
            return 0.0

    session = await Sessions(GreetingEnvironment(), store).seed({"user": "alice"})
    assert (await session.call("greet")).output == "hello Alice"


class Wrong(State):
    tags: Annotated[set[str], Merge("append")] = set()


def needy(self, user: Needy) -> None:
    """Act."""


def plain(self, user: Profile) -> None:
    """Act."""


def untyped(self, app: dict[str, int]) -> None:
    """Act."""


def wrong(self, user: Wrong) -> None:
    """Act."""


@pytest.mark.parametrize("methods", [[needy], [plain, needy], [untyped], [wrong]])
def test_shared_states_that_cannot_be_used_say_why(methods: list[Any]) -> None:
    members = {method.__name__: tool(method) for method in methods}
    with raises(DefinitionError):
        new_class("Asking", (Unjudged[Trip],), {}, lambda namespace: namespace.update(members))


def test_an_unknown_answer_to_conflicts_is_refused() -> None:
    with raises(DefinitionError):

        class Odd(State, conflict="guess"):
            pass

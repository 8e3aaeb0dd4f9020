"""What a verifier sees when it looks back: the calls and the states that led to what it judges."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from stateroom import Agent, Environment, Episode, Session, Sessions, State, Task, Verdict, tool
from stateroom.agent import run
from stateroom.errors import ReadOnlyState, SessionSealed, UnknownRevision
from stateroom.model import Scripted, function_call
from stateroom.session import Rescorer
from stateroom.store import Store
from tests.messages import raises
from tests.session.conftest import Snapshots
from tests.watched import WatchedStore

Judge = Callable[[Episode], Any]


class Pile(State):
    stones: list[int] = []


class Fame(State):
    points: int = 0


class PileTask(Task):
    user: str = "alice"
    first: int = 0


class PileEnvironment(Environment[Pile, PileTask]):
    """Piles up stones; each test says what is judged."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.judged = 0

    def seed(self, task: PileTask) -> Pile:
        return Pile(stones=[task.first])

    @tool
    def put(self, state: Pile, weight: int) -> int:
        """Put a stone on the pile."""
        if weight < 0:
            raise ValueError
        state.stones.append(weight)
        return len(state.stones)

    @tool(effect="read")
    def top(self, state: Pile) -> int:
        """The stone on top."""
        return state.stones[-1]

    @tool(effect="external")
    def ship(self, state: Pile) -> None:
        """Send the pile away."""
        state.stones.clear()

    def verify(self, state: Pile, episode: Episode) -> Any:
        self.judged += 1
        return self.judge(episode)


class AsyncPileEnvironment(PileEnvironment):
    """The same with a verifier that waits."""

    async def verify(self, state: Pile, episode: Episode) -> Any:
        self.judged += 1
        await asyncio.sleep(0)
        return self.judge(episode)


class FamousEnvironment(PileEnvironment):
    """The same with a verifier that looks at who piles."""

    def verify(self, state: Pile, user: Fame) -> float:  # type: ignore[override]
        return float(user.points)


class Seen(list[Any]):
    """What verifiers saw: the calls and what they gave, and the states between them."""

    def __call__(self, episode: Episode) -> float:
        calls = [(call.name, call.output) for call in episode.calls()]
        self.append((calls, [state.stones[:] for state in episode.states()]))
        return 1.0


def puts(*heights: int) -> list[tuple[str, int]]:
    """Calls that piled up to so many stones."""
    return [("put", height) for height in heights]


async def put(session: Session[Pile], *weights: int) -> None:
    for weight in weights:
        await session.call("put", {"weight": weight})


@pytest.fixture(params=[PileEnvironment, AsyncPileEnvironment])
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


async def test_a_verifier_sees_the_calls_and_the_states_between_them(kind: Any, store: Store) -> None:
    session = await Sessions[Any](kind(seen := Seen()), store).seed({"first": 7})
    await put(session, 1, -1, 2)  # the second fails
    await session.call("top")
    await session.verify()
    assert seen == [(puts(2, 3), [[7], [7, 1], [7, 1, 2]])]


async def test_a_call_on_the_path_says_all_of_itself(store: Store) -> None:
    found: list[Any] = []
    session = await Sessions[Any](PileEnvironment(lambda episode: found.extend(episode.calls()) or 0.0), store).seed({})
    await session.call("put", {"weight": 5}, call_id="mine")
    await session.call("ship")
    await session.verify()
    [call, shipped] = found
    assert shipped.name == "ship"  # once, though the log has that it started too
    assert (call.name, call.input, call.output, call.revision, call.call_id) == ("put", {"weight": 5}, 2, 2, "mine")


LOOKS: list[Any] = [
    [function_call("top", "a"), function_call("put", "b", weight=1), function_call("top", "c")],
    [function_call("put", "d", weight=-1), function_call("nothing", "e"), function_call("put", "f", weight=2)],
    [function_call("top", "a", more=1), function_call("top", "a")],
    "Done.",
]
"""The answers of an agent that looks before and after it acts, and errs."""

LOOKED = (
    [("top", 7), ("put", 2), ("top", 1), ("put", 3), ("top", 2)],
    [[7], [7], [7, 1], [7, 1], [7, 1, 2], [7, 1, 2]],
)
"""The calls of such an episode and what they gave, and the states between them."""


async def test_reads_of_the_conversation_are_on_the_path(kind: Any, store: Store) -> None:
    session = await Sessions[Any](kind(looked := Seen()), store).seed({"first": 7})
    await run(Agent(Scripted(LOOKS)), session)
    fork = await session.fork()
    await session.verify({"output": []})  # the log has the conversation: no response can change the calls
    await session.verify()
    await fork.verify()
    await Rescorer(kind(looked), store).judge(session.id)
    assert looked == [LOOKED] * 3


async def test_a_read_says_what_it_read(store: Store) -> None:
    found: list[Any] = []
    session = await Sessions[Any](PileEnvironment(lambda episode: found.extend(episode.calls()) or 0.0), store).seed({})
    await run(Agent(Scripted(LOOKS)), session)
    await session.verify()
    first, put, second, *_ = found
    assert (first.kind, first.revision, first.input) == ("read", 1, {})
    assert (put.kind, second.kind, second.revision, second.at) == ("call", "read", put.revision, put.at)


async def test_without_a_conversation_in_the_log_reads_are_those_of_the_response(store: Store) -> None:
    looking = await Sessions[Any](PileEnvironment(Seen()), store).seed({"first": 7})
    await run(Agent(Scripted(LOOKS)), looking)
    response = await looking.agent.response()
    looked = Seen()
    session = await Sessions[Any](PileEnvironment(looked), store).seed({"first": 7})
    await put(session, 1, 2)
    await session.verify(response)
    assert looked == [LOOKED]
    with pytest.raises(SessionSealed):  # the verdict is of that response
        await session.verify({"output": []})
    await Rescorer(PileEnvironment(looked), store).judge(session.id, response=response, at=2)
    assert looked[1:] == [(LOOKED[0][:3], LOOKED[1][:4])]


async def test_what_a_rewind_undid_is_not_on_the_path(store: Store) -> None:
    session = await Sessions[Any](PileEnvironment(seen := Seen()), store).seed({})
    await put(session, 1, 2)
    await session.checkpoint("here")
    await session.rewind(to=2)
    await put(session, 3)
    await session.rewind(to=4)  # what the first rewind undid, again
    await put(session, 4)
    await session.verify()
    assert seen == [(puts(2, 3, 4), [[0], [0, 1], [0, 1, 2], [0, 1, 2, 4]])]


async def test_the_path_of_a_fork_begins_with_its_parents(store: Store) -> None:
    environment = PileEnvironment(seen := Seen())
    session = await Sessions[Any](environment, store).seed({})
    await put(session, 1, 2, 3)
    fork = await session.fork(at=3)
    await put(fork, 9)
    fork = await fork.fork()
    await put(fork, 10)
    await fork.rewind(to=4)
    await put(fork, 11)
    cold = await Sessions[Any](environment, store).open(fork.id)
    await cold.verify()
    assert seen == [(puts(2, 3, 4, 5), [[0], [0, 1], [0, 1, 2], [0, 1, 2, 9], [0, 1, 2, 9, 11]])]


async def test_snapshots_do_not_shorten_the_path(
    store: Store, snapshots_after: Snapshots, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots_after(64)
    monkeypatch.setattr("stateroom.session.episode.REVISIONS_PER_STATE", 4)
    environment = PileEnvironment(seen := Seen())
    session = await Sessions[Any](environment, store).seed({})
    await put(session, *range(40))
    await (await Sessions[Any](environment, store).open(session.id)).verify()
    [(calls, states)] = seen
    assert calls == puts(*range(2, 42))
    assert states == [[0, *range(number)] for number in range(41)]


async def test_states_can_be_had_in_any_order(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    monkeypatch.setattr("stateroom.session.episode.REVISIONS_PER_STATE", 4)
    found: list[Any] = []
    session = await Sessions[Any](PileEnvironment(lambda episode: found.append(episode.states()) or 0.0), store).seed(
        {}
    )
    await put(session, *range(21))
    await session.verify()
    [states] = found
    for number in (20, 3, 21, 0, 8, 7, 9, 4, 5):
        assert states[number].stones == [0, *range(number)]
    assert len(states) == 22
    assert states[-1].stones == [0, *range(21)]
    assert [len(state.stones) for state in states[2:5]] == [3, 4, 5]
    with pytest.raises(IndexError):
        states[22]


async def test_the_past_can_only_be_read(store: Store) -> None:
    def judge(episode: Episode) -> float:
        with pytest.raises(ReadOnlyState):
            episode.states()[0].stones.append(1)
        return 1.0

    session = await Sessions[Any](PileEnvironment(judge), store).seed({})
    assert (await session.verify()).reward == 1.0


async def test_who_does_not_look_back_pays_nothing(kind: Any) -> None:
    environment, store = kind(lambda episode: 1.0), WatchedStore()
    session = await Sessions[Any](environment, store).seed({})
    await put(session, 1)
    await session.verify()
    assert (environment.judged, store.counts["entries"]) == (1, 0)


async def test_a_verifier_that_looks_back_is_run_twice_the_first_time_only(kind: Any, store: Store) -> None:
    environment = kind(Seen())
    sessions = Sessions[Any](environment, store)
    counts = []
    for _ in range(3):
        session = await sessions.seed({})
        await session.verify()
        counts.append(environment.judged)
    assert counts == [2, 3, 4]


def swallowing(episode: Episode) -> float:
    try:
        return float(len(episode.calls()))
    except BaseException:  # noqa: BLE001 - an author may do so
        return -1.0


async def in_a_group(episode: Episode) -> float:
    async def look() -> int:
        return len(episode.calls())

    async with asyncio.TaskGroup() as group:
        looking = group.create_task(look())
    return float(looking.result())


@pytest.mark.parametrize("judge", [swallowing, in_a_group])
async def test_no_verifier_can_miss_its_path(judge: Judge, store: Store) -> None:
    class Eager(PileEnvironment):
        """Awaits what there is to be awaited."""

        async def verify(self, episode: Episode) -> Any:  # type: ignore[override]
            found = self.judge(episode)
            return await found if asyncio.iscoroutine(found) else found

    session = await Sessions[Any](Eager(judge), store).seed({})
    await put(session, 1, 2)
    assert (await session.verify()).reward == 2.0


async def test_a_verifier_that_raises_is_not_run_again(store: Store) -> None:
    environment = PileEnvironment(lambda episode: 1 / len(episode.calls()))
    sessions = Sessions[Any](environment, store)
    for judged in (2, 3):
        session = await sessions.seed({})
        with pytest.raises(ZeroDivisionError):
            await session.verify()
        assert environment.judged == judged


async def test_a_path_whose_beginning_was_pruned_is_an_error(store: Store, snapshots_after: Snapshots) -> None:
    snapshots_after(64)
    environment = PileEnvironment(Seen())
    session = await Sessions[Any](environment, store).seed({})
    await put(session, *range(60))
    snapshot = (await store.load(session.id)).snapshot
    assert snapshot is not None
    await store.prune(session.id, snapshot.revision)
    with raises(UnknownRevision):
        await (await Sessions[Any](environment, store).open(session.id)).verify()


class Heap(State, version=2):
    weights: list[int] = []


@Heap.migration(1)
def _renamed(data: dict[str, Any]) -> dict[str, Any]:
    return {"weights": [weight * 10 for weight in data["stones"]]}


class HeapEnvironment(Environment[Heap, PileTask]):
    """What became of the pile."""

    name = "pile"

    @tool
    def put(self, state: Heap, weight: int) -> int:
        """Put a stone on the heap."""
        state.weights.append(weight)
        return len(state.weights)

    def verify(self, episode: Episode) -> Verdict:
        seen = [state.weights[:] for state in episode.states()]
        again = [list(episode.states()[number].weights) for number in reversed(range(len(seen)))]
        return Verdict(1.0, details={"seen": seen, "again": again[::-1]})


async def test_a_path_leads_through_migrations(store: Store) -> None:
    old = await Sessions[Any](PileEnvironment(Seen()), store).seed({"first": 1})
    await put(old, 2, 3)
    sessions = Sessions[Any](HeapEnvironment(), store)
    unchanged = await (await sessions.open(old.id)).fork()
    session = await sessions.open(old.id)
    await put(session, 40, 50)
    expected = [[10], [10, 20], [10, 20, 30], [10, 20, 30, 40], [10, 20, 30, 40, 50]]
    assert (await session.verify()).details == {"seen": expected, "again": expected}
    assert (await unchanged.verify()).details == {"seen": expected[:3], "again": expected[:3]}


async def test_without_a_state_there_is_no_path(store: Store) -> None:
    class Plain(Environment):
        """Nothing to look back on."""

        @tool
        def nothing(self) -> None:
            """Do nothing."""

        def verify(self, episode: Episode) -> Verdict:
            return Verdict(1.0, details={"calls": len(episode.calls()), "states": len(episode.states())})

    session = await Sessions[Any](Plain(), store).seed({})
    await session.call("nothing")
    assert (await session.verify()).details == {"calls": 0, "states": 0}


async def test_the_verdict_says_which_shared_states_were_seen(store: Store) -> None:
    sessions = Sessions[Any](FamousEnvironment(lambda episode: 0.0), store)
    session = await sessions.seed({"user": "bob"})
    await session.verify()
    [verdict] = [entry async for entry in session.log() if entry.kind == "verdict"]
    assert verdict.facts["views"] == {"user": ["user:famous:bob", 1]}
    session = await Sessions[Any](PileEnvironment(lambda episode: 0.0), store).seed({})
    await session.verify()
    [verdict] = [entry async for entry in session.log() if entry.kind == "verdict"]
    assert "views" not in verdict.facts

"""What a session offers: seed, call, fork, rewind, checkpoint, verify, log, open, close."""

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from stateroom import Environment, SessionLimits, Sessions, State, Task, Verdict, tool
from stateroom.errors import (
    BadTask,
    BadVerdict,
    DefinitionError,
    InvalidArguments,
    ReadOnlyState,
    SessionClosed,
    TimedOut,
    UnknownRevision,
)
from stateroom.session import Session
from stateroom.store import Store
from tests.messages import raises


class Counter(State):
    value: int = 0
    steps: list[int] = []
    by_name: dict[str, list[int]] = {}


class CounterEnvironment(Environment[Counter]):
    """Increment a counter and report its value."""

    def seed(self, task: Any) -> Counter:
        return Counter(value=task.initial_count)

    @tool
    def increment(self, state: Counter, count: int) -> dict[str, bool]:
        """Add `count` to the counter."""
        state.value += count
        state.steps.append(count)
        return {"success": True}

    @tool(effect="read")
    async def get(self, state: Counter) -> dict[str, int]:
        """The counter's value."""
        return {"count": state.value}

    @tool
    def whole(self, state: Counter) -> object:
        """The counter as it stands in mid-change."""
        state.steps.append(99)
        return {"state": state, "steps": state.steps}

    def verify(self, state: Counter, episode) -> float:
        return float(state.value == episode.task.expected_count)


TASK = {"initial_count": 3, "expected_count": 6}


@pytest.fixture
def sessions(store: Store) -> Sessions[Counter]:
    return Sessions(CounterEnvironment(), store)


async def value_at(session: Session[Counter], revision: int) -> int:
    return (await session.state_at(revision)).value


async def kinds(session: Session[Counter]) -> list[str]:
    return [entry.kind async for entry in session.log()]


@pytest.mark.every_store
async def test_a_session_from_seed_to_verdict(sessions: Sessions[Counter]) -> None:
    session = await sessions.seed(TASK)
    assert (session.revision, session.state.value, session.parent, session.task.expected_count) == (1, 3, None, 6)
    result = await session.call("increment", {"count": 3}, call_id="c1")
    assert (result.ok, result.output, result.error) == (True, {"success": True}, None)
    assert (await session.call("get")).output == {"count": 6}
    assert (session.revision, session.state.value) == (2, 6)
    verdict = await session.verify()
    assert (verdict.reward, verdict.components, verdict.metrics, verdict.reason) == (1.0, {}, {}, "")
    assert await kinds(session) == ["seed", "call", "verdict"]


@pytest.mark.every_store
async def test_the_log_tells_everything_in_order(sessions: Sessions[Counter]) -> None:
    session = await sessions.seed(TASK)
    await session.call("increment", {"count": 2}, call_id="c1")
    await session.checkpoint("here")
    await session.rewind(to=1)
    log = [entry async for entry in session.log()]
    assert [(entry.revision, entry.kind, entry.name) for entry in log] == [
        (1, "seed", None),
        (2, "call", "increment"),
        (3, "checkpoint", "here"),
        (4, "rewind", None),
    ]
    assert log[0].input == TASK
    assert (log[1].call_id, log[1].input, log[1].output) == ("c1", {"count": 2}, {"success": True})
    assert log[3].facts == {"to": 1}


async def test_a_long_line_of_forks_has_a_readable_log(store: Store) -> None:
    session = await Sessions(CounterEnvironment(), store).seed(TASK)
    for _ in range(1500):
        session = await session.fork()
    again = await Sessions(CounterEnvironment(), store).open(session.id)
    assert (again.state.value, await kinds(again)) == (3, ["seed"])


async def test_a_fork_knows_the_checkpoints_of_its_past_only(sessions: Sessions[Counter]) -> None:
    session = await sessions.seed(TASK)
    shared = await session.checkpoint("shared")
    twin, sibling = await session.fork(n=2)
    late = await session.checkpoint("after the fork")
    for fork in (twin, sibling):
        for _ in range(5):
            await fork.call("increment", {"count": 1})
    of_sibling = await sibling.checkpoint("of the sibling")
    await twin.rewind(to=shared)
    assert twin.state.value == 3
    for stranger in (late, of_sibling):
        with raises(UnknownRevision):
            await twin.rewind(to=stranger)
        with pytest.raises(UnknownRevision):
            await twin.fork(at=stranger)
    grandchild = await (await twin.fork()).fork()
    assert (await grandchild.fork(at=shared)).state.value == 3


@pytest.mark.parametrize("revision", [0, -1, 3, 10**30])
async def test_a_revision_that_is_not_there_is_refused(sessions: Sessions[Counter], revision: int) -> None:
    session = await sessions.seed(TASK)
    await session.call("increment", {"count": 1})
    for attempt in (session.rewind(to=revision), session.fork(at=revision), session.state_at(revision)):
        with raises(UnknownRevision):
            await attempt
    assert session.revision == 2


async def test_what_is_handed_out_can_only_be_read(sessions: Sessions[Counter]) -> None:
    session = await sessions.seed(TASK)
    await session.call("increment", {"count": 1})
    for state in (session.state, await session.state_at(1), await session.state_at(2)):
        with pytest.raises(ReadOnlyState):
            state.value = 9
        with pytest.raises(ReadOnlyState):
            state.steps.append(9)
        with pytest.raises(ReadOnlyState):
            state.by_name["a"] = []
    assert (session.state.value, session.state.steps) == (4, [1])


async def test_an_output_is_a_copy_of_the_state(sessions: Sessions[Counter], store: Store) -> None:
    session = await sessions.seed(TASK)
    result = await session.call("whole", call_id="c")
    assert result.output == {"state": {"value": 3, "steps": [99], "by_name": {}}, "steps": [99]}
    result.output["steps"].append(1)
    result.output["state"]["steps"].append(1)
    assert session.state.steps == [99]
    again = await Sessions(CounterEnvironment(), store).open(session.id)
    assert (await again.call("whole", call_id="c")).output["steps"] == [99]


async def test_a_closed_session_can_be_read_and_forked_but_not_changed(
    sessions: Sessions[Counter], store: Store
) -> None:
    session = await sessions.seed(TASK)
    elsewhere = await Sessions(CounterEnvironment(), store).open(session.id)
    await session.call("increment", {"count": 1})
    await session.close()
    await session.close()
    await elsewhere.close()
    for handle in (session, elsewhere):
        for attempt in (
            handle.call("increment", {"count": 1}),
            handle.call("get"),
            handle.rewind(to=1),
            handle.checkpoint("late"),
            handle.verify(),
        ):
            with pytest.raises(SessionClosed):
                await attempt
    with pytest.raises(SessionClosed):
        await sessions.open(session.id)
    assert (session.state.value, await value_at(session, 1)) == (4, 3)
    assert await kinds(session) == ["seed", "call", "close"]
    assert (await session.fork()).state.value == 4
    assert (await (await sessions.open(session.id, include_closed=True)).fork(at=1)).state.value == 3


async def test_a_bad_task_seeds_nothing(sessions: Sessions[Counter], store: Store) -> None:
    for bad in ("nonsense", {**TASK, "tool": object()}):
        with raises(BadTask):
            await sessions.seed(bad)
    with pytest.raises(AttributeError):  # of the author's own seed
        await sessions.seed({})
    assert await store.heads() == []


async def test_a_typed_task_is_as_good_as_a_row(sessions: Sessions[Counter], store: Store) -> None:
    session = await sessions.seed(Task.model_validate(TASK))
    again = await Sessions(CounterEnvironment(), store).open(session.id)
    assert again.task == session.task
    assert again.task.expected_count == 6


class Judge(Environment[Counter]):
    """Its verdict is what it was given."""

    def __init__(self, given: Any) -> None:
        self.given = given

    def verify(self) -> Any:
        return self.given


@pytest.mark.parametrize(
    ("given", "reward"),
    [(0.5, 0.5), (1, 1.0), (True, 1.0), (Verdict(0.25, {"a": 0.25}, {"turns": 3}, "because", {"seen": [1]}), 0.25)],
)
async def test_a_reward_is_a_number_or_a_verdict(store: Store, given: Any, reward: float) -> None:
    session = await Sessions(Judge(given), store).seed({})
    verdict = await session.verify({"output": []})
    assert verdict.reward == reward
    assert type(verdict.reward) is float
    (entry,) = [entry async for entry in session.log() if entry.kind == "verdict"]
    assert Verdict(**entry.facts["verdict"]) == verdict


NAN = float("nan")
HIGH: Any = "high"


@pytest.mark.parametrize(
    "given",
    [float("inf"), NAN, Verdict(NAN), None, "1.0", Verdict(HIGH), Verdict(1.0, details={"it": object()})],
)
async def test_what_is_no_reward_is_refused_and_not_recorded(store: Store, given: Any) -> None:
    session = await Sessions(Judge(given), store).seed({})
    with pytest.raises(BadVerdict):
        await session.verify()
    assert await kinds(session) == ["seed"]


async def test_a_verifier_sees_the_response_and_cannot_change_the_state(store: Store) -> None:
    class Meddler(Environment[Counter]):
        """Changes what it judges."""

        async def verify(self, state: Counter, episode) -> Verdict:
            if episode.response is None:
                state.value = 1
            return Verdict(1.0, reason=episode.response["output_text"])

    session = await Sessions(Meddler(), store).seed({})
    with pytest.raises(ReadOnlyState):
        await session.verify()
    assert (await session.verify({"output_text": "done"})).reason == "done"
    assert session.state.value == 0


async def test_a_verifier_that_takes_too_long_is_refused(store: Store) -> None:
    class Endless(Environment[Counter]):
        """Never judges."""

        async def verify(self) -> float:
            await asyncio.Event().wait()
            return 1.0

    seeded = await Sessions(Endless(), store).seed({})
    session = await Sessions(Endless(), store, SessionLimits(timeout=0.01)).open(seeded.id)
    with raises(TimedOut):
        await session.verify()


async def test_a_seed_must_give_the_state(store: Store) -> None:
    class Wrong(Environment[Counter]):
        """Seeds a dict."""

        def seed(self) -> dict[str, int]:
            return {"value": 1}

    with raises(DefinitionError):
        await Sessions(Wrong(), store).seed({})
    assert await store.heads() == []


async def test_a_state_may_be_empty(store: Store) -> None:
    class Empty(Environment[State]):
        """Keeps nothing but a log."""

    assert (await Sessions(Empty(), store).seed({})).state == State()


async def test_a_fork_has_as_many_ids_as_sessions(store: Store) -> None:
    session = await Sessions[Counter](CounterEnvironment(), store).seed({"initial_count": 1})
    for wrong in (session.fork(ids=["a", "b"]), session.fork(n=3, ids=["a"])):  # type: ignore[call-overload]
        with raises(InvalidArguments):
            await wrong
    assert await store.count(0.0) == 1


# Ids, owners and names are text.

NO_TEXT: dict[str, Any] = {"uuid": uuid4(), "dict": {"a": 1}, "bytes": b"bytes", "half a pair": "half \ud800"}


@pytest.mark.parametrize("wrong", NO_TEXT.values(), ids=NO_TEXT)
async def test_an_id_an_owner_or_a_name_that_is_no_text_is_refused_and_changes_nothing(
    store: Store, wrong: Any
) -> None:
    sessions = Sessions[Counter](CounterEnvironment(), store)
    session = await sessions.seed({"initial_count": 1})
    for refused in (
        sessions.seed({"initial_count": 1}, owner=wrong),
        sessions.seed({"initial_count": 1}, session_id=wrong),
        sessions.open(wrong),
        session.fork(n=1, ids=[wrong]),
        session.checkpoint(wrong),
    ):
        with pytest.raises(InvalidArguments):
            await refused
    called = await session.call("increment", {"count": 1}, call_id=wrong)
    assert called.code == "invalid_arguments"
    assert (session.revision, await store.count(0.0)) == (1, 1)

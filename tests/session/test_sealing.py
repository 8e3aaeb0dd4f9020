"""A verdict seals its session: nothing changes any more, and there is only one."""

import asyncio
from typing import Any

import pytest

from stateroom import Environment, Session, Sessions, State, Verdict, tool
from stateroom.errors import SessionClosed, SessionSealed
from stateroom.store import Store
from tests.messages import raises

pytestmark = pytest.mark.every_store


class Tally(State):
    value: int = 0


class TallyEnvironment(Environment[Tally]):
    """Counts, and counts how often it was judged."""

    def __init__(self) -> None:
        self.judged = 0
        self.sent = asyncio.Event()
        self.go_on = asyncio.Event()

    @tool
    def add(self, state: Tally, n: int) -> int:
        """Add."""
        state.value += n
        return state.value

    @tool(effect="read")
    def value(self, state: Tally) -> int:
        """Look."""
        return state.value

    @tool(effect="external")
    async def send(self, state: Tally) -> int:
        """Reach outside, and wait there."""
        self.sent.set()
        await self.go_on.wait()
        state.value += 100
        return state.value

    def verify(self, state: Tally, episode: Any) -> Verdict:
        self.judged += 1
        return Verdict(float(state.value), {"part": 0.5}, {"length": 2.0}, "so it is", {"time": self.judged})


@pytest.fixture
def environment() -> TallyEnvironment:
    return TallyEnvironment()


@pytest.fixture
def sessions(environment: TallyEnvironment, store: Store) -> Sessions[Tally]:
    return Sessions[Tally](environment, store)


@pytest.fixture
async def session(sessions: Sessions[Tally]) -> Session[Tally]:
    made = await sessions.seed({})
    await made.call("add", {"n": 3}, call_id="first")
    return made


async def test_nothing_changes_after_the_verdict(session: Session[Tally]) -> None:
    await session.verify()
    for attempt in (
        lambda: session.call("add", {"n": 1}),
        lambda: session.call("add", {"n": 1}, call_id="first"),
        lambda: session.call("value"),
        lambda: session.call("no such tool"),
        lambda: session.call("send", call_id="s"),
        lambda: session.rewind(to=1),
        lambda: session.checkpoint("here"),
    ):
        with raises(SessionSealed):
            await attempt()
    assert (session.revision, session.state.value) == (3, 3)


async def test_a_second_verdict_is_the_first(session: Session[Tally], environment: TallyEnvironment) -> None:
    first = await session.verify("yes")
    assert first == Verdict(3.0, {"part": 0.5}, {"length": 2.0}, "so it is", {"time": 1})
    assert await session.verify("no") == first
    assert environment.judged == 1


async def test_another_process_sees_the_seal(
    session: Session[Tally], environment: TallyEnvironment, store: Store
) -> None:
    elsewhere = await Sessions[Tally](environment, store).open(session.id)
    verdict = await session.verify("yes")
    for attempt in (lambda: elsewhere.call("add", {"n": 1}), lambda: elsewhere.call("value")):
        with pytest.raises(SessionSealed):
            await attempt()
    later = await Sessions[Tally](environment, store).open(session.id)
    with pytest.raises(SessionSealed):
        await later.call("add", {"n": 1})
    assert await later.verify("no") == await elsewhere.verify("no") == verdict
    assert environment.judged == 1


async def test_of_many_who_judge_at_once_one_is_heard(
    session: Session[Tally], environment: TallyEnvironment, store: Store
) -> None:
    others = [await Sessions[Tally](environment, store).open(session.id) for _ in range(4)]
    verdicts = await asyncio.gather(*(other.verify(index) for index, other in enumerate([session, *others])))
    assert len({verdict.details["time"] for verdict in verdicts}) == 1
    assert [entry.kind async for entry in session.log()].count("verdict") == 1


async def test_what_is_judged_is_what_is_there(session: Session[Tally]) -> None:
    results = await asyncio.gather(*(session.call("add", {"n": 1}) for _ in range(5)), session.verify())
    assert results[-1].reward == session.state.value == 8


async def test_a_fork_of_a_sealed_session_is_open(session: Session[Tally]) -> None:
    await session.verify("yes")
    fork = await session.fork()
    assert (await fork.call("add", {"n": 1})).output == 4
    assert (await fork.verify("no")).reward == 4.0


async def test_a_sealed_session_can_be_closed_and_keeps_its_verdict(session: Session[Tally]) -> None:
    verdict = await session.verify("yes")
    await session.close()
    with pytest.raises(SessionClosed):
        await session.call("add", {"n": 1})
    assert await session.verify("yes") == verdict


async def test_a_session_that_was_closed_first_gets_no_verdict(session: Session[Tally]) -> None:
    await session.close()
    with pytest.raises(SessionClosed):
        await session.verify()


async def test_an_external_call_that_comes_back_too_late_changes_nothing(
    session: Session[Tally], environment: TallyEnvironment, store: Store
) -> None:
    sending = asyncio.create_task(session.call("send", call_id="s"))
    await environment.sent.wait()
    elsewhere = await Sessions[Tally](environment, store).open(session.id)
    verdict = await elsewhere.verify()
    environment.go_on.set()
    result = await sending
    assert (result.ok, result.code) == (False, "tool_failed")
    assert "took effect, but the session got its verdict meanwhile" in (result.error or "")
    assert (verdict.reward, session.state.value) == (3.0, 3)


async def test_a_verifier_that_raises_seals_nothing(store: Store) -> None:
    class Unsure(Environment[Tally]):
        """Cannot judge zero."""

        @tool
        def add(self, state: Tally, n: int) -> int:
            """Add."""
            state.value += n
            return state.value

        def verify(self, state: Tally) -> float:
            return 1 / state.value

    session = await Sessions[Tally](Unsure(), store).seed({})
    with pytest.raises(ZeroDivisionError):
        await session.verify()
    assert (await session.call("add", {"n": 2})).ok
    assert (await session.verify()).reward == 0.5


async def test_a_verdict_on_a_response_is_of_that_response(store: Store) -> None:
    class Listening(Environment[Tally]):
        """Judges what was said."""

        def verify(self, episode: Any) -> float:
            return float(episode.response == {"output": ["right"]})

    environment = Listening()
    session = await Sessions[Tally](environment, store).seed({})
    assert (await session.verify({"output": ["right"]})).reward == 1.0
    for handle in (session, await Sessions[Tally](environment, store).open(session.id)):
        assert (await handle.verify({"output": ["right"]})).reward == 1.0
        with raises(SessionSealed):
            await handle.verify({"output": ["wrong"]})


async def test_a_write_that_waited_for_the_verdict_is_refused(sessions: Sessions[Tally]) -> None:
    session = await sessions.seed({})
    verdict, late = await asyncio.gather(session.verify(), session.call("add", {"n": 1}), return_exceptions=True)
    assert isinstance(verdict, Verdict)
    assert isinstance(late, SessionSealed)
    assert [entry.kind async for entry in session.log()] == ["seed", "verdict"]

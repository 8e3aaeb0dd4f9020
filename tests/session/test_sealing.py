"""A verdict seals its session: nothing changes any more, and there is only one."""

import asyncio
from typing import Any

import pytest

from stateroom import Environment, Session, Sessions, Verdict
from stateroom.errors import SessionLeased, SessionSealed
from stateroom.store import Store
from tests.environments import Tally, TallyEnvironment
from tests.messages import raises, says

pytestmark = pytest.mark.every_store


class JudgedEnvironment(TallyEnvironment):
    """Counts how often it was judged."""

    judged = 0

    def verify(self, state: Tally) -> Verdict:  # type: ignore[override]
        self.judged += 1
        return Verdict(float(state.total), {"part": 0.5}, {"length": 2.0}, "so it is", {"time": self.judged})


@pytest.fixture
def environment() -> JudgedEnvironment:
    return JudgedEnvironment()


@pytest.fixture
def sessions(environment: JudgedEnvironment, store: Store) -> Sessions[Tally]:
    return Sessions[Tally](environment, store)


@pytest.fixture
async def session(sessions: Sessions[Tally]) -> Session[Tally]:
    made = await sessions.seed({})
    await made.call("add", {"number": 3}, call_id="first")
    return made


async def test_nothing_changes_after_the_verdict_and_there_is_only_one(
    session: Session[Tally], environment: JudgedEnvironment, store: Store
) -> None:
    before = await Sessions[Tally](environment, store).open(session.id)
    verdict = await session.verify("yes")
    assert verdict == Verdict(3.0, {"part": 0.5}, {"length": 2.0}, "so it is", {"time": 1})
    for handle in (session, before, await Sessions[Tally](environment, store).open(session.id)):
        for attempt in (
            handle.call("add", {"number": 1}),
            handle.call("add", {"number": 1}, call_id="first"),
            handle.call("look"),
            handle.call("no such tool"),
            handle.call("send", call_id="s"),
            handle.rewind(to=1),
            handle.checkpoint("here"),
            handle.undo(),
            handle.record("bell"),
            handle.edit([{"place": ["total"], "value": 5}], by="ada"),
        ):
            with raises(SessionSealed):
                await attempt
        assert await handle.verify("no") == verdict
        assert (handle.revision, handle.state.total) == (3, 3)
    assert environment.judged == 1


async def test_of_many_who_judge_at_once_one_is_heard(
    session: Session[Tally], environment: JudgedEnvironment, store: Store
) -> None:
    others = [await Sessions[Tally](environment, store).open(session.id) for _ in range(4)]
    verdicts = await asyncio.gather(*(other.verify(index) for index, other in enumerate([session, *others])))
    assert len({verdict.details["time"] for verdict in verdicts}) == 1
    assert [entry.kind async for entry in session.log()].count("verdict") == 1


async def test_what_is_judged_is_what_is_there(session: Session[Tally]) -> None:
    calls = [session.call("add", {"number": 1}) for _ in range(5)]
    _, verdict = await asyncio.gather(asyncio.gather(*calls), session.verify())
    assert verdict.reward == session.state.total == 8


async def test_a_session_that_is_leased_and_sealed_says_that_it_is_sealed(
    session: Session[Tally], environment: JudgedEnvironment, store: Store
) -> None:
    elsewhere = await Sessions[Tally](environment, store).open(session.id)
    async with elsewhere.lease():
        with pytest.raises(SessionLeased):
            await session.verify()
        await elsewhere.verify()
        with pytest.raises(SessionSealed):
            await session.call("add")


async def test_an_external_call_that_comes_back_too_late_changes_nothing(
    session: Session[Tally], environment: JudgedEnvironment, store: Store
) -> None:
    environment.go_on.clear()
    sending = asyncio.create_task(session.call("send", call_id="s"))
    await environment.begun.wait()
    elsewhere = await Sessions[Tally](environment, store).open(session.id)
    verdict = await elsewhere.verify()
    environment.go_on.set()
    result = await sending
    assert (result.ok, result.code) == (False, "tool_failed")
    says(result.error or "")
    assert (verdict.reward, session.state.total) == (3.0, 3)


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
    verdict, late = await asyncio.gather(session.verify(), session.call("add", {"number": 1}), return_exceptions=True)
    assert isinstance(verdict, Verdict)
    assert isinstance(late, SessionSealed)
    assert [entry.kind async for entry in session.log()] == ["seed", "verdict"]

"""Without a response, a verifier is given what was said in the session: never less than what is in the log."""

from typing import Any

import pytest

from stateroom import Agent, Environment, Episode, Sessions, State, Verdict, tool
from stateroom.agent import run
from stateroom.errors import SessionSealed
from stateroom.model import Scripted, function_call, message_text
from stateroom.session import Rescorer, Session
from stateroom.store import Store
from tests.messages import raises

AGENT = Agent(Scripted([[function_call("note", "n", text="tea")], "It is noted."]))

TASK = {"responses_create_params": {"input": "Tea, please."}}


class Notes(State):
    texts: list[str] = []


class NotesEnvironment(Environment[Notes]):
    """Notes, of which the agent must tell."""

    @tool
    def note(self, state: Notes, text: str) -> None:
        """Write something down."""
        state.texts.append(text)

    def verify(self, episode: Episode) -> Verdict:
        return judged(episode)


class EchoEnvironment(Environment):
    """Has no state."""

    def verify(self, episode: Episode) -> Verdict:
        return judged(episode)


def judged(episode: Episode) -> Verdict:
    response = episode.response
    return Verdict(0.0) if response is None else Verdict(1.0, reason=message_text(response["output"]), details=response)


@pytest.fixture
async def session(store: Store) -> Session[Notes]:
    """A session in which nothing was said yet."""
    return await Sessions[Notes](NotesEnvironment(), store).seed(TASK)


async def test_it_is_the_conversation(session: Session[Notes]) -> None:
    trajectory = await run(AGENT, session)
    verdict = await session.verify()
    assert verdict.reason == "It is noted."
    assert verdict.details == {"object": "response", "status": "completed", "output": trajectory.output}


async def test_a_turn_that_was_cut_off_is_incomplete(session: Session[Notes]) -> None:
    await run(Agent(AGENT.model, max_steps=1), session)
    assert (await session.verify()).details["status"] == "incomplete"


async def test_without_a_state_too(store: Store) -> None:
    session: Any = await Sessions(EchoEnvironment(), store).seed(TASK)
    await run(Agent(Scripted(["It is noted."])), session)
    assert (await session.verify()).reason == "It is noted."


async def test_there_is_none_where_nothing_was_said(session: Session[Notes]) -> None:
    await session.call("note", {"text": "tea"})
    assert (await session.verify()).reward == 0.0


async def test_a_verdict_on_the_conversation_is_not_one_on_another_response(
    session: Session[Notes], store: Store
) -> None:
    await run(AGENT, session)
    first = await session.verify()
    assert await (await Sessions(NotesEnvironment(), store).open(session.id)).verify() == first
    with raises(SessionSealed):
        await session.verify({"output": []})


async def test_forks_and_rescored_sessions_are_judged_by_what_was_said_until_then(
    session: Session[Notes], store: Store
) -> None:
    await run(AGENT, session)
    verdict = await session.verify()
    (fork,) = await session.fork(3, n=1)
    rescorer = Rescorer(NotesEnvironment(), store)
    assert (await rescorer.judge(session.id)).verdict == verdict
    for before in (await fork.verify(), (await rescorer.judge(session.id, at=3)).verdict):
        assert [item["type"] for item in before.details["output"]] == ["function_call"]

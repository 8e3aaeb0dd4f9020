"""Without a response, a verifier is given what was said in the session: never less than what is in the log."""

from typing import Any

from stateroom import Agent, Environment, Episode, Sessions, State, Verdict, tool
from stateroom.agent import run
from stateroom.errors import SessionSealed
from stateroom.model import Scripted, function_call, message_text
from stateroom.session import Rescorer
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
    """The same, without a state."""

    @tool
    def note(self, text: str) -> None:
        """Write something down."""

    def verify(self, episode: Episode) -> Verdict:
        return judged(episode)


def judged(episode: Episode) -> Verdict:
    response = episode.response
    return Verdict(0.0) if response is None else Verdict(1.0, reason=message_text(response["output"]), details=response)


async def test_it_is_the_conversation(store: Store) -> None:
    session = await Sessions(NotesEnvironment(), store).seed(TASK)
    trajectory = await run(AGENT, session)
    verdict = await session.verify()
    assert verdict.reason == "It is noted."
    assert verdict.details == {"object": "response", "status": "completed", "output": trajectory.output}


async def test_a_turn_that_was_cut_off_is_incomplete(store: Store) -> None:
    session = await Sessions(NotesEnvironment(), store).seed(TASK)
    await run(Agent(AGENT.model, max_steps=1), session)
    assert (await session.verify()).details["status"] == "incomplete"


async def test_without_a_state_too(store: Store) -> None:
    session: Any = await Sessions(EchoEnvironment(), store).seed(TASK)
    await run(AGENT, session)
    assert (await session.verify()).reason == "It is noted."


async def test_there_is_none_where_nothing_was_said(store: Store) -> None:
    session = await Sessions(NotesEnvironment(), store).seed(TASK)
    await session.call("note", {"text": "tea"})
    assert (await session.verify()).reward == 0.0


async def test_a_verdict_on_the_conversation_is_not_one_on_another_response(store: Store) -> None:
    sessions = Sessions(NotesEnvironment(), store)
    session = await sessions.seed(TASK)
    await run(AGENT, session)
    first = await session.verify()
    assert await (await sessions.open(session.id)).verify() == first
    with raises(SessionSealed):
        await session.verify({"output": []})


async def test_a_fork_of_the_past_is_judged_by_what_was_said_until_then(store: Store) -> None:
    session = await Sessions(NotesEnvironment(), store).seed(TASK)
    await run(AGENT, session)
    (fork,) = await session.fork(3, n=1)
    assert [item["type"] for item in (await fork.verify()).details["output"]] == ["function_call"]


async def test_a_stored_session_is_rescored_by_what_was_said(store: Store) -> None:
    session = await Sessions(NotesEnvironment(), store).seed(TASK)
    await run(AGENT, session)
    verdict = await session.verify()
    rescorer = Rescorer(NotesEnvironment(), store)
    assert (await rescorer.judge(session.id)).verdict == verdict
    before = await rescorer.judge(session.id, at=3)
    assert [item["type"] for item in before.verdict.details["output"]] == ["function_call"]

"""An agent whose view is bounded: what happens where the bounds meet the loop."""

import asyncio

import pytest

from stateroom import Sessions, tool
from stateroom.agent import Agent, Anchor, Context, DropOldest, Estimate, Summarise, Threads, recall, run
from stateroom.errors import ContextOverflow
from stateroom.model import Answer, Model, Request, Scripted, Usage, function_call, message
from stateroom.session import Session
from stateroom.store import Store
from tests.environments import Tally, Unjudged
from tests.messages import raises

LOOK = [function_call("look", "a")]


class Library(Unjudged[Tally]):
    """Read."""

    @tool(effect="read")
    def look(self, state: Tally) -> str:
        """Read a page."""
        return "There is much to read. " * 200


@pytest.fixture
async def session(store: Store) -> Session[Tally]:
    return await Sessions[Tally](Library(), store).seed({"responses_create_params": {"input": "Read."}})


class Stuck(Model):
    """Never answers."""

    async def answer(self, request: Request) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError


class Reporting(Model):
    """Takes far more tokens than are counted, and says so."""

    async def answer(self, request: Request) -> Answer:
        counted = sum(map(Estimate().count, request.items))
        return Answer([message("Yes.")], Usage(3 * counted, 1))


async def test_a_result_that_no_view_has_room_for_fails_the_task_and_is_on_record_once(session: Session[Tally]) -> None:
    with raises(ContextOverflow):
        await run(Agent(Scripted([LOOK, "Done."]), context=Context(500)), session)
    assert session.agent.status.phase == "failed"
    assert [item["type"] for item in (await recall(session.agent)).items] == ["function_call", "function_call_output"]


async def test_a_summary_takes_no_longer_than_the_deadline_lets_it(session: Session[Tally]) -> None:
    context = Context(2_500, [Summarise(Stuck()), DropOldest()])
    found = await run(Agent(Scripted([LOOK] * 9), context=context, deadline=1), session)
    assert (found.status, found.reason) == ("incomplete", "deadline")
    assert found.output[-1]["type"] == "function_call_output"


async def test_a_long_word_of_the_users_does_not_end_the_conversation_for_good() -> None:
    agent = Agent(Reporting(), context=Context(1_000))
    async with Threads.open("memory://") as threads:
        thread = await threads.create()
        for said in ("7" * 2_700, "Thanks.", "And now?"):
            await threads.add(thread.id, said)
            assert (await threads.run(thread.id, agent)).status == "completed"


@pytest.mark.parametrize("reported", [2_000, 5_000, 90_000])
def test_an_estimate_of_a_small_view_follows_its_size(reported: int) -> None:
    anchor = Anchor(1_000, reported)
    assert anchor.estimate(1_000) == reported
    assert anchor.estimate(10) == max(20, reported // 100)

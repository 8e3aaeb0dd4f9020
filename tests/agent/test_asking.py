"""Asking for input: the session waits, whoever provides it, wherever; nothing is done twice."""

import json
from pathlib import Path
from typing import Any

import pytest

from stateroom import Sessions
from stateroom.agent import Agent, Trajectory, recall, run
from stateroom.errors import InvalidMove, SessionClosed, SessionError, SessionSealed
from stateroom.model import Item, Model, Scripted, function_call
from stateroom.session import Session
from stateroom.store import Store
from tests.agent.asking import CALLS, Office, OfficeEnvironment, letters, says
from tests.messages import raises


class Room:
    """A session, and what its tools have begun."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.environment = OfficeEnvironment()
        self.sessions = Sessions[Office](self.environment, store)
        self.outbox = folder / "outbox"
        self.session: Session[Office]

    async def begin(self) -> Session[Office]:
        self.session = await self.sessions.seed({"outbox": str(self.outbox)})
        return self.session

    @property
    def ran(self) -> list[str]:
        return self.environment.ran

    @property
    def sent(self) -> int:
        return letters(self.outbox)

    async def run(self, model: Model, **settings: Any) -> Trajectory:
        return await run(Agent(model, **settings), self.session)


@pytest.fixture
async def room(store: Store, tmp_path: Path) -> Room:
    made = Room(store, tmp_path)
    await made.begin()
    return made


def outputs(items: list[Item]) -> list[Any]:
    return [json.loads(item["output"]) for item in items if item["type"] == "function_call_output"]


async def test_a_tool_that_asks_waits_and_goes_on_with_the_answer(room: Room) -> None:
    session, model = room.session, says("pay")
    waiting = await room.run(model)
    assert (waiting.status, waiting.question) == ("waiting", "Pay 300?")
    assert (session.agent.status.phase, session.agent.status.question, session.state.paid) == (
        "waiting_feedback",
        "Pay 300?",
        0,
    )
    again = await room.run(model)
    assert (again.status, again.question, again.output, room.ran) == ("waiting", "Pay 300?", [], ["pay 300"])
    stance = await session.agent.answer("yes")
    assert (stance.phase, stance.question) == ("executing", None)
    done = await room.run(model)
    assert (done.status, outputs(done.output)) == ("completed", ["paid, and told 'yes'"])
    assert (session.state.paid, room.ran) == (300, ["pay 300", "pay 300"])
    kinds = [entry.kind async for entry in session.log()]
    assert kinds == ["seed", "message", "message", "message", "call", "message"]


async def test_a_tool_may_ask_twice_in_one_call(room: Room) -> None:
    for question, given in (("Do you agree?", "yes"), ("And you?", {"sure": [1, None, True]})):
        waiting = await room.run(says("two"))
        assert (waiting.question, room.session.state.paid) == (question, 0)
        await room.session.agent.answer(given)
    done = await room.run(says("two"))
    assert outputs(done.output) == [["yes", {"sure": [1, None, True]}]]
    assert (room.session.state.paid, len(room.ran)) == (300, 3)


@pytest.mark.parametrize("times", [0, 1, 2, 3])
async def test_an_external_tool_asks_before_it_reaches_outside_and_does_so_once(room: Room, times: int) -> None:
    model = Scripted([[function_call("send", "c", times=times)], "done"])
    for number in range(times):
        assert (await room.run(model)).question == f"Question {number}?"
        assert (room.sent, room.session.state.notes) == (0, [])
        assert (await room.run(model)).question == f"Question {number}?"
        await room.session.agent.answer(number)
    done = await room.run(model)
    assert (done.status, outputs(done.output)) == ("completed", [list(range(times))])
    assert (room.sent, room.session.state.notes, len(room.ran)) == (1, ["sent"], times + 1)
    kinds = [entry.kind async for entry in room.session.log() if entry.kind != "message"]
    assert kinds == ["seed", *["started", "asked"] * times, "started", "call"]


async def test_chance_is_the_same_before_and_after_the_answer(room: Room) -> None:
    model = Scripted([[function_call("guess", "c")], "done"])
    question = (await room.run(model)).question
    await room.session.agent.answer("fine")
    [number] = outputs((await room.run(model)).output)
    assert question == f"Is {number} all right?"


async def test_a_tool_cannot_go_on_without_the_answer(room: Room) -> None:
    assert (await room.run(Scripted([[function_call("insist", "c")], "done"]))).question == "May I?"


async def test_called_by_hand_it_says_that_it_needs_input_and_changes_nothing(room: Room) -> None:
    result = await room.session.call("pay", {"amount": 5}, call_id="c")
    assert (result.ok, result.code, result.error) == (False, "needs_input", "Pay 5?")
    assert (room.session.state.paid, room.session.revision) == (0, 1)


async def test_what_cannot_be_stored_is_refused_and_it_waits_still(room: Room) -> None:
    await room.run(says("pay"))
    with raises(SessionError):
        await room.session.agent.answer(object())
    assert room.session.agent.status.phase == "waiting_feedback"
    await room.session.agent.answer("yes")
    assert (await room.run(says("pay"))).status == "completed"


@pytest.mark.every_store
@pytest.mark.parametrize("asks", ["pay", "ask_user"])
async def test_calls_before_it_are_not_made_again_and_those_after_it_once(room: Room, asks: str) -> None:
    calls = list(CALLS["among"])
    if asks == "ask_user":
        calls[2] = function_call("ask_user", "same", question="Pay 300?")
    model = Scripted([calls, "done"])
    waiting = await room.run(model, asks=True)
    assert (waiting.question, outputs(waiting.output)) == ("Pay 300?", [1, 1])
    before = list(room.ran)
    assert before[:2] == ["note before", "look"]
    await room.session.agent.answer("yes")
    await room.run(model, asks=True)
    assert room.ran[len(before) :] == [*(["pay 300"] if asks == "pay" else []), "look", "note after"]
    results = [
        item["output"] for item in (await recall(room.session.agent)).items if item["type"] == "function_call_output"
    ]
    assert results == ["1", "1", "\"paid, and told 'yes'\"" if asks == "pay" else "yes", "1", "2"]
    assert (room.session.state.notes, room.session.agent.status.open) == (["before", "after"], ())


async def test_a_read_that_asks_among_reads_keeps_their_order(room: Room) -> None:
    calls = [function_call(name, name) for name in ("look", "peek", "look")]
    model = Scripted([[*calls, function_call("note", "n", text="x")], "done"])
    assert (await room.run(model)).question == "May I look?"
    assert room.session.state.notes == []
    await room.session.agent.answer("yes")
    await room.run(model)
    assert outputs((await recall(room.session.agent)).items) == [0, "0 yes", 0, 1]
    assert room.session.state.notes == ["x"]


async def test_an_answer_is_for_the_call_that_asked_and_no_other(room: Room) -> None:
    model = Scripted([CALLS["pay"], CALLS["pay"], "done"])
    await room.run(model)
    await room.session.agent.answer("yes")
    assert (await room.run(model)).question == "Pay 300?"
    assert room.session.state.paid == 300


@pytest.mark.parametrize(("given", "read"), [("blue", "blue"), ({"colour": "blue"}, '{"colour":"blue"}'), (7, "7")])
async def test_a_model_that_asks_reads_the_answer_as_its_calls_result(room: Room, given: Any, read: str) -> None:
    model = Scripted([[function_call("ask_user", "q", question="Which colour?")], "done"])
    waiting = await room.run(model, asks=True)
    assert (waiting.status, waiting.question) == ("waiting", "Which colour?")
    await room.session.agent.answer(given)
    assert (await room.run(model, asks=True)).status == "completed"
    items = (await recall(room.session.agent)).items
    assert items[1] == {"type": "function_call_output", "call_id": "q", "output": read}


@pytest.mark.parametrize(
    ("arguments", "question"), [("{not json", "{not json"), ('{"why": 1}', '{"why": 1}'), ("", "")]
)
async def test_a_question_that_cannot_be_read_is_put_as_it_is(room: Room, arguments: str, question: str) -> None:
    call = {"type": "function_call", "call_id": "q", "name": "ask_user", "arguments": arguments}
    assert (await room.run(Scripted([[call], "done"]), asks=True)).question == question
    await room.session.agent.answer("what?")
    assert (await room.run(Scripted([[call], "done"]), asks=True)).status == "completed"


async def test_a_model_that_may_not_ask_has_no_such_tool(room: Room) -> None:
    model = Scripted([[function_call("ask_user", "q", question="Which?")], "done"])
    [output] = outputs((await room.run(model)).output)
    assert output["error"]["code"] == "unknown_tool"


@pytest.mark.parametrize("moves", [[], ["new_task"], ["new_task", "plan_ready"], ["cancel"], ["limit_reached"]])
async def test_what_nobody_has_asked_for_is_refused_and_changes_nothing(room: Room, moves: list[str]) -> None:
    for move in moves:
        await room.session.agent.move(move)
    before = (room.session.agent.status, room.session.revision)
    with raises(InvalidMove):
        await room.session.agent.answer("yes")
    assert (room.session.agent.status, room.session.revision) == before


@pytest.mark.parametrize("name", ["pay", "two", "send", "among"])
async def test_it_can_be_cancelled_while_it_waits(room: Room, name: str) -> None:
    await room.run(says(name))
    stance = await room.session.agent.cancel("too dear")
    assert (stance.phase, stance.open, stance.question, stance.asking) == ("cancelled", (), None, None)
    ended = await room.run(says(name))
    assert (ended.status, ended.output) == ("cancelled", [])
    items = (await recall(room.session.agent)).items
    calls = [item["call_id"] for item in items if item["type"] == "function_call"]
    answered = [item["call_id"] for item in items if item["type"] == "function_call_output"]
    assert answered == calls
    assert outputs(items)[-1] == {"error": {"code": "cancelled", "message": "the agent was cancelled"}}
    for refused in (room.session.agent.answer("yes"), room.session.agent.cancel()):
        with raises(InvalidMove):
            await refused
    assert (room.session.state.paid, room.sent) == (0, 0)


async def test_a_session_that_was_judged_or_closed_hears_nothing_more(room: Room) -> None:
    await room.run(says("pay"))
    await room.session.verify()
    with pytest.raises(SessionSealed):
        await room.session.agent.answer("yes")
    await room.begin()
    await room.run(says("pay"))
    await room.session.close()
    with pytest.raises(SessionClosed):
        await room.session.agent.answer("yes")

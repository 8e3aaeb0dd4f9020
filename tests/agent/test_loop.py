"""The tool loop: turns, limits, and what a policy may get wrong."""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from stateroom import Environment, Sessions, tool
from stateroom.agent import Agent, Trajectory, act, run
from stateroom.errors import DefinitionError, ModelFailed
from stateroom.model import Answer, Item, Noisy, Policy, Scripted, Usage, function_call, message
from stateroom.session import MAX_READS, Session, Update
from stateroom.store import Store
from tests.environments import Tally, Unjudged
from tests.messages import raises, says


class TallyEnvironment(Environment[Tally]):
    """Add up."""

    @tool
    def add(self, state: Tally, number: int) -> int:
        """Add a number."""
        state.total += number
        return state.total

    @tool
    async def add_slowly(self, state: Tally, number: int) -> int:
        """Add a number, some day."""
        await asyncio.Event().wait()
        return number

    def verify(self, state: Tally) -> float:
        return float(state.total)


@pytest.fixture
async def session(store: Store) -> Session[Tally]:
    return await Sessions[Tally](TallyEnvironment(), store).seed({})


class Says(Policy):
    """Answers with what it was given, turn by turn; a function is asked, an exception raised."""

    def __init__(self, *turns: Any) -> None:
        super().__init__()
        self.turns = list(turns)
        self.seen: list[list[Item]] = []

    def respond(self, conversation: list[Item], tools: list[Item]) -> Any:
        self.seen.append(list(conversation))
        turn = self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]
        if isinstance(turn, BaseException):
            raise turn
        return turn() if callable(turn) else turn


def raw_call(arguments: Any, name: Any = "add", call_id: Any = "c") -> Item:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": arguments}


def outputs(trajectory: Trajectory) -> list[Any]:
    return [json.loads(item["output"]) for item in trajectory.output if item["type"] == "function_call_output"]


async def go(
    session: Session[Any], policy: Policy, task: list[Item], *, on_step: Any = None, **limits: Any
) -> Trajectory:
    return await act(session, session.agent, Agent(policy, **limits), session.tools, task, on_step=on_step)


DONE = [message("done")]
ASK = [{"type": "message", "role": "user", "content": "go"}]


async def test_turns_go_on_until_a_message_without_calls(session: Session[Tally]) -> None:
    policy = Says([function_call("add", "a", number=1)], [function_call("add", "b", number=2)], DONE)
    trajectory = await go(session, policy, ASK)
    assert (trajectory.status, trajectory.reason) == ("completed", None)
    assert [item["type"] for item in trajectory.output] == [*("function_call", "function_call_output") * 2, "message"]
    assert outputs(trajectory) == [1, 3]
    assert policy.seen[2] == [*ASK, *trajectory.output[:-1]]


@pytest.mark.parametrize(
    "call",
    [
        *map(raw_call, ["{not json", '{"number": 1', "[" * 100_000, {"number": 1}, "[1]", '"1"', "{}", "", None]),
        *map(raw_call, ['{"number": 1, "more": 2}', '{"number": "x"}']),
        *(raw_call("{}", name=name) for name in ("subtract", "verify")),
    ],
)
async def test_a_bad_call_goes_back_to_the_model(session: Session[Tally], call: Item) -> None:
    policy = Says([call], [function_call("add", "c", number=5)], DONE)
    trajectory = await go(session, policy, ASK)
    first, second = outputs(trajectory)
    assert first["error"]["code"] in ("invalid_arguments", "unknown_tool")
    assert len(first["error"]["message"]) < 300
    says(first["error"]["message"])
    assert (second, trajectory.status) == (5, "completed")


async def test_max_steps_ends_an_endless_policy(session: Session[Tally]) -> None:
    trajectory = await go(session, Says([function_call("add", "c", number=1)]), ASK, max_steps=7)
    assert (trajectory.status, trajectory.reason) == ("incomplete", "max_steps")
    assert session.state.total == 7
    assert len(trajectory.output) == 14


async def test_a_deadline_cuts_off_a_policy_that_waits(session: Session[Tally]) -> None:
    async def forever() -> list[Item]:
        await asyncio.Event().wait()
        return DONE

    policy = Says([function_call("add", "c", number=1)], forever)
    trajectory = await go(session, policy, ASK, deadline=1)
    assert (trajectory.status, trajectory.reason) == ("incomplete", "deadline")
    assert outputs(trajectory) == [1]
    assert (await session.verify()).reward == 1.0


async def test_a_deadline_in_a_tool_leaves_no_call_open(session: Session[Tally]) -> None:
    turn = [function_call("add", "same", number=1), function_call("add_slowly", "same", number=1)]
    trajectory = await go(session, Says(turn), ASK, deadline=1)
    assert trajectory.reason == "deadline"
    first, second = outputs(trajectory)
    assert (first, second["error"]["code"]) == (1, "deadline")
    assert (await session.call("add", {"number": 1})).output == 2


async def test_a_deadline_passes_although_nothing_ever_waits(session: Session[Tally]) -> None:
    limits = {"max_steps": 20_000, "max_invalid_calls": 20_000, "deadline": 0.02}
    assert (await go(session, Says([raw_call("{not json")]), ASK, **limits)).reason == "deadline"


async def test_calls_that_cannot_be_tried_end_the_episode_when_they_are_too_many_in_a_row(
    session: Session[Tally],
) -> None:
    bad, good = raw_call("{}", name="subtract"), function_call("add", "c", number=1)
    trajectory = await go(session, Says([bad, bad], [bad, good], [bad], [bad, bad]), ASK, max_invalid_calls=3)
    assert (trajectory.status, trajectory.reason, session.agent.status.phase) == ("incomplete", "bad_calls", "done")
    assert [output if output == 1 else output["error"]["code"] for output in outputs(trajectory)] == [
        *("unknown_tool", "unknown_tool", "unknown_tool"),
        *(1, "unknown_tool", "unknown_tool", "unknown_tool"),
    ]


async def test_each_step_is_told_of_when_it_is_done(session: Session[Tally]) -> None:
    steps: list[tuple[int, list[Item]]] = []

    async def note(items: list[Item]) -> None:
        steps.append((session.state.total, items))

    turn = [function_call("add", "a", number=1), function_call("add", "b", number=2)]
    trajectory = await go(session, Says(turn, turn, DONE), ASK, on_step=note)
    assert [total for total, _ in steps] == [3, 6, 6]
    assert [len(items) for _, items in steps] == [4, 4, 1]
    assert [item for _, items in steps for item in items] == trajectory.output


class Async(Policy):
    async def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        await asyncio.sleep(0)
        return DONE if len(conversation) > 1 else [function_call("add", "c", number=1)]


class Errs(Noisy):
    better, rate = Async, 1.0

    def err(self, items: list[Item]) -> list[Item]:
        return [message("oops")]


async def test_a_policy_may_be_async_and_a_noisy_one_errs_over_it(session: Session[Tally]) -> None:
    assert outputs(await go(session, Async(), ASK)) == [1]
    answer: Any = Errs(0).respond([], [])
    assert await answer == [message("oops")]


async def test_an_empty_answer_ends_the_episode(session: Session[Tally]) -> None:
    assert (await go(session, Says([]), ASK)).status == "completed"


NONSENSE: list[Callable[[], Any]] = [
    lambda: None,
    lambda: "hello",
    lambda: [1],
    lambda: [{"role": "assistant"}],
    lambda: [{"type": ["message"]}],
    lambda: [{"type": "message", "content": 7}],
    lambda: [{"type": "message", "content": ["hello"]}],
    lambda: [{"type": "reasoning", "content": [{"text": 7}]}],
    lambda: [{"type": "function_call", "name": "add"}],
    lambda: [raw_call("{}", name=["add"])],
    lambda: [raw_call("{}", name=None)],
    lambda: [raw_call("{}", call_id=None)],
    lambda: [raw_call("{}"), {"type": "function_call_output", "call_id": "c", "output": "3"}],
    lambda: [{"type": "message", "content": {1, 2}}],
    lambda: dict[str, Any]()["key"],
    lambda: sys.exit("enough"),
]


@pytest.mark.parametrize("turn", NONSENSE)
async def test_a_policy_that_raises_or_talks_nonsense_has_failed(
    session: Session[Tally], turn: Callable[[], Any]
) -> None:
    with raises(ModelFailed) as caught:
        await go(session, Says(turn), ASK)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("usage", [{"input_tokens": 7}, Usage(None, 7), Usage("7", 7)])  # type: ignore[arg-type]
async def test_a_usage_that_cannot_be_summed_is_nonsense_too(session: Session[Tally], usage: Any) -> None:
    with raises(ModelFailed):
        await run(Agent(Scripted([Answer(DONE, usage)])), session)


@pytest.mark.parametrize("error", [TimeoutError("model"), asyncio.CancelledError("mine")])
async def test_what_a_policy_raises_is_not_taken_for_the_deadline(
    session: Session[Tally], error: BaseException
) -> None:
    with raises(ModelFailed):
        await go(session, Says(error), ASK, deadline=60)


async def test_bad_calls_of_one_turn_are_not_held_against_the_next(session: Session[Tally]) -> None:
    bad = [function_call("nothing", "c")]
    limited = Agent(Says(bad, bad, bad, DONE), max_invalid_calls=2)
    assert (await run(limited, session)).reason == "bad_calls"
    await session.agent.say(Update(ASK, "user", ("new_task",)))
    assert (await run(limited, session)).status == "completed"


async def test_calls_that_were_open_when_a_turn_was_ended_are_not_made_in_the_next(session: Session[Tally]) -> None:
    await session.agent.say(Update([function_call("add", "c", number=1)], "model", ("new_task", "plan_ready")))
    await session.agent.move("cancel")
    await session.agent.say(Update(ASK, "user", ("new_task",)))
    trajectory = await run(Agent(Says(DONE)), session)
    assert trajectory.status == "completed"
    assert outputs(trajectory)[0]["error"]["code"] == "cancelled"
    assert session.agent.status.open == ()
    assert session.state.total == 0


@pytest.mark.parametrize("name", ["ask_user", "make_plan"])
async def test_an_agents_own_tool_and_one_of_the_same_name_are_one_too_many(session: Session[Tally], name: str) -> None:
    with raises(DefinitionError):
        await act(
            session, session.agent, Agent(Says(DONE), asks=True, plan=True), [{"type": "function", "name": name}], ASK
        )


class Oracle(Unjudged[None]):
    """Without a state, so no session keeps its calls apart."""

    def __init__(self) -> None:
        self.running = self.most = 0

    @tool(effect="read")
    async def ask(self, number: int) -> int:
        """The same number, after a moment."""
        self.running += 1
        self.most = max(self.most, self.running)
        for _ in range(3):
            await asyncio.sleep(0)
        self.running -= 1
        return number


async def test_of_many_reads_in_one_answer_a_few_run_at_once(store: Store) -> None:
    oracle, count = Oracle(), 50 * MAX_READS
    session = await Sessions[None](oracle, store).seed({})
    calls = [function_call("ask", f"c{number}", number=number) for number in range(count)]
    found = await run(Agent(Says(calls, DONE)), session)
    assert outputs(found) == [*range(count)]
    assert oracle.most == MAX_READS

"""A user whom a model plays: what it is shown, how it ends, its own tools, and how it fails."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from stateroom import Environment, Sessions, State, ToolError, tool
from stateroom.agent import Agent, Context, SimulatedUser, UserSide, recall, run
from stateroom.errors import DefinitionError, EnvironmentFailed, ModelFailed, ModelUnavailable, NotFound
from stateroom.model import Answer, Item, Model, Request, Scripted, Usage, function_call, message, text_of
from stateroom.session import Session
from stateroom.store import Store
from tests.agent.models import Remembers
from tests.messages import raises, says

BYE = [function_call("end_conversation", "e")]


class Chat(State):
    purse: int = 100
    user: UserSide = UserSide()
    heard: list[str] = []


def pay(state: Chat, amount: int) -> int:
    """Pay from one's purse."""
    if amount > state.purse:
        raise ToolError("there is not so much in it")
    state.purse -= amount
    return state.purse


async def count(state: Chat) -> dict[str, int]:
    """Look into one's purse."""
    return {"left": state.purse}


class ChatEnvironment(Environment[Chat]):
    """Talk to a customer."""

    def __init__(self, user: SimulatedUser) -> None:
        self.user = user

    @tool
    def note(self, state: Chat, text: str) -> None:
        """Write something down."""
        state.heard.append(text)

    async def reply(self, state: Chat, message: str, rng: Random) -> str | None:
        return await self.user.reply(
            state.user, message, about="You want a cup of tea.", state=state, seed=rng.getrandbits(32)
        )

    def verify(self, state: Chat) -> float:
        return float(state.user.ended)


class Polite(Model):
    """Says please, and then goodbye."""

    async def answer(self, request: Request) -> Answer:
        return Answer([message("A cup of tea, please.")] if request.step == 0 else BYE)


async def test_a_model_by_its_spec(store: Store) -> None:
    environment = ChatEnvironment(SimulatedUser("tests.agent.test_simulated:Polite", "You are a customer."))
    session = await Sessions[Any](environment, store).seed(TASK)
    assert await session.reply("What would you like?", call_id="1") == "A cup of tea, please."
    assert await session.reply("Here you are.", call_id="2") is None
    with raises(NotFound):
        SimulatedUser("gpt", "You are a customer.")


TASK = {"responses_create_params": {"input": "Hello!"}}
AGENT = Scripted(["What would you like?", [function_call("note", "n", text="tea")], "Here you are.", "Bye.", "Still?"])


Begin = Callable[..., Any]


@pytest.fixture
def begin(store: Store) -> Begin:
    """Seeds a session whose user gives these answers."""

    async def begin(*answers: Any, **settings: Any) -> tuple[Session[Chat], Remembers]:
        model = Remembers(*answers)
        environment = ChatEnvironment(SimulatedUser(model, "You are a customer.", **settings))
        return await Sessions[Chat](environment, store).seed(TASK, seed=7), model

    return begin


def texts(items: list[Item]) -> list[tuple[str, str]]:
    return [(item["role"], text_of(item)) for item in items if item["type"] == "message"]


class OpenedEnvironment(ChatEnvironment):
    """A customer who speaks first."""

    async def reply(self, state: Chat, rng: Random, message: str = "") -> str | None:  # type: ignore[override]
        return await super().reply(state, message, rng)


async def test_the_user_speaks_first_where_the_task_has_no_message_of_theirs(store: Store) -> None:
    user = Remembers("Tea, please.", "Thank you!", BYE)
    sessions = Sessions[Chat](OpenedEnvironment(SimulatedUser(user, "You are a customer.")), store)
    policy = {"type": "message", "role": "developer", "content": "Be kind."}
    session = await sessions.seed({"responses_create_params": {"input": [policy]}})
    agent = Remembers([function_call("note", "n", text="tea")], "Here you are.", "Bye.")
    trajectory = await run(Agent(agent), session)
    assert texts([*agent.asked[0].items])[:2] == [("developer", "Be kind."), ("user", "Tea, please.")]
    assert texts(trajectory.output)[:2] == [("user", "Tea, please."), ("assistant", "Here you are.")]
    assert (trajectory.status, session.state.user.answers) == ("completed", 3)
    assert user.asked[0].items[0]["role"] == "user"  # a model can only answer


async def test_the_first_words_of_a_user_are_asked_for_once(store: Store) -> None:
    class Unavailable(Model):
        async def answer(self, request: Request) -> Answer:
            raise ModelUnavailable("not now")

    user = Remembers("Tea, please.", BYE)
    session = await Sessions[Chat](OpenedEnvironment(SimulatedUser(user, "You are a customer.")), store).seed({})
    with pytest.raises(ModelUnavailable):
        await run(Agent(Unavailable()), session)
    assert (await run(Agent(Scripted(["Here you are."])), session)).status == "completed"
    assert len(user.asked) == 2


async def test_the_agent_speaks_first_where_the_user_does_not(store: Store) -> None:
    user = Remembers(BYE)
    session = await Sessions[Chat](ChatEnvironment(SimulatedUser(user, "You are a customer.")), store).seed({})
    assert texts((await run(Agent(Scripted(["Hello!"])), session)).output) == [("assistant", "Hello!")]


async def test_agent_and_user_talk_until_the_user_ends_it(begin: Begin) -> None:
    session, model = await begin("Tea, please.", "Thank you!", BYE)
    trajectory = await run(Agent(AGENT), session)
    assert (trajectory.status, session.agent.status.phase) == ("completed", "done")
    assert texts(trajectory.output) == [
        ("assistant", "What would you like?"),
        ("user", "Tea, please."),
        ("assistant", "Here you are."),
        ("user", "Thank you!"),
        ("assistant", "Bye."),
    ]
    assert session.state.heard == ["tea"]
    assert (await session.verify()).reward == 1.0
    last = model.asked[-1]
    assert texts([*last.items]) == [  # the user sees the roles from its own side
        ("user", "What would you like?"),
        ("assistant", "Tea, please."),
        ("user", "Here you are."),
        ("assistant", "Thank you!"),
        ("user", "Bye."),
    ]
    assert last.settings["instructions"] == "You are a customer.\n\nYou want a cup of tea."
    assert [each["name"] for each in last.tools] == ["end_conversation"]
    assert [request.step for request in model.asked] == [0, 1, 2]


async def test_a_stop_mark_ends_it_and_takes_the_place_of_the_tool(begin: Begin) -> None:
    session, model = await begin("Tea, please.", "Good bye. <end>", stop="<end>")
    trajectory = await run(Agent(AGENT), session)
    assert [text for role, text in texts(trajectory.output) if role == "user"] == ["Tea, please."]
    assert (trajectory.status, session.state.user.ended) == ("completed", True)
    assert model.asked[0].tools == []
    assert "say only <end>" in model.asked[0].settings["instructions"]


async def test_who_has_ended_it_is_not_asked_again(begin: Begin) -> None:
    session, model = await begin(BYE)
    assert await session.reply("Hello?", call_id="1") is None
    assert await session.reply("Anybody?", call_id="2") is None
    assert len(model.asked) == 1


async def test_its_own_tools_act_on_the_state_in_the_same_commit_as_the_reply(begin: Begin) -> None:
    calls = [function_call("pay", "p", amount=30), function_call("count", "c")]
    session, model = await begin(calls, "I have paid.", tools=[pay, count])
    before = session.revision
    assert await session.reply("That is 30.", call_id="1") == "I have paid."
    assert (session.state.purse, session.revision) == (70, before + 1)
    outputs = [item["output"] for item in model.asked[1].items if item["type"] == "function_call_output"]
    assert outputs == ["70", '{"left":70}']
    assert [each["name"] for each in model.asked[0].tools] == ["pay", "count", "end_conversation"]


@pytest.mark.parametrize(
    "call",
    [
        function_call("pay", "p", amount=300),
        function_call("pay", "p", amount="all"),
        function_call("steal", "p"),
        function_call("note", "p", text="x"),
        {**function_call("pay", "p"), "arguments": "{"},
    ],
)
async def test_a_bad_call_of_the_users_goes_back_to_its_model(begin: Begin, call: Item) -> None:
    session, model = await begin([call], "Never mind.", tools=[pay])
    assert await session.reply("That is 300.", call_id="1") == "Never mind."
    says(model.asked[1].items[-1]["output"])
    assert (session.state.purse, session.state.heard) == (100, [])


async def test_a_model_that_cannot_be_reached_may_be_there_later_and_nothing_is_lost(begin: Begin) -> None:
    session, model = await begin("Tea, please.", ModelUnavailable("busy"), tools=[pay])
    with raises(ModelUnavailable):
        await run(Agent(AGENT), session)
    assert session.agent.status.phase == "waiting_feedback"
    model.script = Scripted(["Tea, please.", "Thank you!", BYE])
    trajectory = await run(Agent(AGENT), session)
    assert trajectory.status == "completed"
    said = texts((await recall(session.agent)).items)
    assert [text for role, text in said if role == "user"] == ["Tea, please.", "Thank you!"]
    assert [request.step for request in model.asked] == [0, 1, 1, 2]


@pytest.mark.parametrize(
    "answers", [["  "], [[]], [[{"role": "assistant"}]], [ValueError("no")], [[function_call("count", "c")]] * 3]
)
async def test_a_model_that_makes_no_user_has_failed_and_the_state_is_as_before(
    begin: Begin, answers: list[Any]
) -> None:
    session, _ = await begin(*answers, tools=[count], max_steps=3)
    with raises(ModelFailed):
        await session.reply("Hello?", call_id="1")
    assert (session.revision, session.state.user.said) == (1, [])


async def test_a_tool_of_the_users_that_breaks_is_the_environments_failure(begin: Begin) -> None:
    def burn(state: Chat) -> None:
        """Burn one's purse."""
        state.purse = 0
        raise OSError

    session, _ = await begin([function_call("burn", "b")], tools=[burn])
    with raises(EnvironmentFailed):
        await session.reply("Hello?", call_id="1")
    assert (session.state.purse, session.revision) == (100, 1)


async def test_the_same_seed_asks_the_model_the_same(begin: Begin) -> None:
    asked = []
    for _ in range(2):
        session, model = await begin("Tea, please.", "Thank you!", BYE)
        await run(Agent(AGENT), session)
        asked.append([(request.items, request.seed) for request in model.asked])
    assert asked[0] == asked[1]
    assert len({seed for _, seed in asked[0]}) == 3


async def test_its_view_stays_within_the_budget_and_all_is_kept(begin: Begin) -> None:
    context = Context(budget=400)
    session, model = await begin(*[f"answer {number} " + "word " * 20 for number in range(12)], context=context)
    for number in range(12):
        await session.reply(f"question {number} " + "word " * 20, call_id=str(number))
    beside = context.beside(model.asked[0].tools, model.asked[0].settings["instructions"])
    for request in model.asked:
        assert sum(context.count(request.items)) + beside <= 400
        assert text_of(request.items[-1]).startswith(f"question {request.step} ")
    assert (len(session.state.user.said), session.state.user.since > 12) == (24, True)  # the view starts from the last


async def test_what_its_answers_took_is_summed(begin: Begin) -> None:
    told = Answer([message("Tea.")], Usage(10, 3))
    session, _ = await begin(told, "More.", told)
    for number in range(3):
        await session.reply("And?", call_id=str(number))
    side = session.state.user
    assert (side.input_tokens, side.output_tokens, side.answers) == (20, 6, 3)


def test_tools_that_cannot_be_given_to_a_user_are_refused() -> None:
    def nothing() -> None:
        """Do nothing."""

    def lucky(state: Chat, rng: Random) -> None:
        """Try one's luck."""

    def untyped(state: Chat, amount) -> None:
        """Pay."""

    def silent(state: Chat) -> None: ...

    def end_conversation(state: Chat) -> None:
        """End it."""

    class Thing:
        def method(self, state: Chat) -> None:
            """Do it."""

    refused: list[Any] = [
        *(nothing, Thing().method, print),  # which have not the state as their first parameter
        lucky,
        untyped,
        silent,
        end_conversation,  # the name of the tool that ends
    ]
    for function in refused:
        with raises(DefinitionError):
            SimulatedUser(Scripted([]), "", tools=[function])

"""An environment's instructions: what they follow from, and what a model is shown of them."""

from typing import Any

import pytest

from stateroom import Environment, Sessions, tool
from stateroom.agent import Agent, Context, run
from stateroom.errors import ContextOverflow, DefinitionError, EnvironmentFailed
from stateroom.model import Item, Noisy, Policy, function_call, message, text_of
from stateroom.store import Store
from tests.agent.trail import ROW, TrailEnvironment, Walking
from tests.environments import Tally, TallyEnvironment, Unjudged
from tests.messages import raises


class TellingEnvironment(TallyEnvironment):
    """Tells how much there is."""

    async def instructions(self, state: Tally, session: Any, task: Any) -> str:
        return f"There is {state.total}, after {session.step} calls, for {task.goal}."


ADDS = [[function_call("add", "a", number=number)] for number in (1, 2)]

TELLING = {"goal": "5", "responses_create_params": {"input": "Add."}}


async def told_to(store: Store, environment: Environment[Any, Any], row: dict[str, Any], **agent: Any) -> list[Any]:
    """The instructions of each request to a model that adds 1 and 2."""
    session = await Sessions[Any](environment, store).seed(row)
    model = Walking(ADDS)
    await run(Agent(model, **agent), session)
    return [instructions for instructions, _, _ in model.shown.values()]


async def test_each_request_has_the_instructions_of_the_state_then(store: Store) -> None:
    assert await told_to(store, TellingEnvironment(), TELLING) == [
        "There is 0, after 0 calls, for 5.",
        "There is 1, after 1 calls, for 5.",
        "There is 3, after 2 calls, for 5.",
    ]


class Reads(Policy):
    """Says the instructions."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        return [message(self.instructions)]


class ReadsNoisily(Noisy):
    """Says them as another policy has read them."""

    better = Reads

    def err(self, items: list[Item]) -> list[Item]:
        return items


@pytest.mark.parametrize("policy", [Reads, ReadsNoisily])
async def test_a_policy_reads_what_a_model_is_told(store: Store, policy: type[Policy]) -> None:
    session = await Sessions[Any](TellingEnvironment(), store).seed(TELLING)
    trajectory = await run(Agent(policy(), settings={"instructions": "Be kind."}), session)
    assert text_of(trajectory.output[-1]) == "Be kind.\n\nThere is 0, after 0 calls, for 5."


async def test_they_follow_what_the_agent_is_told_by_itself_or_by_its_task(store: Store) -> None:
    told = await told_to(store, TellingEnvironment(), TELLING, instructions="Be brief.")
    assert told[0] == "Be brief.\n\nThere is 0, after 0 calls, for 5."
    told = await told_to(store, TellingEnvironment(), TELLING, settings={"instructions": "Be kind."})
    assert told[0] == "Be kind.\n\nThere is 0, after 0 calls, for 5."
    assert await told_to(store, TallyEnvironment(), TELLING) == [None] * 3


async def test_they_know_the_user_as_of_now(store: Store) -> None:
    sessions = Sessions[Any](TrailEnvironment(), store)
    session = await sessions.seed(ROW)
    assert (await session.instructions()).startswith("nobody is at mile 0")
    await (await sessions.seed({})).call("rename", {"name": "Ann"})  # in another session of the same user
    assert (await session.instructions()).startswith("Ann is at mile 0")


async def test_a_stateless_environment_has_instructions_too(store: Store) -> None:
    class Plain(Unjudged[None]):
        """No state."""

        def instructions(self, rng: Any) -> str:
            return f"Your number is {rng.randrange(10)}."

        @tool
        def add(self, number: int) -> int:
            """Add a number."""
            return number

    told = await told_to(store, Plain(), {})
    assert len({*told}) == 1
    assert told[0].startswith("Your number is ")


async def test_a_bounded_context_counts_them(store: Store) -> None:
    class Telling(TallyEnvironment):
        def instructions(self, state: Tally) -> str:
            return "word " * 500 * state.total

    with raises(ContextOverflow):
        await told_to(store, Telling(), TELLING, context=Context(800))
    assert len(await told_to(store, Telling(), TELLING, context=Context(4000))) == 3


def fails(state: Any) -> str:
    raise LookupError("a secret")


def changes(state: Any) -> str:
    state.total = 7
    return "changed"


@pytest.mark.parametrize("function", [fails, changes, lambda state: 7])
async def test_instructions_that_fail_fail_the_turn_and_change_nothing(store: Store, function: Any) -> None:
    class Failing(TallyEnvironment):
        def instructions(self, state: Tally) -> str:
            return function(state)

    session = await Sessions(Failing(), store).seed(TELLING)
    with raises(EnvironmentFailed):
        await run(Agent(Walking(ADDS)), session)
    assert (session.revision, session.state.total) == (1, 0)


def test_a_parameter_that_is_not_injected_is_refused_by_name() -> None:
    with raises(DefinitionError):

        class Wrong(TallyEnvironment):
            def instructions(self, message: str) -> str:
                return message

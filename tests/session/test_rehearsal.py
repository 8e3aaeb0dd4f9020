"""Rehearsals: a verifier asks what other actions would have led to, and nothing comes of asking."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from stateroom import Environment, Episode, SessionInfo, Sessions, State, ToolError, tool
from stateroom.errors import BadTask, DefinitionError, ReadOnlyState
from stateroom.session import Ask, Rescorer
from stateroom.store import Store
from tests.messages import raises


class Profile(State):
    visits: int = 0


class Till(State):
    money: int = 0
    notes: list[str] = []
    approved: bool = False


class TillEnvironment(Environment[Till]):
    """Take and give money."""

    name = "till"
    paid: list[int]

    def __init__(self) -> None:
        self.paid = []

    def seed(self, task: Any) -> Till:
        return Till(money=task.money)

    @tool
    def put(self, state: Till, amount: int) -> int:
        """Put money in."""
        if amount <= 0:
            raise ToolError("there is nothing to put in")
        state.money += amount
        return state.money

    @tool
    async def note(self, state: Till, session: SessionInfo, rng: Random, new_id: Callable[[], str], text: str) -> None:
        """Write something down."""
        state.notes.append(f"{text} {session.task.money} {rng.random()} {new_id()}")

    @tool(effect="read")
    def look(self, state: Till) -> int:
        """What is in it."""
        raise ToolError("nobody looks")

    @tool(effect="external")
    def pay(self, state: Till, amount: int) -> int:
        """Pay somebody."""
        self.paid.append(amount)
        state.money -= amount
        return state.money

    @tool
    def lend(self, state: Till, ask: Ask, amount: int) -> None:
        """Lend money, if somebody says so."""
        if ask(f"Lend {amount}?") == "yes":
            state.money -= amount

    @tool
    def visit(self, state: Till, user: Profile) -> None:
        """Be seen."""
        user.visits += 1

    def reply(self, state: Till, task: Any, message: str) -> str | None:
        state.approved = "may i" in message.lower()
        return f"yes, {task.user}" if state.approved else None

    async def verify(self, state: Till, episode: Episode) -> float:
        lenient = getattr(episode.task, "lenient", False)
        gold = await episode.after(episode.task.gold, external=episode.task.external, skip_failures=lenient)
        return float(gold == state)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


async def reward(
    store: Store, actions: list[dict[str, Any]], gold: list[dict[str, Any]], external: bool = False, **more: Any
) -> float:
    session = await Sessions(TillEnvironment(), store).seed(
        {"money": 5, "user": "ada", "gold": gold, "external": external, **more}
    )
    for number, action in enumerate(actions):
        if "message" in action:
            await session.reply(action["message"], call_id=f"m{number}")
        else:
            assert (await session.call(action["name"], action["arguments"])).ok
    verdict = await session.verify()
    again = await Rescorer(TillEnvironment(), store).judge(session.id)
    assert again.verdict == verdict
    assert [entry.kind async for entry in session.log() if entry.kind == "call"] == ["call"] * len(actions)
    return verdict.reward


async def test_what_the_same_actions_lead_to_is_the_same_with_luck_and_ids(store: Store) -> None:
    actions = [call("put", amount=2), call("note", text="a"), {"message": "May I?"}, call("note", text="b")]
    assert await reward(store, actions, [*actions, call("look")]) == 1
    assert await reward(store, actions[:-1], actions) == 0


async def test_arguments_may_be_json_as_in_a_function_call(store: Store) -> None:
    assert await reward(store, [call("put", amount=2)], [{"name": "put", "arguments": '{"amount": 2}'}]) == 1
    with raises(BadTask):
        await reward(store, [], [{"name": "put", "arguments": '{"amount": '}])


async def test_the_user_who_replies_knows_the_task(store: Store) -> None:
    session = await Sessions(TillEnvironment(), store).seed({"money": 5, "user": "ada", "gold": [], "external": False})
    assert await session.reply("May I?", call_id="m0") == "yes, ada"


async def test_a_fork_rehearses_from_the_seed_too(store: Store) -> None:
    sessions = Sessions(TillEnvironment(), store)
    gold = [call("put", amount=1)] * 12
    session = await sessions.seed({"money": 5, "user": "ada", "gold": gold, "external": False})
    for action in gold[:10]:
        await session.call(action["name"], action["arguments"])
    fork = await session.fork()
    for action in gold[10:]:
        await fork.call(action["name"], action["arguments"])
    assert (await session.verify()).reward == 0
    assert (await fork.verify()).reward == 1


@pytest.mark.parametrize(
    "gold",
    [
        [call("put", amount=1), call("put", amount=0)],
        [call("put", amount="x")],
        [call("steal")],
        [call("pay", amount=1)],
        [call("visit")],
        [call("lend", amount=1)],
        [{"tool": "put"}],
        ["put"],
    ],
)
async def test_actions_that_cannot_be_carried_out_are_named(store: Store, gold: list[Any]) -> None:
    with raises(BadTask):
        await reward(store, [], gold)


FAILING = [call("put", amount=0), call("put", amount="x"), call("steal"), {"name": "put", "arguments": "{"}]


async def test_actions_that_fail_by_design_change_nothing_where_the_verifier_skips_them(store: Store) -> None:
    notes = [call("note", text="a"), call("note", text="b")]
    assert await reward(store, notes, [notes[0], *FAILING, notes[1]], lenient=True) == 1


@pytest.mark.parametrize("action", [call("pay", amount=1), call("visit"), call("lend", amount=1)])
async def test_what_a_rehearsal_cannot_tell_is_never_skipped(store: Store, action: dict[str, Any]) -> None:
    with pytest.raises(BadTask):
        await reward(store, [], [action], lenient=True)


async def test_tools_that_reach_outside_are_run_where_the_verifier_says_so(store: Store) -> None:
    assert await reward(store, [call("pay", amount=2)], [call("pay", amount=2)], external=True) == 1


async def test_what_is_rehearsed_may_only_be_read_and_is_nothing_to_the_session(store: Store) -> None:
    class Greedy(TillEnvironment):
        async def verify(self, state: Till, episode: Episode) -> float:
            gold = await episode.after([call("put", amount=1)])
            with pytest.raises(ReadOnlyState):
                gold.money = 1_000
            return float(state.money)

    session = await Sessions(Greedy(), store).seed({"money": 5, "user": "ada"})
    assert (await session.verify()).reward == 5


async def test_without_a_state_there_is_nothing_to_rehearse(store: Store) -> None:
    class Stateless(Environment):
        """Nothing."""

        async def verify(self, episode: Episode) -> float:
            await episode.after([])
            return 0.0

    session = await Sessions(Stateless(), store).seed({})
    with raises(DefinitionError):
        await session.verify()

"""The lifecycle: each move that there is, each that there is not, and tables of an author's own."""

import re
from itertools import product
from typing import Any

import pytest

from stateroom import Environment, Sessions, tool
from stateroom.agent import Agent, run
from stateroom.errors import InvalidMove, ModelFailed
from stateroom.model import Scripted, function_call
from stateroom.session import STANDARD, AgentInMemory, AgentStatus, Lifecycle, Session, Update
from stateroom.store import Store
from tests.environments import TallyEnvironment, Unjudged
from tests.messages import raises
from tests.processes import ROOT

PHASES = ("idle", "planning", "executing", "waiting_feedback", "done", "failed", "cancelled")

MOVES = STANDARD.table
"""Those on the page of agents."""

EVENTS = sorted({event for _, event in MOVES})

TO = {
    "idle": [],
    "planning": ["new_task"],
    "executing": ["new_task", "plan_ready"],
    "waiting_feedback": ["new_task", "plan_ready", "needs_input"],
    "done": ["limit_reached"],
    "failed": ["fail"],
    "cancelled": ["cancel"],
}
"""The moves by which an agent comes to a phase from the beginning."""


def test_the_page_has_the_moves_that_there_are() -> None:
    page = (
        (ROOT / "docs" / "agents.md").read_text(encoding="utf-8").partition("## The lifecycle")[2].partition("\n## ")[0]
    )
    rows = [
        [re.findall(r"`(\w+)`", cell) for cell in line.split("|")[1:4]]
        for line in page.splitlines()
        if line.startswith("| `")
    ]
    assert {(phase, events[0]): to for phases, events, [to] in rows for phase in phases} == STANDARD.table


async def begun(store: Store, environment: Environment[Any, Any], phase: str) -> Session[Any]:
    session = await Sessions[Any](environment, store).seed({})
    for event in TO[phase]:
        await session.agent.move(event)
    assert session.agent.status.phase == phase
    return session


@pytest.mark.parametrize(("phase", "event"), sorted(MOVES))
async def test_a_move_leads_on_and_is_in_the_log(store: Store, phase: str, event: str) -> None:
    session = await begun(store, TallyEnvironment(), phase)
    stance = await session.agent.move(event, reason="why not")
    assert stance == session.agent.status
    assert stance.phase == MOVES[phase, event]
    newest = [entry async for entry in session.log()][-1]
    assert (newest.kind, newest.facts["moves"], newest.facts["reason"]) == ("message", [event], "why not")
    reopened = await Sessions[Any](TallyEnvironment(), store).open(session.id)
    assert reopened.agent.status == stance


@pytest.mark.parametrize(("phase", "event"), sorted({*product(PHASES, [*EVENTS, "dance"])} - MOVES.keys()))
async def test_any_other_is_an_error_that_names_both_and_changes_nothing(store: Store, phase: str, event: str) -> None:
    session = await begun(store, TallyEnvironment(), phase)
    before = (session.agent.status, session.revision)
    with pytest.raises(InvalidMove) as caught:
        await session.agent.move(event)
    assert (caught.value.phase, caught.value.event) == (phase, event)
    assert all(possible in str(caught.value) for start, possible in MOVES if start == phase)
    assert (session.agent.status, session.revision) == before


async def test_several_moves_are_made_together_or_not_at_all(store: Store) -> None:
    session = await begun(store, TallyEnvironment(), "idle")
    with raises(InvalidMove):
        await session.agent.say(Update([], "agent", ("new_task", "plan_ready", "new_task")))
    assert (session.agent.status.phase, session.revision) == ("idle", 1)


async def test_turns_and_steps_are_counted(store: Store) -> None:
    session = await begun(store, TallyEnvironment(), "idle")
    for turn in range(3):
        await session.agent.say(Update([], "user", ("new_task",)))
        for step in range(1, 3):
            await session.agent.say(Update([], "model", ("step_complete" if step > 1 else "plan_ready",)))
            assert (session.agent.status.turn, session.agent.status.step, session.agent.status.answers) == (
                turn,
                step,
                2 * turn + step,
            )
        await session.agent.move("task_complete")


REVIEWED = STANDARD.with_moves(
    {
        ("executing", "task_complete"): "in_review",
        ("in_review", "approve"): "done",
        ("in_review", "improve"): "planning",
    }
)


class ReviewedEnvironment(TallyEnvironment):
    """What is done is looked at."""

    lifecycle = REVIEWED


ADD = [function_call("add", "a", number=2)]


def test_more_moves_leave_the_table_that_they_were_added_to_as_it_was() -> None:
    assert ("in_review", "approve") not in STANDARD.table
    assert REVIEWED.after("in_review", "approve") == "done"
    assert REVIEWED.possible("in_review") == ["approve", "improve"]


async def test_an_agent_waits_in_a_phase_of_the_authors_own_until_it_is_led_out(store: Store) -> None:
    session = await begun(store, ReviewedEnvironment(), "idle")
    agent = Agent(Scripted([ADD, "two", ADD, "four"]))
    for _ in range(2):  # to run it again changes nothing
        assert (await run(agent, session)).status == "waiting"
        assert (session.agent.status.phase, session.agent.status.answers, session.state.total) == ("in_review", 2, 2)
    await session.agent.move("improve")
    assert (await run(agent, session)).status == "waiting"
    assert session.state.total == 4
    await session.agent.move("approve")
    assert (await run(agent, session)).status == "completed"
    with raises(InvalidMove):
        await session.agent.move("approve")


async def test_a_phase_from_which_nothing_leads_says_so(store: Store) -> None:
    class Stuck(TallyEnvironment):
        """Once begun it goes nowhere."""

        lifecycle = Lifecycle({("idle", "new_task"): "planning"})

    session = await begun(store, Stuck(), "planning")
    with raises(InvalidMove):
        await session.agent.cancel()


async def test_a_model_that_fails_is_told_of_also_where_no_move_is_for_that(store: Store) -> None:
    class Hopeful(TallyEnvironment):
        """Knows of no failure."""

        lifecycle = Lifecycle({move: to for move, to in STANDARD.table.items() if move[1] != "fail"})

    session = await Sessions[Any](Hopeful(), store).seed({})
    with raises(ModelFailed):
        await run(Agent(Scripted([ModelFailed("no more")])), session)
    assert session.agent.status.phase == "idle"


async def test_notes_keep_the_same_table() -> None:
    for phase, event in product(PHASES, EVENTS):
        notes = AgentInMemory()
        for move in TO[phase]:
            await notes.say(Update([], "agent", (move,)))
        if (phase, event) in MOVES:
            assert (await notes.say(Update([], "agent", (event,)))).phase == MOVES[phase, event]
        else:
            with pytest.raises(InvalidMove):
                await notes.say(Update([], "agent", (event,)))
            assert notes.status.phase == phase


class OracleEnvironment(Unjudged[None]):
    """Has no state."""

    @tool
    def roll(self) -> int:
        """Roll."""
        return 4

    def reply(self, message: str) -> str | None:
        return "again" if message == "four" else None


async def test_a_stateless_session_has_an_agent_for_as_long_as_it_is_held(store: Store) -> None:
    sessions = Sessions[Any](OracleEnvironment(), store)
    session = await sessions.seed({})
    assert session.agent.status == AgentStatus()
    trajectory = await run(Agent(Scripted([[function_call("roll", "r")], "four", "bye"])), session)
    assert (trajectory.status, session.agent.status.phase, session.agent.status.answers) == ("completed", "done", 3)
    assert [item.get("role") for item in trajectory.output[2:]] == ["assistant", "user", "assistant"]
    assert await store.heads() == []

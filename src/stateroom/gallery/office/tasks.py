"""All kinds of tasks. A task is drawn and worded, and its script runs once to record the gold actions."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from pydantic_core import to_jsonable_python

from stateroom.environment import Tool
from stateroom.gallery.office.kinds import Asked, Call, Changes, Drawn, Kind, meetings, money, simple, teamwork
from stateroom.gallery.office.rules import INSTRUCTIONS, manager_reply
from stateroom.gallery.office.state import Office
from stateroom.gallery.office.world import base_world
from stateroom.state import DraftContext, draft_of

KINDS: tuple[Kind, ...] = (
    simple.SetPriority(),
    simple.CloseTicket(),
    simple.RenameFile(),
    simple.MoveFile(),
    simple.NewPhone(),
    simple.Categorise(),
    simple.FileMail(),
    meetings.Invite(),
    teamwork.ShareWithTeam(),
    meetings.MovedMeeting(),
    meetings.CommonSlot(),
    meetings.Reschedule(),
    teamwork.AnswerStatus(),
    teamwork.MergeDuplicates(),
    money.SettleExpense(),
    meetings.ClearDay(),
    teamwork.CoverLeave(),
    teamwork.Kickoff(),
    money.FileReceipt(),
    money.SettleLarge(),
    money.ShareOutside(),
    money.FileLarge(),
    money.SettleTrip(),
    money.SettleSplit(),
    teamwork.Handover(),
)
"""All kinds of tasks, from short to long."""

MAX_DRAWS = 20
"""The most draws of a kind until one is feasible."""

EACH = 10
"""Example tasks of each kind; kinds with a manager get half as many more."""


def recognise(prompt: str) -> tuple[Kind, Asked] | None:
    """The kind of a task and the values in its prompt, from the wording; None for an unknown one."""
    for kind in KINDS:
        asked = kind.read(prompt)
        if asked is not None:
            return kind, asked
    return None


def make_task(kind: Kind, rng: Random, tools: Mapping[str, Tool]) -> dict[str, Any]:
    """Create a task row of a kind; `tools` run its script."""
    drawn, gold, messages = _feasible(kind, rng, tools)
    prompt = rng.choice(kind.wordings).format(**drawn.asked)
    return {
        "responses_create_params": {
            "input": [{"role": "system", "content": INSTRUCTIONS}, {"role": "user", "content": prompt}]
        },
        "kind": kind.name,
        "difficulty": kind.difficulty,
        "changes": drawn.changes.model_dump(mode="json", exclude_defaults=True),
        "manager": drawn.manager,
        "gold": gold,
        "told": messages,
    }


def example_tasks(tools: Mapping[str, Tool]) -> list[dict[str, Any]]:
    """The rows of `tasks.jsonl`, easy ones first."""
    rng = Random("tasks")
    rows = [make_task(kind, rng, tools) for kind in KINDS for _ in range(EACH)]
    managed = [kind for kind in KINDS if any(row["manager"] for row in rows if row["kind"] == kind.name)]
    rows += [make_task(kind, rng, tools) for kind in managed for _ in range(EACH // 2)]
    return sorted(rows, key=lambda row: row["difficulty"])


def _feasible(
    kind: Kind, rng: Random, tools: Mapping[str, Tool]
) -> tuple[Drawn, list[dict[str, Any]], list[dict[str, Any]]]:
    """A feasible task, its gold actions, and the required content of its mails."""
    tries = 0
    while True:
        drawn = kind.draw(base_world(), rng)
        try:
            return drawn, *_done(kind, drawn, draft_of(base_world(), DraftContext()), tools)
        except LookupError:  # for example, because everybody is never free at once
            tries += 1
            if tries == MAX_DRAWS:
                raise


def add_records(state: Office, changes: Changes) -> None:
    """Add the records of a task to the office."""
    state.contacts.update(changes.contacts)
    state.mails.update(changes.mails)
    state.expenses.update(changes.expenses)


def _done(
    kind: Kind, drawn: Drawn, state: Office, tools: Mapping[str, Tool]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The gold actions of a task, and the required content of its mails."""
    add_records(state, drawn.changes)
    script = kind.script(drawn.asked)
    gold: list[dict[str, Any]] = []
    messages: list[dict[str, Any]] = []
    result: Any = None
    while True:
        try:
            step = script.send(result)
        except StopIteration:
            return gold, messages
        if isinstance(step, Call):
            gold.append({"name": step.name, "arguments": step.arguments})
            if step.says:
                messages.append({"to": step.arguments["to"], "says": list(step.says)})
            tool = tools[step.name]
            result = to_jsonable_python(tool.procedure.function(state=state, **tool.bind(step.arguments)))
        else:
            gold.append({"message": step.text})
            result = manager_reply(state, drawn.manager, step.text) if drawn.manager else None

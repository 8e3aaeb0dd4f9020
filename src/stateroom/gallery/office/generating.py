"""Making tasks: a kind is drawn, put into words, and done once, to know the actions that lead to its goal."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from pydantic_core import to_jsonable_python

from stateroom.environment import Tool
from stateroom.gallery.office.kinds import Call, Changes, Drawn, Kind
from stateroom.gallery.office.manager import answer
from stateroom.gallery.office.rules import INSTRUCTIONS
from stateroom.gallery.office.state import Office
from stateroom.gallery.office.world import base_world
from stateroom.state import DraftContext, draft_of

MOST_TRIES = 20
"""So often a kind is drawn until it can be done."""


def make_task(kind: Kind, rng: Random, tools: Mapping[str, Tool]) -> dict[str, Any]:
    """A task row of a kind; `tools` are those by which it is done."""
    drawn, gold, told = _feasible(kind, rng, tools)
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
        "told": told,
    }


def _feasible(
    kind: Kind, rng: Random, tools: Mapping[str, Tool]
) -> tuple[Drawn, list[dict[str, Any]], list[dict[str, Any]]]:
    """A task that can be done, and how."""
    tries = 0
    while True:
        drawn = kind.draw(base_world(), rng)
        try:
            return drawn, *_done(kind, drawn, draft_of(base_world(), DraftContext()), tools)
        except LookupError:  # on a day on which not all are free at any time, say
            tries += 1
            if tries == MOST_TRIES:
                raise


def bring(state: Office, changes: Changes) -> None:
    """Put the records that a task brings with it into the office."""
    state.contacts.update(changes.contacts)
    state.mails.update(changes.mails)
    state.expenses.update(changes.expenses)


def _done(
    kind: Kind, drawn: Drawn, state: Office, tools: Mapping[str, Tool]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The actions that do a task, and what the mails among them must say."""
    bring(state, drawn.changes)
    script = kind.script(drawn.asked)
    gold: list[dict[str, Any]] = []
    told: list[dict[str, Any]] = []
    result: Any = None
    while True:
        try:
            step = script.send(result)
        except StopIteration:
            return gold, told
        if isinstance(step, Call):
            gold.append({"name": step.name, "arguments": step.arguments})
            if step.says:
                told.append({"to": step.arguments["to"], "says": list(step.says)})
            tool = tools[step.name]
            result = to_jsonable_python(tool.procedure.function(state=state, **tool.bind(step.arguments)))
        else:
            gold.append({"message": step.text})
            result = answer(state, drawn.manager, step.text) if drawn.manager else None

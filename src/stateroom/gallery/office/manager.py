"""The manager: says yes or no to what needs an approval, and answers nothing else."""

from __future__ import annotations

import re
from typing import Literal

from stateroom.gallery.office.rules import counted_as_one, needs_approval
from stateroom.gallery.office.state import Approval, Office

PATIENCE = 2
"""How often the manager lets an agent say what asks for nothing."""

NAMED = re.compile(r"\b(?:EX|F)-\d{4,}\b")


def answer(state: Office, manager: Literal["yes", "no"], message: str) -> str | None:
    """What the manager says to a message, having noted a decision in the state; None when that was all."""
    named = dict.fromkeys(each for name in NAMED.findall(message) for each in counted_as_one(state, name))
    waiting = [each for each in named if each not in state.approvals and needs_approval(state, each)]
    if waiting:
        for record_id in waiting:
            state.approvals[record_id] = Approval(id=record_id, granted=manager == "yes")
        said = "Yes, I approve" if manager == "yes" else "No, I do not approve"
        return f"{said} {' and '.join(waiting)}."
    if state.approvals:
        return None
    state.puzzled += 1
    if state.puzzled >= PATIENCE:
        return None
    if named:
        return "That does not need my approval. Go by the rules."
    return "Is there something that you need from me? Then name it by its id."

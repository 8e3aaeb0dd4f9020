"""Judging an episode: the state that it led to, beside the one that the gold actions lead to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain

from pydantic import BaseModel

from stateroom import Verdict, compare
from stateroom.gallery.office.rules import broken
from stateroom.gallery.office.state import Letter, Office

IGNORED = (
    "drafts",
    "puzzled",
    "outbox.*.subject",
    "outbox.*.body",
    "tickets.*.description",
    "expenses.*.note",
)
"""What does not count: texts that everybody words differently, and what nobody reads."""

NEW = ("events", "tickets", "expenses", "outbox", "payments")
"""Where new records have ids that follow from the order in which they were made."""


DATE = re.compile(r"\d{4}-\d\d-\d\d")

MOST_DATES = 3
"""A mail that names more of them than that tells none."""


class Told(BaseModel):
    """What a mail to somebody must have in it, however it is put."""

    to: list[str]
    says: list[str]


def judge(path: Sequence[Office], found: Office, gold: Office, told: Iterable[Told]) -> Verdict:
    """The verdict on a state, with the states that led to it."""
    base = path[0]
    comparison = compare(base, found, gold, ignore=IGNORED, by_content=NEW)
    untold = [each for each in told if not any(_tells(letter, each) for letter in found.outbox.values())]
    offences = list(dict.fromkeys(chain.from_iterable(broken(state, base) for state in path)))
    components = {
        "goal": float(not comparison.missing and not untold),
        "untouched": float(not comparison.extra),
        "rules": float(not offences),
    }
    lines = [] if comparison.same else [comparison.text()]
    lines += [f"mail to {', '.join(each.to)}: should say {' and '.join(each.says)}" for each in untold]
    lines += [f"rule broken: {offence}" for offence in offences]
    reward = components["goal"] * components["untouched"] * components["rules"]
    return Verdict(reward, components, reason="\n".join(lines) or "all as expected")


def _tells(letter: Letter, told: Told) -> bool:
    text = letter.body.casefold()
    if len(set(DATE.findall(text))) > MOST_DATES:
        return False
    return set(letter.to) == set(told.to) and all(says.casefold() in text for says in told.says)

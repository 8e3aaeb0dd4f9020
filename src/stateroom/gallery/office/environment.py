"""A company's back office: mail, calendar, contacts, projects, expenses and files, in one large state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import chain
from random import Random
from typing import Any, Literal

from pydantic import BaseModel

from stateroom import Environment, Episode, Task, Verdict, compare
from stateroom.gallery.office.calendar import CalendarTools
from stateroom.gallery.office.contacts import ContactTools
from stateroom.gallery.office.expenses import ExpenseTools
from stateroom.gallery.office.files import FileTools
from stateroom.gallery.office.kinds import Changes
from stateroom.gallery.office.mail import MailTools
from stateroom.gallery.office.policies import DestructivePolicy, IdlePolicy, NoisyPolicy, ReferencePolicy
from stateroom.gallery.office.projects import ProjectTools
from stateroom.gallery.office.rules import broken, manager_reply
from stateroom.gallery.office.state import Letter, Office
from stateroom.gallery.office.tasks import KINDS, add_records, make_task
from stateroom.gallery.office.world import base_world

IGNORED = (
    "drafts",
    "puzzled",
    "outbox.*.subject",
    "outbox.*.body",
    "tickets.*.description",
    "expenses.*.note",
)
"""Fields that are not compared: free texts and drafts."""

NEW = ("events", "tickets", "expenses", "outbox", "payments")
"""Fields whose new records have ids in the order of their creation."""

DATE = re.compile(r"\d{4}-\d\d-\d\d")

MAX_DATES = 3
"""The most dates in a mail; a mail with more counts as having none."""


class RequiredMail(BaseModel):
    """The content that a mail must have, in any wording."""

    to: list[str]
    says: list[str]


class OfficeTask(Task):
    kind: str
    difficulty: int
    changes: Changes = Changes()
    """The records that the task adds to the office."""
    manager: Literal["yes", "no"] | None = None
    """The manager's answer to requests for approval; None for no answer."""
    gold: list[dict[str, Any]]
    """The actions that lead to the goal, with reads and messages."""
    told: list[RequiredMail] = []
    """The required content of mails."""


class OfficeEnvironment(
    MailTools,
    CalendarTools,
    ContactTools,
    ProjectTools,
    ExpenseTools,
    FileTools,
    Environment[Office, OfficeTask],
):
    """Carry out a manager's requests in the back office of a company, following its rules."""

    examples = "tasks.jsonl"
    policies = {
        "reference": ReferencePolicy,
        "noisy": NoisyPolicy,
        "idle": IdlePolicy,
        "destructive": DestructivePolicy,
    }

    def world(self) -> Office:
        return base_world()

    def seed(self, state: Office, task: OfficeTask) -> None:
        add_records(state, task.changes)

    def reply(self, state: Office, task: OfficeTask, message: str) -> str | None:
        return manager_reply(state, task.manager, message) if task.manager else None

    async def verify(self, state: Office, episode: Episode) -> Verdict:
        """1 if all that was asked for is done, nothing else has changed, and no rule was ever broken."""
        path = episode.states()
        gold = await episode.after(episode.task.gold, external=True)
        return judge(path, state, gold, episode.task.told)

    @classmethod
    def generate(cls, rng: Random) -> dict[str, Any]:
        """A new task, of any kind."""
        return make_task(rng.choice(KINDS), rng, cls().tools)


def judge(path: Sequence[Office], final: Office, gold: Office, required: Iterable[RequiredMail]) -> Verdict:
    """The verdict on a final state and the states before it, compared with the gold state."""
    base = path[0]
    comparison = compare(base, final, gold, ignore=IGNORED, by_content=NEW)
    missing = [each for each in required if not any(_has_content(letter, each) for letter in final.outbox.values())]
    offences = list(dict.fromkeys(chain.from_iterable(broken(state, base) for state in path)))
    components = {
        "goal": float(not comparison.missing and not missing),
        "untouched": float(not comparison.extra),
        "rules": float(not offences),
    }
    lines = [] if comparison.same else [comparison.text()]
    lines += [f"mail to {', '.join(each.to)}: must say {' and '.join(each.says)}" for each in missing]
    lines += [f"rule broken: {offence}" for offence in offences]
    reward = components["goal"] * components["untouched"] * components["rules"]
    return Verdict(reward, components, reason="\n".join(lines) or "all as expected")


def _has_content(letter: Letter, required: RequiredMail) -> bool:
    text = letter.body.casefold()
    if len(set(DATE.findall(text))) > MAX_DATES:
        return False
    return set(letter.to) == set(required.to) and all(says.casefold() in text for says in required.says)

"""A company's back office: mail, calendar, contacts, projects, expenses and files, in one state of real size."""

from __future__ import annotations

from random import Random
from typing import Any, Literal

from stateroom import Environment, Episode, SessionInfo, Task, Verdict
from stateroom.gallery.office.calendar import CalendarTools
from stateroom.gallery.office.contacts import ContactTools
from stateroom.gallery.office.expenses import ExpenseTools
from stateroom.gallery.office.files import FileTools
from stateroom.gallery.office.generating import bring, make_task
from stateroom.gallery.office.kinds import KINDS, Changes
from stateroom.gallery.office.mail import MailTools
from stateroom.gallery.office.manager import answer
from stateroom.gallery.office.policies import DestructivePolicy, IdlePolicy, NoisyPolicy, ReferencePolicy
from stateroom.gallery.office.projects import ProjectTools
from stateroom.gallery.office.state import Office
from stateroom.gallery.office.verifying import Told, judge
from stateroom.gallery.office.world import base_world


class OfficeTask(Task):
    kind: str
    difficulty: int
    changes: Changes = Changes()
    """What the task brings into the office."""
    manager: Literal["yes", "no"] | None = None
    """What the manager says to what needs an approval; without it, nobody answers."""
    gold: list[dict[str, Any]]
    """The actions that lead to the goal, reads and messages too."""
    told: list[Told] = []
    """What mails must have in them."""


class OfficeEnvironment(
    MailTools,
    CalendarTools,
    ContactTools,
    ProjectTools,
    ExpenseTools,
    FileTools,
    Environment[Office, OfficeTask],
):
    """Do what a manager asks for in a company's back office, by the rules of the house."""

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
        bring(state, task.changes)

    def reply(self, state: Office, session: SessionInfo, message: str) -> str | None:
        manager: Literal["yes", "no"] | None = session.task.manager
        return answer(state, manager, message) if manager else None

    async def verify(self, state: Office, episode: Episode) -> Verdict:
        path = episode.states()
        gold = await episode.after(episode.task.gold, external=True)
        return judge(path, state, gold, episode.task.told)

    @classmethod
    def generate(cls, rng: Random) -> dict[str, Any]:
        """A new task, of any kind."""
        return make_task(rng.choice(KINDS), rng, cls().tools)

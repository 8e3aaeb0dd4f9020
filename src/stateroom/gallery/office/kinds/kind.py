"""`Kind`: how a task is drawn from the office, the wording of its prompt, and the script that solves it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cache
from random import Random
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import BaseModel

from stateroom.gallery.office.state import Contact, Expense, Mail, Office
from stateroom.gallery.office.world import MAILS, NOW

T = TypeVar("T")

Asked = Mapping[str, str]
"""The values in the prompt of a task, by name in the wording."""


class Call(NamedTuple):
    """A tool call."""

    name: str
    arguments: dict[str, Any]
    says: tuple[str, ...] = ()
    """The texts that a mail must contain."""


class Say(NamedTuple):
    """A message to the manager."""

    text: str


Script = Generator[Call | Say, Any, str]
"""Solves a task: yields each step, receives its result, and returns the final message."""

Part = Generator[Call | Say, Any, T]
"""A part of a script, which returns a value."""


class Changes(BaseModel):
    """The records that a task adds."""

    contacts: dict[str, Contact] = {}
    mails: dict[str, Mail] = {}
    expenses: dict[str, Expense] = {}


@dataclass(frozen=True)
class Drawn:
    """A task without its wording, drawn at random."""

    asked: Asked
    changes: Changes = field(default_factory=Changes)
    manager: Literal["yes", "no"] | None = None


class Kind(ABC):
    """A kind of task. Its script uses only the prompt and the results of tools."""

    name: ClassVar[str]
    """Its name in task rows: that of the class, in small letters with underscores."""
    difficulty: ClassVar[int]
    wordings: ClassVar[tuple[str, ...]]
    """Templates of the prompt, with the names of its values in braces."""

    def __init_subclass__(cls) -> None:
        cls.name = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    @abstractmethod
    def draw(self, world: Office, rng: Random) -> Drawn:
        """Draw a task of this kind."""

    @abstractmethod
    def script(self, asked: Asked) -> Script:
        """The script of a task."""

    def read(self, prompt: str) -> Asked | None:
        """The values in a prompt of this kind; None for a prompt of another kind."""
        return next(
            (match.groupdict() for words in self.wordings if (match := _pattern(words).fullmatch(prompt))), None
        )


@cache
def _pattern(wording: str) -> re.Pattern[str]:
    seen: set[str] = set()

    def group(slot: re.Match[str]) -> str:
        name = slot[1]
        if name in seen:
            return f"(?P={name})"
        seen.add(name)
        return f"(?P<{name}>.+?)"

    return re.compile(re.sub(r"\\{(\w+)\\}", group, re.escape(wording)))


def answer_of(rng: Random) -> Literal["yes", "no"]:
    """The manager's answer, drawn at random."""
    return "yes" if rng.random() < 0.6 else "no"


def mail_to_office(sender: str, subject: str, body: str, number: int = 1, hours: int = 20) -> Mail:
    """A mail from some hours ago, the first or another one of a task."""
    to, sent_at = ("office@larkspur-works.example",), NOW - timedelta(hours=hours)
    return Mail(id=f"M-{MAILS + number:04}", sender=sender, to=to, subject=subject, body=body, sent_at=sent_at)


def with_mail(*mails: Mail) -> Changes:
    return Changes(mails={mail.id: mail for mail in mails})

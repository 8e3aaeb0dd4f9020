"""`Kind`: how a task is drawn from the office, how its prompt is worded, and the script that does it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from random import Random
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import BaseModel

from stateroom.gallery.office.state import Contact, Expense, Mail, Office

T = TypeVar("T")

Asked = Mapping[str, str]
"""The values in the prompt of a task, by their names in the wording."""


class Call(NamedTuple):
    """A tool call."""

    name: str
    arguments: dict[str, Any]
    says: tuple[str, ...] = ()
    """What the text of a mail must contain."""


class Say(NamedTuple):
    """A message to the manager."""

    text: str


Script = Generator[Call | Say, Any, str]
"""Does a task: it yields each step, is sent its result, and returns the final message."""

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
    difficulty: ClassVar[int]
    wordings: ClassVar[tuple[str, ...]]
    """Templates of the prompt, with the names of its values in braces."""

    @abstractmethod
    def draw(self, world: Office, rng: Random) -> Drawn:
        """Draw a task of this kind."""

    @abstractmethod
    def script(self, asked: Asked) -> Script:
        """The script of a task."""

    def read(self, prompt: str) -> Asked | None:
        """The values in a prompt of this kind; None for a prompt of another kind."""
        return next(
            (found.groupdict() for words in self.wordings if (found := _pattern(words).fullmatch(prompt))), None
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


def call(name: str, /, says: tuple[str, ...] = (), **arguments: Any) -> Call:
    """A tool call, as a step of a script."""
    return Call(name, arguments, says)


def answer(mail: dict[str, Any], to: str, name: str, text: str, *says: str) -> Call:
    """A reply to a mail, as a step of a script; it must contain `says`."""
    subject, body = f"Re: {mail['subject']}", f"Hello {name},\n\n{text}"
    return call("send_mail", says=says, to=[to], subject=subject, body=body, in_reply_to=mail["id"])


def one_of(rng: Random, candidates: Iterable[T]) -> T:
    """A random candidate."""
    return rng.choice(list(candidates))


def only(results: Iterable[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """The result with the wanted values. Raises `LookupError` if there is none."""
    for result in results:
        if all(result[name] == value for name, value in wanted.items()):
            return result
    raise LookupError(f"nothing has {wanted}")


def person(name: str, company: str) -> Part[dict[str, Any]]:
    """Find a person, not a namesake."""
    found = yield call("search_contacts", query=name)
    return only(found["results"], name=name, company=company)


def project_named(name: str) -> Part[dict[str, Any]]:
    found = yield call("list_projects", query=name)
    return only(found["results"], name=name)


def file_named(name: str) -> Part[dict[str, Any]]:
    """A file by its name."""
    found = yield call("search_files", query=name)
    return only(found["results"], name=name)


def newest_mail(sender: str, query: str) -> Part[dict[str, Any]]:
    """Read the newest mail of a sender that contains these words."""
    found = yield call("search_mail", query=query, sender=sender)
    mail: dict[str, Any] = yield call("read_mail", mail_id=found["results"][0]["mail_id"])
    return mail


def reading(pattern: str, text: str) -> str:
    """The group of a pattern in a text. Raises `LookupError` if it is missing."""
    found = re.search(pattern, text)
    if found is None:
        raise LookupError(f"no {pattern} in {text!r}")
    return found[1]

"""A kind of task: how one is drawn from the office, in which words it is put, and how it is done."""

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
"""What the prompt of a task says, by the names in its wording."""


class Call(NamedTuple):
    """A tool call."""

    name: str
    arguments: dict[str, Any]
    says: tuple[str, ...] = ()
    """What the text of a mail must have in it."""


class Say(NamedTuple):
    """Something that the manager is told."""

    text: str


Script = Generator[Call | Say, Any, str]
"""How a task is done: it yields each step, is sent what came of it, and returns what there is to say in the end."""

Part = Generator[Call | Say, Any, T]
"""A part of a script, which finds something out."""


class Changes(BaseModel):
    """Records that a task brings with it."""

    contacts: dict[str, Contact] = {}
    mails: dict[str, Mail] = {}
    expenses: dict[str, Expense] = {}


@dataclass(frozen=True)
class Drawn:
    """What chance has made of a kind: a task, but for its wording."""

    asked: Asked
    changes: Changes = field(default_factory=Changes)
    manager: Literal["yes", "no"] | None = None


class Kind(ABC):
    """A kind of task. It is done by what its prompt says and what the tools tell, and by nothing else."""

    name: ClassVar[str]
    difficulty: ClassVar[int]
    wordings: ClassVar[tuple[str, ...]]
    """The prompt in different words, with the names of what is asked in braces."""

    @abstractmethod
    def draw(self, world: Office, rng: Random) -> Drawn:
        """A task of this kind."""

    @abstractmethod
    def script(self, asked: Asked) -> Script:
        """How to do it."""

    def read(self, prompt: str) -> Asked | None:
        """What a prompt of this kind asks; None if it is of another."""
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


def call(name: str, says: tuple[str, ...] = (), **arguments: Any) -> Call:
    """A step of a script."""
    return Call(name, arguments, says)


def answer(mail: dict[str, Any], to: str, name: str, text: str, *says: str) -> Call:
    """A step that answers a mail: it greets whoever is written to by name, and must have in it what it says."""
    subject, body = f"Re: {mail['subject']}", f"Hello {name},\n\n{text}"
    return call("send_mail", says=says, to=[to], subject=subject, body=body, in_reply_to=mail["id"])


def one_of(rng: Random, candidates: Iterable[T]) -> T:
    """One of those that will do."""
    return rng.choice(list(candidates))


def only(results: Iterable[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """The result that is wanted; a `LookupError` if there is none."""
    for result in results:
        if all(result[name] == value for name, value in wanted.items()):
            return result
    raise LookupError(f"nothing has {wanted}")


def person(name: str, company: str) -> Part[dict[str, Any]]:
    """Find somebody, and not their namesake."""
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
    """Read the newest mail from somebody that has these words in it."""
    found = yield call("search_mail", query=query, sender=sender)
    mail: dict[str, Any] = yield call("read_mail", mail_id=found["results"][0]["mail_id"])
    return mail


def reading(pattern: str, text: str) -> str:
    """What stands in a text at the group of a pattern; a `LookupError` if it is not there."""
    found = re.search(pattern, text)
    if found is None:
        raise LookupError(f"there is no {pattern} in {text!r}")
    return found[1]

"""Steps of scripts: calls, searches for one result, and replies."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from stateroom.gallery.office.kinds.kind import Call, Part
from stateroom.gallery.office.rules import HOUSE


def call(name: str, /, says: tuple[str, ...] = (), **arguments: Any) -> Call:
    """A tool call, as a step of a script."""
    return Call(name, arguments, says)


def answer(mail: dict[str, Any], to: str, name: str, text: str, *says: str) -> Call:
    """A reply to a mail, as a step of a script; it must contain `says`."""
    subject, body = f"Re: {mail['subject']}", f"Hello {name},\n\n{text}"
    return call("send_mail", says=says, to=[to], subject=subject, body=body, in_reply_to=mail["id"])


def only(results: Iterable[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    """The result with the given values. Raises `LookupError` if none matches."""
    for result in results:
        if all(result[name] == value for name, value in wanted.items()):
            return result
    raise LookupError(f"no result has {wanted}")


def find(search: Call, **wanted: Any) -> Part[dict[str, Any]]:
    """Search, and pick the result with the given values."""
    listed = yield search
    return only(listed["results"], **wanted)


def find_person(name: str, company: str = HOUSE) -> Part[dict[str, Any]]:
    """Find a person, not a namesake."""
    return find(call("search_contacts", query=name), name=name, company=company)


def find_project(name: str) -> Part[dict[str, Any]]:
    return find(call("list_projects", query=name), name=name)


def find_file(name: str) -> Part[dict[str, Any]]:
    return find(call("search_files", query=name), name=name)


def find_ticket(title: str, **where: Any) -> Part[dict[str, Any]]:
    return find(call("search_tickets", query=title, **where), title=title)


def find_event(title: str, first_day: str, **until: Any) -> Part[dict[str, Any]]:
    return find(call("list_events", query=title, first_day=first_day, **until), title=title)


def newest_mail(sender: str, query: str) -> Part[dict[str, Any]]:
    """Read the newest mail of a sender that contains these words."""
    listed = yield call("search_mail", query=query, sender=sender)
    mail: dict[str, Any] = yield call("read_mail", mail_id=listed["results"][0]["mail_id"])
    return mail


def reading(pattern: str, text: str) -> str:
    """The group of a pattern in a text. Raises `LookupError` if it is missing."""
    match = re.search(pattern, text)
    if match is None:
        raise LookupError(f"no {pattern} in {text!r}")
    return match[1]

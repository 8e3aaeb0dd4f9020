"""Mistakes that somebody makes who knows what to do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any

from stateroom.model import Item, outputs_of

Arguments = dict[str, Any]


def slipped(name: str, given: Arguments) -> tuple[str, Arguments]:
    """A call with something wrong in it."""
    if name == "reject_expense":
        return "approve_expense", {"expense_id": given["expense_id"]}
    slip = SLIPS[name]
    return name, {**given, **slip(given)}


def mixed_up(call: Item, conversation: list[Item]) -> Item | None:
    """A call in which somebody is taken for their namesake; None if nobody in it has one that was seen."""
    given = call["arguments"]
    for mine, others in _namesakes(conversation).items():
        if f'"{mine}"' in given:
            return {**call, "arguments": given.replace(f'"{mine}"', f'"{others}"')}
    return None


def _namesakes(conversation: list[Item]) -> dict[str, str]:
    """For each id and address of somebody who was looked up, that of another by the same name."""
    people: dict[str, list[Arguments]] = defaultdict(list)
    for output in outputs_of(conversation):
        for result in output.get("results", ()) if isinstance(output, dict) else ():
            if "contact_id" in result and result not in people[result["name"]]:
                people[result["name"]].append(result)
    return {
        each[field]: other[field]
        for bearers in people.values()
        for each, other in zip(bearers, bearers[1:] + bearers[:1], strict=True)
        if each is not other
        for field in ("contact_id", "email")
    }


def _next_one(record_id: str) -> str:
    """The id after this one."""
    prefix, number = record_id.split("-")
    return f"{prefix}-{int(number) + 1:04}"


def _another(value: str, *values: str) -> str:
    return next(each for each in values if each != value)


def _an_hour_later(start: str) -> str:
    return (datetime.fromisoformat(start) + timedelta(hours=1)).isoformat()


SLIPS: dict[str, Callable[[Arguments], Arguments]] = {
    "label_mail": lambda given: {"label": f"not-{given['label']}"},
    "archive_mail": lambda given: {"mail_id": _next_one(given["mail_id"])},
    "send_mail": lambda given: {"body": "You will hear from us."},
    "create_event": lambda given: {"start": _an_hour_later(given["start"])},
    "move_event": lambda given: {"start": _an_hour_later(given["start"])},
    "cancel_event": lambda given: {"event_id": _next_one(given["event_id"])},
    "add_attendee": lambda given: {"contact_id": _next_one(given["contact_id"])},
    "remove_attendee": lambda given: {"event_id": _next_one(given["event_id"])},
    "update_contact": lambda given: {"phone": given["phone"][::-1]},
    "merge_contacts": lambda given: {"keep_id": given["duplicate_id"], "duplicate_id": given["keep_id"]},
    "create_ticket": lambda given: {"due": str(date.fromisoformat(given["due"]) + timedelta(days=1))},
    "assign_ticket": lambda given: {"assignee_id": _next_one(given["assignee_id"])},
    "comment_ticket": lambda given: {"text": f"{given['text']} I think."},
    "set_priority": lambda given: {"priority": _another(given["priority"], "urgent", "low")},
    "file_expense": lambda given: {"amount": given["amount"] + 10},
    "categorise_expense": lambda given: {"category": _another(given["category"], "travel", "meals")},
    "approve_expense": lambda given: {},
    "pay": lambda given: {"amount": round(given["amount"] + 10, 2)},
    "share_file": lambda given: {"file_id": _next_one(given["file_id"])},
    "rename_file": lambda given: {"new_name": f"copy-of-{given['new_name']}"},
    "move_file": lambda given: {"folder": f"{given['folder']}/old"},
}
"""What is wrong in a call, by its tool. An approved expense is right; the payment that follows is not."""

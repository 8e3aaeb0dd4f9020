"""Policies for the office, and the mistakes of the noisy one."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Any, ClassVar, Literal, NamedTuple

from stateroom.gallery.office.kinds import Say
from stateroom.gallery.office.tasks import recognise
from stateroom.model import Item, Noisy, Policy, function_call, message, outputs_of, text_of

LOOKS = ("search_", "read_", "list_", "get_", "find_")
"""Prefixes of the tools that only read."""

Arguments = dict[str, Any]

DONE = "All of that is done."
LOST = "I could not find what I was looking for."


class Stage(NamedTuple):
    """The progress of a task."""

    items: list[Item]
    """The next step."""
    acts: int = 0
    """The number of earlier steps that changed something."""
    presumed: bool = False
    """Whether the policy did not wait for the manager's approval."""
    beyond: list[Any] | None = None
    """The results of steps after the end of the task."""

    @property
    def acting(self) -> bool:
        """Whether the next step changes something."""
        return is_act(self.items[0])


def is_act(item: Item) -> bool:
    return item["type"] == "function_call" and not item["name"].startswith(LOOKS)


def proceed(conversation: list[Item], *, presumes: bool = False) -> Stage:
    """The next step of a task's script, by the conversation so far."""
    known = recognise(next((text_of(item) for item in conversation if item.get("role") == "user"), ""))
    if known is None:
        return Stage([message("I do not know how to do that.")])
    kind, asked = known
    script, results = kind.script(asked), _results(conversation)
    acts, presumed, used = 0, False, 0
    try:
        step = next(script)
        while True:
            if isinstance(step, Say) and presumes:
                presumed = True
                step = script.send("Yes.")
                continue
            item = (
                message(step.text)
                if isinstance(step, Say)
                else function_call(step.name, f"call_{used}", **step.arguments)
            )
            if used == len(results):
                return Stage([item], acts, presumed)
            acts += is_act(item)
            step = script.send(results[used])
            used += 1
    except StopIteration as end:
        return Stage([message(end.value)], acts, presumed, results[used + 1 :])
    except (LookupError, TypeError, ValueError):  # an unexpected result
        return Stage([message(LOST)], acts, presumed)


def _results(conversation: list[Item]) -> list[Any]:
    """The result of each step so far: of a call, or the manager's answer to a message."""
    prompts = (index for index, item in enumerate(conversation) if item.get("role") == "user")
    results: list[Any] = []
    for item in conversation[next(prompts, len(conversation)) + 1 :]:
        if item.get("type") == "function_call_output":
            results += outputs_of([item])
        elif item.get("role") == "user":
            results.append(text_of(item))
    return results


class ReferencePolicy(Policy):
    """Recognises the kind of a task by its wording, and follows its script."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        return proceed(conversation).items


class IdlePolicy(Policy):
    """Does nothing, and claims that everything is done."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        return [message(DONE)]


class DestructivePolicy(Policy):
    """Solves the task, and then cancels an unrelated meeting."""

    first_day: ClassVar[str] = "2026-04-01"

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        stage = proceed(conversation)
        match stage.beyond:
            case []:
                return [function_call("list_events", "look", first_day=self.first_day)]
            case [{"results": [event, *_]}]:
                return [function_call("cancel_event", "cancel", event_id=event["event_id"])]
        return stage.items


Fault = Literal["forgets", "stops", "slips", "mixes up", "presumes"]
FAULTS: tuple[Fault, ...] = ("forgets", "stops", "slips", "mixes up", "presumes")


class NoisyPolicy(Noisy):
    """Makes one mistake in some episodes.

    It skips a step, stops before the first, makes a mistake in one, confuses a person with a namesake, or does not wait
    for the manager's approval. Without a namesake or an approval, it makes another mistake.
    """

    better = ReferencePolicy

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.fault: Fault = self.rng.choice(FAULTS)

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        if not self.errs:
            return proceed(conversation).items
        stage = proceed(conversation, presumes=self.fault == "presumes")
        if not stage.acting or stage.presumed:
            return stage.items
        if not stage.acts:
            mixed = mixed_up(stage.items[0], conversation) if self.fault == "mixes up" else None
            return self.err(stage.items) if mixed is None else [mixed]
        slips = self.fault not in ("forgets", "stops") and stage.items[0]["name"] == "pay"
        return self.err(stage.items) if slips else stage.items

    def err(self, items: list[Item]) -> list[Item]:
        if self.fault == "forgets":
            return [function_call("get_policy", items[0]["call_id"], topic="files")]
        if self.fault == "stops":
            return [message(DONE)]
        name, arguments = slipped(items[0]["name"], json.loads(items[0]["arguments"]))
        return [function_call(name, items[0]["call_id"], **arguments)]


def slipped(name: str, given: Arguments) -> tuple[str, Arguments]:
    """A call with a mistake."""
    if name == "reject_expense":
        return "approve_expense", {"expense_id": given["expense_id"]}
    slip = SLIPS[name]
    return name, {**given, **slip(given)}


def mixed_up(call: Item, conversation: list[Item]) -> Item | None:
    """A call with a person replaced by a namesake; None if no known person in it has one."""
    given = call["arguments"]
    for mine, others in _namesakes(conversation).items():
        if f'"{mine}"' in given:
            return {**call, "arguments": given.replace(f'"{mine}"', f'"{others}"')}
    return None


def _namesakes(conversation: list[Item]) -> dict[str, str]:
    """Maps the id and address of each person in the results to those of a namesake."""
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
"""The mistakes by tool. The approval of an expense stays right; the later payment is wrong."""

"""Transcripts: the conversation of a session, readable without the author's classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from stateroom.agent.agent import AgentLog
from stateroom.agent.plan import TaskState, plans_in
from stateroom.model import Item, Usage, input_items
from stateroom.session import History, LogEntry
from stateroom.store import Store


class Utterance(msgspec.Struct, frozen=True):
    """Items that were added to a conversation together."""

    revision: int
    at: float
    by: str
    """`task`, `user`, `model` or `agent`."""
    items: list[Item]
    reason: str | None = None
    """The reason, if it ended a turn."""
    user: str | None = None
    """The user who said it, if one was named."""


class Times(msgspec.Struct, frozen=True, omit_defaults=True):
    """The seconds that an agent waited."""

    model: float = 0.0
    """For answers of its model."""
    tool: float = 0.0
    """For results of its calls, and for the user's replies."""

    def __add__(self, other: Times) -> Times:
        return Times(round(self.model + other.model, 6), round(self.tool + other.tool, 6))


class WholeConversation(NamedTuple):
    """A whole conversation of an agent."""

    items: list[Item]
    usage: Usage | None
    """The tokens of its model, as far as reported."""
    times: Times
    """The seconds that it waited, as far as logged."""

    @property
    def plans(self) -> list[TaskState]:
        """Its plans, from the first to the newest, if the agent plans."""
        return plans_in(self.items)


async def transcript(store: Store, session: str, after: int = 0) -> list[Utterance]:
    """The conversation of a session after a revision, from the task's input on.

    It leaves out what a rewind has undone. Raises `UnknownRevision` if a part was pruned.
    """
    entries = await History(store).line(session, after=after, kinds=("seed", "message"))
    return [utterance for utterance in map(_utterance, entries) if utterance.items or utterance.reason]


async def recall(log: AgentLog) -> WholeConversation:
    """The whole conversation in a log, also the part that the model no longer sees."""
    items: list[Item] = []
    usage: Usage | None = None
    times = Times()
    for entry in await log.said() if (await log.load()).said else ():
        if entry.kind == "message":
            items.extend(entry.facts["items"])
            if reported := entry.facts.get("usage"):
                usage = (usage or Usage()) + Usage(**reported)
            times += Times(**entry.facts.get("seconds") or {})
    return WholeConversation(items, usage, times)


def request_of(row: Any) -> Mapping[str, Any]:
    """The request in a task row, `responses_create_params`; empty if that is not an object."""
    request = row.get("responses_create_params") if isinstance(row, dict) else None
    return request if isinstance(request, dict) else {}


def task_items(row: Any) -> list[Item]:
    """The items in the input of a task row; anything else there is left out."""
    given = request_of(row).get("input")
    return [item for item in input_items(given) if isinstance(item, dict)] if isinstance(given, str | list) else []


def _utterance(entry: LogEntry) -> Utterance:
    if entry.kind == "seed":
        return Utterance(entry.revision, entry.at, "task", task_items(entry.input))
    facts = entry.facts
    return Utterance(entry.revision, entry.at, facts["by"], facts["items"], facts.get("reason"), facts.get("user"))

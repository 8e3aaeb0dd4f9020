"""Carrying out a model's tool calls: reads side by side, everything else in the order given."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple, Protocol

from stateroom.agent.agent import ASK_USER
from stateroom.agent.record import Record
from stateroom.errors import Conflict
from stateroom.model import Item, function_call_output
from stateroom.session import Result
from stateroom.state import to_json

UNTRIED = ("unknown_tool", "invalid_arguments")
"""The codes of calls that could not even be tried."""


class Outcome(Protocol):
    """What a call came to, as far as an agent cares."""

    @property
    def content(self) -> Any:
        """What the model is shown, as JSON data."""

    @property
    def code(self) -> str | None:
        """Why it failed, if it did and that is known."""


class Tools(Protocol):
    """What tools are called in: a session, or whatever stands for one that is kept elsewhere."""

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Outcome:
        """Call a tool; a `call_id` that was used before in the same place gives the same result, and runs nothing."""


class Place(Tools, Protocol):
    """Where an agent works."""

    @property
    def replies(self) -> bool:
        """Whether somebody answers the agent's messages."""

    def reads(self, name: str) -> bool:
        """Whether a tool is known to only look at the state, so that such calls may run side by side."""

    async def reply(self, message: str, *, call_id: str) -> str | None:
        """The answer to a message of the agent's; None if that was all. A `call_id` is answered once."""


class Call(NamedTuple):
    """A tool call of a model's."""

    item: Item
    id: str
    """By which the place knows it."""


@dataclass
class Outcomes:
    """What calls came to, one after another."""

    strikes: int
    """How many in a row could not even be tried."""
    results: list[Item] = field(default_factory=list)
    noted: int = 0
    """How many of the results are on record."""
    loose: bool = False
    """Whether one of the others is nowhere else: it could be another one if its call was made later."""
    question: str | None = None
    """What the call after these asks somebody."""
    asking: str | None = None
    """The id of that call, if a tool asks and not the model."""
    late: bool = False
    """Whether the time was up before all were done."""

    @property
    def new(self) -> list[Item]:
        """The results that are not on record."""
        return self.results[self.noted :]

    def note(self) -> None:
        """All of them are on record now."""
        self.noted, self.loose = len(self.results), False

    def add(self, call: Call, outcome: Outcome, *, read: bool) -> None:
        """Add what one more call came to; what a `read` does, and one that failed, is in no log."""
        if outcome.code == "needs_input":
            self.asking, self.question = call.id, outcome.content["error"]["message"]
            return
        untried = outcome.code in UNTRIED
        self.strikes = self.strikes + 1 if untried else 0
        self.loose = self.loose or read or (outcome.code is not None and not untried)
        self.results.append(function_call_output(call.item["call_id"], output_text(outcome)))


async def carry_out(
    place: Place, record: Record, calls: Sequence[Call], outcomes: Outcomes, *, asks: bool = False
) -> None:
    """Make calls, and add what they come to, up to one that asks; `asks` says whether the model itself can.

    It also stops before a call that may change something, if what came before has to be noted first.
    """
    for batch in _batches(place, calls):
        if record.status.phase == "cancelled":
            raise Conflict("", 0, "the agent was cancelled")
        read = place.reads(batch[0].item["name"])
        if outcomes.loose and not read:
            return
        if asks and batch[0].item["name"] == ASK_USER["name"]:
            outcomes.question = _question(batch[0].item)
        elif len(batch) == 1:
            outcomes.add(batch[0], await call_tool(place, *batch[0]), read=read)
        else:
            for call, outcome in zip(batch, await _side_by_side(place, batch), strict=True):
                outcomes.add(call, outcome, read=read)
                if outcomes.question is not None:
                    break
        if outcomes.question is not None:
            return


def _batches(place: Place, calls: Sequence[Call]) -> Iterator[list[Call]]:
    """The calls in order: reads that follow one another together, all others alone."""
    if len(calls) == 1:
        yield [*calls]
        return
    for reads, batch in groupby(calls, lambda call: place.reads(call.item["name"])):
        if reads:
            yield list(batch)
        else:
            yield from ([call] for call in batch)


async def _side_by_side(place: Place, calls: Sequence[Call]) -> list[Outcome]:
    found = await asyncio.gather(*(call_tool(place, *call) for call in calls), return_exceptions=True)
    for outcome in found:  # only now: none is left behind
        if isinstance(outcome, BaseException):
            raise outcome
    return found  # type: ignore[return-value]


async def call_tool(place: Tools, item: Item, call_id: str | None) -> Outcome:
    """Make the tool call of a `function_call` item."""
    try:
        arguments = json.loads(item.get("arguments") or "{}")
    except (ValueError, TypeError, RecursionError) as error:
        return Result(False, None, f"the arguments are not JSON: {error}", "invalid_arguments")
    if not isinstance(arguments, dict):
        return Result(False, None, "the arguments must be a JSON object", "invalid_arguments")
    return await place.call(item["name"], arguments, call_id=call_id)


def _question(item: Item) -> str:
    """What a model asks. Whatever it sent is put to the user as it is, rather than lost."""
    given = item.get("arguments") or ""
    try:
        return str(json.loads(given)["question"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return str(given)


def output_text(outcome: Outcome) -> str:
    """What a call came to as the text that a model reads."""
    return to_json(outcome.content).decode()

"""An agent's lifecycle: its phases, its status in a session, and the messages that change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

from stateroom.errors import InvalidMove
from stateroom.session.containment import contained

Table = Mapping[tuple[str, str], str]
"""The next phase, by the current phase and the event."""


class Lifecycle:
    """The moves that an agent can make. Each one is logged in its session; any other is an error."""

    start: ClassVar[str] = "idle"
    """The phase that every agent begins in."""

    def __init__(self, table: Table) -> None:
        self.table = MappingProxyType(dict(table))

    def after(self, phase: str, event: str) -> str:
        """The phase that an event leads to; `InvalidMove` if the current phase does not allow it."""
        next_phase = self.table.get((phase, event))
        if next_phase is None:
            raise InvalidMove(phase, event, ", ".join(self.possible(phase)) or "none")
        return next_phase

    def possible(self, phase: str) -> list[str]:
        """The events that a phase allows."""
        return [event for start, event in self.table if start == phase]

    def with_moves(self, table: Table) -> Lifecycle:
        """A lifecycle with additional or changed moves."""
        return Lifecycle({**self.table, **table})


_AT_WORK = ("idle", "planning", "executing", "waiting_feedback")

STANDARD = Lifecycle(
    {
        ("idle", "new_task"): "planning",
        ("planning", "plan_ready"): "executing",
        ("executing", "step_complete"): "executing",
        ("executing", "needs_input"): "waiting_feedback",
        ("waiting_feedback", "input_received"): "executing",
        ("executing", "task_complete"): "done",
        ("waiting_feedback", "task_complete"): "done",  # the user has nothing more to say
        **{(phase, "limit_reached"): "done" for phase in _AT_WORK},
        **{(phase, "fail"): "failed" for phase in _AT_WORK},
        **{(phase, "cancel"): "cancelled" for phase in _AT_WORK},
        **{(phase, "new_task"): "planning" for phase in ("done", "failed", "cancelled")},  # the next turn
    }
)
"""The default lifecycle of agents."""

Item = dict[str, Any]
"""A message, a tool call or its result, as OpenAI's Responses API has them."""


class Update(msgspec.Struct, frozen=True, omit_defaults=True):
    """An addition to the conversation of a session, as in an entry of its log."""

    items: list[Item]
    by: str
    """`model`, `user`, or `agent`: the agent itself, for the results of its calls and its limits."""
    moves: Sequence[str] = ()
    """The events of the agent's lifecycle that come with it, in order."""
    tokens: Sequence[int] = ()
    """The tokens of each item, by the agent's counter."""
    pinned: Sequence[int] = ()
    """The indexes of items that the model always sees."""
    usage: dict[str, int] | None = None
    """The tokens that it took, if a model reported them."""
    reason: str | None = None
    """The reason, if it ends a turn or the agent's work."""
    seconds: dict[str, float] | None = None
    """The time that the model and the tools took, if it was measured."""
    person: str | None = None
    """The person who said it by hand."""
    instructions: str | None = None
    """The environment's instructions from here on, if they changed."""
    user: str | None = None
    """The user who said it, if one was named."""

    def facts(self) -> dict[str, Any]:
        """The same as JSON data."""
        facts: dict[str, Any] = msgspec.to_builtins(self)
        return facts


class AgentStatus(msgspec.Struct, frozen=True, omit_defaults=True):
    """An agent's status. Any process can continue its work from here."""

    phase: str = "idle"
    turn: int = 0
    """The number of earlier tasks."""
    step: int = 0
    """The number of the model's answers in this turn."""
    answers: int = 0
    """The number of the model's answers in total."""
    said: int = 0
    """The number of additions to the conversation."""
    view: int = 0
    """The revision of the compaction that the model's view starts from; 0 if there was none."""
    open: tuple[str, ...] = ()
    """The model's ids of tool calls that have no result in the conversation yet."""
    question: str | None = None
    """The question that waits for an answer."""
    asking: str | None = None
    """The call id of the tool call that asks."""
    inputs: tuple[Any, ...] = ()
    """The answers to that call so far."""
    invalid_calls: int = 0
    """The number of consecutive tool calls in this turn that could not run."""
    counted: int = 0
    """The counted tokens of the newest view whose size the model has reported."""
    reported: int = 0
    """The tokens that the model reported for that view."""
    line: str = ""
    """Distinguishes the ids of calls after a rewind from those before it."""
    kept: tuple[str, ...] = ()
    """The call ids of open calls that a rewind has not undone, and that do not run again."""
    user: str | None = None
    """The user whose message it answers, if one was named; its calls belong to that user."""

    def after(self, said: Update, lifecycle: Lifecycle, **changes: Any) -> AgentStatus:
        """Return the status after an update, with further `changes`.

        Raises `InvalidMove` if the current phase does not allow the update.
        """
        phase, turn, step, answers, invalid_calls = self.phase, self.turn, self.step, self.answers, self.invalid_calls
        for event in said.moves:
            if event == "new_task":
                turn, step, invalid_calls = (turn if phase == lifecycle.start else turn + 1), 0, 0
            with contained:
                phase = lifecycle.after(phase, event)
        if said.by == "model":
            step, answers = step + 1, answers + 1
        is_message = said.by == "user" and any(item.get("role") == "user" for item in said.items)
        return replace(
            self,
            phase=phase,
            turn=turn,
            step=step,
            answers=answers,
            said=self.said + 1,
            open=open_calls(said.items, self.open),
            user=said.user if is_message else self.user,
            **{**_NOT_ASKING, "invalid_calls": invalid_calls, **changes},
        )

    def plain(self) -> dict[str, Any]:
        """The same as JSON data."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data

    @classmethod
    def of_plain(cls, data: dict[str, Any]) -> AgentStatus:
        """The status that JSON data stands for."""
        return msgspec.convert(data, cls)

    def call_id(self, index: int | str) -> str:
        """The session's id for one of the calls of the newest answer: models repeat their own."""
        name = f"{self.turn}.{self.step - 1}.{index}"
        return next((kept for kept in self.kept if kept.partition("@")[0] == name), name + self.line)

    def made(self, call_id: str) -> bool:
        """Whether a call is one of the newest answer, by the session's id."""
        return call_id.startswith(f"{self.turn}.{self.step - 1}.")

    def is_next(self, call_id: str) -> bool:
        """Whether a call of the newest answer would be made under this id."""
        return self.call_id(call_id.partition("@")[0].rpartition(".")[2]) == call_id

    def rewound(self, at: int, made: tuple[str, ...]) -> AgentStatus:
        """The status after a rewind to here that is revision `at`.

        Calls are made anew from here on, but for those that were `made` by now, or begun.
        """
        line = f"@{at}"
        asking = None if self.asking is None else self.asking.partition("@")[0] + line
        return replace(self, line=line, asking=asking, kept=made)


_NOT_ASKING: dict[str, Any] = {"question": None, "asking": None, "inputs": ()}

INITIAL = AgentStatus()
"""The status of an agent before its first message."""


def open_calls(items: Sequence[Item], before: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The calls that have no result after some more items; results come in the order of their calls."""
    waiting = [*before]
    for item in items:
        kind = item.get("type")
        if kind == "function_call":
            waiting.append(item["call_id"])
        elif kind == "function_call_output" and item.get("call_id") in waiting:
            waiting.remove(item["call_id"])
    return tuple(waiting)


def text_of(item: Item) -> str:
    """The text of a message."""
    content = item.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(part.get("text") or "" for part in content)

"""Episodes on servers of NeMo Gym that are Gymnasium-style: `/reset` begins one, and `/step` does all the rest.

A step takes a response of the model, makes its tool calls or hears its message, and gives a reward. Here each call is a
step of its own, as the runner makes the calls of an answer one by one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from stateroom.agent import AgentLog, Outcome
from stateroom.model import Item, function_call, message, response_object
from stateroom.rollout.client import ServerConnection, Verbatim, checked_reward
from stateroom.rollout.rows import Row, given_row
from stateroom.session import AgentInMemory, Lifecycle, Result, Verdict

STEP_ID = "_ng_step_request_id"


class GymnasiumSession:
    """An episode that was reset. Its reward is the sum of those of its steps."""

    id: str | None = None
    parent: tuple[str, int] | None = None
    replies = True
    opens = False

    def __init__(self, connection: ServerConnection, row: Row, begun: Row, lifecycle: Lifecycle) -> None:
        self._connection = connection
        self._row = given_row(row)
        self._first = _observed(begun)
        info = begun.get("info")
        self._repeatable = isinstance(info, dict) and info.get("supports_step_idempotency") is True
        self._reward = 0.0
        self._over = False
        self.agent: AgentLog = AgentInMemory(lifecycle)

    def reads(self, name: str) -> bool:
        return False

    async def instructions(self) -> str:
        """What the server says when it begins."""
        return self._first or ""

    async def reply(self, message_: str, *, call_id: str) -> str | None:
        """What the server says to a message; None when the episode is over."""
        if self._over:
            return None
        stepped = await self._step(message(message_), call_id)
        return None if self._over else _observed(stepped) or ""

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Outcome:
        """The output of a call, followed by what the server says besides."""
        if self._over:
            return Result(False, None, "the episode is over, so there are no tools any more", "unknown_tool")
        call = function_call(name, call_id or "call", **arguments)
        stepped = await self._step(call, call_id)
        info = stepped.get("info")
        outputs = info.get("tool_outputs") if isinstance(info, dict) else None
        said = [each["output"] for each in outputs or () if isinstance(each, dict) and "output" in each]
        texts = [each if isinstance(each, str) else json.dumps(each) for each in (*said, _observed(stepped) or "")]
        return Verbatim(Raw("\n\n".join(filter(None, texts)).encode()))

    async def verify(self, response: Any = None) -> Verdict:
        return Verdict(self._reward)

    async def close(self) -> None:
        """Nothing: the server ends the episode itself."""

    async def _step(self, item: Item, step_id: str | None) -> Row:
        response = response_object(str(step_id), "stateroom", [item])
        repeatable = self._repeatable and step_id is not None
        body = {**self._row, "response": response, **({STEP_ID: step_id} if repeatable else {})}
        reply = await self._connection.post("/step", body, {}, repeatable=repeatable)
        stepped = reply.expect("step")
        self._reward += checked_reward(stepped.get("reward", 0.0), "step")
        self._over = bool(stepped.get("terminated") or stepped.get("truncated"))
        return stepped


def _observed(reply: Row) -> str | None:
    found = reply.get("observation")
    return found if found is None or isinstance(found, str) else json.dumps(found)

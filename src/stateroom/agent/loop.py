"""The tool loop: a policy and an environment's tools, in turn."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from secrets import token_hex
from typing import Any, Literal, Protocol

from stateroom.errors import PolicyFailed
from stateroom.model import Item, Policy, function_call_output
from stateroom.session import Result
from stateroom.session.execution import was_cancelled
from stateroom.state import to_json

MAX_STEPS = 50
"""How often a policy may answer in one episode."""


class Outcome(Protocol):
    """What a call came to, as far as the loop cares."""

    @property
    def content(self) -> Any:
        """What the model is shown, as JSON data."""


class Place(Protocol):
    """Where tools are called: a session, or whatever stands for one that is kept elsewhere."""

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Outcome:
        """Call a tool; a `call_id` that was used before in the same place gives the same result, and runs nothing."""


OnStep = Callable[[list[Item]], Awaitable[None]]
"""Is given the items of an answer, and of what its calls came to."""


@dataclass(frozen=True)
class Trajectory:
    """What a policy and the tools did, and how it ended."""

    output: list[Item]
    status: Literal["completed", "incomplete"]
    reason: Literal["max_steps", "deadline"] | None = None
    """Why it is incomplete."""


async def act(
    place: Place,
    policy: Policy,
    conversation: list[Item],
    tools: list[Item],
    *,
    max_steps: int = MAX_STEPS,
    deadline: float | None = None,
    turn: str | None = None,
    on_step: OnStep | None = None,
) -> Trajectory:
    """Let the policy act in a session until it answers without a tool call, or a limit is reached.

    `deadline` is in seconds from now. What was done before a limit stays done. `turn` is a name that the session has
    seen in no other turn: with it the calls have the same ids, and so the same luck, wherever it is taken again. By
    default it is a random one. `on_step` is told of each answer that was carried out.
    """
    output: list[Item] = []
    turn = turn or token_hex(8)
    try:
        async with asyncio.timeout(deadline) as limit:
            for step in range(max_steps):
                await asyncio.sleep(0)  # a policy and tools that never wait must not keep the deadline from passing
                begun = len(output)
                calls = await _step(place, policy, [*conversation, *output], tools, f"{turn}.{step}", output)
                if on_step is not None:
                    await on_step(output[begun:])
                if not calls:
                    return Trajectory(output, "completed")
    except TimeoutError:
        if not limit.expired():
            raise
        return Trajectory(_without_open_calls(output), "incomplete", "deadline")
    return Trajectory(output, "incomplete", "max_steps")


async def _step(
    place: Place, policy: Policy, conversation: list[Item], tools: list[Item], name: str, output: list[Item]
) -> int:
    """One answer of the policy's, and what its calls come to, added to `output` one by one; tells how many calls."""
    items = await _answer(policy, conversation, tools)
    output.extend(items)
    calls = [item for item in items if item["type"] == "function_call"]
    for index, call in enumerate(calls):
        # Models repeat their own call ids; where it stands in the turn makes a call this call.
        result = await call_tool(place, call, f"{name}.{index}")
        output.append(function_call_output(call["call_id"], result))
    return len(calls)


async def _answer(policy: Policy, conversation: list[Item], tools: list[Item]) -> list[Item]:
    try:
        answer = policy.respond(conversation, tools)
        items = await answer if inspect.isawaitable(answer) else answer
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if was_cancelled(error):
            raise  # the episode was; else it is something of the policy's own
        raise PolicyFailed(f"{type(policy).__name__} raised {type(error).__name__}: {error}") from error
    if not isinstance(items, list) or not all(isinstance(item, dict) and "type" in item for item in items):
        raise PolicyFailed(f"{type(policy).__name__} must answer with a list of Responses items, not {items!r:.200}")
    for item in items:
        if item["type"] == "function_call" and not _is_call(item):
            raise PolicyFailed(
                f"{type(policy).__name__} made a tool call without call_id, name or arguments: {item!r:.200}"
            )
    try:
        json.dumps(items)
    except (TypeError, ValueError, RecursionError) as error:
        raise PolicyFailed(f"{type(policy).__name__} answered with something that is not JSON: {error}") from error
    return items


def _is_call(item: Item) -> bool:
    return isinstance(item.get("call_id"), str) and isinstance(item.get("name"), str) and "arguments" in item


async def call_tool(place: Place, call: Item, call_id: str | None) -> str:
    """Make the tool call of a `function_call` item; what comes back is the text that the model reads."""
    try:
        arguments = json.loads(call.get("arguments") or "{}")
    except (ValueError, TypeError, RecursionError) as error:
        return output_text(Result(False, None, f"the arguments are not JSON: {error}", "invalid_arguments"))
    if not isinstance(arguments, dict):
        return output_text(Result(False, None, "the arguments must be a JSON object", "invalid_arguments"))
    return output_text(await place.call(call["name"], arguments, call_id=call_id))


def output_text(outcome: Outcome) -> str:
    """What a call came to as the text that a model reads."""
    return to_json(outcome.content).decode()


def _without_open_calls(output: list[Item]) -> list[Item]:
    """The items less the calls at the end that have no result: a conversation must not end in one."""
    answered = sum(item["type"] == "function_call_output" for item in output)
    calls = [index for index, item in enumerate(output) if item["type"] == "function_call"]
    open_calls = set(calls[answered:])  # calls are answered in their order
    return [item for index, item in enumerate(output) if index not in open_calls]

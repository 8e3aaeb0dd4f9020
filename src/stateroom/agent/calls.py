"""A model's tool calls: reads run side by side, all other calls in order; and plain functions as tools on a state."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, NamedTuple, get_type_hints

from pydantic_core import to_jsonable_python

from stateroom.agent.agent import ASK_USER, AgentLog, Outcome, Tools, Workspace
from stateroom.environment import Injectable, Tool, make_tool, tool
from stateroom.errors import DefinitionError, InvalidArguments, ToolError
from stateroom.model import Item, function_call_output
from stateroom.session import MAX_READS, Result, result_of_failure, unknown_tool
from stateroom.state import State, to_json

UNTRIED = ("unknown_tool", "invalid_arguments")
"""The codes of calls that could not run."""


class ToolCall(NamedTuple):
    """A tool call of a model."""

    item: Item
    id: str
    """The call id in the workspace."""


@dataclass
class Outcomes:
    """The results of calls, one after another."""

    invalid_calls: int
    """Consecutive calls that could not run."""
    results: list[Item] = field(default_factory=list)
    logged: int = 0
    """The number of results in the log."""
    shown: int = 0
    """The number of results in the model's view."""
    volatile: bool = False
    """Whether a result outside the log could differ if its call ran again."""
    question: str | None = None
    """The question of the call after these."""
    asking: str | None = None
    """The id of that call, if a tool asks, not the model."""
    late: bool = False
    """Whether the deadline passed before all calls were done."""

    @property
    def new(self) -> list[Item]:
        """The results that are not in the log."""
        return self.results[self.logged :]

    def mark_logged(self) -> None:
        """All results are in the log now."""
        self.logged, self.volatile = len(self.results), False

    def add(self, call: ToolCall, outcome: Outcome, *, read: bool) -> None:
        """Add the result of a call. Calls that only read, or fail, are in no log."""
        if outcome.code == "needs_input":
            self.asking, self.question = call.id, outcome.content["error"]["message"]
            return
        untried = outcome.code in UNTRIED
        self.invalid_calls = self.invalid_calls + 1 if untried else 0
        self.volatile = self.volatile or read or (outcome.code is not None and not untried)
        self.results.append(function_call_output(call.item["call_id"], output_text(outcome)))


class AgentCancelled(Exception):
    """The agent was cancelled while it ran calls."""


async def carry_out(
    workspace: Workspace, log: AgentLog, calls: Sequence[ToolCall], outcomes: Outcomes, *, asks: bool = False
) -> None:
    """Run calls, and add their results, up to one that asks a question; `asks` says whether the model can ask.

    It also stops before a call that may change something, if volatile results have to be logged first.
    """
    for batch in _batches(workspace, calls):
        if log.status.phase == "cancelled":
            raise AgentCancelled
        read = workspace.reads(batch[0].item["name"])
        if outcomes.volatile and not read:
            return
        if asks and batch[0].item["name"] == ASK_USER["name"]:
            outcomes.question = _question(batch[0].item)
        elif len(batch) == 1:
            outcomes.add(batch[0], await call_tool(workspace, *batch[0]), read=read)
        else:
            for call, outcome in zip(batch, await _side_by_side(workspace, batch), strict=True):
                outcomes.add(call, outcome, read=read)
                if outcomes.question is not None:
                    break
        if outcomes.question is not None:
            return


def _batches(workspace: Workspace, calls: Sequence[ToolCall]) -> Iterator[list[ToolCall]]:
    """The calls in order: consecutive reads together, all others alone."""
    if len(calls) == 1:
        yield [*calls]
        return
    for reads, batch in groupby(calls, lambda call: workspace.reads(call.item["name"])):
        if reads:
            yield list(batch)
        else:
            yield from ([call] for call in batch)


async def _side_by_side(workspace: Workspace, calls: Sequence[ToolCall]) -> list[Outcome]:
    """The outcomes of reads, of which a few run at once: a model can ask for thousands in one answer."""
    turns = asyncio.Semaphore(MAX_READS)

    async def read(call: ToolCall) -> Outcome:
        async with turns:
            return await call_tool(workspace, *call)

    outcomes = await asyncio.gather(*map(read, calls), return_exceptions=True)
    for outcome in outcomes:  # only after all have ended
        if isinstance(outcome, BaseException):
            raise outcome
    return outcomes  # type: ignore[return-value]


async def call_tool(tools: Tools, item: Item, call_id: str | None) -> Outcome:
    """Run the tool call of a `function_call` item."""
    try:
        arguments = json.loads(item.get("arguments") or "{}")
    except (ValueError, TypeError, RecursionError) as error:
        # Python's own words for too deep nesting vary with its version, and from run to run.
        reason = "they are nested too deeply" if isinstance(error, RecursionError) else error
        return Result(False, None, f"the arguments are not JSON: {reason}", "invalid_arguments")
    if not isinstance(arguments, dict):
        return Result(False, None, "the arguments must be a JSON object", "invalid_arguments")
    return await tools.call(item["name"], arguments, call_id=call_id)


def _question(item: Item) -> str:
    """The question of a model; invalid arguments are the question as they are."""
    given = item.get("arguments") or ""
    try:
        return str(json.loads(given)["question"])
    except (ValueError, TypeError, KeyError, RecursionError):
        return str(given)


def output_text(outcome: Outcome) -> str:
    """The result of a call as text for the model."""
    return to_json(outcome.content).decode()


class StateTools:
    """Functions whose first parameter is a state: `def pay(state, amount: float) -> str`, with a docstring.

    The model sees a `ToolError` that a function raises; the function must not have changed the state.
    """

    def __init__(self, what: str, functions: Iterable[Callable[..., Any]]) -> None:
        """`what` names such a tool in errors."""
        self._tools = {each.name: each for each in (_tool_of(what, function) for function in functions)}

    def __contains__(self, name: object) -> bool:
        return name in self._tools

    @property
    def definitions(self) -> list[Item]:
        """The tools as OpenAI functions."""
        return [each.definition for each in self._tools.values()]

    def on(self, state: Any) -> ToolsOnState:
        """The tools, on a state."""
        return ToolsOnState(self._tools, state)


class ToolsOnState:
    """Runs calls of tools on one state."""

    def __init__(self, tools: Mapping[str, Tool], state: Any) -> None:
        self._tools = tools
        self._state = state

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Result:
        tool = self._tools.get(name)
        if tool is None:
            return result_of_failure(unknown_tool(name, self._tools))
        try:
            output = tool.procedure.function(self._state, **tool.bind(dict(arguments)))
            return Result(True, to_jsonable_python(await output if inspect.isawaitable(output) else output))
        except InvalidArguments as error:
            return result_of_failure(error)
        except ToolError as error:
            return Result(False, None, str(error) or f"{name} failed", "tool_error")


def _tool_of(what: str, function: Callable[..., Any]) -> Tool:
    """The tool of an author's function."""
    name = getattr(function, "__name__", repr(function))
    where = f"{what} {name!r}"
    if not inspect.isfunction(function) or [*inspect.signature(function).parameters][:1] != ["state"]:
        raise DefinitionError(f"{where} must be a function whose first parameter is the state: def {name}(state, …)")
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise DefinitionError(f"{where}: cannot read its annotations: {error}") from None
    made = make_tool(where, name, tool(function), hints, Injectable(State, frozenset(), first="state"))
    if made.procedure.needs:
        asked = ", ".join(sorted(made.procedure.needs))
        raise DefinitionError(f"{where} needs {asked}, but only `state` and the model's arguments are available")
    return made

"""The tool loop: a model and an environment's tools, in turn, each step of it on record.

One entry of the record holds a model's answer together with the results of the calls of the answer before. So nothing
is written twice, and whoever takes over after a crash finds the answers that were received, and calls with ids by which
those that were committed do not run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import msgspec

from stateroom.agent.agent import ASK_USER, Agent
from stateroom.agent.calls import Call, Outcomes, Place, carry_out
from stateroom.agent.context import Anchor
from stateroom.agent.record import Recalled, Record
from stateroom.agent.window import Window
from stateroom.errors import Conflict, ContextOverflow, DefinitionError, InvalidMove, ModelFailed
from stateroom.model import Answer, Item, Request, Usage, answer_of, input_items, text_of
from stateroom.session import AgentStatus, Session, Update
from stateroom.session.agent import ended_call

OnStep = Callable[[list[Item]], Awaitable[None]]
"""Is given the items of an answer, and of what its calls came to."""

Status = Literal["completed", "incomplete", "waiting", "failed", "cancelled"]

_ENDED: dict[str, Status] = {"done": "completed", "failed": "failed", "cancelled": "cancelled"}

_AT_WORK = ("idle", "planning", "executing")

WAITING = "waiting_feedback"


@dataclass(frozen=True)
class Trajectory:
    """What a model and the tools did, and how it ended."""

    output: list[Item]
    status: Status
    reason: str | None = None
    """Why it is incomplete: `max_steps`, `deadline`, `max_output_tokens` or `bad_calls`."""
    usage: Usage | None = None
    """The tokens that the model took, as far as it told."""
    question: str | None = None
    """What it waits to be told."""

    def following(self, before: Recalled) -> Trajectory:
        """The whole of it, with what came before."""
        if not before.items:
            return self
        usage = self.usage if before.usage is None else before.usage + (self.usage or Usage())
        return replace(self, output=[*before.items, *self.output], usage=usage)


async def run(agent: Agent, session: Session[Any]) -> Trajectory:
    """Let an agent work in a session on its task, or on what it was told since, from where it stands."""
    await session.agent.refresh()  # another process may have continued its work
    request = getattr(session.task, "responses_create_params", {})
    return await act(session, session.agent, agent, session.tools, input_items(request.get("input")))


async def act(
    place: Place,
    record: Record,
    agent: Agent,
    tools: Sequence[Item],
    task: Sequence[Item] = (),
    *,
    on_step: OnStep | None = None,
) -> Trajectory:
    """Let an agent work in a place until it is done, has to wait for input, or reaches a limit.

    `task` are the items that its conversation begins with. It goes on from where it stands by its record, be that the
    beginning; what is given back is what came to be said since. What was done before a limit stays done. `on_step` is
    told of each answer that was carried out.
    """
    return await _Turn(place, record, agent, tools, on_step).run(task)


class _Turn:
    """An agent at work."""

    def __init__(
        self, place: Place, record: Record, agent: Agent, tools: Sequence[Item], on_step: OnStep | None
    ) -> None:
        self._place = place
        self._record = record
        self._agent = agent
        if agent.asks and any(tool.get("name") == ASK_USER["name"] for tool in tools):
            raise DefinitionError(f"a tool is named {ASK_USER['name']!r}, as that of an agent that asks: rename it")
        self._tools = [*tools, ASK_USER] if agent.asks else tools
        told = {"instructions": agent.instructions} if agent.instructions else {}
        self._settings = {**agent.settings, **told}
        self._on_step = on_step
        self._window = Window(self._beside())
        self._output: list[Item] = []
        self._usage: Usage | None = None
        self._newest: list[Item] = []
        """The items of the newest answer."""
        self._until: float | None = None
        self._reason: str | None = None

    def _beside(self) -> int:
        context = self._agent.context
        return 0 if context.budget is None else context.beside(self._tools, self._agent.instructions)

    async def run(self, task: Sequence[Item]) -> Trajectory:
        stance = self._record.status
        await self._load(stance, task)
        if self._agent.deadline is not None:
            self._until = asyncio.get_running_loop().time() + self._agent.deadline
        try:
            while stance.phase not in _ENDED:
                await asyncio.sleep(0)  # a model and tools that never wait must not keep others from their turn
                if stance.phase == WAITING:
                    if not self._place.replies or stance.question is not None:
                        return self._trajectory("waiting", stance)
                    stance = await self._hear_reply(stance)
                elif stance.phase in _AT_WORK:
                    stance = await self._step(stance)
                else:  # a phase of the environment's own, which somebody has to lead it out of
                    return self._trajectory("waiting", stance)
        except Conflict:
            if self._record.status.phase != "cancelled":
                raise
            stance = self._record.status
        done_early = stance.phase == "done" and self._reason is not None
        return self._trajectory("incomplete" if done_early else _ENDED[stance.phase], stance)

    def _trajectory(self, status: Status, stance: AgentStatus) -> Trajectory:
        return Trajectory(self._output, status, self._reason, self._usage, stance.question)

    async def _load(self, stance: AgentStatus, task: Sequence[Item]) -> None:
        """Look at the conversation as the model is shown it."""
        window, context = self._window, self._agent.context
        if not stance.view:
            window.add(task, context.count(task), range(len(task)))
        for entry in await self._record.said(stance.view) if stance.said else ():
            items = entry.facts["items"]
            window.add(items, entry.facts.get("tokens") or context.count(items), entry.facts.get("pinned", ()))
            if entry.facts.get("by") == "model":
                self._newest = items
            self._reason = entry.facts.get("reason") if stance.phase in _ENDED else None

    async def _step(self, stance: AgentStatus) -> AgentStatus:
        """Carry out what the model has called, and let it answer."""
        stance, outcomes = await self._outcomes(stance)
        if self._on_step is not None and self._newest:
            await self._on_step([*self._newest, *outcomes.results])
        if outcomes.question is not None:
            waits: dict[str, Any] = {"question": outcomes.question, "asking": outcomes.asking}
            if outcomes.asking is not None and outcomes.asking == stance.asking:
                waits["inputs"] = stance.inputs
            return await self._say(stance, outcomes.new, moves=("needs_input",), **waits)
        if outcomes.late:
            return await self._end(stance, outcomes.new, "deadline")
        if stance.step >= self._agent.max_steps:
            return await self._end(stance, outcomes.new, "max_steps")
        if outcomes.strikes >= self._agent.max_strikes:
            return await self._end(stance, outcomes.new, "bad_calls")
        return await self._think(stance, outcomes)

    async def _outcomes(self, stance: AgentStatus) -> tuple[AgentStatus, Outcomes]:
        """What the calls come to that the model has made and that have no result yet."""
        outcomes = Outcomes(stance.strikes)
        if not stance.step:  # the turn before was ended while these were open
            outcomes.results.extend(ended_call(call_id, "cancelled", "the turn was ended") for call_id in stance.open)
            return stance, outcomes
        calls = self._open_calls(stance) if stance.open else []
        place, record, asks = self._place, self._record, self._agent.asks
        while (left := calls[len(outcomes.results) :]) and outcomes.question is None:
            if outcomes.loose:
                stance = await self._note(stance, outcomes)
            if not await self._in_time(partial(carry_out, place, record, left, outcomes, asks=asks)):
                outcomes.late = True
                message = "the time of the episode was up before this call came back"
                left = calls[len(outcomes.results) :]
                outcomes.results.extend(ended_call(call.item["call_id"], "deadline", message) for call in left)
        return stance, outcomes

    def _open_calls(self, stance: AgentStatus) -> list[Call]:
        made = [item for item in self._newest if item["type"] == "function_call"]
        first = len(made) - len(stance.open)
        return [Call(item, stance.call_id(first + index)) for index, item in enumerate(made[first:])]

    async def _note(self, stance: AgentStatus, outcomes: Outcomes) -> AgentStatus:
        """Keep what calls came to before another one is made that may change what they were made on.

        Else whoever takes over in between would make them again, and they could come to something else.
        """
        results = outcomes.new
        counts = self._agent.context.count(results)
        self._window.add(results, counts)
        stance = await self._say(stance, results, counts, moves=(), strikes=outcomes.strikes)
        outcomes.note()
        return stance

    async def _think(self, stance: AgentStatus, outcomes: Outcomes) -> AgentStatus:
        """Let the model answer, and keep that together with what its calls before came to."""
        agent, results = self._agent, outcomes.new
        context = agent.context
        try:
            counts = context.count(results)
            self._window.add(results, counts)
            if not context.fits(self._window, Anchor(stance.counted, stance.reported)):
                if results:  # which the view is to hold
                    stance = await self._say(stance, results, counts, moves=(), strikes=outcomes.strikes)
                    results, counts = [], []
                compacted = await self._compact(stance)
                if compacted is None:
                    return await self._end(stance, [], "deadline")
                stance = compacted
            request = Request(self._window.items, self._tools, self._settings, agent.seed, stance.answers)
            counted = self._window.total
            given: list[Answer] = []
            if not await self._in_time(lambda: self._ask(request, given)):
                return await self._end(stance, results, "deadline", counts)
        except (ModelFailed, ContextOverflow) as error:
            with suppress(InvalidMove):  # a lifecycle of the author's own need not know of failures
                await self._say(stance, results, counts, moves=("fail",), reason=str(error))
            raise
        [answer] = given
        self._newest = answer.items
        moves = ["step_complete" if stance.phase == "executing" else "plan_ready"]
        if stance.phase == "idle":
            moves.insert(0, "new_task")
        called = any(item["type"] == "function_call" for item in answer.items)
        changes: dict[str, Any] = {"strikes": outcomes.strikes}
        usage = answer.usage
        if usage is not None:
            self._usage = usage if self._usage is None else self._usage + usage
            changes |= {"counted": counted, "reported": usage.input_tokens}
        if not called:
            if self._on_step is not None:
                await self._on_step(answer.items)
            if answer.truncated:
                moves.append("limit_reached")
                self._reason = "max_output_tokens"
            else:
                moves.append("needs_input" if self._place.replies else "task_complete")
        new = context.count(answer.items)
        self._window.add(answer.items, new)
        items = [*results, *answer.items]
        self._output.extend(items)
        told = None if usage is None else msgspec.to_builtins(usage)
        said = Update(items, "model", moves, [*counts, *new], usage=told, reason=self._reason)
        return await self._record.say(said, after=stance, **changes)

    async def _ask(self, request: Request, given: list[Answer]) -> None:
        given.append(await answer_of(self._agent.model, request))

    async def _compact(self, stance: AgentStatus) -> AgentStatus | None:
        """Let the model's view start from less; None if the time is up before that is found."""

        async def shorten() -> None:
            self._window = await self._agent.context.fit(self._window, Anchor(stance.counted, stance.reported))

        if not await self._in_time(shorten):
            return None
        return await self._record.compact(self._window.plain(), after=stance)

    async def _hear_reply(self, stance: AgentStatus) -> AgentStatus:
        """Let the environment's user answer the message of the agent's."""
        message = "".join(text_of(item) for item in self._newest if item["type"] == "message")
        replies: list[str | None] = []

        async def hear() -> None:
            replies.append(await self._place.reply(message, call_id=stance.call_id("reply")))

        if not await self._in_time(hear):
            return await self._end(stance, [], "deadline")
        [reply] = replies
        if reply is None:
            return await self._say(stance, [], moves=("task_complete",))
        item: Item = {"type": "message", "role": "user", "content": reply}
        counts = self._agent.context.count([item])
        self._window.add([item], counts)
        return await self._say(stance, [item], counts, moves=("input_received",), by="user")

    async def _end(
        self, stance: AgentStatus, results: list[Item], reason: str, counts: Sequence[int] | None = None
    ) -> AgentStatus:
        """End the turn at a limit."""
        self._reason = reason
        return await self._say(stance, results, counts, moves=("limit_reached",), reason=reason)

    async def _say(
        self,
        stance: AgentStatus,
        items: list[Item],
        counts: Sequence[int] | None = None,
        *,
        moves: Sequence[str],
        by: str = "agent",
        reason: str | None = None,
        **changes: Any,
    ) -> AgentStatus:
        """Note something that is not an answer of the model's."""
        self._output.extend(items)
        tokens = self._agent.context.count(items) if counts is None else counts
        return await self._record.say(Update(items, by, moves, tokens, reason=reason), after=stance, **changes)

    async def _in_time(self, work: Callable[[], Awaitable[None]]) -> bool:
        """Do some work, unless the deadline passes before it is done."""
        if self._until is None:
            await work()
            return True
        if asyncio.get_running_loop().time() >= self._until:
            return False
        try:
            async with asyncio.timeout_at(self._until) as limit:
                await work()
        except TimeoutError:
            if not limit.expired():
                raise
            return False
        return True

"""The tool loop: a model and an environment's tools take turns, and each step is logged.

One log entry holds a model's answer together with the results of the calls before it. So nothing is written twice, and
a process that takes over after a crash finds all answers, and the ids of all calls: committed calls do not run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from time import perf_counter
from typing import Any, Literal

import msgspec
from msgspec import structs

from stateroom.agent.agent import ASK_USER, Agent, AgentLog, Workspace
from stateroom.agent.calls import Outcomes, ToolCall, carry_out
from stateroom.agent.context import Anchor
from stateroom.agent.plan import Planner, plan_tools
from stateroom.agent.transcripts import Recalled, Times
from stateroom.agent.window import Window
from stateroom.errors import Conflict, ContextOverflow, DefinitionError, InvalidMove, ModelFailed
from stateroom.model import Answer, Item, Request, Segment, Usage, answer_of, input_items, message_text, without_tokens
from stateroom.session import AgentStatus, Session, Update, ended_call

OnStep = Callable[[list[Item]], Awaitable[None]]
"""Is given an answer with what came of it: the results of its calls, or the user's reply."""

TurnStatus = Literal["completed", "incomplete", "waiting", "failed", "cancelled"]

_ENDED: dict[str, TurnStatus] = {"done": "completed", "failed": "failed", "cancelled": "cancelled"}

_AT_WORK = ("idle", "planning", "executing")

WAITING = "waiting_feedback"


@dataclass(frozen=True)
class Trajectory:
    """The items of a turn, and how it ended."""

    output: list[Item]
    status: TurnStatus
    reason: str | None = None
    """Why it is incomplete: `max_steps`, `deadline`, `max_output_tokens` or `bad_calls`."""
    usage: Usage | None = None
    """The tokens of the model, as far as reported."""
    question: str | None = None
    """The question that it waits to have answered."""
    times: Times = field(default_factory=Times)
    """What the agent has waited for."""
    instructions: str = ""
    """The newest instructions that the model was given, if the environment has some."""

    def following(self, before: Recalled) -> Trajectory:
        """The trajectory together with the conversation before it."""
        if not before.items:
            return self
        usage = self.usage if before.usage is None else before.usage + (self.usage or Usage())
        return replace(self, output=[*before.items, *self.output], usage=usage, times=before.times + self.times)


async def run(agent: Agent, session: Session[Any]) -> Trajectory:
    """Run an agent in a session, on its task or on what was said since; it continues from its status."""
    await session.agent.refresh()  # another process may have continued its work
    request = getattr(session.task, "responses_create_params", {})
    return await act(session, session.agent, agent, session.tools, input_items(request.get("input")))


async def act(
    workspace: Workspace,
    log: AgentLog,
    agent: Agent,
    tools: Sequence[Item],
    task: Sequence[Item] = (),
    *,
    on_step: OnStep | None = None,
) -> Trajectory:
    """Run an agent until it is done, waits for input, or reaches a limit.

    The conversation begins with the items of `task`. The agent continues from its status in the log, and the trajectory
    holds what was said since. Calls before a limit stay committed. `on_step` is called after each step, when all of it
    is in the log.
    """
    return await _Turn(workspace, log, agent, tools, on_step).run(task)


class _Turn:
    """One turn of an agent."""

    def __init__(
        self, workspace: Workspace, log: AgentLog, agent: Agent, tools: Sequence[Item], on_step: OnStep | None
    ) -> None:
        self._planner = Planner(workspace) if agent.plan else None
        self._workspace = self._planner or workspace
        self._log = log
        self._agent = agent
        own = [*([ASK_USER] if agent.asks else ()), *(plan_tools().definitions if agent.plan else ())]
        for name in {tool.get("name") for tool in tools} & {tool["name"] for tool in own}:
            raise DefinitionError(f"the tool {name!r} clashes with that of an agent that asks or plans; rename it")
        self._tools = [*tools, *own]
        self._tools_size = 0 if agent.context.budget is None else agent.context.beside(self._tools)
        self._told = ""
        """What the environment tells the agent, as the log has it."""
        self._on_step = on_step
        self._window = Window(self._beside())
        self._segment = Segment()
        self._output: list[Item] = []
        self._reported = 0
        """How many items of the output `on_step` was given."""
        self._usage: Usage | None = None
        self._times = Times()
        self._unlogged = Times()
        """The part of the times that no log entry has."""
        self._newest: list[Item] = []
        """The items of the newest answer."""
        self._until: float | None = None
        self._reason: str | None = None

    @property
    def _instructions(self) -> str:
        """The agent's own instructions, or else those of its task, and what the environment tells it."""
        own = self._agent.instructions or self._agent.settings.get("instructions")
        return "\n\n".join(text for text in (own, self._told) if text)

    def _beside(self) -> int:
        context = self._agent.context
        return 0 if context.budget is None else self._tools_size + context.beside((), self._instructions)

    def _instruct(self, told: str) -> None:
        """Let the environment's instructions be these from here on; all prompts begin with them."""
        self._told = told
        self._window.set_beside(self._beside())
        self._begin_segment()

    def _begin_segment(self) -> None:
        """Let the next prompt be one that does not begin with the tokens before."""
        if self._segment.ids:
            self._window.items, self._segment = without_tokens(self._window.items), Segment()

    async def run(self, task: Sequence[Item]) -> Trajectory:
        status = await self._log.load()
        await self._load(status, task)
        if self._planner is not None:
            self._planner.load(self._window, task_id=str(status.turn))
        if self._agent.deadline is not None:
            self._until = asyncio.get_running_loop().time() + self._agent.deadline
        try:
            if status.phase == "idle" and self._workspace.opens and not self._has_user_message():
                status = await self._hear_opening(status)
            while status.phase not in _ENDED:
                await asyncio.sleep(0)  # other tasks run too, even if the model and tools never wait
                if status.phase == WAITING:
                    if not self._workspace.replies or status.question is not None:
                        return self._trajectory("waiting", status)
                    status = await self._hear_reply(status)
                elif status.phase in _AT_WORK:
                    status = await self._step(status)
                else:  # a phase of the environment's own lifecycle, which an event of its own must end
                    return self._trajectory("waiting", status)
        except Conflict:
            if self._log.status.phase != "cancelled":
                raise
            status = self._log.status
        await self._report()
        done_early = status.phase == "done" and self._reason is not None
        return self._trajectory("incomplete" if done_early else _ENDED[status.phase], status)

    def _trajectory(self, ended: TurnStatus, status: AgentStatus) -> Trajectory:
        times, told = self._times + self._unlogged, self._instructions if self._told else ""
        return Trajectory(self._output, ended, self._reason, self._usage, status.question, times, told)

    async def _load(self, status: AgentStatus, task: Sequence[Item]) -> None:
        """Load the part of the conversation that the model sees."""
        window, context = self._window, self._agent.context
        if not status.view:
            window.add(task, context.count(task), range(len(task)))
        for entry in await self._log.said(status.view) if status.said else ():
            items = entry.facts["items"]
            if "instructions" in entry.facts:
                self._instruct(entry.facts["instructions"])
            window.add(items, entry.facts.get("tokens") or context.count(items), entry.facts.get("pinned", ()))
            self._segment.recall(items)
            if entry.facts.get("by") == "model":
                self._newest = items
            self._reason = entry.facts.get("reason") if status.phase in _ENDED else None

    async def _step(self, status: AgentStatus) -> AgentStatus:
        """Run the model's open calls, and let it answer."""
        status, outcomes = await self._outcomes(status)
        if self._on_step is not None:
            if outcomes.new:
                status = await self._log_results(status, outcomes)
            await self._report()
        if outcomes.question is not None:
            waits: dict[str, Any] = {"question": outcomes.question, "asking": outcomes.asking}
            if outcomes.asking is not None and outcomes.asking == status.asking:
                waits["inputs"] = status.inputs
            return await self._say(status, outcomes.new, moves=("needs_input",), **waits)
        if outcomes.late:
            return await self._end(status, outcomes.new, "deadline")
        if status.step >= self._agent.max_steps:
            return await self._end(status, outcomes.new, "max_steps")
        if outcomes.invalid_calls >= self._agent.max_invalid_calls:
            return await self._end(status, outcomes.new, "bad_calls")
        told: list[str] = []

        async def hear_instructions() -> None:
            told.append(await self._workspace.instructions())

        if not await self._before_deadline(hear_instructions):
            return await self._end(status, outcomes.new, "deadline")
        if told != [self._told]:
            self._instruct(*told)
            status = await self._log_results(status, outcomes, *told)
        return await self._think(status, outcomes)

    async def _report(self) -> None:
        """Tell what was said since the last step."""
        items = self._output[self._reported :]
        if self._on_step is not None and items:
            self._reported += len(items)
            await self._on_step(items)

    async def _outcomes(self, status: AgentStatus) -> tuple[AgentStatus, Outcomes]:
        """Run the model's calls that have no result yet."""
        outcomes = Outcomes(status.invalid_calls)
        if not status.step:  # the turn before ended while these were open
            outcomes.results.extend(ended_call(call_id, "cancelled", "the turn was ended") for call_id in status.open)
            return status, outcomes
        calls = self._open_calls(status) if status.open else []
        workspace, log, asks = self._workspace, self._log, self._agent.asks
        while (left := calls[len(outcomes.results) :]) and outcomes.question is None:
            if outcomes.volatile:
                status = await self._log_results(status, outcomes)
            if not await self._in_time(partial(carry_out, workspace, log, left, outcomes, asks=asks), "tool"):
                outcomes.late = True
                message = "the deadline of the turn passed before this call returned"
                left = calls[len(outcomes.results) :]
                outcomes.results.extend(ended_call(call.item["call_id"], "deadline", message) for call in left)
        return status, outcomes

    def _open_calls(self, status: AgentStatus) -> list[ToolCall]:
        made = [item for item in self._newest if item["type"] == "function_call"]
        first = len(made) - len(status.open)
        return [ToolCall(item, status.call_id(first + index)) for index, item in enumerate(made[first:])]

    async def _log_results(
        self, status: AgentStatus, outcomes: Outcomes, instructions: str | None = None
    ) -> AgentStatus:
        """Log results before a call that may change the state, or before a model is shown other instructions.

        Otherwise a process that takes over between the two would run the earlier calls again, with other results.
        """
        results = outcomes.new
        counts = self._agent.context.count(results)
        self._window.add(results, counts)
        moves = ("new_task",) if status.phase == "idle" else ()
        said = Update(results, "agent", moves, counts, instructions=instructions)
        self._output.extend(results)
        status = await self._tell(said, status, invalid_calls=outcomes.invalid_calls)
        outcomes.mark_logged()
        return status

    async def _think(self, status: AgentStatus, outcomes: Outcomes) -> AgentStatus:
        """Let the model answer, and log the answer together with the results of the calls before."""
        agent, results = self._agent, outcomes.new
        context = agent.context
        try:
            counts = context.count(results)
            self._window.add(results, counts)
            if self._planner is not None:
                self._planner.pin(self._window)
            if not context.fits(self._window, Anchor(status.counted, status.reported)):
                if results:  # the compacted view must include them
                    status = await self._say(status, results, counts, moves=(), invalid_calls=outcomes.invalid_calls)
                    results, counts = [], []
                compacted = await self._compact(status)
                if compacted is None:
                    return await self._end(status, [], "deadline")
                status = compacted
            wants_tokens = agent.tokens is not None
            settings = {**agent.settings, **({"instructions": told} if (told := self._instructions) else {})}
            if self._planner is not None:
                settings |= self._planner.settings(self._window.items)
            request = Request(self._window.items, self._tools, settings, agent.seed, status.answers, wants_tokens)
            counted = self._window.total
            given: list[Answer] = []
            if not await self._in_time(lambda: self._ask(request, given), "model"):
                return await self._end(status, results, "deadline", counts)
        except (ModelFailed, ContextOverflow) as error:
            with suppress(InvalidMove):  # an author's lifecycle need not have failures
                await self._say(status, results, counts, moves=("fail",), reason=str(error))
            raise
        [answer] = given
        self._newest = answer.items
        moves = ["step_complete" if status.phase == "executing" else "plan_ready"]
        if status.phase == "idle":
            moves.insert(0, "new_task")
        called = any(item["type"] == "function_call" for item in answer.items)
        changes: dict[str, Any] = {"invalid_calls": outcomes.invalid_calls}
        usage = answer.usage
        if usage is not None:
            self._usage = usage if self._usage is None else self._usage + usage
            changes |= {"counted": counted, "reported": usage.input_tokens}
        if not called:
            if answer.truncated:
                moves.append("limit_reached")
                self._reason = "max_output_tokens"
            else:
                moves.append("needs_input" if self._workspace.replies else "task_complete")
        new = context.count(answer.items)
        self._window.add(answer.items, new)
        items = [*results, *answer.items]
        self._output.extend(items)
        reported = None if usage is None else msgspec.to_builtins(usage)
        said = Update(items, "model", moves, [*counts, *new], usage=reported, reason=self._reason)
        return await self._tell(said, status, **changes)

    async def _ask(self, request: Request, given: list[Answer]) -> None:
        model, exactness = self._agent.model, self._agent.tokens
        answer = await answer_of(model, request)
        if exactness is not None:
            answer = structs.replace(answer, items=self._segment.extend(answer.items, model.name, exactness))
        given.append(answer)

    async def _compact(self, status: AgentStatus) -> AgentStatus | None:
        """Make the model's view smaller; None if the deadline passes before."""

        async def shorten() -> None:
            self._window = await self._agent.context.fit(self._window, Anchor(status.counted, status.reported))

        if not await self._in_time(shorten, "model"):
            return None
        self._begin_segment()
        told = {"instructions": self._told} if self._told else {}
        return await self._log.compact({**self._window.plain(), **told}, after=status)

    def _has_user_message(self) -> bool:
        return any(item.get("role") == "user" for item in self._window.items)

    async def _hear_opening(self, status: AgentStatus) -> AgentStatus:
        """Let the environment's user open a conversation in which nobody has asked for anything."""
        opening: list[str | None] = []
        if not await self._reply("", status, opening):
            return await self._end(status, [], "deadline")
        return status if opening == [None] else await self._hear(status, str(opening[0]), "new_task")

    async def _hear_reply(self, status: AgentStatus) -> AgentStatus:
        """Let the environment answer the agent's message."""
        replies: list[str | None] = []
        if not await self._reply(message_text(self._newest), status, replies):
            return await self._end(status, [], "deadline")
        [reply] = replies
        if reply is None:
            return await self._say(status, [], moves=("task_complete",))
        return await self._hear(status, reply, "input_received")

    async def _reply(self, message: str, status: AgentStatus, replies: list[str | None]) -> bool:
        """Add what the environment's user answers; False if the deadline passes before."""

        async def hear() -> None:
            replies.append(await self._workspace.reply(message, call_id=status.call_id("reply")))

        return await self._in_time(hear, "tool")

    async def _hear(self, status: AgentStatus, text: str, move: str) -> AgentStatus:
        """Add a message of the user to the conversation."""
        item: Item = {"type": "message", "role": "user", "content": text}
        counts = self._agent.context.count([item])
        self._window.add([item], counts)
        return await self._say(status, [item], counts, moves=(move,), by="user")

    async def _end(
        self, status: AgentStatus, results: list[Item], reason: str, counts: Sequence[int] | None = None
    ) -> AgentStatus:
        """End the turn at a limit."""
        self._reason = reason
        return await self._say(status, results, counts, moves=("limit_reached",), reason=reason)

    async def _say(
        self,
        status: AgentStatus,
        items: list[Item],
        counts: Sequence[int] | None = None,
        *,
        moves: Sequence[str],
        by: str = "agent",
        reason: str | None = None,
        **changes: Any,
    ) -> AgentStatus:
        """Log something that is not an answer of the model."""
        self._output.extend(items)
        tokens = self._agent.context.count(items) if counts is None else counts
        return await self._tell(Update(items, by, moves, tokens, reason=reason), status, **changes)

    async def _tell(self, said: Update, status: AgentStatus, **changes: Any) -> AgentStatus:
        """Log an update with the times that are not in the log yet."""
        times, self._unlogged = self._unlogged, Times()
        self._times += times
        said = structs.replace(said, seconds=msgspec.to_builtins(times) or None)
        return await self._log.say(said, after=status, **changes)

    async def _in_time(self, work: Callable[[], Awaitable[None]], who: Literal["model", "tool"]) -> bool:
        """Do some work, and measure how long it takes; False if the deadline passes before it is done."""
        start = perf_counter()
        try:
            return await self._before_deadline(work)
        finally:
            self._unlogged += Times(**{who: perf_counter() - start})

    async def _before_deadline(self, work: Callable[[], Awaitable[None]]) -> bool:
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

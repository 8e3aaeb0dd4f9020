"""The tool loop: a model and an environment's tools take turns, and each step is logged.

One log entry holds a model's answer together with the results of the calls before it. So nothing is written twice, and
a process that takes over after a crash finds all answers, and the ids of all calls: committed calls do not run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import structs

from stateroom.agent.agent import ASK_USER, Agent, AgentLog, Workspace
from stateroom.agent.calls import AgentCancelled, Outcomes, ToolCall, carry_out
from stateroom.agent.context import Anchor
from stateroom.agent.plan import Planner, plan_tools
from stateroom.agent.transcripts import Times, WholeConversation
from stateroom.agent.window import Window
from stateroom.errors import Conflict, ContextOverflow, DefinitionError, InvalidMove, ModelFailed
from stateroom.model import Answer, Item, Request, Segment, Usage, answer_of, input_items, message_text, without_tokens
from stateroom.session import AgentStatus, Session, Update, ended_call

T = TypeVar("T")

OnStep = Callable[[list[Item]], Awaitable[None]]
"""Called with an answer and its outcome: the results of its calls, or the user's reply."""

OnItems = Callable[[Sequence[Item]], Awaitable[None]]
"""Called with the items of a conversation when they are committed."""

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
    """Why it is incomplete (`max_steps`, `deadline`, `max_output_tokens` or `bad_calls`) or failed."""
    usage: Usage | None = None
    """The tokens of the model, as far as reported."""
    question: str | None = None
    """The question that waits for an answer."""
    times: Times = field(default_factory=Times)
    """The seconds that the agent waited for its model and tools."""
    instructions: str = ""
    """The newest instructions of the environment, if it has any."""

    def following(self, before: WholeConversation) -> Trajectory:
        """The trajectory together with the conversation before it."""
        if not before.items:
            return self
        usage = self.usage if before.usage is None else before.usage + (self.usage or Usage())
        return replace(self, output=[*before.items, *self.output], usage=usage, times=before.times + self.times)


async def run(agent: Agent, session: Session[Any]) -> Trajectory:
    """Run an agent in a session, on its task or on newer messages; it continues from its status."""
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
    on_items: OnItems | None = None,
) -> Trajectory:
    """Run an agent until it is done, waits for input, or reaches a limit.

    The conversation begins with the items of `task`. The agent continues from its status in the log, and the trajectory
    holds what was said since. Calls before a limit stay committed. `on_step` is called after each step, when all of it
    is in the log, and `on_items` with the items of each entry.
    """
    return await _Turn(workspace, log, agent, tools, on_step, on_items).run(task)


class DeadlinePassed(Exception):
    """The deadline of a turn has passed before some work was done."""


class _Turn:
    """One turn of an agent."""

    def __init__(
        self,
        workspace: Workspace,
        log: AgentLog,
        agent: Agent,
        tools: Sequence[Item],
        on_step: OnStep | None,
        on_items: OnItems | None,
    ) -> None:
        self._planner = Planner(workspace) if agent.plan else None
        self._workspace = self._planner or workspace
        self._log = log
        self._agent = agent
        own = [*([ASK_USER] if agent.asks else ()), *(plan_tools().definitions if agent.plan else ())]
        for name in {tool.get("name") for tool in tools} & {tool["name"] for tool in own}:
            raise DefinitionError(f"the tool {name!r} clashes with a tool of an agent that asks or plans; rename it")
        self._tools = [*tools, *own]
        self._tools_size = 0 if agent.context.budget is None else agent.context.beside(self._tools)
        self._guidance = ""
        """The environment's instructions, as the log has them."""
        self._on_step = on_step
        self._on_items = on_items
        self._status = AgentStatus()
        """The agent's status after the newest entry."""
        self._window = Window(self._beside())
        self._segment = Segment()
        self._outcomes = Outcomes(0)
        """The results of the newest calls."""
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
        """The agent's own instructions, or else those of its task, and the environment's."""
        own = self._agent.instructions or self._agent.settings.get("instructions")
        return "\n\n".join(text for text in (own, self._guidance) if text)

    def _beside(self) -> int:
        context = self._agent.context
        return 0 if context.budget is None else self._tools_size + context.beside((), self._instructions)

    def _instruct(self, guidance: str) -> None:
        """Let the environment's instructions be these from here on; all prompts begin with them."""
        self._guidance = guidance
        self._window.set_beside(self._beside())
        self._begin_segment()

    def _begin_segment(self) -> None:
        """Let the next prompt be one that does not begin with the tokens before."""
        if self._segment.ids:
            self._window.items, self._segment = without_tokens(self._window.items), Segment()

    async def run(self, task: Sequence[Item]) -> Trajectory:
        await self._load(task)
        if self._planner is not None:
            self._planner.load(self._window, task_id=str(self._status.turn))
        if self._agent.deadline is not None:
            self._until = asyncio.get_running_loop().time() + self._agent.deadline
        try:
            await self._work()
        except (Conflict, AgentCancelled):
            if self._log.status.phase != "cancelled":
                raise
            self._status = self._log.status
        phase = self._status.phase
        if phase not in _ENDED:
            return self._trajectory("waiting")
        await self._report()
        return self._trajectory("incomplete" if phase == "done" and self._reason is not None else _ENDED[phase])

    def _trajectory(self, status: TurnStatus) -> Trajectory:
        times, instructions = self._times + self._unlogged, self._instructions if self._guidance else ""
        question = self._status.question
        return Trajectory(self._output, status, self._reason, self._usage, question, times, instructions)

    async def _load(self, task: Sequence[Item]) -> None:
        """Load the part of the conversation that the model sees."""
        window, context = self._window, self._agent.context
        self._status = status = await self._log.load()
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

    async def _work(self) -> None:
        """Take steps until the turn ends, or waits for input."""
        try:
            if self._status.phase == "idle" and self._workspace.opens and not self._has_user_message():
                await self._hear_opening()
            while self._status.phase not in _ENDED:
                await asyncio.sleep(0)  # other tasks run too, even if the model and tools never wait
                if self._status.phase == WAITING:
                    if not self._workspace.replies or self._status.question is not None:
                        return
                    await self._hear_reply()
                elif self._status.phase in _AT_WORK:
                    await self._step()
                else:  # a phase of the environment's own lifecycle, which an event of its own must end
                    return
        except DeadlinePassed:
            await self._end("deadline")

    async def _step(self) -> None:
        """Run the model's open calls, and let it answer."""
        await self._run_calls()
        outcomes, status, agent = self._outcomes, self._status, self._agent
        if outcomes.new and (self._on_step is not None or self._on_items is not None):
            await self._log_results()
        await self._report()
        if outcomes.question is not None:
            waits: dict[str, Any] = {"question": outcomes.question, "asking": outcomes.asking}
            if outcomes.asking is not None and outcomes.asking == status.asking:
                waits["inputs"] = status.inputs
            await self._say_results("needs_input", **waits)
        elif outcomes.late:
            await self._end("deadline")
        elif status.step >= agent.max_steps:
            await self._end("max_steps")
        elif outcomes.invalid_calls >= agent.max_invalid_calls:
            await self._end("bad_calls")
        else:
            guidance = await self._before_deadline(self._workspace.instructions())
            if guidance != self._guidance:
                self._instruct(guidance)
                await self._log_results(guidance)
            await self._think()

    async def _report(self) -> None:
        """Give `on_step` what was said since the last step."""
        items = self._output[self._reported :]
        if self._on_step is not None and items:
            self._reported += len(items)
            await self._on_step(items)

    async def _run_calls(self) -> None:
        """Run the model's calls that have no result yet."""
        status = self._status
        self._outcomes = outcomes = Outcomes(status.invalid_calls)
        if not status.step:  # the turn before ended while these were open
            outcomes.results.extend(ended_call(call_id, "cancelled", "the turn was ended") for call_id in status.open)
            return
        calls = self._open_calls() if status.open else []
        while (left := calls[len(outcomes.results) :]) and outcomes.question is None:
            if outcomes.volatile:
                await self._log_results()
            try:
                running = carry_out(self._workspace, self._log, left, outcomes, asks=self._agent.asks)
                await self._in_time(running, "tool")
            except DeadlinePassed:
                outcomes.late = True
                message = "the deadline of the turn passed before this call returned"
                left = calls[len(outcomes.results) :]
                outcomes.results.extend(ended_call(call.item["call_id"], "deadline", message) for call in left)

    def _open_calls(self) -> list[ToolCall]:
        status = self._status
        made = [item for item in self._newest if item["type"] == "function_call"]
        first = len(made) - len(status.open)
        return [ToolCall(item, status.call_id(first + index)) for index, item in enumerate(made[first:])]

    async def _think(self) -> None:
        """Let the model answer, and log the answer together with the results of the calls before."""
        agent, context, outcomes = self._agent, self._agent.context, self._outcomes
        try:
            self._show_results()
            if self._planner is not None:
                self._planner.pin(self._window)
            if not context.fits(self._window, self._anchor):
                if outcomes.new:  # the compacted view must include them
                    await self._say_results(invalid_calls=outcomes.invalid_calls)
                await self._compact()
            settings = {**agent.settings, **({"instructions": text} if (text := self._instructions) else {})}
            if self._planner is not None:
                settings |= self._planner.settings(self._window.items)
            wants_tokens = agent.tokens is not None
            answers = self._status.answers
            request = Request(self._window.items, self._tools, settings, agent.seed, answers, wants_tokens)
            answer = await self._in_time(self._ask(request), "model")
        except (ModelFailed, ContextOverflow) as error:
            with suppress(InvalidMove):  # an author's lifecycle need not have failures
                await self._say_results("fail", reason=str(error))
            raise
        await self._log_answer(answer)

    async def _ask(self, request: Request) -> Answer:
        model, exactness = self._agent.model, self._agent.tokens
        answer = await answer_of(model, request)
        if exactness is not None:
            answer = structs.replace(answer, items=self._segment.extend(answer.items, model.name, exactness))
        return answer

    async def _log_answer(self, answer: Answer) -> None:
        results, counts, counted = self._outcomes.new, self._show_results(), self._window.total
        self._newest = answer.items
        moves = ["step_complete" if self._status.phase == "executing" else "plan_ready"]
        if self._status.phase == "idle":
            moves.insert(0, "new_task")
        changes: dict[str, Any] = {"invalid_calls": self._outcomes.invalid_calls}
        usage = answer.usage
        if usage is not None:
            self._usage = usage if self._usage is None else self._usage + usage
            changes |= {"counted": counted, "reported": usage.input_tokens}
        if not any(item["type"] == "function_call" for item in answer.items):
            if answer.truncated:
                moves.append("limit_reached")
                self._reason = "max_output_tokens"
            else:
                moves.append("needs_input" if self._workspace.replies else "task_complete")
        new = self._agent.context.count(answer.items)
        self._window.add(answer.items, new)
        items = [*results, *answer.items]
        self._output.extend(items)
        reported = None if usage is None else msgspec.to_builtins(usage)
        update = Update(items, "model", moves, [*counts, *new], usage=reported, reason=self._reason)
        await self._log_update(update, **changes)
        self._outcomes.mark_logged()

    @property
    def _anchor(self) -> Anchor:
        return Anchor(self._status.counted, self._status.reported)

    async def _compact(self) -> None:
        """Make the model's view smaller."""
        self._window = await self._in_time(self._agent.context.fit(self._window, self._anchor), "model")
        self._begin_segment()
        guidance = {"instructions": self._guidance} if self._guidance else {}
        self._status = await self._log.compact({**self._window.plain(), **guidance}, after=self._status)

    # The environment's user.

    def _has_user_message(self) -> bool:
        return any(item.get("role") == "user" for item in self._window.items)

    async def _hear_opening(self) -> None:
        """Let the environment's user open a conversation that has no user message."""
        opening = await self._reply_to("")
        if opening is not None:
            await self._hear(opening, "new_task")

    async def _hear_reply(self) -> None:
        """Let the environment answer the agent's message."""
        reply = await self._reply_to(message_text(self._newest))
        if reply is None:
            await self._say([], [], "task_complete")
        else:
            await self._hear(reply, "input_received")

    async def _reply_to(self, message: str) -> str | None:
        call_id = self._status.call_id("reply")
        return await self._in_time(self._workspace.reply(message, call_id=call_id), "tool")

    async def _hear(self, text: str, move: str) -> None:
        """Add a message of the user to the conversation."""
        items = input_items(text)
        counts = self._agent.context.count(items)
        self._window.add(items, counts)
        await self._say(items, counts, move, by="user")

    # The log.

    async def _end(self, reason: str) -> None:
        """End the turn at a limit."""
        self._reason = reason
        await self._say_results("limit_reached", reason=reason)

    async def _log_results(self, instructions: str | None = None) -> None:
        """Log results before a call that may change the state, or before a model is shown other instructions.

        Otherwise a process that takes over between the two would run the earlier calls again, with other results.
        """
        moves = ("new_task",) if self._status.phase == "idle" else ()
        invalid_calls = self._outcomes.invalid_calls
        await self._say_results(*moves, instructions=instructions, invalid_calls=invalid_calls)

    async def _say_results(self, *moves: str, **more: Any) -> None:
        """Log the results that no entry has yet."""
        await self._say(self._outcomes.new, self._show_results(), *moves, **more)
        self._outcomes.mark_logged()

    def _show_results(self) -> list[int]:
        """Let the model see all results; gives the tokens of those that no entry has yet."""
        outcomes, window = self._outcomes, self._window
        new = outcomes.results[outcomes.shown :]
        window.add(new, self._agent.context.count(new))
        outcomes.shown = len(outcomes.results)
        return window.tokens[len(window) - len(outcomes.new) :]

    async def _say(
        self,
        items: list[Item],
        counts: Sequence[int],
        *moves: str,
        by: str = "agent",
        reason: str | None = None,
        instructions: str | None = None,
        **changes: Any,
    ) -> None:
        """Log something that is not an answer of the model."""
        self._output.extend(items)
        await self._log_update(Update(items, by, moves, counts, reason=reason, instructions=instructions), **changes)

    async def _log_update(self, update: Update, **changes: Any) -> None:
        """Log an update with the times that are not in the log yet."""
        times, self._unlogged = self._unlogged, Times()
        self._times += times
        update = structs.replace(update, seconds=msgspec.to_builtins(times) or None)
        self._status = await self._log.say(update, after=self._status, **changes)
        if self._on_items is not None and update.items:
            await self._on_items(update.items)

    # The deadline.

    async def _in_time(self, work: Coroutine[Any, Any, T], who: Literal["model", "tool"]) -> T:
        """Do some work, and measure how long it takes; raises `DeadlinePassed` if it is not done before."""
        start = perf_counter()
        try:
            return await self._before_deadline(work)
        finally:
            self._unlogged += Times(**{who: perf_counter() - start})

    async def _before_deadline(self, work: Coroutine[Any, Any, T]) -> T:
        if self._until is None:
            return await work
        if asyncio.get_running_loop().time() >= self._until:
            work.close()
            raise DeadlinePassed
        try:
            async with asyncio.timeout_at(self._until) as limit:
                return await work
        except TimeoutError:
            if not limit.expired():
                raise
            raise DeadlinePassed from None

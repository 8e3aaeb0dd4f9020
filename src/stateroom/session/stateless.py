"""Sessions of environments that have no state: they touch no store, and there is no history to go back in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from copy import deepcopy
from typing import Any, NoReturn

from stateroom.errors import InvalidArguments, SessionClosed, SessionError
from stateroom.session.agent import AgentInMemory
from stateroom.session.cache import SessionCache
from stateroom.session.environment import SessionTool
from stateroom.session.episode import Episode, Verdict, no_path, run_verifier
from stateroom.session.invocation import CallContext, ToolRun, plain_arguments, run_tool
from stateroom.session.log import LogEntry
from stateroom.session.progress import Progress
from stateroom.session.resources import SessionResources
from stateroom.session.result import Failed, Result, result_of_failure, unknown_tool
from stateroom.session.runtime import new_session_id
from stateroom.session.session import hook_failure, hook_text

HISTORY = frozenset(
    {
        *("checkpoint", "rewind", "undo", "redo", "fork", "children", "edit", "record"),
        *("state_at", "diff", "events", "lease", "user", "app"),
    }
)
"""The methods of a session that a stateless one cannot have."""


class StatelessSession:
    """Tools can be called and the episode judged, as in a `Session`; nothing is kept."""

    state = verdict = parent = None
    revision = 0
    edited = False

    def __init__(self, cache: SessionCache, session_id: str, task: Any, progress: Progress) -> None:
        self._cache = cache
        self._first = self._progress = progress
        self.id = session_id
        self.task = task
        self.closed = False
        self.agent = AgentInMemory(cache.runtime.environment.lifecycle)

    def __repr__(self) -> str:
        return f"<StatelessSession {self.id} of {self._cache.runtime.environment.name}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name in HISTORY:
            environment = self._cache.runtime.environment.name
            raise SessionError(self.id, f"{environment} is stateless: its sessions have no history")
        raise AttributeError(name)

    @property
    def replies(self) -> bool:
        """Whether the environment answers its agent's messages."""
        return self._cache.runtime.environment.reply_tool is not None

    @property
    def opens(self) -> bool:
        """Whether the environment's user speaks first where the task has no message of theirs."""
        return self._cache.runtime.environment.user_opens

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools that an agent can call here, as OpenAI functions."""
        return [tool.definition for tool in self._cache.runtime.environment.tools.values()]

    def reads(self, name: str) -> bool:
        """Whether a tool only looks at the state, so that such calls may run side by side."""
        tool = self._cache.runtime.environment.tools.get(name)
        return tool is not None and tool.effect == "read"

    def restart(self) -> StatelessSession:
        """A new session that starts as this one did: with the same task, random state and clock."""
        return StatelessSession(self._cache, new_session_id(), deepcopy(self.task), self._first)

    def _context(self, call_id: str | None = None) -> CallContext:
        if self.closed:
            raise SessionClosed(self.id)
        progress = self._progress if call_id is None else self._progress.of_call(call_id)
        return CallContext(None, progress, self.id, 0, lambda: deepcopy(self.task), call_id)

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, call_id: str | None = None
    ) -> Result:
        """Call a tool; see `Session.call`."""
        call = self._context(call_id)
        try:
            given = plain_arguments(arguments, call_id)
            tool = self._cache.runtime.environment.tools.get(name)
            if tool is None:
                raise unknown_tool(name, self._cache.runtime.environment.tools)
            ran = await self._run(call, tool, tool.bind(given))
        except (Failed, InvalidArguments) as failure:
            return result_of_failure(failure)
        if call_id is None and tool.effect != "read":
            self._progress = self._progress.after(ran.advanced)
        return Result(True, ran.output)

    async def _run(self, call: CallContext, tool: SessionTool, arguments: dict[str, Any]) -> ToolRun:
        if tool.procedure.resources:
            return await SessionResources(self._cache.resources).run(tool, arguments, call)
        return await run_tool(self._cache.runtime.runner, tool, arguments, call, self._cache.runtime.timeout)

    async def reply(self, message: str, *, call_id: str) -> str | None:
        """What the environment's user answers to a message of the agent's; None if that was all."""
        return await self._hear(self._cache.runtime.environment.reply_tool, {"message": message}, call_id)

    async def instructions(self) -> str:
        """What the environment tells its agent; see `Session.instructions`."""
        return await self._hear(self._cache.runtime.environment.instructions_tool, {}, None) or ""

    async def _hear(self, hook: SessionTool | None, given: dict[str, Any], call_id: str | None) -> str | None:
        """The text that a hook of the environment's gives, if there is one."""
        if hook is None:
            return None
        try:
            ran = await self._run(self._context(call_id), hook, hook.bind(given))
        except Failed as failure:
            raise hook_failure(hook, failure) from failure
        return hook_text(hook, Result(True, ran.output))

    async def verify(self, response: Any = None) -> Verdict:
        """Judge the episode; see `Session.verify`."""
        runtime = self._cache.runtime
        response = await self.agent.response() if response is None else response
        lend = SessionResources(self._cache.resources).lend_to_judge
        episode = Episode(deepcopy(self.task), response)
        return await run_verifier(
            runtime.runner,
            runtime.environment.verify_function,
            self._context(),
            episode,
            runtime.timeout,
            no_path,
            lend,
        )

    async def log(self, **wanted: Any) -> AsyncIterator[LogEntry]:
        """Nothing: there is no log."""
        nothing: tuple[LogEntry, ...] = ()
        for entry in nothing:
            yield entry

    async def close(self, *, replaced_by: str | None = None) -> None:
        """End the session: its tools cannot be called any more."""
        self.closed = True

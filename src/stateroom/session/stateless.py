"""Sessions of environments that have no state: they touch no store, and there is no history to go back in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from copy import deepcopy
from typing import Any, NoReturn

from stateroom.errors import InvalidArguments, SessionClosed, SessionError
from stateroom.session.agent import AgentInMemory
from stateroom.session.cache import OpenSession, SessionCache
from stateroom.session.environment import SessionTool
from stateroom.session.episode import Episode, Verdict, no_path, run_verifier
from stateroom.session.invocation import NOTHING, CallContext, ToolRun, plain_arguments, run_tool
from stateroom.session.log import LogEntry
from stateroom.session.progress import Progress
from stateroom.session.resources import SessionResources
from stateroom.session.result import Failed, Result, result_of_failure, unknown_tool
from stateroom.session.runtime import new_session_id
from stateroom.session.session import Session, hook_failure, hook_text


class NothingStored(OpenSession):
    """Stands for what is known of a session that is stored nowhere: whoever asks for that is refused."""

    def __init__(self, cache: SessionCache, session_id: str) -> None:
        self.cache, self.runtime, self.environment = cache, cache.runtime, cache.runtime.environment
        self._session = session_id

    def __getattr__(self, name: str) -> NoReturn:
        raise SessionError(self._session, f"{self.environment.name} is stateless: its sessions have no history")


class StatelessSession(Session[None]):
    """Tools can be called and the episode judged, as in a `Session`; nothing is kept."""

    id = ""
    task: Any = None
    agent: Any = None
    state = verdict = parent = None
    revision = 0
    closed = edited = False

    def __init__(self, cache: SessionCache, session_id: str, task: Any, progress: Progress) -> None:
        super().__init__(NothingStored(cache, session_id))
        self._first = self._progress = progress
        self.id = session_id
        self.task = task
        self.agent = AgentInMemory(cache.runtime.environment.lifecycle)

    def restart(self) -> StatelessSession:
        """A new session that starts as this one did: with the same task, random state and clock."""
        return StatelessSession(self._open.cache, new_session_id(), deepcopy(self.task), self._first)

    def _context(self, call_id: str | None = None) -> CallContext:
        if self.closed:
            raise SessionClosed(self.id)
        progress = self._progress if call_id is None else self._progress.of_call(call_id)
        return CallContext(None, progress, self.id, 0, lambda: deepcopy(self.task), call_id)

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        call_id: str | None = None,
        user: str | None = None,
        by: str | None = None,
    ) -> Result:
        call = self._context(call_id)
        try:
            given = plain_arguments(arguments, call_id)
            tool = self._open.environment.tools.get(name)
            if tool is None:
                raise unknown_tool(name, self._open.environment.tools)
            ran = await self._run(call, tool, tool.bind(given))
        except (Failed, InvalidArguments) as failure:
            return result_of_failure(failure)
        if call_id is None and tool.effect != "read":
            self._progress = self._progress.after(ran.advanced)
        return Result(True, ran.output)

    async def _run(self, call: CallContext, tool: SessionTool, arguments: dict[str, Any]) -> ToolRun:
        if tool.procedure.resources:
            return await SessionResources(self._open.cache.resources).run(tool, arguments, call)
        runtime = self._open.runtime
        return await run_tool(runtime.runner, tool, arguments, call, runtime.limits.timeout)

    async def reply(self, message: str, *, call_id: str, by: str | None = None) -> str | None:
        return await self._hear(self._open.environment.reply_tool, {"message": message}, call_id)

    async def instructions(self) -> str:
        return await self._hear(self._open.environment.instructions_tool, {}, None) or ""

    async def _hear(self, hook: SessionTool | None, given: dict[str, Any], call_id: str | None) -> str | None:
        """The text that a hook of the environment's gives, if there is one."""
        if hook is None:
            return None
        try:
            ran = await self._run(self._context(call_id), hook, hook.bind(given))
        except Failed as failure:
            raise hook_failure(hook, failure) from failure
        return hook_text(hook, Result(True, ran.output))

    async def verify(self, response: Any = None, *, row: Mapping[str, Any] = NOTHING, by: str | None = None) -> Verdict:
        runtime, procedure = self._open.runtime, self._open.environment.verify_function
        episode = Episode(deepcopy(self.task), await self.agent.response() if response is None else response)
        lend = SessionResources(self._open.cache.resources).lend_to_judge
        return await run_verifier(
            runtime.runner, procedure, self._context(), episode, runtime.limits.timeout, no_path, lend
        )

    async def log(self, **wanted: Any) -> AsyncIterator[LogEntry]:
        """Nothing: there is no log."""
        nothing: tuple[LogEntry, ...] = ()
        for entry in nothing:
            yield entry

    async def close(self, *, replaced_by: str | None = None, by: str | None = None) -> None:
        """End the session: its tools cannot be called any more."""
        self.closed = True

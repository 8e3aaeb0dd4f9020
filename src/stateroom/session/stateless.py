"""Sessions of environments without a state: they use no store and keep no history."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from copy import deepcopy
from typing import Any, NoReturn

from stateroom.errors import SessionClosed, SessionError
from stateroom.session.agent import AgentInMemory
from stateroom.session.cache import OpenSession, SessionCache
from stateroom.session.environment import SessionTool
from stateroom.session.episode import Episode, Verdict, no_path, run_verifier
from stateroom.session.invocation import NOTHING, CallContext, run_tool
from stateroom.session.log import LogEntry
from stateroom.session.progress import Progress
from stateroom.session.resources import SessionResources
from stateroom.session.result import Result
from stateroom.session.runtime import new_session_id
from stateroom.session.session import Session


class NothingStored(OpenSession):
    """Replaces the cached data of a session that is not stored; every use of it raises."""

    seems_over = False

    def __init__(self, cache: SessionCache, session_id: str) -> None:
        self.cache, self.runtime, self.environment = cache, cache.runtime, cache.runtime.environment
        self._session = session_id

    def __getattr__(self, name: str) -> NoReturn:
        raise SessionError(self._session, f"{self.environment.name} is stateless: its sessions have no history")


class StatelessSession(Session[None]):
    """A `Session` of which nothing is kept: its tools run without a lock, a log and a store."""

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

    async def _run(
        self,
        tool: SessionTool,
        given: dict[str, Any],
        call_id: str | None = None,
        user: str | None = None,
        by: str | None = None,
    ) -> Result:
        call, arguments, runtime = self._context(call_id), tool.bind(given), self._open.runtime
        if tool.procedure.resources:
            ran = await SessionResources(self._open.cache.resources).run(tool, arguments, call)
        else:
            ran = await run_tool(runtime.runner, tool, arguments, call)
        if call_id is None and tool.effect != "read":
            self._progress = self._progress.after(ran.advanced)
        return Result(True, ran.output)

    async def verify(self, response: Any = None, *, row: Mapping[str, Any] = NOTHING, by: str | None = None) -> Verdict:
        runtime, procedure = self._open.runtime, self._open.environment.verify_function
        episode = Episode(deepcopy(self.task), await self.agent.response() if response is None else response)
        lend = SessionResources(self._open.cache.resources).lend_to_judge
        return await run_verifier(runtime.runner, procedure, self._context(), episode, no_path, lend)

    async def log(self, **wanted: Any) -> AsyncIterator[LogEntry]:
        """Nothing: a stateless session keeps no log."""
        nothing: tuple[LogEntry, ...] = ()
        for entry in nothing:
            yield entry

    async def close(self, *, replaced_by: str | None = None, by: str | None = None) -> None:
        """Close the session: its tools cannot be called any more."""
        self.closed = True

"""Sessions of environments that have no state: they touch no store, and there is no history to go back in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NoReturn

from stateroom.errors import InvalidArguments, SessionClosed, SessionError
from stateroom.session.agency import no_reply, replied
from stateroom.session.calling import (
    NOTHING,
    Failed,
    Ran,
    Scene,
    bound,
    failed,
    find_tool,
    plain_arguments,
    run_tool,
    run_verifier,
)
from stateroom.session.holding import Holding
from stateroom.session.journal import LogEntry
from stateroom.session.moment import Moment
from stateroom.session.notes import Notes
from stateroom.session.path import no_path
from stateroom.session.program import Episode, Operation, Result, Verdict
from stateroom.session.scopes import View
from stateroom.session.session import Session
from stateroom.session.stance import Said, Stance

if TYPE_CHECKING:
    from stateroom.session.sessions import Sessions


class StatelessSession(Session[None]):
    """A handle with a session's face: tools can be called and the episode judged, and nothing is kept."""

    def __init__(self, sessions: Sessions[Any], session_id: str, task: Any, moment: Moment) -> None:
        self._sessions = sessions
        self._id = session_id
        self._task = task
        self._moment = moment
        self._closed = False
        self._notes = Notes(lifecycle=sessions.environment.lifecycle)

    @property
    def id(self) -> str:
        return self._id

    @property
    def revision(self) -> int:
        return 0

    @property
    def state(self) -> None:
        return None

    @property
    def verdict(self) -> None:
        return None

    @property
    def closed(self) -> bool:
        return self._closed

    @property
    def parent(self) -> None:
        return None

    @property
    def task(self) -> Any:
        return self._task

    def _scene(self, call_id: str | None = None, views: Mapping[str, View] = NOTHING) -> Scene:
        if self._closed:
            raise SessionClosed(self._id)
        moment = self._moment if call_id is None else self._moment.of_call(call_id)
        return Scene(None, moment, self._id, 0, lambda: deepcopy(self._task), call_id)

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, call_id: str | None = None
    ) -> Result:
        scene = self._scene(call_id)
        try:
            tool = find_tool(self._sessions.environment.tools, name)
            ran = await self._run_in(scene, tool, bound(tool, plain_arguments(arguments, call_id)))
        except (Failed, InvalidArguments) as failure:
            return failed(failure)
        if call_id is None and tool.effect != "read":
            self._moment = self._moment.after(ran.advanced)
        return Result(True, ran.output)

    async def _run_in(self, scene: Scene, tool: Operation, arguments: dict[str, Any]) -> Ran:
        sessions = self._sessions
        if tool.procedure.resources:
            return await Holding(sessions.keeper).run(tool, arguments, scene)
        return await run_tool(sessions.runner, tool, arguments, scene, sessions.timeout)

    @property
    def agent(self) -> Stance:
        return self._notes.agent

    async def say(self, said: Said, *, after: Stance | None = None, **changes: Any) -> Stance:
        return await self._notes.say(said, after=after, **changes)

    async def compact(self, window: dict[str, Any], *, after: Stance | None = None) -> Stance:
        return await self._notes.compact(window, after=after)

    async def catch_up(self) -> None:
        """Nothing: nobody else knows of it."""

    async def said(self, since: int = 0) -> list[LogEntry]:
        return await self._notes.said(since)

    async def reply(self, message: str, *, call_id: str) -> str | None:
        replying = self._sessions.environment.replying
        if replying is None:
            return None
        try:
            ran = await self._run_in(self._scene(call_id), replying, replying.bind({"message": message}))
        except Failed as failure:
            raise no_reply(failure) from failure
        return replied(Result(True, ran.output))

    async def verify(self, response: Any = None) -> Verdict:
        sessions = self._sessions
        episode = Episode(deepcopy(self._task), response)
        procedure, scene = sessions.environment.verifying, self._scene()
        lend = Holding(sessions.keeper).lend_to_judge
        return await run_verifier(sessions.runner, procedure, scene, episode, sessions.timeout, no_path, lend)

    async def log(self, *, after: int = 0, kinds: Collection[str] | None = None) -> AsyncIterator[LogEntry]:
        nothing: tuple[LogEntry, ...] = ()
        for entry in nothing:
            yield entry

    async def close(self, *, replaced_by: str | None = None) -> None:
        self._closed = True

    def _no_history(self, *_: Any, **__: Any) -> NoReturn:
        raise SessionError(self._id, f"{self._sessions.environment.name} is stateless: its sessions have no history")

    checkpoint = rewind = fork = children = state_at = diff = events = hold = _no_history
    move = provide = cancel = _no_history

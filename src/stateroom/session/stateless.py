"""Sessions of environments that have no state: they touch no store, and there is no history to go back in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from copy import deepcopy
from typing import TYPE_CHECKING, Any, NoReturn

from stateroom.errors import InvalidArguments, SessionClosed, SessionError
from stateroom.session.calling import (
    NOTHING,
    Failed,
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
from stateroom.session.path import no_path
from stateroom.session.program import Episode, Result, Verdict
from stateroom.session.scopes import View
from stateroom.session.session import Session

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
        sessions = self._sessions
        scene = self._scene(call_id)
        try:
            tool = find_tool(sessions.environment.tools, name)
            given = bound(tool, plain_arguments(arguments, call_id))
            if tool.procedure.resources:
                ran = await Holding(sessions.keeper).run(tool, given, scene)
            else:
                ran = await run_tool(sessions.runner, tool, given, scene, sessions.timeout)
        except (Failed, InvalidArguments) as failure:
            return failed(failure)
        if call_id is None and tool.effect != "read":
            self._moment = self._moment.after(ran.advanced)
        return Result(True, ran.output)

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

"""Rehearsals: what a session's state would be after other actions than those that were taken. Nothing of it is kept."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from stateroom.errors import BadTask, InvalidArguments
from stateroom.session.calling import NOTHING, Failed, Scene, bound, find_tool, plain_arguments, run_tool
from stateroom.session.execution import Runner
from stateroom.session.path import ONLY_READ
from stateroom.session.program import Operation, Program
from stateroom.session.reading import Standing
from stateroom.state import Desk, draft_of

Action = Mapping[str, Any]
"""A call, `{"name": …, "arguments": {…}}`, or something said to the environment's user, `{"message": …}`."""


class Rehearsal:
    """Carries out actions on the state that a session was seeded with."""

    def __init__(
        self,
        environment: Program,
        runner: Runner,
        timeout: float,
        session: str,
        task: Callable[[], Any],
        seeded: Callable[[], Awaitable[Standing]],
        mend: Callable[[], Awaitable[None]],
    ) -> None:
        self._environment = environment
        self._runner = runner
        self._timeout = timeout
        self._session = session
        self._task = task
        self._seeded = seeded
        self._mend = mend
        """Is to be called when an action may have changed committed state in memory."""

    async def after(self, actions: Iterable[Action], *, external: bool) -> Any:
        """The state after the actions, to be read; `BadTask` says which of them cannot be carried out, and why."""
        standing = await self._seeded()
        for number, action in enumerate(actions, 1):
            if not isinstance(action, Mapping) or action.keys().isdisjoint(("name", "message")):
                raise BadTask(f"action {number} is neither a call, with a name, nor a message: {action!r}")
            try:
                standing = await self._act(standing, action, external)
            except (Failed, InvalidArguments) as failure:
                why = str(failure)
                if isinstance(failure, Failed):
                    if failure.tampered:
                        await self._mend()
                    if failure.code == "needs_input":
                        why = f"it asks a person, who is not there: {why}"
                name = action.get("name", "message")
                raise BadTask(f"action {number}, {name}, cannot be carried out: {why}") from failure
        return draft_of(standing.state, Desk(ONLY_READ))

    async def _act(self, standing: Standing, action: Action, external: bool) -> Standing:
        operation, given = self._meant(action)
        if operation.effect == "read":
            return standing
        if operation.effect == "external" and not external:
            raise Failed("it reaches outside. If it may do so here too, say after(…, external=True)")
        if elsewhere := operation.procedure.shared | operation.procedure.resources:
            raise Failed(f"it asks for {', '.join(sorted(elsewhere))}, which is not part of the session's state")
        moment = standing.moment
        scene = Scene(standing.state, moment, self._session, 0, self._task, None, None, NOTHING)
        ran = await run_tool(self._runner, operation, bound(operation, given), scene, self._timeout)
        return Standing(ran.state, moment.after(ran.advanced))

    def _meant(self, action: Action) -> tuple[Operation, dict[str, Any]]:
        if "message" not in action:
            arguments = plain_arguments(action.get("arguments"), None)
            return find_tool(self._environment.tools, str(action.get("name"))), arguments
        replying = self._environment.replying
        if replying is None:
            raise Failed("nobody answers here: the environment has no `reply`")
        return replying, {"message": action["message"]}

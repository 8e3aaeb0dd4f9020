"""The private half of a session: how a call runs and is committed, whatever others commit meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from stateroom.errors import Conflict, DuplicateCall, SchemaChanged, SessionLeased, TooLarge, UnknownSession
from stateroom.session.calling import NOTHING, Failed, Ran, Scene, bound, recorded, run_tool
from stateroom.session.journal import AFTER_VERDICT, UNSTORABLE
from stateroom.session.moment import ASKED, STARTED
from stateroom.session.program import Code, Operation, Procedure, Result
from stateroom.session.reading import Standing
from stateroom.session.room import Room, Step
from stateroom.session.scopes import SharedConflict, View
from stateroom.session.turns import ATTEMPTS, give_way
from stateroom.state import event_facts
from stateroom.store import NO_BLOBS

if TYPE_CHECKING:
    from stateroom.session.sessions import Sessions

_CHANGED = "another session changed the state of the {} at the same time: its change was refused"


class Changing:
    """Runs tools in a session, and commits what came of them."""

    def __init__(self, sessions: Sessions[Any], room: Room) -> None:
        self._sessions = sessions
        self._room = room

    @property
    def id(self) -> str:
        """The session's id, for `sessions.open`."""
        return self._room.head.id

    @property
    def revision(self) -> int:
        """The newest revision that this process knows of; the seed is revision 1."""
        return self._room.head.revision

    @property
    def task(self) -> Any:
        """The typed task that the session was seeded with, read anew each time."""
        return self._sessions.task_of(self._room)

    async def _read(self, tool: Operation, given: dict[str, Any], call_id: str | None) -> Result:
        sessions = self._sessions
        views = await self._views(tool.procedure)
        await sessions.catch_up(self._room)
        self._room.refuse_if_sealed()
        ran = await self._run(tool, bound(tool, given), call_id, views)
        return Result(True, ran.output)

    async def _write(self, tool: Operation, given: dict[str, Any], call_id: str | None) -> Result:
        room = self._room
        for attempt in range(ATTEMPTS):
            if attempt:
                await give_way(attempt)
            if room.stale:
                await room.refresh()
            room.refuse_if_sealed()  # also by a verdict for whose lock this has waited
            if room.head.holder is not None and self._has_to_wait():
                continue
            if call_id is not None and not room.is_new(call_id):
                entry = await room.recorded(call_id)
                if entry is not None:
                    return recorded(entry)
            views = await self._views(tool.procedure) if tool.procedure.shared else NOTHING
            try:
                ran = await self._run(tool, bound(tool, given), call_id, views)
            except Failed as failure:
                if failure.tampered or await self._is_newest():
                    raise
                continue  # it failed on a state that is no longer the newest
            try:
                if ran.shared:
                    await self._commit_shared(tool, ran, given, call_id, views)
                else:
                    await room.commit(*self._step(tool, ran, given, call_id))
                return Result(True, ran.output)
            except SharedConflict as error:
                if error.rejects:
                    raise Failed(f"{tool.name} failed: {_CHANGED.format(error.name)}", "shared_conflict") from None
            except (Conflict, DuplicateCall):
                continue  # somebody was quicker: look again
        raise self._too_busy(tool.name)

    async def _is_newest(self) -> bool:
        """Whether nobody else has gone on with the session; else look again."""
        room = self._room
        newest = room.is_fresh or (await self._sessions.store.head(self.id)).revision == room.head.revision
        room.stale = room.stale or not newest
        return newest

    def _run(
        self, tool: Operation, arguments: dict[str, Any], call_id: str | None, views: Mapping[str, View]
    ) -> Awaitable[Ran]:
        """Run a tool where the session stands, with arguments that are bound."""
        sessions, scene = self._sessions, self._scene(call_id, views)
        if tool.procedure.resources:
            return sessions.holding_of(self._room).run(tool, arguments, scene)
        return run_tool(sessions.runner, tool, arguments, scene, sessions.timeout)

    async def _views(self, procedure: Procedure) -> Mapping[str, View]:
        """The shared states that a function asks for."""
        if not procedure.shared:
            return NOTHING
        return await self._sessions.scopes.views(self._room, procedure.shared)

    async def _commit_shared(
        self, tool: Operation, ran: Ran, given: dict[str, Any], call_id: str | None, views: Mapping[str, View]
    ) -> None:
        """Commit what a tool did, to the session and to the shared states that it changed, if any."""

        async def decide(facts: dict[str, Any]) -> None:
            await self._room.commit(*self._step(tool, ran, given, call_id, facts))

        try:
            await self._sessions.scopes.commit(self._room, ran.revision + 1, views, ran.shared, decide)
        except TooLarge as error:
            raise Failed(f"{tool.name} failed: {error}", "too_large") from error
        except UnknownSession as error:
            for view in views.values():
                if view.shared.room.head.id == error.session:  # it was deleted, and is made anew on its next use
                    raise SharedConflict(view.shared) from error
            raise

    def _has_to_wait(self) -> bool:
        """Whether another worker holds the session; then look again later."""
        room = self._room
        held = room.is_held_by_other(self._sessions.now())
        room.stale = room.stale or held
        return held

    async def _wait_for_turn(self) -> None:
        """Wait a moment while another worker holds the session, and no longer."""
        for attempt in range(ATTEMPTS):
            if not self._has_to_wait():
                return
            await give_way(attempt)
            await self._room.refresh(unread=True)
        raise SessionLeased(self.id)

    def _too_busy(self, what: str) -> SessionLeased | Conflict:
        if self._has_to_wait():
            return SessionLeased(self.id)
        message = f"session {self.id!r} is too busy: {what} was refused {ATTEMPTS} times because others wrote first"
        return Conflict(self.id, self.revision, message)

    def _step(
        self,
        tool: Operation,
        ran: Ran,
        given: dict[str, Any],
        call_id: str | None,
        more: Mapping[str, Any] = NOTHING,
    ) -> tuple[Step, float | None]:
        """The step that commits a run, and the session's new expiry."""
        facts = {"name": tool.name, "input": given, "output": ran.output}
        if more:
            facts |= more
        if ran.advanced:
            facts["advance"] = ran.advanced
        if ran.events:
            facts["events"] = [event_facts(event) for event in ran.events]
        if ran.used is not None:
            facts |= ran.used.facts(ran.revision + 1)
        after = Standing(ran.state, ran.moment.following("call", call_id, facts))
        sessions, room = self._sessions, self._room
        if room.head.revision != ran.revision or room.state is not ran.base:
            raise Conflict(self.id, ran.revision)  # meanwhile a reader in this process has caught up with others
        at = sessions.now()
        try:
            saved = NO_BLOBS if ran.used is None else ran.used.blobs
            step = room.prepare("call", facts, at, ran.patch, after, call_id, saved=saved)
        except TooLarge as error:
            raise Failed(f"{tool.name} failed: {error}", "too_large") from error
        except UNSTORABLE as error:
            raise Failed(f"{tool.name} failed: its input or output cannot be stored") from error
        return step, sessions.renewal(room.head, at)

    async def _reach_outside(self, tool: Operation, given: dict[str, Any], call_id: str) -> Result:
        """Run a tool whose effect cannot be taken back: note that it starts, run it once, note what came of it."""
        sessions, room = self._sessions, self._room
        arguments = bound(tool, given)  # bad ones start nothing
        if room.stale:
            await room.refresh()
        entry = await room.recorded(call_id)
        if entry is not None:
            return recorded(entry)
        agent = room.moment.agent
        told = f"/{len(agent.inputs)}" if agent.asking == call_id and agent.inputs else ""  # each answer lets it start
        asked = await room.recorded(call_id + ASKED + told)
        if asked is not None:
            raise Failed(asked.facts["question"], "needs_input")
        started_before = await room.recorded(call_id + STARTED + told) is not None
        if not started_before:
            try:
                await self._commit_at_head("started", {"name": tool.name, "input": given}, call_id + STARTED + told)
            except DuplicateCall:
                started_before = True
            except TooLarge as error:
                raise Failed(f"{tool.name} failed: {error}", "too_large") from error
            except UNSTORABLE as error:
                raise Failed(f"{tool.name} failed: its input cannot be stored") from error
        if started_before:
            await room.refresh()  # another process may have finished it
            entry = await room.recorded(call_id)
            if entry is not None:
                return recorded(entry)
            if not tool.retries_unknown:
                raise Failed(
                    f"{tool.name} was started before and its outcome is unknown; it was not run again. "
                    "Find out what happened before you try again.",
                    "unknown_outcome",
                )
        try:
            views = await self._views(tool.procedure)
            if room.stale:  # meanwhile others have gone back in it
                await room.refresh()
            ran = await self._run(tool, arguments, call_id, views)
        except SchemaChanged as error:
            await self._note_failure(tool, given, call_id, f"{tool.name} was not run: {error}", "tool_failed")
            raise
        except Failed as failure:
            if failure.tampered:
                await sessions.mend(room)
            if failure.code == "needs_input":
                question = {"name": tool.name, "input": given, "question": str(failure)}
                await self._commit_at_head("asked", question, call_id + ASKED + told)
                raise
            return await self._note_failure(tool, given, call_id, str(failure), failure.code)
        return await self._note_success(tool, ran, given, call_id, views)

    async def _note_success(
        self, tool: Operation, ran: Ran, given: dict[str, Any], call_id: str, views: Mapping[str, View]
    ) -> Result:
        """Commit what came of an external call, or else note why that could not be done."""
        room = self._room
        while True:
            await self._wait_for_turn()
            try:
                await self._commit_shared(tool, ran, given, call_id, views)
                return Result(True, ran.output)
            except Failed as failure:  # the output cannot be stored
                return await self._note_failure(tool, given, call_id, str(failure), failure.code)
            except SharedConflict as error:
                message = f"{tool.name} took effect, but {_CHANGED.format(error.name)}"
                return await self._note_failure(tool, given, call_id, message, "shared_conflict")
            except DuplicateCall:  # another process, told to try again too, was quicker
                await room.refresh(unread=True)
                return recorded(await room.recorded(call_id))
            except Conflict:
                await room.refresh(unread=True)
                changed = room.state is not ran.base or room.moment.resources != ran.moment.resources
                if room.judged is not None or changed:  # never merged by accident
                    meanwhile = "the session got its verdict" if room.judged else "others changed the state"
                    message = f"{tool.name} took effect, but {meanwhile} meanwhile: its change was refused"
                    return await self._note_failure(tool, given, call_id, message, "tool_failed")
                ran = replace(ran, revision=room.head.revision, moment=room.moment)

    async def _note_failure(
        self, tool: Operation, given: dict[str, Any], call_id: str, message: str, code: Code
    ) -> Result:
        facts = {"name": tool.name, "input": given, "error": message, "code": code}
        try:
            await self._commit_at_head("failed", facts, call_id)
        except DuplicateCall:  # another process, told to try again too, has noted what came of it
            await self._room.refresh(unread=True)
            return recorded(await self._room.recorded(call_id))
        return Result(False, None, message, code)

    async def _commit_at_head(self, kind: str, facts: dict[str, Any], call_id: str | None = None) -> int:
        """Append an entry that changes no state, whatever others have appended meanwhile."""
        for attempt in range(ATTEMPTS):
            await give_way(attempt)
            if self._room.stale:
                await self._room.refresh(unread=True)
            if kind not in AFTER_VERDICT:
                self._room.refuse_if_sealed()
            if self._has_to_wait():
                continue
            try:
                return await self._commit(kind, facts, call_id=call_id)
            except Conflict:
                continue
        raise self._too_busy(kind)

    async def _commit(self, kind: str, facts: dict[str, Any], **more: Any) -> int:
        at = self._sessions.now()
        step = self._room.prepare(kind, facts, at, **more)
        await self._room.commit(step, self._sessions.renewal(self._room.head, at))
        return step.entry.revision

    def _scene(self, call_id: str | None = None, views: Mapping[str, View] = NOTHING) -> Scene:
        room = self._room
        head = room.head
        shared = {name: view.state for name, view in views.items()} if views else NOTHING
        scene = Scene(room.state, room.moment, head.id, head.revision, lambda: self.task, call_id, room.spares, shared)
        agent = room.moment.agent
        return replace(scene, answers=agent.inputs) if agent.asking is not None and agent.asking == call_id else scene

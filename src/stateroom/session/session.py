"""`Session`: a handle on one episode's state, and the way it changes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Generic, overload

from msgspec.structs import replace
from typing_extensions import TypeVar

from stateroom.errors import (
    BadVerdict,
    Conflict,
    DuplicateCall,
    InvalidArguments,
    SessionClosed,
    SessionError,
    SessionLeased,
    SessionSealed,
    TooLarge,
    UnknownRevision,
    UnknownSession,
)
from stateroom.session.calling import (
    NOTHING,
    READ_ONLY,
    Failed,
    Ran,
    Scene,
    digest,
    failed,
    find_tool,
    plain_arguments,
    recorded,
    run_tool,
    run_verifier,
)
from stateroom.session.history import Checkpoint, History
from stateroom.session.journal import LogEntry
from stateroom.session.lease import SECONDS, Lease
from stateroom.session.program import Code, Episode, Operation, Procedure, Result, Verdict
from stateroom.session.room import Room, Step
from stateroom.session.scopes import SharedConflict, View
from stateroom.session.turns import ATTEMPTS, give_way
from stateroom.state import Desk, State, draft_of

if TYPE_CHECKING:
    from stateroom.session.sessions import Sessions

S = TypeVar("S", bound=State | None, default=Any)

_UNSTORABLE = (TypeError, ValueError, OverflowError, RecursionError)

_STARTED = "\nstarted"
"""Stands behind the call id in the entry which says that an external call was started; no call id has it."""

VERDICT = "\nverdict"
"""The call id of the verdict: a session has one at most."""

AFTER_VERDICT = ("failed", "close")
"""The kinds of entries that a session with a verdict can still get."""

_CHANGED = "another session changed the state of the {} at the same time: its change was refused"


class Session(Generic[S]):
    """One episode's state: call tools on it, look at it, go back in it, branch off it, judge it.

    Handles on the same session share what this process knows of it. A method raises `SessionClosed`, `SessionExpired`
    or `UnknownSession` when the session is no longer there to be used, and `SessionSealed` when it has its verdict and
    can no longer be changed.
    """

    def __init__(self, sessions: Sessions[Any], room: Room) -> None:
        self._sessions = sessions
        self._room = room

    def __repr__(self) -> str:
        return f"<Session {self.id} of {self._sessions.environment.name}, revision {self.revision}>"

    @property
    def id(self) -> str:
        """The session's id, for `sessions.open`."""
        return self._room.head.id

    @property
    def revision(self) -> int:
        """The newest revision that this process knows of; the seed is revision 1."""
        return self._room.head.revision

    @property
    def state(self) -> S:
        """The state at `revision`, to be read."""
        if self._room.state is None:
            raise SessionError(self.id, f"session {self.id!r} is being read again from its store: await a call first")
        return draft_of(self._room.state, Desk(READ_ONLY))  # type: ignore[no-any-return]

    @property
    def verdict(self) -> Verdict | None:
        """The verdict, if it is known here that there is one."""
        judged = self._room.judged
        return None if judged is None else Verdict(**judged["verdict"])

    @property
    def closed(self) -> bool:
        """True when it is known here that the session was closed."""
        return self._room.head.closed

    @property
    def parent(self) -> tuple[str, int] | None:
        """For a fork: the session and the revision that it branched from."""
        head = self._room.head
        return (head.parent, head.parent_revision) if head.parent is not None else None

    @property
    def task(self) -> Any:
        """The typed task that the session was seeded with, read anew each time."""
        return self._sessions.task_of(self._room)

    # Changing.

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, call_id: str | None = None
    ) -> Result:
        """Call a tool.

        A call that fails is a result too: `ok` is false, `error` says why in words for the model, and nothing has
        changed. A `call_id` that was committed before gives the recorded result and runs nothing.
        """
        sessions, room = self._sessions, self._room
        if room.head.closed or room.head.expires <= sessions.now():
            await sessions.catch_up(room)  # unless another process has renewed it, this says why not
        room.refuse_if_sealed()
        try:
            given = plain_arguments(arguments, call_id)
            tool = find_tool(sessions.environment.tools, name)
            if tool.effect == "read":
                return await self._read(tool, given, call_id)
            async with room.lock:
                if tool.effect == "write":
                    return await self._write(tool, given, call_id)
                return await self._reach_outside(tool, given, call_id or token_hex(12))
        except (Failed, InvalidArguments) as failure:
            if isinstance(failure, Failed) and failure.tampered:
                await sessions.mend(room)
            return failed(failure)

    async def _read(self, tool: Operation, given: dict[str, Any], call_id: str | None) -> Result:
        sessions = self._sessions
        await sessions.catch_up(self._room)
        self._room.refuse_if_sealed()
        views = await self._views(tool.procedure)
        ran = await run_tool(sessions.runner, tool, given, self._scene(call_id, views), sessions.timeout)
        return Result(True, ran.output)

    async def _write(self, tool: Operation, given: dict[str, Any], call_id: str | None) -> Result:
        sessions, room = self._sessions, self._room
        for attempt in range(ATTEMPTS):
            if attempt:
                await give_way(attempt)
            if room.stale:
                await room.refresh()
            room.refuse_if_sealed()  # also by a verdict for whose lock this has waited
            if room.head.holder is not None and self._has_to_wait():
                continue
            if call_id is not None:
                entry = await room.recorded(call_id)
                if entry is not None:
                    return recorded(entry)
            views = await self._views(tool.procedure) if tool.procedure.shared else NOTHING
            ran = await run_tool(sessions.runner, tool, given, self._scene(call_id, views), sessions.timeout)
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
            await self._room.refresh()
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
        facts = {"name": tool.name, "input": given, "output": ran.output, **more}
        if ran.advanced:
            facts["advance"] = ran.advanced
        after = (ran.state, ran.moment.after(ran.advanced))
        sessions, room = self._sessions, self._room
        if room.head.revision != ran.revision or room.state is not ran.base:
            raise Conflict(self.id, ran.revision)  # meanwhile a reader in this process has caught up with others
        at = sessions.now()
        try:
            step = room.prepare("call", facts, at, ran.patch, after, call_id)
        except TooLarge as error:
            raise Failed(f"{tool.name} failed: {error}", "too_large") from error
        except _UNSTORABLE as error:
            raise Failed(f"{tool.name} failed: its input or output cannot be stored") from error
        return step, sessions.renewal(room.head, at)

    async def _reach_outside(self, tool: Operation, given: dict[str, Any], call_id: str) -> Result:
        """Run a tool whose effect cannot be taken back: note that it starts, run it once, note what came of it."""
        sessions, room = self._sessions, self._room
        tool.bind(given)  # bad arguments start nothing
        if room.stale:
            await room.refresh()
        entry = await room.recorded(call_id)
        if entry is not None:
            return recorded(entry)
        started_before = await room.recorded(call_id + _STARTED) is not None
        if not started_before:
            try:
                await self._commit_at_head("started", {"name": tool.name, "input": given}, call_id + _STARTED)
            except DuplicateCall:
                started_before = True
            except _UNSTORABLE as error:
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
            ran = await run_tool(sessions.runner, tool, given, self._scene(call_id, views), sessions.timeout)
        except Failed as failure:
            if failure.tampered:
                await sessions.mend(room)
            return await self._note_failure(tool, given, call_id, str(failure), failure.code)
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
                await room.refresh()
                return recorded(await room.recorded(call_id))
            except Conflict:
                await room.refresh()
                if room.judged is not None or room.state is not ran.base:  # never merged by accident
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
            await self._room.refresh()
            return recorded(await self._room.recorded(call_id))
        return Result(False, None, message, code)

    async def _commit_at_head(self, kind: str, facts: dict[str, Any], call_id: str | None = None) -> int:
        """Append an entry that changes no state, whatever others have appended meanwhile."""
        for attempt in range(ATTEMPTS):
            await give_way(attempt)
            if self._room.stale:
                await self._room.refresh()
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
        return Scene(room.state, room.moment, head.id, head.revision, lambda: self.task, call_id, room.spares, shared)

    async def verify(self, response: Any = None) -> Verdict:
        """Judge the episode: run the environment's verifier on the state, and record its verdict.

        That seals the session: nothing can be changed any more, and to verify it again, even closed, gives the same
        verdict. It is refused if the verifier had looked at another response than this: else whoever hands in a made-up
        one first, such as a model that is let near this, would be judged by it.
        """
        sessions, room = self._sessions, self._room
        async with room.lock:
            for attempt in range(ATTEMPTS):
                await give_way(attempt)
                await sessions.catch_up(room, closed_too=True)
                if self.verdict is not None:
                    self._refuse_other(response)
                    return self.verdict
                if room.head.closed:
                    raise SessionClosed(self.id)
                if self._has_to_wait():
                    continue
                episode = Episode(self.task, response)
                procedure = sessions.environment.verifying
                scene = self._scene(views=await self._views(procedure))
                verdict = await run_verifier(sessions.runner, procedure, scene, episode, sessions.timeout)
                facts: dict[str, Any] = {"verdict": vars(verdict)}
                if episode.response_was_read:
                    facts["response"] = digest(response)
                try:
                    await self._commit("verdict", facts, call_id=VERDICT)
                    return verdict
                except (Conflict, DuplicateCall):
                    continue  # what was judged is no longer what is there
                except _UNSTORABLE as error:
                    raise BadVerdict(f"verify returned a Verdict that cannot be stored: {error}") from error
        raise self._too_busy("its verdict")

    def _refuse_other(self, response: Any) -> None:
        judged = self._room.judged or {}
        if judged.get("response", digest(response)) != digest(response):
            raise SessionSealed(self.id, "it is of another response than this one")

    def hold(self, seconds: float = SECONDS) -> Lease:
        """Keep all other workers from changing the session while a block runs: `async with session.hold():`.

        The lease is renewed in the background, and ends `seconds` after this process does. Meanwhile others can read;
        what would change the session waits a moment and then raises `SessionLeased`, as this does if another has it.
        """
        return Lease(self._sessions, self._room, seconds)

    # Going back, and branching off.

    async def checkpoint(self, name: str) -> Checkpoint:
        """Give the state of now a name, to come back to."""
        async with self._room.lock:
            await self._sessions.catch_up(self._room)
            return Checkpoint(self.id, await self._commit_at_head("checkpoint", {"name": name}), name)

    async def rewind(self, to: int | Checkpoint) -> None:
        """Make the state what it was at a revision. That is a new entry: what was done since stays in the log."""
        room = self._room
        async with room.lock:
            for attempt in range(ATTEMPTS):
                await give_way(attempt)
                await self._sessions.catch_up(room)
                room.refuse_if_sealed()
                if self._has_to_wait():
                    continue
                revision = await self._resolve(to)
                after = await room.at(revision)
                try:
                    await self._commit("rewind", {"to": revision}, after=after)
                    return
                except Conflict:
                    continue
        raise self._too_busy("a rewind")

    @overload
    async def fork(self, at: int | Checkpoint | None = None, n: None = None) -> Session[S]: ...
    @overload
    async def fork(self, at: int | Checkpoint | None = None, *, n: int) -> list[Session[S]]: ...
    async def fork(self, at: int | Checkpoint | None = None, n: int | None = None) -> Session[S] | list[Session[S]]:
        """A new session that starts as this one was at a revision (now, by default); with `n`, a list of so many."""
        sessions, room = self._sessions, self._room
        async with room.lock:
            await sessions.catch_up(room, closed_too=True)
            revision = room.head.revision if at is None else await self._resolve(at)
            state, moment = await room.at(revision)
        forks: list[Session[S]] = []
        for _ in range(1 if n is None else n):
            head = sessions.new_head(room.head.owner, revision, parent=room.head.id)
            await room.store.create(head)
            forks.append(sessions.admit(room.branch(head, state, moment)))
        return forks[0] if n is None else forks

    async def _resolve(self, point: int | Checkpoint) -> int:
        if isinstance(point, Checkpoint):
            head, shared = self._room.head, self.revision
            while head.id != point.session and head.parent is not None:
                shared = min(shared, head.parent_revision)
                head = await self._room.store.head(head.parent)
            if head.id != point.session or point.revision > shared:
                raise UnknownRevision(
                    self.id, f"checkpoint {point.name!r} is of session {point.session!r}, in a part of it not shared"
                )
            point = point.revision
        if not 1 <= point <= self.revision:
            raise UnknownRevision(self.id, f"session {self.id!r} has no revision {point}; it has 1 to {self.revision}")
        return point

    # Looking.

    async def state_at(self, revision: int) -> S:
        """The state as it was at a revision, to be read."""
        await self._sessions.catch_up(self._room, closed_too=True)
        state, _ = await self._room.at(revision)
        return draft_of(state, Desk(READ_ONLY))  # type: ignore[no-any-return]

    async def user(self) -> Any:
        """The state of the task's user, as it is now, to be read; None if the environment keeps none."""
        return await self._look("user")

    async def app(self) -> Any:
        """The state that all sessions of the environment share, as it is now, to be read; None if there is none."""
        return await self._look("app")

    async def _look(self, name: str) -> Any:
        if name not in self._sessions.environment.shared_types:
            return None
        views = await self._sessions.scopes.views(self._room, frozenset({name}))
        return draft_of(views[name].state, Desk(READ_ONLY))

    async def log(self) -> AsyncIterator[LogEntry]:
        """Everything that happened, in order; a fork's log begins with its parent's."""
        await self._sessions.catch_up(self._room, closed_too=True)
        async for entry in History(self._room.store).entries(self.id):
            yield entry

    async def close(self, *, replaced_by: str | None = None) -> None:
        """End the session: until it expires it can be read and forked, but never changed. Closing twice is fine.

        `replaced_by` is the session that takes its place, for the log.
        """
        async with self._room.lock:
            with suppress(SessionClosed):  # by another process
                if not self._room.head.closed:
                    await self._commit_at_head("close", {"replaced_by": replaced_by} if replaced_by else {})
        self._sessions.forget(self.id)

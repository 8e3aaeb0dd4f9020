"""`Session`: a handle on one episode's state, and the way it changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from secrets import token_hex
from typing import Any, Generic, Literal, overload

from msgspec.structs import replace
from typing_extensions import TypeVar

from stateroom.errors import (
    BadVerdict,
    CannotFork,
    CannotRewind,
    Conflict,
    DuplicateCall,
    InvalidArguments,
    SessionClosed,
    SessionError,
    SessionSealed,
    UnknownRevision,
)
from stateroom.session.agency import Agency
from stateroom.session.calling import READ_ONLY, Failed, digest, failed, find_tool, plain_arguments, run_verifier
from stateroom.session.history import Checkpoint, History
from stateroom.session.journal import CHECKPOINT, UNSTORABLE, VERDICT, LogEntry, checked_name, checked_text
from stateroom.session.lease import SECONDS, Lease
from stateroom.session.moment import Moment
from stateroom.session.occurring import Occurred, occurred
from stateroom.session.path import load_path
from stateroom.session.program import Episode, Result, Verdict
from stateroom.session.reading import Standing
from stateroom.session.rehearsal import Rehearsal
from stateroom.session.resources import why_not_again
from stateroom.session.turns import ATTEMPTS, give_way
from stateroom.state import Desk, State, draft_of
from stateroom.state.describe import Difference, diff

S = TypeVar("S", bound=State | None, default=Any)

Point = int | str | Checkpoint
"""A place in a session's past: a revision, the name of a checkpoint, or the checkpoint."""

Pending = Literal["refuse", "carry"]
"""What a fork does about external calls of which nobody knows what came."""


class Session(Agency, Generic[S]):
    """One episode's state: call tools on it, look at it, go back in it, branch off it, judge it.

    What its agent says and does is kept with it (see `Agency`).

    Handles on the same session share what this process knows of it. A method raises `SessionClosed`, `SessionExpired`
    or `UnknownSession` when the session is no longer there to be used, and `SessionSealed` when it has its verdict and
    can no longer be changed.
    """

    def __repr__(self) -> str:
        return f"<Session {self.id} of {self._sessions.environment.name}, revision {self.revision}>"

    @property
    def state(self) -> S:
        """The state at `revision`, to be read."""
        if self._room.state is None:
            message = f"the state of session {self.id!r} is not at hand: `await session.state_at()` reads it"
            raise SessionError(self.id, message)
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
            if tool.effect == "read" and not sessions.keeper.is_exclusive(tool.procedure):
                return await self._read(tool, given, call_id)
            await room.lock.acquire()  # as `async with` does, with two coroutines less
            try:
                if tool.effect == "read":
                    return await self._read(tool, given, call_id)
                if tool.effect == "write":
                    return await self._write(tool, given, call_id)
                return await self._reach_outside(tool, given, call_id or token_hex(12))
            finally:
                room.lock.release()
        except (Failed, InvalidArguments) as failure:
            if isinstance(failure, Failed) and failure.tampered:
                await sessions.mend(room)
            return failed(failure)

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
                episode = Episode(self.task, response, self._rehearsal())
                procedure = sessions.environment.verifying
                views = await self._views(procedure)
                path = partial(load_path, room.reader, self.id, room.head.revision)
                scene = self._scene(views=views)
                lend = sessions.holding_of(room).lend_to_judge if procedure.resources else None
                verdict = await run_verifier(sessions.runner, procedure, scene, episode, sessions.timeout, path, lend)
                facts: dict[str, Any] = {"verdict": vars(verdict)}
                if views:
                    facts["views"] = {name: [view.shared.room.head.id, view.revision] for name, view in views.items()}
                if episode.response_was_read:
                    facts["response"] = digest(response)
                try:
                    await self._commit("verdict", facts, call_id=VERDICT)
                    if room.holding:
                        room.holding.let_go()
                    return verdict
                except (Conflict, DuplicateCall):
                    continue  # what was judged is no longer what is there
                except UNSTORABLE as error:
                    raise BadVerdict(f"verify returned a Verdict that cannot be stored: {error}") from error
        raise self._too_busy("its verdict")

    def _rehearsal(self) -> Rehearsal:
        sessions = self._sessions
        return Rehearsal(
            sessions.environment,
            sessions.runner,
            sessions.timeout,
            self.id,
            lambda: self.task,
            partial(self._room.at, 1),
            partial(sessions.mend, self._room),
        )

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

    async def checkpoint(self, name: str = "") -> Checkpoint:
        """Mark the state of now, to come back to. A session has each name once; a checkpoint can do without."""
        checked_name("name", name)
        async with self._room.lock:
            await self._sessions.catch_up(self._room, unread=True)
            try:
                call_id = CHECKPOINT + name if name else None
                revision = await self._commit_at_head("checkpoint", {"name": name}, call_id)
            except DuplicateCall:
                message = f"session {self.id!r} has a checkpoint {name!r} already; give this one another name"
                raise SessionError(self.id, message) from None
            return Checkpoint(self.id, revision, name)

    async def rewind(self, to: Point) -> None:
        """Make the state what it was at a revision, or at a checkpoint.

        That is a new entry: what was done since stays in the log. What was done outside, by external calls, stays done.
        Resources become what they were too, or else it is refused with `CannotRewind`: one that can only be started
        afresh cannot be again what it was before it was last used.
        A large state that is not at hand is read when it is needed: by the next call, or by `state_at()`.
        """
        room, whole = self._room, self._sessions.keeper.restarts
        async with room.lock:
            for attempt in range(ATTEMPTS):
                await give_way(attempt)
                await self._sessions.catch_up(room, unread=not whole)
                room.refuse_if_sealed()
                if self._has_to_wait():
                    continue
                revision = await self._resolve(to)
                before = await self._standing(revision, whole=whole)
                if why := why_not_again(before.moment.resources, room.moment.resources):
                    raise CannotRewind(self.id, revision, why)
                pending = room.moment.pending
                facts = {"to": revision, "pending": list(pending)} if pending else {"to": revision}
                after = replace(before, moment=before.moment.rewound(pending, room.head.revision + 1))
                try:
                    await self._commit("rewind", facts, after=after)
                    return
                except Conflict:
                    continue
        raise self._too_busy("a rewind")

    @overload
    async def fork(self, at: Point | None = None, n: None = None, *, pending: Pending = ...) -> Session[S]: ...
    @overload
    async def fork(
        self, at: Point | None = None, *, n: int, ids: Sequence[str] | None = ..., pending: Pending = ...
    ) -> list[Session[S]]: ...
    async def fork(
        self,
        at: Point | None = None,
        n: int | None = None,
        *,
        ids: Sequence[str] | None = None,
        pending: Pending = "refuse",
    ) -> Session[S] | list[Session[S]]:
        """A new session that starts as this one was at a revision (now, by default); with `n`, a list of so many.

        Those can be given `ids`, which must be unguessable where strangers can call; by default they are.
        It has all that belongs to this one: state, luck, clock, ids, log and resources. If one of these can only be
        started afresh, and had been used there, the fork is refused with `CannotFork`. So it is if an external call had
        been started and not come back, as nobody knows whether it took effect; unless it is to `"carry"` the call, as
        one whose outcome is unknown.
        """
        sessions, room = self._sessions, self._room
        async with room.lock:
            await sessions.catch_up(room, closed_too=True, unread=True)
            revision = room.head.revision if at is None else await self._resolve(at)
            standing = await self._standing(revision, whole=sessions.reaches_outside)
        if standing.moment.pending and pending == "refuse":
            raise CannotFork(self.id, revision, f"what became of call {standing.moment.pending[0]!r} is not known")
        if why := why_not_again(standing.moment.resources, {}):
            raise CannotFork(self.id, revision, why)
        for name in ids or ():
            checked_text("ids", name)
        names: Sequence[str | None] = ids or [None] * (1 if n is None else n)
        heads = [sessions.new_head(room.head.owner, revision, parent=self.id, session_id=name) for name in names]
        await asyncio.gather(*map(room.store.create, heads))
        forks = [sessions.admit(room.branch(head, standing)) for head in heads]
        return forks[0] if n is None else forks

    async def _standing(self, revision: int, *, whole: bool = False) -> Standing:
        """Where the session stood at a revision; a large state that is not at hand stays unread, unless all is needed.

        So to go back costs the same, whatever the size of the state.
        """
        room = self._room
        if room.at_hand(revision) or room.is_light or whole:
            return await room.at(revision)
        await room.refuse_pruned(revision)
        return Standing(None, Moment(0, 0.0))

    async def _resolve(self, point: Point) -> int:
        if isinstance(point, str):
            point = await self._named(checked_text("checkpoint", point))
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

    async def _named(self, name: str) -> int:
        history = History(self._room.store)
        entry = await history.find_call(self.id, CHECKPOINT + name)
        if entry is None:  # older versions did not write it down under its name
            named = [each async for each in history.entries(self.id, kinds={"checkpoint"}) if each.name == name]
            entry = named[-1] if named and name else None
        if entry is None:
            raise UnknownRevision(self.id, f"session {self.id!r} has no checkpoint {name!r}")
        return entry.revision

    async def children(self) -> list[tuple[str, int]]:
        """The forks of this session, the oldest first: the id of each, and the revision that it branched from."""
        return [(head.id, head.parent_revision) for head in await self._room.store.children(self.id)]

    # Looking.

    async def state_at(self, revision: int | None = None) -> S:
        """The state as it was at a revision, to be read; the newest by default, which `state` then has at hand."""
        if revision is None:
            await self._sessions.catch_up(self._room, closed_too=True)
            return self.state
        await self._sessions.look(self._room)
        return draft_of((await self._room.at(revision)).state, Desk(READ_ONLY))  # type: ignore[no-any-return]

    async def diff(self, since: int, to: int | None = None) -> list[Difference]:
        """What differs between the states at two revisions, as they are stored; `to` is the newest by default."""
        head, history = await self._sessions.look(self._room), History(self._room.store)
        old = await history.document(self.id, since)
        new = await history.document(self.id, head.revision if to is None else to)
        return list(diff(old.state, new.state))

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

    async def log(self, *, after: int = 0, kinds: Collection[str] | None = None) -> AsyncIterator[LogEntry]:
        """Everything that happened, in order; a fork's log begins with its parent's.

        Only what came after a revision, and only entries of some kinds, if that is asked for: `kinds={"call"}`.
        """
        await self._sessions.look(self._room)
        async for entry in History(self._room.store).entries(self.id, after=after, kinds=kinds):
            yield entry

    async def events(self, after: int = 0) -> AsyncIterator[Occurred]:
        """The events that led to the state of now, in order, or only those after a revision.

        A fork's begin with its parent's. What a rewind has undone is not among them, but in the log. Raises
        `UnknownRevision` if some were pruned, and `SchemaChanged` if the code of now cannot read one.
        """
        head, room = await self._sessions.look(self._room), self._room
        async for each in occurred(room.store, self.id, room.state_type, after=after, until=head.revision):
            yield each

    async def close(self, *, replaced_by: str | None = None) -> None:
        """End the session: until it expires it can be read and forked, but never changed. Closing twice is fine.

        `replaced_by` is the session that takes its place, for the log.
        """
        async with self._room.lock:
            with suppress(SessionClosed):  # by another process
                if not self._room.head.closed:
                    await self._commit_at_head("close", {"replaced_by": replaced_by} if replaced_by else {})
            if self._room.holding:
                await self._room.holding.let_go()
        self._sessions.forget(self.id)

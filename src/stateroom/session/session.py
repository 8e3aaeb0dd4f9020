"""`Session`: a handle on one episode's state."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from math import inf
from secrets import token_hex
from typing import Any, Generic, Literal, overload

from msgspec.structs import replace
from pydantic_core import to_jsonable_python
from typing_extensions import TypeVar

from stateroom.errors import (
    CannotFork,
    CannotRewind,
    DuplicateCall,
    EnvironmentFailed,
    InvalidArguments,
    ModelFailed,
    ModelUnavailable,
    SessionClosed,
    SessionError,
    TamperedState,
    UnknownRevision,
)
from stateroom.session.agent import SessionAgent
from stateroom.session.cache import OpenSession
from stateroom.session.cached_session import CachedSession, PreparedCommit
from stateroom.session.call import Call, ExternalCall
from stateroom.session.commit import append_entry, append_or_retry, commit
from stateroom.session.edit import Edit
from stateroom.session.environment import SessionTool
from stateroom.session.episode import Verdict
from stateroom.session.history import Checkpoint, EventRecord, History, occurred
from stateroom.session.invocation import NOTHING, READ_ONLY, plain_arguments
from stateroom.session.lease import LEASE_SECONDS, Lease
from stateroom.session.lifecycle import INITIAL, AgentStatus
from stateroom.session.log import (
    CHECKPOINT,
    UNSTORABLE,
    LogEntry,
    checked_name,
    checked_text,
    checked_user,
    person,
)
from stateroom.session.progress import Progress
from stateroom.session.reader import StateAt
from stateroom.session.resource import restart_blocker
from stateroom.session.result import Failed, Result, result_of_failure, unknown_tool
from stateroom.session.undo import RewindTarget, redo, undo
from stateroom.session.verification import Verification
from stateroom.state import Difference, DraftContext, EditChange, State, diff, draft_of
from stateroom.store import Head

S = TypeVar("S", bound=State | None, default=Any)

Point = int | str | Checkpoint
"""A place in a session's past: a revision, the name of a checkpoint, or the checkpoint."""

Pending = Literal["refuse", "carry"]
"""How a fork treats external calls whose outcome is unknown."""


class Session(Generic[S]):
    """The state of one episode: call tools on it, read, rewind, fork and verify it.

    `agent` holds the agent's conversation and status.

    Handles on the same session in one process share its cached state. A method raises `SessionClosed`, `SessionExpired`
    or `UnknownSession` when the session cannot be used any more, and `SessionSealed` when it has its verdict and
    cannot be changed any more.
    """

    def __init__(self, opened: OpenSession) -> None:
        self._open = opened

    def __repr__(self) -> str:
        return f"<Session {self.id} of {self._open.environment.name}, revision {self.revision}>"

    @property
    def id(self) -> str:
        """The session's id, for `sessions.open`."""
        return self._open.id

    @property
    def revision(self) -> int:
        """The newest revision that this process knows of; the seed is revision 1."""
        return self._open.cached.head.revision

    @property
    def task(self) -> Any:
        """The typed task that the session was seeded with, read anew each time.

        Fields that come with the verdict are missing until then; reading one raises `MissingField`.
        """
        return self._open.task()

    @property
    def agent(self) -> SessionAgent:
        """The agent's part: its status, and what was said."""
        return SessionAgent(self._open)

    @property
    def replies(self) -> bool:
        """Whether the environment answers its agent's messages."""
        return self._open.environment.reply_tool is not None

    @property
    def opens(self) -> bool:
        """Whether the environment's user speaks first where the task has no message of theirs."""
        return self._open.environment.user_opens

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools that an agent can call here, as OpenAI functions."""
        return [tool.definition for tool in self._open.environment.tools.values()]

    def reads(self, name: str) -> bool:
        """Whether a tool only reads the state; such calls may run in parallel."""
        tool = self._open.environment.tools.get(name)
        return tool is not None and tool.effect == "read"

    @property
    def state(self) -> S:
        """The state at `revision`, read-only."""
        if self._open.cached.state is None:
            message = f"the state of session {self.id!r} is not loaded; call `await session.state_at()`"
            raise SessionError(self.id, message)
        return draft_of(self._open.cached.state, DraftContext(READ_ONLY))  # type: ignore[no-any-return]

    @property
    def verdict(self) -> Verdict | None:
        """The verdict, if this process knows of one."""
        judged = self._open.cached.verdict_facts
        return None if judged is None else Verdict(**judged["verdict"])

    @property
    def closed(self) -> bool:
        """Whether this process knows that the session was closed."""
        return self._open.cached.head.closed

    @property
    def edited(self) -> bool:
        """Whether, as far as this process knows, a person's edit was among the steps that led to `revision`."""
        return self._open.cached.progress.edited

    @property
    def parent(self) -> tuple[str, int] | None:
        """For a fork: the session and the revision that it branched from."""
        head = self._open.cached.head
        return (head.parent, head.parent_revision) if head.parent is not None else None

    # Changing.

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        call_id: str | None = None,
        user: str | None = None,
        by: str | None = None,
    ) -> Result:
        """Call a tool. `by` names the person who calls it, for the log, if it is not an agent.

        `user` names the user whose call it is, if the session has several: the tool gets that user's state. By default
        it is the user whose message the agent answers, for the agent's own calls, and otherwise the task's.
        A call that fails is a result too: `ok` is false, `error` says why in words for the model, and nothing has
        changed. A `call_id` that was committed before returns the recorded result and runs nothing.
        """
        opened = self._open
        if opened.seems_over:
            await opened.ensure_changeable()
        if user is not None:
            checked_user(user)
        try:
            given = plain_arguments(arguments, call_id)
            tool = opened.environment.tools.get(name)
            if tool is None:
                raise unknown_tool(name, opened.environment.tools)
            return await self._run(tool, given, call_id, user, by)
        except (Failed, InvalidArguments) as failure:
            if isinstance(failure, Failed) and failure.tampered:
                await opened.reload_tampered()
            return result_of_failure(failure)

    async def _run(
        self,
        tool: SessionTool,
        given: dict[str, Any],
        call_id: str | None = None,
        user: str | None = None,
        by: str | None = None,
    ) -> Result:
        """Run a tool or a hook as its effect demands; raises `Failed` and `InvalidArguments`."""
        opened, cached = self._open, self._open.cached
        exclusive = tool.effect != "read" or opened.cache.resources.is_exclusive(tool.procedure)
        with cached.calls:
            async with cached.lock if exclusive else cached.reads:
                if tool.effect == "read":
                    return await Call(opened, tool, given, call_id, by, user).read()
                if tool.effect == "write":
                    return await commit(cached, Call(opened, tool, given, call_id, by, user).write, tool.name)
                return await ExternalCall(opened, tool, given, call_id or token_hex(12), by, user).result()

    async def reply(self, message: str, *, call_id: str, by: str | None = None) -> str | None:
        """Return the answer of the environment's user to a message of the agent or, with `by`, of a person.

        None ends the conversation. A `call_id` that was used before returns the same answer.
        """
        reply_tool = self._open.environment.reply_tool
        if reply_tool is None:
            return None
        checked_name("call_id", call_id)
        if self._open.seems_over:
            await self._open.ensure_changeable()
        return await self._text(reply_tool, self._run(reply_tool, {"message": message}, call_id, by=by))

    async def instructions(self) -> str:
        """Return the environment's current instructions for the agent; empty if it has none."""
        tool = self._open.environment.instructions_tool
        if tool is None:
            return ""
        user = (await self.agent.load()).user
        return await self._text(tool, self._run(tool, {}, user=user)) or ""

    async def _text(self, hook: SessionTool, result: Awaitable[Result]) -> str | None:
        """The text that `reply` or `instructions` gives."""
        try:
            text: str | None = (await result).output
        except Failed as failure:
            if failure.tampered:
                await self._open.reload_tampered()
            for kind in (ModelFailed, ModelUnavailable):  # of a model that plays the user, and may be back later
                if isinstance(failure.__cause__, kind):
                    raise kind(str(failure.__cause__)) from failure
            raise EnvironmentFailed(f"the environment's {hook.name} failed: {failure}") from failure
        return text

    async def verify(self, response: Any = None, *, row: Mapping[str, Any] = NOTHING, by: str | None = None) -> Verdict:
        """Run the environment's verifier on the state, and record its verdict.

        Without a `response`, the verifier gets the session's conversation, if an agent ran in it.
        The verdict seals the session: it cannot be changed any more. Verifying again, even after it is closed, returns
        the same verdict. If the verifier read the response, verifying again with another one raises `SessionSealed`:
        otherwise a model that can reach `verify` could submit a better response first.
        `row` is the caller's task row: it adds the fields that the seeded row lacked, and raises `Contradiction` if
        another field has a different value. `by` names the person who asks, for the log.
        """
        cached = self._open.cached
        async with cached.lock:
            await self._open.refresh(include_closed=True)
            attempt = Verification(self._open, response, row, by).attempt
            verdict = await commit(cached, attempt, "its verdict", after_verdict=True)
            if cached.resources:
                cached.resources.stop()  # not awaited: the verdict does not wait until they have stopped
            return verdict

    async def edit(self, changes: Sequence[EditChange | Mapping[str, Any]], *, by: str, reason: str = "") -> int:
        """Change the state by hand; returns the revision. The log records `by` whom and why.

        A change is `{"place": ["orders", "a1", "price"], "value": 3}`, or `{"place": ["orders", "a1"], "gone": True}`;
        values are JSON, parsed by the declared types. The state's validators run as after a tool, and no event is
        emitted. Raises `InvalidState`, with the place of the invalid change, and changes nothing. An edit that leaves
        the state equal commits nothing.
        """
        cached, edit = self._open.cached, Edit(changes, by, reason)
        edit.check()

        async def attempt() -> int:
            if (prepared := await self._prepare(edit, cached)) is not None:
                await append_or_retry(cached, prepared)
            return cached.head.revision

        async with cached.lock:
            await self._open.refresh()  # raises if it is closed
            return await commit(cached, attempt, "an edit")

    async def _prepare(self, edit: Edit, cached: CachedSession) -> PreparedCommit | None:
        try:
            return edit.prepare(cached)
        except TamperedState:  # by a validator
            await self._open.reload_tampered()
            raise

    async def record(self, name: str, data: Any = None, *, user: str | None = None, by: str | None = None) -> int:
        """Add a named record with JSON data to the log; returns the revision.

        The state does not change, and a rewind does not undo a record. `log(kinds={"record"})` reads the records.
        `user` names the user whom it is about, and `by` the person who records it by hand.
        """
        whose = {} if user is None else {"user": checked_user(user)}
        try:
            facts = {"name": checked_name("name", name), "data": to_jsonable_python(data), **whose, **person(by)}
            async with self._open.cached.lock:
                await self._open.refresh(load_state=False)
                return await append_entry(self._open.cached, "record", facts)
        except UNSTORABLE as error:
            message = f"should be JSON: {error}"
            raise InvalidArguments(f"data: {message}", {"data": message}) from error

    def lease(self, seconds: float = LEASE_SECONDS) -> Lease:
        """Keep other processes from changing the session while a block runs: `async with session.lease():`.

        The lease is renewed in the background, and ends `seconds` after this process does. Other processes can read
        meanwhile; their changes wait a moment and then raise `SessionLeased`, as this does if another process has it.
        """
        return Lease(self._open.cached, seconds)

    # Going back, and branching off.

    async def checkpoint(self, name: str = "", *, by: str | None = None) -> Checkpoint:
        """Mark the current state, to return to it later. The name is optional, and must be unique in the session.

        Here and below, `by` names the person who acts, for the log.
        """
        checked_name("name", name)
        async with self._open.cached.lock:
            await self._open.refresh(load_state=False)
            try:
                call_id = CHECKPOINT + name if name else None
                facts = {"name": name, **person(by)}
                revision = await append_entry(self._open.cached, "checkpoint", facts, call_id)
            except DuplicateCall:
                message = f"session {self.id!r} already has a checkpoint {name!r}; choose another name"
                raise SessionError(self.id, message) from None
            return Checkpoint(self.id, revision, name)

    async def rewind(self, to: Point, *, by: str | None = None) -> None:
        """Restore the state at a revision or a checkpoint.

        The rewind is a new entry; the log keeps the later ones. External calls are not undone. Resources are restored
        too; if a `restart_only` resource was used since, the rewind raises `CannotRewind`.
        A large state that is not in memory is loaded when it is needed: by the next call, or by `state_at()`.
        """

        async def find(head: Head) -> RewindTarget:
            return RewindTarget(await self._resolve(to))

        await self._rewind(find, by, "a rewind")

    async def undo(self, steps: int = 1, *, by: str | None = None) -> int:
        """Undo the last steps; returns how many were undone, which may be fewer, or 0.

        A step is a call, an edit, or a message to the agent together with all that the agent did in response. An undo
        is a rewind, with the same rules. What a rewind has left behind does not count as a step.
        """
        return await self._rewind(partial(undo, History(self._open.cached.store), steps), by, "an undo")

    async def redo(self, steps: int = 1, *, by: str | None = None) -> int:
        """Redo the steps undone last; returns how many. A new step or a rewind leaves nothing to redo."""
        return await self._rewind(partial(redo, History(self._open.cached.store), steps), by, "a redo")

    async def _rewind(self, find: Callable[[Head], Awaitable[RewindTarget | None]], by: str | None, what: str) -> int:
        """Make the state what it was where `find` says, if it finds anything; gives the number of steps."""
        cached, whole = self._open.cached, self._open.cache.resources.restarts

        async def attempt() -> int:
            target = await find(cached.head)
            if target is None:
                return 0
            before = await self._state_at(target.to, whole=whole)
            if why := restart_blocker(before.progress.resources, cached.progress.resources):
                raise CannotRewind(self.id, target.to, why)
            pending = cached.progress.pending
            facts = {**target.facts(), **({"pending": list(pending)} if pending else {}), **person(by)}
            after = replace(before, progress=before.progress.rewound(pending, cached.head.revision + 1))
            await append_or_retry(cached, cached.prepare("rewind", facts, after=after))
            return target.steps

        async with cached.lock:
            await self._open.refresh(load_state=whole)
            return await commit(cached, attempt, what, load_state=whole)

    @overload
    async def fork(
        self,
        at: Point | None = None,
        n: None = None,
        *,
        pending: Pending = ...,
        edit: Edit | None = ...,
        by: str | None = ...,
    ) -> Session[S]: ...
    @overload
    async def fork(
        self,
        at: Point | None = None,
        *,
        n: int,
        ids: Sequence[str] | None = ...,
        pending: Pending = ...,
        edit: Edit | None = ...,
        by: str | None = ...,
    ) -> list[Session[S]]: ...
    async def fork(
        self,
        at: Point | None = None,
        n: int | None = None,
        *,
        ids: Sequence[str] | None = None,
        pending: Pending = "refuse",
        edit: Edit | None = None,
        by: str | None = None,
    ) -> Session[S] | list[Session[S]]:
        """Create a session that starts from this one at a revision (the newest by default); with `n`, a list of `n`.

        A fork has everything of this session: state, random state, clock, ids, log and resources. Raises `CannotFork`
        if a `restart_only` resource had been used, or if an external call had been started and has no result; with
        `pending="carry"`, the fork has that call too, with an unknown outcome.
        You can choose the `ids`; they must be unguessable if strangers can call, as the default ones are.
        With an `edit`, the fork's first own entry is that edit; if it is invalid, nothing is created. Otherwise, with
        `by`, its first own entry is a `fork` that names the person.
        """
        cached, cache = self._open.cached, self._open.cache
        async with cached.lock:
            await self._open.refresh(include_closed=True, load_state=False)
            revision = cached.head.revision if at is None else await self._resolve(at)
            standing = await self._state_at(revision, whole=cache.reaches_outside or edit is not None)
        if standing.progress.pending and pending == "refuse":
            raise CannotFork(self.id, revision, f"the outcome of call {standing.progress.pending[0]!r} is unknown")
        if why := restart_blocker(standing.progress.resources, {}):
            raise CannotFork(self.id, revision, why)
        if ids is not None and len(ids) != n:
            raise InvalidArguments(f"ids: {len(ids)} ids need n={len(ids)}, not n={n}")
        for name in ids or ():
            checked_text("ids", name)
        names: Sequence[str | None] = ids or [None] * (1 if n is None else n)
        phase = cached.head.phase and standing.progress.agent.phase
        new_head, owner = self._open.runtime.new_head, cached.head.owner
        heads = [replace(new_head(owner, revision, parent=self.id, session_id=name), phase=phase) for name in names]
        branches = [cached.branch(head, standing) for head in heads]
        firsts: list[PreparedCommit | None] = [None] * len(branches)
        if edit is not None:
            edit.check()
            firsts = [await self._prepare(edit, branch) for branch in branches]
        elif by is not None:
            firsts = [branch.prepare("fork", {"by": by}) for branch in branches]
        await asyncio.gather(*(branch.create(first) for branch, first in zip(branches, firsts, strict=True)))
        forks: list[Session[S]] = [Session(cache.add(branch)) for branch in branches]
        return forks[0] if n is None else forks

    async def _state_at(self, revision: int, *, whole: bool = False) -> StateAt:
        """The state and progress at a revision; a large state that is not in memory stays unread, unless `whole`.

        So to go back costs the same, whatever the size of the state.
        """
        cached = self._open.cached
        if cached.in_memory(revision) or cached.is_small or whole:
            return await cached.at(revision)
        await cached.ensure_kept(revision)
        agent = await History(cached.store).agent(cached.head, revision) if cached.head.phase else INITIAL
        return StateAt(None, Progress(0, 0.0, agent=AgentStatus(agent.phase)))

    async def _resolve(self, point: Point) -> int:
        if isinstance(point, str):
            point = await self._named(checked_text("checkpoint", point))
        if isinstance(point, Checkpoint):
            head, shared = self._open.cached.head, self.revision
            while head.id != point.session and head.parent is not None:
                shared = min(shared, head.parent_revision)
                head = await self._open.cached.store.head(head.parent)
            if head.id != point.session or point.revision > shared:
                raise UnknownRevision(
                    self.id,
                    f"checkpoint {point.name!r} belongs to a part of session {point.session!r} that this one does not "
                    "share",
                )
            point = point.revision
        if not 1 <= point <= self.revision:
            raise UnknownRevision(self.id, f"session {self.id!r} has no revision {point}; it has 1 to {self.revision}")
        return point

    async def _named(self, name: str) -> int:
        entry = await History(self._open.cached.store).find_call(self.id, CHECKPOINT + name)
        if entry is None:
            raise UnknownRevision(self.id, f"session {self.id!r} has no checkpoint {name!r}")
        return entry.revision

    async def children(self) -> list[tuple[str, int]]:
        """Return the forks of this session, oldest first: the id of each, and the revision that it branched from."""
        return [(head.id, head.parent_revision) for head in await self._open.cached.store.children(self.id)]

    # Looking.

    async def state_at(self, revision: int | None = None) -> S:
        """Return the state at a revision, read-only; by default the newest, which `state` then returns too."""
        if revision is None:
            await self._open.refresh(include_closed=True)
            return self.state
        await self._open.look()
        return draft_of((await self._open.cached.at(revision)).state, DraftContext(READ_ONLY))  # type: ignore[no-any-return]

    async def digest(self, revision: int | None = None) -> str:
        """Return a digest of the state at a revision, by default the newest. Equal states have equal digests."""
        return await History(self._open.cached.store).digest(self.id, revision)

    async def diff(self, since: int, to: int | None = None) -> list[Difference]:
        """Return the differences between the states at two revisions; `to` is the newest by default."""
        head, history = await self._open.look(), History(self._open.cached.store)
        old = await history.document(self.id, since)
        new = await history.document(self.id, head.revision if to is None else to)
        return list(diff(old.state, new.state))

    async def user(self, name: str | None = None) -> Any:
        """Return the current state of a user, by default the task's, read-only; None if the environment has none."""
        return await self._look("user", None if name is None else checked_user(name))

    async def app(self) -> Any:
        """Return the current state that all sessions share, read-only; None if the environment has none."""
        return await self._look("app")

    async def _look(self, name: str, user: str | None = None) -> Any:
        if name not in self._open.environment.shared_types:
            return None
        views = await self._open.views(frozenset({name}), user)
        return draft_of(views[name].state, DraftContext(READ_ONLY))

    async def log(
        self,
        *,
        after: int = 0,
        kinds: Collection[str] | None = None,
        name: str | None = None,
        since: float = -inf,
        before: float = inf,
    ) -> AsyncIterator[LogEntry]:
        """Iterate over the log, in order; a fork's log begins with its parent's.

        You can select the entries after a revision, of some kinds (`kinds={"call"}`), of one name, and made at or after
        the time `since`, or `before` a time, in seconds since 1970.
        """
        await self._open.look()
        history = History(self._open.cached.store)
        entries = history.entries(self.id, after=after, kinds=kinds, name=name, since=since, before=before)
        async for entry in entries:
            yield entry

    async def events(self, after: int = 0) -> AsyncIterator[EventRecord]:
        """Return the events that led to the current state, in order, optionally only those after a revision.

        A fork's events begin with its parent's. Events that a rewind has undone are only in the log. Raises
        `UnknownRevision` if some were pruned, and `SchemaChanged` if the current code cannot read one.
        """
        head, cached = await self._open.look(), self._open.cached
        async for each in occurred(cached.store, self.id, cached.state_type, after=after, until=head.revision):
            yield each

    async def close(self, *, replaced_by: str | None = None, by: str | None = None) -> None:
        """Close the session: until it expires it can be read and forked, but not changed. Closing twice is fine.

        `replaced_by` names the session that takes its place, for the log.
        """
        cached = self._open.cached
        async with cached.lock:
            with suppress(SessionClosed):  # by another process
                if not cached.head.closed:
                    facts = {**({"replaced_by": replaced_by} if replaced_by else {}), **person(by)}
                    await append_entry(cached, "close", facts)
            if cached.resources:
                await cached.resources.stop()
        self._open.cache.drop(self.id)

"""The agent's part of a session: its conversation and status. Both are in the session's log."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from msgspec.structs import replace

from stateroom.errors import Conflict, DuplicateCall, InvalidMove, SessionError
from stateroom.session.cache import OpenSession
from stateroom.session.commit import RetryCommit, append_or_retry, commit
from stateroom.session.history import History
from stateroom.session.lifecycle import STANDARD, AgentStatus, Item, Lifecycle, Update
from stateroom.session.log import SPOKEN, UNSTORABLE, LogEntry, checked_user
from stateroom.session.reader import StateAt
from stateroom.state import to_json

Entered = tuple[dict[str, Any], AgentStatus]
"""The facts of an entry, and the agent's status after it."""


class SessionAgent:
    """Keeps an agent's conversation and status in a session's log. Forks and rewinds restore them too."""

    def __init__(self, opened: OpenSession) -> None:
        self._open = opened
        self._cached = opened.cached

    @property
    def status(self) -> AgentStatus:
        """The agent's status, as far as this process knows."""
        if not self._cached.knows_progress:
            session = self._cached.head.id
            raise SessionError(
                session, f"the agent's status in session {session!r} is not loaded; call `await session.agent.load()`"
            )
        return self._cached.progress.agent

    async def load(self) -> AgentStatus:
        """The agent's status, which is read from the store if a fork or a rewind left that until it is needed."""
        if not self._cached.knows_progress:
            await self.refresh()
        return self.status

    async def refresh(self) -> None:
        """Load the newest status: other processes may have continued the agent."""
        await self._open.refresh(include_closed=True)

    async def say(
        self, update: Update, *, after: AgentStatus | None = None, call_id: str | None = None, **changes: Any
    ) -> AgentStatus:
        """Add to the conversation, and apply the update's lifecycle events; returns the agent's new status.

        `after` is the status that the update follows from: if it has changed, another process has continued the agent,
        and `Conflict` is raised. With a `call_id`, only the first update is added. `changes` are further changes of
        the status. Raises `InvalidMove`, and adds nothing, if the lifecycle does not allow the events.
        """
        lifecycle = self._open.environment.lifecycle
        if update.user is not None:
            checked_user(update.user)

        def enter(status: AgentStatus, revision: int) -> Entered:
            self._ensure_status(status, after)
            return update.facts(), status.after(update, lifecycle, **changes)

        return await self._enter("message", enter, call_id=call_id)

    async def compact(self, window: dict[str, Any], *, after: AgentStatus | None = None) -> AgentStatus:
        """Start the model's view of the conversation from this window. The log keeps the whole conversation."""

        def enter(status: AgentStatus, revision: int) -> Entered:
            self._ensure_status(status, after)
            return window, replace(status, view=revision)

        return await self._enter("compaction", enter)

    async def move(self, event: str, reason: str | None = None) -> AgentStatus:
        """Apply an event of the agent's lifecycle. Raises `InvalidMove` if the current phase does not allow it."""
        return await self.say(Update([], "agent", (event,), reason=reason))

    async def answer(
        self, given: Any, *, user: str | None = None, by: str | None = None, to: int | None = None
    ) -> AgentStatus:
        """Answer an agent that waits for input, with a text or JSON data. The next process that runs it continues.

        A tool that asked gets the answer when it runs again, a model that asked reads it as its call's result, and
        otherwise it becomes the user's next message. `user` names the user who answers, if there are several, and `by`
        the person who does so by hand, for the log. `to` is the status's `said` when the agent asked: if more was said
        since, another person has answered, and `Conflict` is raised.
        """
        await self._open.refresh()
        status = self.status
        if to is not None and status.said != to:
            head = self._cached.head
            raise Conflict(head.id, head.revision, f"the question in session {head.id!r} was already answered")
        if status.asking is not None:
            inputs: dict[str, Any] = {"asking": status.asking, "inputs": (*status.inputs, given)}
            return await self.say(Update([], "user", ("input_received",), person=by, user=user), after=status, **inputs)
        text = given if isinstance(given, str) else to_json(given).decode()
        if status.open:
            output = text if user is None else f"{user}: {text}"
            item: Item = {"type": "function_call_output", "call_id": status.open[0], "output": output}
        else:
            item = {"type": "message", "role": "user", "content": text, **({} if user is None else {"name": user})}
        return await self.say(Update([item], "user", ("input_received",), person=by, user=user), after=status)

    async def cancel(self, reason: str = "", *, by: str | None = None) -> AgentStatus:
        """Cancel the agent's work; open calls get a result that says so.

        A running call finishes, and its effect stays. The process that runs the agent loses the session's lease, and
        stops before the agent's next step.
        """
        lifecycle = self._open.environment.lifecycle

        def enter(status: AgentStatus, revision: int) -> Entered:
            items = [ended_call(call_id, "cancelled", "the agent was cancelled") for call_id in status.open]
            update = Update(items, "agent", ("cancel",), reason=reason or None, person=by)
            return update.facts(), status.after(update, lifecycle)

        await self._open.refresh()
        return await self._enter("message", enter, breaks_lease=True)

    async def said(self, since: int = 0) -> list[LogEntry]:
        """Return the messages and compactions that led to the current status, in order, from a revision on.

        Leaves out what a rewind has undone. Raises `UnknownRevision` if a part was pruned.
        """
        await self._open.refresh(include_closed=True)
        head = self._cached.head
        history = History(self._cached.store)
        return await history.line(head.id, head.revision, after=max(since - 1, 0), kinds=SPOKEN)

    async def response(self) -> dict[str, Any] | None:
        """Return the conversation as a Responses object, for a verifier; None if it is empty."""
        return response_of(await self.said()) if self._cached.progress.agent.said else None

    def _ensure_status(self, status: AgentStatus, expected: AgentStatus | None) -> None:
        if expected is not None and status != expected:
            head = self._cached.head
            message = f"another process has already continued the agent in session {head.id!r}"
            raise Conflict(head.id, head.revision, message)

    async def _enter(
        self,
        kind: str,
        enter: Callable[[AgentStatus, int], Entered],
        *,
        breaks_lease: bool = False,
        call_id: str | None = None,
    ) -> AgentStatus:
        """Commit an entry with which the agent's status changes, and no state."""
        cached, runtime = self._cached, self._open.runtime

        async def attempt() -> AgentStatus:
            if breaks_lease and cached.is_leased_elsewhere(runtime.now()):
                if holder := (await cached.store.head(cached.head.id)).holder:
                    await cached.store.release(cached.head.id, holder)
                raise RetryCommit
            try:
                facts, status = enter(cached.progress.agent, cached.head.revision + 1)
            except InvalidMove:
                if await cached.check_newest():
                    raise
                raise RetryCommit from None
            after = StateAt(cached.state, replace(cached.progress, agent=status, made=()), cached.outdated)
            try:
                step = cached.prepare(kind, {**facts, "agent": status.plain()}, after=after, call_id=call_id)
            except UNSTORABLE as error:
                raise SessionError(cached.head.id, f"the message cannot be stored: {error}") from error
            try:
                await append_or_retry(cached, step)
            except DuplicateCall:
                return cached.progress.agent
            return status

        async with cached.lock:
            return await commit(cached, attempt, f"a {kind}", while_leased=breaks_lease)


class AgentInMemory:
    """An agent's log in memory, for an episode whose session is stored elsewhere, or not at all."""

    def __init__(self, lifecycle: Lifecycle = STANDARD) -> None:
        self.status = AgentStatus()
        self._lifecycle = lifecycle
        self._entries: list[LogEntry] = []

    async def refresh(self) -> None:
        """Return the status; no other process can change it."""

    async def load(self) -> AgentStatus:
        return self.status

    async def say(
        self, update: Update, *, after: AgentStatus | None = None, call_id: str | None = None, **changes: Any
    ) -> AgentStatus:
        return self._add("message", update.facts(), self.status.after(update, self._lifecycle, **changes), after)

    async def compact(self, window: dict[str, Any], *, after: AgentStatus | None = None) -> AgentStatus:
        return self._add("compaction", window, replace(self.status, view=len(self._entries) + 1), after)

    async def said(self, since: int = 0) -> list[LogEntry]:
        return self._entries[max(since - 1, 0) :]

    async def response(self) -> dict[str, Any] | None:
        return response_of(self._entries)

    def copy(self) -> AgentInMemory:
        """Another that goes on from here by itself."""
        copied = AgentInMemory(self._lifecycle)
        copied.status, copied._entries = self.status, [*self._entries]
        return copied

    def _add(self, kind: str, facts: dict[str, Any], status: AgentStatus, expected: AgentStatus | None) -> AgentStatus:
        if expected is not None and expected != self.status:
            raise Conflict("", len(self._entries), "another task has already continued the agent")
        self._entries.append(LogEntry(len(self._entries) + 1, kind, 0.0, None, facts))
        self.status = status
        return status


def response_of(entries: Iterable[LogEntry]) -> dict[str, Any] | None:
    """The messages among some entries as a Responses object; None if there are none."""
    messages = [entry.facts for entry in entries if entry.kind == "message"]
    if not messages:
        return None
    output = [item for facts in messages for item in facts["items"]]
    return {
        "object": "response",
        "status": "incomplete" if messages[-1].get("reason") else "completed",
        "output": output,
    }


def ended_call(call_id: str, code: str, message: str) -> Item:
    """The result of a call that nobody waits for any more."""
    output = to_json({"error": {"code": code, "message": message}}).decode()
    return {"type": "function_call_output", "call_id": call_id, "output": output}

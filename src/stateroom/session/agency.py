"""The agent's half of a session: what is said in it, and where its agent stands. Both are in the session's log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from stateroom.errors import (
    Conflict,
    EnvironmentFailed,
    InvalidMove,
    ModelFailed,
    ModelUnavailable,
    SessionError,
    SessionLeased,
    StateroomError,
)
from stateroom.session.calling import Failed
from stateroom.session.changing import Changing
from stateroom.session.history import History
from stateroom.session.journal import UNSTORABLE, LogEntry, checked_name
from stateroom.session.program import Result
from stateroom.session.reading import Standing
from stateroom.session.stance import Item, Said, Stance
from stateroom.session.turns import ATTEMPTS, give_way
from stateroom.state import to_json

SAID = ("message", "compaction")
"""The kinds of entries that a conversation is made of."""


class Agency(Changing):
    """Keeps an agent's conversation and lifecycle. Forks and rewinds have them too, as they were there."""

    @property
    def agent(self) -> Stance:
        """Where the agent stands, as far as this process knows."""
        if self._room.state is None:
            message = f"session {self.id!r} is not at hand: `await session.catch_up()` reads it"
            raise SessionError(self.id, message)
        return self._room.moment.agent

    async def catch_up(self) -> None:
        """Look where the agent stands: other processes may have gone on with its work."""
        await self._sessions.catch_up(self._room, closed_too=True)

    @property
    def replies(self) -> bool:
        """Whether the environment answers its agent's messages."""
        return self._sessions.environment.replying is not None

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The tools that an agent can call here, as OpenAI functions."""
        return [tool.definition for tool in self._sessions.environment.tools.values()]

    def reads(self, name: str) -> bool:
        """Whether a tool only looks at the state, so that such calls may run side by side."""
        tool = self._sessions.environment.tools.get(name)
        return tool is not None and tool.effect == "read"

    async def say(self, said: Said, *, after: Stance | None = None, **changes: Any) -> Stance:
        """Add to the conversation, and make the moves that come with it; gives where the agent stands then.

        `after` is where the agent stood when it was thought of: if it stands elsewhere by now, somebody else has gone
        on with its work, and `Conflict` is raised. `changes` are those of the stance that do not follow from what is
        said. Raises `InvalidMove` if it cannot be said now, and then nothing was.
        """
        lifecycle = self._sessions.environment.lifecycle

        def follow(stance: Stance, revision: int) -> Stance:
            return stance.after(said, lifecycle, **changes)

        return await self._note("message", said.facts(), after, follow)

    async def compact(self, window: dict[str, Any], *, after: Stance | None = None) -> Stance:
        """Let the model's view of the conversation start from these items. All that was said stays in the log."""
        return await self._note("compaction", window, after, lambda stance, revision: replace(stance, view=revision))

    async def move(self, event: str, reason: str | None = None) -> Stance:
        """Make a move of the agent's lifecycle; `InvalidMove` if there is none of this name from where it stands."""
        return await self.say(Said([], "agent", (event,), reason=reason))

    async def provide(self, given: Any) -> Stance:
        """Tell an agent that waits what it asked for: a text, or JSON data. Whoever runs it next goes on with that.

        A tool that asked is given it when it runs again, a model that asked reads it as its call's result, and
        otherwise it is the user's next message.
        """
        await self._sessions.catch_up(self._room)
        stance = self.agent
        if stance.asking is not None:
            told = {"asking": stance.asking, "inputs": (*stance.inputs, given)}
            return await self.say(Said([], "user", ("input_received",)), after=stance, **told)
        text = given if isinstance(given, str) else to_json(given).decode()
        if stance.open:
            item: Item = {"type": "function_call_output", "call_id": stance.open[0], "output": text}
        else:
            item = {"type": "message", "role": "user", "content": text}
        return await self.say(Said([item], "user", ("input_received",)), after=stance)

    async def cancel(self, reason: str = "") -> Stance:
        """End the agent's work, whatever it is doing; calls that have no result get one that says so.

        A call that is under way comes to its end, and its effect stays. Whoever runs the agent finds out before the
        next thing that it does, and loses the session's lease.
        """
        store = self._room.store
        for attempt in range(ATTEMPTS):
            await give_way(attempt)
            await self._sessions.catch_up(self._room)
            stance = self.agent
            items = [ended_call(call_id, "cancelled", "the agent was cancelled") for call_id in stance.open]
            try:
                return await self.say(Said(items, "agent", ("cancel",), reason=reason or None), after=stance)
            except SessionLeased:
                if holder := (await store.head(self.id)).holder:
                    await store.release(self.id, holder)
            except Conflict:
                continue  # the agent was quicker
        raise self._too_busy("to cancel its agent")

    async def reply(self, message: str, *, call_id: str) -> str | None:
        """What the environment's user answers to a message of the agent's; None if that was all.

        Under a call id that was used before it is the same answer, and nobody is asked again.
        """
        replying = self._sessions.environment.replying
        if replying is None:
            return None
        checked_name("call_id", call_id)
        sessions, room = self._sessions, self._room
        if room.head.closed or room.head.expires <= sessions.now():
            await sessions.catch_up(room)
        try:
            async with room.lock:
                result = await self._write(replying, {"message": message}, call_id)
        except Failed as failure:
            if failure.tampered:
                await sessions.mend(room)
            raise no_reply(failure) from failure
        return replied(result)

    async def said(self, since: int = 0) -> list[LogEntry]:
        """What was said on the way to where the agent stands, in order, from a revision on: messages and compactions.

        What a rewind has undone is not among it. Raises `UnknownRevision` if some of it was pruned.
        """
        await self._sessions.catch_up(self._room, closed_too=True)
        history = History(self._room.store)
        line = await history.line(self.id, self._room.head.revision, after=max(since - 1, 0))
        return [entry for entry in line if entry.kind in SAID]

    async def _note(
        self, kind: str, facts: dict[str, Any], expected: Stance | None, follow: Callable[[Stance, int], Stance]
    ) -> Stance:
        """Commit an entry with which the agent's stance changes, and no state."""
        sessions, room = self._sessions, self._room
        async with room.lock:
            for attempt in range(ATTEMPTS):
                if attempt:
                    await give_way(attempt)
                if room.stale:
                    await room.refresh()
                room.refuse_if_sealed()
                if room.head.holder is not None and self._has_to_wait():
                    continue
                moment = room.moment
                if expected is not None and moment.agent != expected:
                    message = f"somebody else has gone on with the agent's work in session {self.id!r}"
                    raise Conflict(self.id, self.revision, message)
                try:
                    stance = follow(moment.agent, room.head.revision + 1)
                except InvalidMove:
                    if await self._is_newest():
                        raise
                    continue  # others have gone on meanwhile
                standing = Standing(room.state, replace(moment, agent=stance, made=()), room.outdated)
                at = sessions.now()
                try:
                    step = room.prepare(kind, {**facts, "agent": stance.plain()}, at, after=standing)
                except UNSTORABLE as error:
                    raise SessionError(self.id, f"what was said cannot be stored: {error}") from error
                try:
                    await room.commit(step, sessions.renewal(room.head, at))
                    return stance
                except Conflict:
                    continue
        raise self._too_busy(f"a {kind}")


def ended_call(call_id: str, code: str, message: str) -> Item:
    """The result of a call that nobody waits for any more."""
    output = to_json({"error": {"code": code, "message": message}}).decode()
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def replied(result: Result) -> str | None:
    """The text of a reply."""
    if not isinstance(result.output, str | None):
        raise EnvironmentFailed(f"the environment's reply must be a text or None, not {result.output!r:.100}")
    return result.output


def no_reply(failure: Failed) -> StateroomError:
    """Why there is no reply: a model that plays the user may have failed, and be there again later."""
    for kind in (ModelFailed, ModelUnavailable):
        if isinstance(failure.__cause__, kind):
            return kind(str(failure.__cause__))
    return EnvironmentFailed(f"the environment's reply failed: {failure}")

"""Playing an episode again, call by call, in a session of its own, and comparing it with what is on record."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from stateroom.agent import call_tool, output_text
from stateroom.errors import EnvironmentFailed, SessionError, StateroomError, UnknownSession
from stateroom.rollout.recorded import NOT_AGAIN, Spoken, decoded, same
from stateroom.session import History, LogEntry, Progress, Sessions
from stateroom.session.log import write_body
from stateroom.session.program import Operation
from stateroom.session.reader import Reader
from stateroom.state import decode, encode, schema_of
from stateroom.state.describe import differences, readable
from stateroom.store import Commit, Entry

Reads = Literal["skip", "check"]
"""What is done about calls that have changed nothing: those of `read` tools, and those that failed."""

TAKEN = ("started", "failed", "asked", "message", "compaction", "checkpoint", "abandoned", "migrated")
"""Kinds of entries that run nothing: they are taken over, so that revisions are the same again."""


@dataclass(frozen=True)
class Difference:
    """Where a replay came to something else than what is on record."""

    number: int
    """Which call of the episode it was, from 1; 0 is the seed."""
    name: str
    input: Any
    recorded: Any
    """The output then."""
    now: Any
    """The output now."""
    states: list[str]
    """What differs between the states after the call, then → now."""


@dataclass
class Replay:
    """What playing an episode again came to."""

    session: str | None = None
    task: int | None = None
    rollout: int | None = None
    """Which row of the rollouts it is."""
    calls: int = 0
    """Calls that were run again."""
    reads: int = 0
    """Reads that were."""
    taken: int = 0
    """External calls: what came of them was taken from the log."""
    left_out: int = 0
    """Calls that have changed nothing, and were left out."""
    differences: list[Difference] = field(default_factory=list)
    refused: str | None = None
    """Why it cannot be played again."""


class Stopped(Exception):
    """Something differs, and that is enough."""


class Past:
    """The states of a session in a store, as plain data in the schema of now."""

    def __init__(self, reader: Reader, session: str) -> None:
        self.reader = reader
        self.session = session

    async def state(self, revision: int) -> Any:
        standing, _ = await self.reader.read(self.session, revision)
        return readable(decode(encode(standing.state)))

    async def is_current(self) -> bool:
        """Whether all of it is stored in the schema of now."""
        document = await History(self.reader.store).outline(self.session, 1)
        return document.version == schema_of(self.reader.state_type).version


class Player:
    """Plays one episode. `past` is its session, if a store has it; else its response is all that there is."""

    def __init__(
        self, sessions: Sessions[Any], replay: Replay, past: Past | None, *, lenient: bool, reads: Reads
    ) -> None:
        self._sessions = sessions
        self._replay = replay
        self._past = past
        self._lenient = lenient
        self._reads = reads
        self._current = True
        self._revisions: dict[int, int] = {}
        """The revisions of then, and what they are now."""
        self._session: Any = None
        self._number = 0

    async def seed(self, row: Any, progress: Progress, session_id: str | None) -> None:
        """Begin with the same task, luck and time."""
        try:
            self._session = await self._sessions.seed(
                row, seed=progress.seed, began=progress.began, session_id=session_id
            )
        except StateroomError:
            raise
        except Exception as error:
            raise EnvironmentFailed(f"seed failed: {type(error).__name__}: {error}") from error
        if self._past is not None:
            self._current = await self._past.is_current()
            self._revisions[1] = 1
            lines = await self._apart(1)
            if lines:
                self._differ("seed", row, None, None, lines)

    async def play(self, step: LogEntry | Spoken) -> None:
        """The next step; raises `Stopped` if something differs and nothing may."""
        if isinstance(step, Spoken):
            self._number += 1
            await self._say(step)
            return
        if step.kind == "call":
            self._number += 1
            if self._is_outside(step):
                self._replay.taken += 1
                await self._take(step)
            else:
                await self._call(step)
        elif step.kind == "rewind":
            await self._session.rewind(self._revisions[step.facts["to"]])
        elif step.kind in TAKEN:
            await self._take(step)
        self._revisions[step.revision] = self._session.revision

    async def end(self) -> None:
        """Forget the session."""
        sessions, session = self._sessions, self._session
        if session is not None:
            sessions.forget(session.id)
            with suppress(UnknownSession):  # without a state, it is nowhere
                await sessions.store.delete(session.id)

    @property
    def _tools(self) -> Mapping[str, Operation]:
        return self._sessions.environment.tools

    def _is_outside(self, entry: LogEntry) -> bool:
        """Whether a call cannot be made again: it reached outside, or was an answer of the user's."""
        tool = self._tools.get(entry.name or "")
        return entry.name == "reply" or (tool is not None and tool.effect == "external")

    # Calls in the log.

    async def _call(self, entry: LogEntry) -> None:
        """Run a call again that was committed."""
        self._replay.calls += 1
        call_id = entry.call_id if entry.call_id and entry.call_id.isprintable() else None  # else it is our own
        before = self._session.revision
        result = await self._session.call(str(entry.name), entry.input, call_id=call_id)
        if not result.ok:
            self._differ(entry.name, entry.input, entry.output, result.content, [])
            return
        self._revisions[entry.revision] = self._session.revision
        if self._session.revision == before:  # it is a read now
            now = LogEntry(before, "call", 0.0, facts={"output": result.output})
        else:
            now = await self._newest()
        lines = [] if self._current and entry.patch == now.patch else await self._apart(entry.revision)
        then_moved, now_moved = (each.facts.get("advance", 0.0) for each in (entry, now))
        if then_moved != now_moved:
            lines.append(f"the clock was moved on by: {then_moved:g} s → {now_moved:g} s")
        if lines or not same(entry.output, now.output):
            self._differ(entry.name, entry.input, entry.output, now.output, lines)

    async def _newest(self) -> LogEntry:
        store, session = self._sessions.store, self._session
        [entry] = await store.entries(session.id, after=session.revision - 1, until=session.revision)
        return await History(store).read(session.id, entry)

    async def _apart(self, revision: int) -> list[str]:
        """What differs between the state at a revision and what it is now."""
        assert self._past is not None
        here = Past(self._sessions.runtime.reader, self._session.id)
        return differences(await self._past.state(revision), await here.state(self._revisions[revision]))

    async def _take(self, entry: LogEntry) -> None:
        """Put an entry into the session as it is on record, as another process would."""
        if entry.patch and not self._current:
            raise SessionError(
                self._session.id, f"what {entry.name} did outside is on record in an older schema of the state"
            )
        store, head = self._sessions.store, await self._sessions.store.head(self._session.id)
        facts = {name: value for name, value in entry.facts.items() if name != "schema"}
        body = write_body(facts, entry.patch, store.large)
        call_id = entry.call_id if entry.kind != "checkpoint" else None  # of a fork and its parent it may be the same
        copy = Entry(head.revision + 1, entry.kind, self._sessions.runtime.now(), body.data, call_id)
        await store.append(Commit(head.id, copy, expires=None, fence=head.fence, blobs=body.blobs))
        self._session = await self._sessions.open(head.id)

    # Calls in the response.

    async def _say(self, call: Spoken) -> None:
        """Make a call again that has left no entry in the log, or of which there is no log."""
        tool = self._tools.get(call.name)
        effect = "read" if tool is None else tool.effect
        logged = self._past is not None
        if (
            call.error in NOT_AGAIN
            or (self._reads == "skip" and (logged or effect == "read"))
            or (logged and (effect == "external" or (effect == "write" and call.error is None)))
        ):
            self._replay.left_out += 1
            return
        if effect == "read":
            self._replay.reads += 1
        else:
            self._replay.calls += 1
        now = decoded(output_text(await call_tool(self._session, {**call.item, "name": call.name}, call.id)))
        if not same(call.output, now):
            self._differ(call.name, call.input, call.output, now, [])

    def _differ(self, name: str | None, given: Any, recorded: Any, now: Any, states: list[str]) -> None:
        self._replay.differences.append(Difference(self._number, str(name), given, recorded, now, states))
        if not self._lenient:
            raise Stopped

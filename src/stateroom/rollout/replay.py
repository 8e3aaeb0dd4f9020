"""Replay: run recorded calls again in fresh sessions in memory, and compare them with the record."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from stateroom.agent import call_tool, output_text, task_items
from stateroom.environment import Environment, StoreSessions
from stateroom.errors import BadTask, EnvironmentFailed, SessionError, StateroomError, StoreUnavailable, UnknownSession
from stateroom.jsonl import read_lines
from stateroom.model import text_of
from stateroom.rollout.files import RunFiles
from stateroom.rollout.index import RunIndex
from stateroom.rollout.rows import EDITED, INDICES, PARENT, SESSION, Key, Row, key_of, parse_row, task_fields, task_of
from stateroom.rollout.tasks import read_tasks
from stateroom.session import (
    COPIED,
    NOT_REPEATABLE,
    AgentStatus,
    Document,
    History,
    LogEntry,
    Procedure,
    Progress,
    Reader,
    RecordedCall,
    Sessions,
    SessionTool,
    Verdict,
    merged,
    parsed,
    recorded_calls,
    same,
    write_body,
)
from stateroom.state import decode, diff, encode, readable, schema_of
from stateroom.store import Commit, Entry, Store, open_store

Reads = Literal["skip", "check"]
"""How to treat calls that changed nothing: calls of `read` tools, and failed calls."""

UNRECORDED = frozenset({"rng", "clock", "new_id"})
"""Parameters of an environment's functions that rows do not record."""

RESPONSE_ID = re.compile(r"resp_([0-9a-f]{16})")
"""The ids that the runner gives to responses, which contain the episode's seed."""


@dataclass(frozen=True)
class ReplayDifference:
    """A call whose replay differs from the record."""

    number: int
    """The number of the call in the episode, from 1; 0 is the seed."""
    name: str
    input: Any
    recorded: Any
    """The recorded output."""
    now: Any
    """The output now."""
    states: list[str]
    """The differences between the states after the call, recorded → now."""


@dataclass
class Replay:
    """The result of replaying an episode."""

    session: str | None = None
    task: int | None = None
    rollout: int | None = None
    """The indices of the row, if it is from a rollouts file."""
    calls: int = 0
    """Calls that ran again."""
    reads: int = 0
    """Reads that ran again."""
    taken: int = 0
    """External calls, whose results are copied from the log."""
    left_out: int = 0
    """Skipped calls, which changed nothing."""
    differences: list[ReplayDifference] = field(default_factory=list)
    edited: list[str] = field(default_factory=list)
    """Edits by people that were copied from the log, so the episode cannot be compared."""
    refused: str | None = None
    """Why the episode cannot be replayed."""


async def replay_session(
    environment: Environment[Any, Any], store: Store, session: str, *, lenient: bool = False
) -> Replay:
    """Run the calls and rewinds of a stored session again, up to the first difference unless `lenient`.

    External tools do not run; their results are copied from the log. The store does not change.
    """
    seeds = [entry.input async for entry in History(store).entries(session, until=1)]
    async with open_replayers(environment, lenient, "skip") as replayer_of:
        return await replayer_of(seeds[0] if seeds else {}).session(store, session)


async def replay_rollouts(
    environment: Environment[Any, Any],
    rollouts: Path,
    store: Store | None = None,
    *,
    tasks: Path | None = None,
    lenient: bool = False,
    reads: Reads = "skip",
    on_row: Callable[[], None] = lambda: None,
) -> list[Replay]:
    """Replay the episodes of a rollouts file, up to the first difference unless `lenient`.

    If the store has the session of a row, its log is replayed; otherwise the calls in its response run again, and their
    outputs are compared. `reads="check"` also compares calls in responses that changed nothing (reads and failed
    calls); `"skip"` skips them. `tasks` is the task file for rollouts without the fields of their tasks. `on_row` is
    called for each row.
    """
    replays: list[Replay] = []
    inputs = find_inputs(rollouts, environment, tasks)
    async with open_replayers(environment, lenient, reads) as replayer_of:
        for number, line in read_lines(rollouts):
            try:
                row = parse_row(line, number)
                replays.append(await replayer_of(row).row(row, store, inputs))
            except BadTask as error:
                replays.append(Replay(refused=str(error)))
            on_row()
            if replays[-1].differences and not lenient:
                break
    if not replays:
        raise BadTask(f"{rollouts} has no rows")
    return replays


@asynccontextmanager
async def open_replayers(
    environment: Environment[Any, Any], lenient: bool, reads: Reads
) -> AsyncIterator[Callable[[Row], Replayer]]:
    """Open replayers for the episodes of an environment, by row, with a store in memory."""
    async with open_store("memory://") as store:
        sessions = StoreSessions(store)
        try:
            yield lambda row: Replayer(sessions.of(environment, row), lenient, reads)
        finally:
            await sessions.stop()


class Replayer:
    """Replays episodes, as far as they can be replayed."""

    def __init__(self, sessions: Sessions[Any], lenient: bool, reads: Reads) -> None:
        self._sessions = sessions
        self._lenient = lenient
        self._reads = reads

    async def session(self, store: Store, session: str, response: Any = None) -> Replay:
        """Replay a stored session; `response` has the calls that changed nothing."""
        replay = Replay(session)
        try:
            await self._session(replay, store, session, response)
        except (StoreUnavailable, UnknownSession):
            raise
        except StateroomError as error:
            replay.refused = str(error)
        return replay

    async def row(self, row: Row, store: Store | None, inputs: Mapping[Key, Row]) -> Replay:
        """Replay the episode of a row."""
        session = row.get(SESSION)
        replay = Replay(session if isinstance(session, str) else None)
        if replay.session and store is not None and self._sessions.environment.state_type is not None:
            with suppress(UnknownSession):
                stored = await self.session(store, replay.session, row.get("response"))
                stored.task, stored.rollout = key_of(row)
                return stored
        replay.task, replay.rollout = key_of(row)
        try:
            await self._response(replay, row, inputs)
        except StateroomError as error:
            replay.refused = str(error)
        return replay

    async def verdict(self, row: Row, inputs: Mapping[Key, Row]) -> Verdict:
        """The verdict on a session in which the calls of a row have run again.

        Raises `BadTask` if the calls cannot run, or if an output differs from the record, since the state may then
        differ too.
        """
        if names := " and ".join(sorted(self._sessions.environment.verify_function.shared)):
            raise BadTask(f"verify uses the shared state of {names}, which other sessions change")
        replay = Replay()
        verdict = await self._response(replay, row, inputs, lambda session: session.verify(row.get("response")))
        if verdict is None:
            differs = replay.differences[0]
            raise BadTask(
                f"the output of call {differs.number}, {differs.name}, has changed; run stateroom replay for details"
            )
        return verdict

    async def _session(self, replay: Replay, store: Store, session: str, response: Any) -> None:
        environment, history = self._sessions.environment, History(store)
        head = await store.head(session)
        if head.environment != environment.name or environment.state_type is None:
            raise SessionError(session, f"session {session!r} belongs to {head.environment}, not {environment.name}")
        entries = [entry async for entry in history.entries(session)]
        for entry in entries:
            self._ensure_unshared(session, entry)
        seeded = await history.outline(session, 1)
        edits = await history.line(session, kinds={"edit"})
        replay.edited = [f"by {entry.facts['by']} at revision {entry.revision}" for entry in edits]
        calls = [*recorded_calls(response, environment.tools)]
        stored = _StoredSession(Reader(store, environment.state_type), session, seeded)
        await self._replay(replay, stored, entries[0].input, seeded.progress, [*merged(entries[1:], calls)])

    def _ensure_unshared(self, session: str, entry: LogEntry) -> None:
        """Refuse a call that depends on data that other sessions may have changed since."""
        if entry.kind != "call":
            return
        tool = self._sessions.environment.tools.get(entry.name or "")
        where = f"{entry.name}, at revision {entry.revision}, "
        if asked := {*entry.facts.get("shared", ()), *(tool.procedure.shared if tool else ())}:
            names = " and ".join(sorted(asked))
            raise SessionError(session, f"{where}uses the shared state of {names}, which other sessions change")
        if tool is not None and tool.effect == "external" and tool.procedure.resources:
            names = " and ".join(sorted(tool.procedure.resources))
            raise SessionError(session, f"{where}is external and changed {names}")

    async def _response(
        self, replay: Replay, row: Row, inputs: Mapping[Key, Row], judge: Judge | None = None
    ) -> Verdict | None:
        environment = self._sessions.environment
        if row.get(EDITED):
            raise BadTask("a person edited the state, and only the missing session records the edit")
        calls = [*recorded_calls(row.get("response"), environment.tools)]
        for call in calls:
            tool = environment.tools.get(call.name)
            if tool is not None and tool.procedure.shared:
                names = " and ".join(sorted(tool.procedure.shared))
                raise BadTask(f"{call.name} uses the shared state of {names}, which other sessions change")
            if tool is not None and tool.effect == "external":
                raise BadTask(f"{call.name} is external, and only the missing session records what it changed")
        used = [environment.tools[call.name].procedure for call in calls if call.name in environment.tools]
        judges = [] if judge is None else [environment.verify_function]
        progress = self._progress(row, [environment.seed_function, *used, *judges])
        return await self._replay(replay, None, task_of(row, inputs), progress, calls, judge)

    def _progress(self, row: Row, procedures: Sequence[Procedure]) -> Progress:
        """The initial random state and clock of the episode; if the row lacks them, they must not matter."""
        response = row.get("response") or {}
        match = RESPONSE_ID.fullmatch(str(response.get("id")))
        began = response.get("created_at")
        if match and isinstance(began, int | float) and PARENT not in row:
            return Progress(int(match[1], 16), float(began))
        for procedure in procedures:
            if asked := procedure.needs & UNRECORDED:
                names = " and ".join(sorted(asked))
                raise BadTask(f"the environment uses {names}, and only the missing session records the values")
        return Progress(0, 0.0)

    async def _replay(
        self,
        replay: Replay,
        stored: _StoredSession | None,
        row: Any,
        progress: Progress,
        steps: Sequence[LogEntry | RecordedCall],
        judge: Judge | None = None,
    ) -> Verdict | None:
        """Replay steps; returns the verdict if there is a `judge` and nothing differs."""
        player = _Player(self._sessions, replay, stored, lenient=self._lenient, reads=self._reads)
        try:
            await player.seed(row, progress, replay.session)
            for step in steps:
                await player.play(step)
            return None if judge is None else await judge(player.session)
        except _Stopped:
            return None
        finally:
            await player.end()


Judge = Callable[[Any], Awaitable[Verdict]]
"""Gives a verdict on a session."""


class _Stopped(Exception):
    """A difference stopped a replay that is not lenient."""


class _StoredSession:
    """The stored form of a replayed session."""

    def __init__(self, reader: Reader, session: str, seeded: Document) -> None:
        self.reader = reader
        self.session = session
        self.seeded = seeded
        """The session at its beginning; without the state if it began in a world."""
        self.is_current = seeded.version == schema_of(reader.state_type).version
        """Whether the whole session is stored in the current schema."""

    def begins_like(self, other: Document) -> bool:
        """Whether another session has the same initial state, as far as known without reading a world."""
        own = self.seeded
        return self.is_current and (own.state, own.start) == (other.state, other.start)


async def _plain_state(reader: Reader, session: str, revision: int) -> Any:
    """The state of a session at a revision, as plain data in the current schema."""
    standing, _ = await reader.read(session, revision)
    return readable(decode(encode(standing.state)))


class _Player:
    """Replays one episode call by call. `stored` is its session, if a store has it."""

    def __init__(
        self, sessions: Sessions[Any], replay: Replay, stored: _StoredSession | None, *, lenient: bool, reads: Reads
    ) -> None:
        self._sessions = sessions
        self._replay = replay
        self._stored = stored
        self._lenient = lenient
        self._reads = reads
        self._revisions: dict[int, int] = {}
        """Maps revisions of the recorded session to those of the replayed one."""
        self.session: Any = None
        self._number = 0

    async def seed(self, row: Any, progress: Progress, session_id: str | None) -> None:
        """Start with the recorded task, random state and clock."""
        try:
            self.session = await self._sessions.seed(
                row, seed=progress.seed, began=progress.began, session_id=session_id
            )
        except StateroomError:
            raise
        except Exception as error:
            raise EnvironmentFailed(f"seed failed: {type(error).__name__}: {error}") from error
        if self._stored is not None:
            self._revisions[1] = 1
            here = await History(self._sessions.store).outline(self.session.id, 1)
            lines = [] if self._stored.begins_like(here) else await self._state_differences(1)
            if lines:
                self._differ("seed", row, None, None, lines)

    async def play(self, step: LogEntry | RecordedCall) -> None:
        """Replay the next step. Raises `_Stopped` if it differs and the replay is not lenient."""
        if isinstance(step, RecordedCall):
            self._number += 1
            await self._recorded_call(step)
            return
        if step.kind == "call":
            self._number += 1
            if self._is_external(step):
                self._replay.taken += 1
                await self._copy(step)
            else:
                await self._call(step)
        elif step.kind == "rewind":
            await self.session.rewind(self._revisions[step.facts["to"]])
        elif step.kind in COPIED:
            await self._copy(step)
        self._revisions[step.revision] = self.session.revision

    async def end(self) -> None:
        """Delete the session."""
        sessions, session = self._sessions, self.session
        if session is not None:
            sessions.forget(session.id)
            with suppress(UnknownSession):  # a stateless session is not stored
                await sessions.store.delete(session.id)

    @property
    def _tools(self) -> Mapping[str, SessionTool]:
        return self._sessions.environment.tools

    @property
    def _is_current(self) -> bool:
        return self._stored is not None and self._stored.is_current

    def _is_external(self, entry: LogEntry) -> bool:
        """Whether a call cannot run again: it has external effects, or is an answer of the user."""
        tool = self._tools.get(entry.name or "")
        return entry.name == "reply" or (tool is not None and tool.effect == "external")

    async def _call(self, entry: LogEntry) -> None:
        """Run a committed call again."""
        self._replay.calls += 1
        call_id = entry.call_id if entry.call_id and entry.call_id.isprintable() else None  # otherwise it is ours
        before = self.session.revision
        user = entry.facts.get("user")
        result = await self.session.call(str(entry.name), entry.input, call_id=call_id, user=user)
        if not result.ok:
            self._differ(entry.name, entry.input, entry.output, result.content, [])
            return
        self._revisions[entry.revision] = self.session.revision
        if self.session.revision == before:  # the tool is a read now
            now = LogEntry(before, "call", 0.0, facts={"output": result.output})
        else:
            now = await self._newest_entry()
        is_same = self._is_current and entry.patch == now.patch
        lines = [] if is_same else await self._state_differences(entry.revision)
        moved, moved_now = (each.facts.get("advance", 0.0) for each in (entry, now))
        if moved != moved_now:
            lines.append(f"the clock was advanced by: {moved:g} s → {moved_now:g} s")
        if lines or not same(entry.output, now.output):
            self._differ(entry.name, entry.input, entry.output, now.output, lines)

    async def _newest_entry(self) -> LogEntry:
        store, session = self._sessions.store, self.session
        [entry] = await store.entries(session.id, after=session.revision - 1, until=session.revision)
        return await History(store).read(session.id, entry)

    async def _state_differences(self, revision: int) -> list[str]:
        """The differences between the recorded state at a revision and the replayed one."""
        assert self._stored is not None
        recorded = await _plain_state(self._stored.reader, self._stored.session, revision)
        now = await _plain_state(self._sessions.runtime.reader, self.session.id, self._revisions[revision])
        return [str(difference) for difference in diff(recorded, now)]

    async def _copy(self, entry: LogEntry) -> None:
        """Append a recorded entry to the session, as another process would."""
        if entry.patch and not self._is_current:
            what = "an edit" if entry.kind == "edit" else f"the external effect of {entry.name}"
            raise SessionError(self.session.id, f"{what} is recorded in an older schema of the state")
        store, head = self._sessions.store, await self._sessions.store.head(self.session.id)
        facts = {name: value for name, value in entry.facts.items() if name != "schema"}
        body = write_body(facts, entry.patch, store.large)
        call_id = entry.call_id if entry.kind != "checkpoint" else None  # a fork and its parent may have the same one
        copy = Entry(head.revision + 1, entry.kind, self._sessions.runtime.now(), body.data, call_id)
        phase = AgentStatus.of_plain(entry.facts["agent"]).phase if "agent" in entry.facts else None
        await store.append(Commit(head.id, copy, expires=None, fence=head.fence, blobs=body.blobs, phase=phase))
        self.session = await self._sessions.open(head.id)

    async def _recorded_call(self, call: RecordedCall) -> None:
        """Run a call again that has no log entry."""
        tool = self._tools.get(call.name)
        effect = "read" if tool is None else tool.effect
        logged = self._stored is not None
        if (
            call.error in NOT_REPEATABLE
            or (self._reads == "skip" and (logged or effect == "read"))
            or (logged and (effect == "external" or (effect == "write" and call.error is None)))
        ):
            self._replay.left_out += 1
            return
        if effect == "read":
            self._replay.reads += 1
        else:
            self._replay.calls += 1
        # After a rewind an earlier call may have its id, and would give its result.
        is_taken = logged and await History(self._sessions.store).find_call(self.session.id, call.id) is not None
        call_id = None if is_taken else call.id
        now = parsed(output_text(await call_tool(self.session, {**call.item, "name": call.name}, call_id)))
        if not same(call.output, now):
            self._differ(call.name, call.input, call.output, now, [])

    def _differ(self, name: str | None, given: Any, recorded: Any, now: Any, states: list[str]) -> None:
        difference = ReplayDifference(self._number, str(name), given, recorded, now, states)
        self._replay.differences.append(difference)
        if not self._lenient:
            raise _Stopped


Prompt = tuple[tuple[Any, str], ...]
"""A prompt: the roles and texts of the messages."""


def find_inputs(rollouts: Path, environment: Environment[Any, Any], tasks: Path | None = None) -> Mapping[Key, Row]:
    """The rows of a rollouts file without a verdict, as far as known.

    They are in the inputs file of the run. Without it, they are looked up in the task file `tasks` by prompt, because
    rollouts of NeMo Gym need not contain the fields of their tasks.
    """
    if tasks is None:
        return RunIndex.of(RunFiles(rollouts), "inputs").inputs
    by_prompt: dict[Prompt, Row] = {}
    for read in read_tasks(tasks, environment):
        task = task_fields(read)
        if by_prompt.setdefault(_prompt(task), task) != task:
            raise BadTask(f"{tasks} has several tasks with the same prompt, so rollouts cannot be matched to them")
    inputs: dict[Key, Row] = {}
    for number, line in read_lines(rollouts):
        with suppress(BadTask):  # reported when the row itself is read
            row = parse_row(line, number)
            if _prompt(row) in by_prompt:
                inputs[key_of(row)] = {**by_prompt[_prompt(row)], **{name: row[name] for name in INDICES}}
    return inputs


def _prompt(row: Row) -> Prompt:
    return tuple((item.get("role"), text_of(item)) for item in task_items(row))

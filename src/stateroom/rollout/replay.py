"""Replay: recorded calls run again, each episode in a fresh session in memory, and compared with what is on record."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from stateroom.environment import Environment
from stateroom.errors import BadTask, SessionError, StateroomError, StoreUnavailable, UnknownSession
from stateroom.rollout.judges import UNRECORDED
from stateroom.rollout.player import Past, Player, Reads, Replay, Stopped
from stateroom.rollout.recorded import Spoken, merged, spoken
from stateroom.rollout.rows import Key, inputs_of, key_of, lines_of, row_of, task_of
from stateroom.rollout.world import Row
from stateroom.session import History, LogEntry, Progress, Sessions
from stateroom.session.reader import Reader
from stateroom.store import Store, open_store

OURS = re.compile(r"resp_([0-9a-f]{16})")
"""The ids that the runner gives to responses: they tell the seed of the episode."""


async def replay(environment: Environment[Any, Any], store: Store, session: str, *, lenient: bool = False) -> Replay:
    """Run the calls of a stored session again, with its rewinds; unless it is `lenient`, up to the first difference.

    External tools are not run: what came of them is taken from the log. Nothing is written to the store.
    """
    async with _replayer(environment, lenient, "skip") as replayer:
        return await replayer.session(store, session)


async def replay_rollouts(
    environment: Environment[Any, Any],
    rollouts: Path,
    store: Store | None = None,
    *,
    lenient: bool = False,
    reads: Reads = "skip",
    on_row: Callable[[], None] = lambda: None,
) -> list[Replay]:
    """Play the episodes of a rollouts file again; unless it is `lenient`, up to the first difference.

    A row whose session is in the store is played as that is. Of any other, the calls in its response are made again,
    and their outputs compared. Of calls that have changed nothing, reads and such as failed, `reads="check"` compares
    those in the response too, and `"skip"` leaves them out. `on_row` is told of each row.
    """
    found: list[Replay] = []
    inputs = inputs_of(rollouts)
    async with _replayer(environment, lenient, reads) as replayer:
        for number, line in lines_of(rollouts):
            try:
                found.append(await replayer.row(row_of(line, number), store, inputs))
            except BadTask as error:
                found.append(Replay(refused=str(error)))
            on_row()
            if found[-1].differences and not lenient:
                break
    if not found:
        raise BadTask(f"{rollouts} has no rows")
    return found


@asynccontextmanager
async def _replayer(environment: Environment[Any, Any], lenient: bool, reads: Reads) -> AsyncIterator[_Replayer]:
    async with open_store("memory://") as store:
        sessions = Sessions[Any](environment, store)
        try:
            yield _Replayer(sessions, lenient, reads)
        finally:
            await sessions.stop()


class _Replayer:
    """Plays episodes again, in sessions that are its own."""

    def __init__(self, sessions: Sessions[Any], lenient: bool, reads: Reads) -> None:
        self._sessions = sessions
        self._lenient = lenient
        self._reads = reads

    async def session(self, store: Store, session: str, response: Any = None) -> Replay:
        """Play a stored session again, with what its response says of calls that have changed nothing."""
        replay = Replay(session)
        try:
            await self._session(replay, store, session, response)
        except (StoreUnavailable, UnknownSession):
            raise
        except StateroomError as error:
            replay.refused = str(error)
        return replay

    async def row(self, row: Row, store: Store | None, inputs: Mapping[Key, Row]) -> Replay:
        """Play the episode of a row again."""
        session = row.get("_stateroom_session")
        replay = Replay(session if isinstance(session, str) else None)
        if replay.session and store is not None and self._sessions.environment.state_type is not None:
            with suppress(UnknownSession):
                found = await self.session(store, replay.session, row.get("response"))
                found.task, found.rollout = key_of(row)
                return found
        replay.task, replay.rollout = key_of(row)
        try:
            await self._response(replay, row, inputs)
        except StateroomError as error:
            replay.refused = str(error)
        return replay

    async def _session(self, replay: Replay, store: Store, session: str, response: Any) -> None:
        environment, history = self._sessions.environment, History(store)
        head = await store.head(session)
        if head.environment != environment.name or environment.state_type is None:
            raise SessionError(session, f"session {session!r} is of {head.environment}, not of {environment.name}")
        entries = [entry async for entry in history.entries(session)]
        for entry in entries:
            self._refuse_shared(session, entry)
        progress = (await history.outline(session, 1)).progress
        said = [*spoken(response, environment.tools)]
        past = Past(Reader(store, environment.state_type), session)
        await self._play(replay, past, entries[0].input, progress, [*merged(entries[1:], said)])

    def _refuse_shared(self, session: str, entry: LogEntry) -> None:
        """What others have changed meanwhile, and may have had a part in, cannot be had again."""
        if entry.kind != "call":
            return
        tool = self._sessions.environment.tools.get(entry.name or "")
        where = f"{entry.name}, at revision {entry.revision}, "
        if asked := {*entry.facts.get("shared", ()), *(tool.procedure.shared if tool else ())}:
            names = " and ".join(sorted(asked))
            raise SessionError(session, f"{where}uses the state of the {names}, which others change")
        if tool is not None and tool.effect == "external" and tool.procedure.resources:
            names = " and ".join(sorted(tool.procedure.resources))
            raise SessionError(session, f"{where}is external, and has changed {names}")

    async def _response(self, replay: Replay, row: Row, inputs: Mapping[Key, Row]) -> None:
        environment = self._sessions.environment
        calls = [*spoken(row.get("response"), environment.tools)]
        for call in calls:
            tool = environment.tools.get(call.name)
            if tool is not None and tool.procedure.shared:
                names = " and ".join(sorted(tool.procedure.shared))
                raise BadTask(f"{call.name} uses the state of the {names}, which others change")
            if tool is not None and tool.effect == "external":
                raise BadTask(f"{call.name} is external, and without the session nothing tells what it changed")
        progress = self._luck(row, calls)
        await self._play(replay, None, task_of(row, inputs), progress, calls)

    def _luck(self, row: Row, calls: Sequence[Spoken]) -> Progress:
        """Where the episode's luck and time began, if the row tells."""
        response = row.get("response") or {}
        found = OURS.fullmatch(str(response.get("id")))
        began = response.get("created_at")
        if found and isinstance(began, int | float) and "_stateroom_parent" not in row:
            return Progress(int(found[1], 16), float(began))
        environment = self._sessions.environment
        used = [environment.tools[call.name].procedure for call in calls if call.name in environment.tools]
        for procedure in (environment.seeding, *used):
            if asked := procedure.needs & UNRECORDED:
                names = " and ".join(sorted(asked))
                raise BadTask(f"the environment uses {names}, and without the session nothing tells what that was")
        return Progress(0, 0.0)

    async def _play(
        self, replay: Replay, past: Past | None, row: Any, progress: Progress, steps: Sequence[LogEntry | Spoken]
    ) -> None:
        player = Player(self._sessions, replay, past, lenient=self._lenient, reads=self._reads)
        try:
            await player.seed(row, progress, replay.session)
            for step in steps:
                await player.play(step)
        except Stopped:
            pass
        finally:
            await player.end()

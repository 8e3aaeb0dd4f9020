"""Who gives rows new verdicts, and what becomes of a row that gets one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol

from stateroom.environment import Environment
from stateroom.errors import BadTask, NotFound
from stateroom.rollout.measured import added
from stateroom.rollout.rows import REVERIFIED, USUAL, Key, key_of, old_fields, task_of, verdict_fields
from stateroom.rollout.world import Row
from stateroom.session import Progress, Sessions, Verdict
from stateroom.session.rescore import Rescorer
from stateroom.store import Store, open_store

BOOKKEEPING = ("_ng_", "_stateroom_")
"""How the names of fields begin that say which episode it is, and where it took place."""

UNRECORDED = frozenset({"rng", "clock", "new_id"})
"""What a verifier without a state may be given, and no row tells."""


class Judged(NamedTuple):
    """A new verdict on a row."""

    verdict: Verdict
    revision: int | None
    """Of the state that was judged."""
    task: Row
    """The row as it was before any verdict, as far as that is known."""
    old: frozenset[str]
    """The fields of the row that are the old verdict's."""


class Rejudge(Protocol):
    """Gives rows new verdicts, or those that they lack."""

    async def judge(self, row: Row) -> Judged:
        """The verdict on a row; raises when it cannot honestly be given."""

    async def stop(self) -> None:
        """Let go of all that verifiers have needed."""


class StoredJudge:
    """Judges the states that sessions in a store were in; `at` chooses others than those that were judged."""

    def __init__(self, environment: Environment[Any, Any], store: Store, at: int | None = None) -> None:
        self._rejudging = Rescorer(environment, store)
        self._at = at

    async def judge(self, row: Row) -> Judged:
        found = await self._rejudging.judge(_session_of(row), row.get("response"), at=self._at)
        known = USUAL if found.before is None else frozenset(verdict_fields(found.before))
        return Judged(found.verdict, found.revision, found.row, old_fields(row) or known)

    async def stop(self) -> None:
        await self._rejudging.stop()


class OpenJudge:
    """Gives sessions in a store the verdicts that they lack, as their run would have: recorded, and the session closed.

    A session that has its verdict by now, since whoever asked for it was killed then, is not judged twice.
    """

    def __init__(self, environment: Environment[Any, Any], store: Store, inputs: Mapping[Key, Row]) -> None:
        self._sessions = Sessions[Any](environment, store)
        self._inputs = inputs

    async def judge(self, row: Row) -> Judged:
        session = await self._sessions.open(_session_of(row), closed_too=True)
        verdict = await session.verify(row.get("response"))
        await session.close()
        return Judged(verdict, session.revision, task_of(row, self._inputs), frozenset())

    async def stop(self) -> None:
        await self._sessions.stop()


class RowJudge:
    """Judges rows of an environment without a state: each says all that its verifier saw.

    `inputs` are the rows as they were before they had a verdict. Where they are not known, what else the old verdict
    has put into a row cannot be told from the task's own.
    """

    def __init__(self, environment: Environment[Any, Any], store: Store, inputs: Mapping[Key, Row]) -> None:
        self._environment = environment
        self._sessions = Sessions[Any](environment, store)
        self._inputs = inputs

    async def judge(self, row: Row) -> Judged:
        needs = self._environment.verifying.needs
        if unrecorded := (needs & UNRECORDED) | self._environment.verifying.resources:
            asked = " and ".join(sorted(unrecorded))
            raise BadTask(f"verify asks for {asked}: without a state, nothing has recorded what that was")
        session = row.get("_stateroom_session")
        if "session" in needs and not isinstance(session, str):
            raise BadTask("verify asks for session: the row has no _stateroom_session")
        task, given = task_of(row, self._inputs), self._inputs.get(key_of(row))
        old = old_fields(row) or (USUAL if given is None else added(given, row))
        episode = self._sessions.stateless(str(session), Progress(0, 0.0), self._environment.parse_task(task))
        return Judged(await episode.verify(row.get("response")), None, task, old)

    async def stop(self) -> None:
        await self._sessions.stop()


@asynccontextmanager
async def judging(
    environment: Environment[Any, Any],
    inputs: Callable[[], Mapping[Key, Row]],
    store: Store | None,
    stored: Callable[[Store], Rejudge],
) -> AsyncIterator[Rejudge]:
    """Who judges rows of an environment: what `stored` gives for the store of its sessions, if it has a state."""
    async with open_store("memory://") as nowhere:
        if environment.state_type is None:
            judge: Rejudge = RowJudge(environment, nowhere, inputs())
        elif store is None:
            raise NotFound(f"{environment.name} has a state: its sessions are needed, so say in which store they are")
        else:
            judge = stored(store)
        try:
            yield judge
        finally:
            await judge.stop()


def _session_of(row: Row) -> str:
    session = row.get("_stateroom_session")
    if not isinstance(session, str):
        raise BadTask("the row has no _stateroom_session: without its session there is no state to judge")
    return session


def renewed(row: Row, judged: Judged, digest: str) -> Row:
    """A row with a new verdict in place of the old one."""
    fields = verdict_fields(judged.verdict)
    json.dumps(fields)  # all else was JSON before, and the verifier's part must be too
    own = {name: value for name, value in row.items() if is_runners(name)}
    others = {name: value for name, value in row.items() if name not in judged.old}
    uncovered = {name: judged.task[name] for name in judged.old if name in judged.task}
    said = {"reward": row.get("reward"), "revision": judged.revision, "fields": [*fields], "of": digest}
    return {**others, **uncovered, **fields, **own, REVERIFIED: said}


def is_runners(name: str) -> bool:
    """Whether a field of a row is the runner's, whatever a verdict says."""
    return name in ("response", "tool_calls", "truncated") or name.startswith(BOOKKEEPING)


def measured(row: Row) -> Row:
    """What the verifier and the runner measured in an episode that was judged again, and the reward `_before`."""
    said = row[REVERIFIED]
    names = {*said["fields"], "tool_calls", "truncated", "_ng_task_index", "_ng_rollout_index"} - {"response"}
    before = said["reward"] if isinstance(said["reward"], int | float) else None
    return {**{name: value for name, value in row.items() if name in names}, "_before": before}

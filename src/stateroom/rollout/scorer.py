"""Scorers: give rows verdicts after their run, from stored sessions or from the rows themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any, NamedTuple, Protocol

from stateroom.environment import Environment, StoreSessions, variant_of
from stateroom.errors import BadTask, DefinitionError
from stateroom.rollout.replay import UNRECORDED, Replayer, open_replayers
from stateroom.rollout.rows import (
    EDITED,
    SESSION,
    VERDICT,
    Key,
    Row,
    changed_fields,
    key_of,
    rescored_fields,
    task_of,
    verdict_fields,
)
from stateroom.session import Progress, Rescorer, Verdict
from stateroom.store import Store, open_store


class RowVerdict(NamedTuple):
    """A new verdict on a row."""

    verdict: Verdict
    revision: int | None
    """The revision of the scored state."""
    task: Row
    """The row without a verdict, as far as known."""
    old: frozenset[str]
    """The fields of the row that belong to the old verdict."""
    edited: bool = False
    """Whether a person edited the state."""


class Scorer(Protocol):
    """Gives rows their verdicts."""

    async def score(self, row: Row) -> RowVerdict:
        """The verdict on a row. Raises an error if data for the verifier is missing."""

    async def stop(self) -> None:
        """Release all resources of verifiers."""


class StoredScorer:
    """Scores the states of stored sessions again; `at` chooses other states than the scored ones."""

    def __init__(self, environment: Environment[Any, Any], store: Store, at: int | None = None) -> None:
        self._environment = environment
        self._store = store
        self._at = at
        self._rescorers: dict[int, Rescorer] = {}
        """Scorers by variant of the environment."""

    async def score(self, row: Row) -> RowVerdict:
        variant = variant_of(self._environment, row)
        rescorer = self._rescorers.setdefault(id(variant), Rescorer(variant, self._store))
        rescored = await rescorer.judge(_session_of(row), row.get("response"), at=self._at)
        known = VERDICT if rescored.before is None else frozenset(verdict_fields(rescored.before))
        old = rescored_fields(row) or known
        return RowVerdict(rescored.verdict, rescored.revision, rescored.row, old, rescored.edited)

    async def stop(self) -> None:
        for rescorer in self._rescorers.values():
            await rescorer.stop()


class _SessionScorer:
    """Scores rows in sessions of a store. `inputs` are the rows without a verdict."""

    def __init__(self, environment: Environment[Any, Any], store: Store, inputs: Mapping[Key, Row]) -> None:
        self._environment = environment
        self._sessions = StoreSessions(store)
        self._inputs = inputs

    async def stop(self) -> None:
        await self._sessions.stop()


class FirstScorer(_SessionScorer):
    """Gives stored sessions their first verdict as the run would have: records it and closes the session.

    If a process recorded a verdict but was killed before it wrote the row, the session is not scored twice.
    """

    async def score(self, row: Row) -> RowVerdict:
        sessions = self._sessions.of(self._environment, row)
        session = await sessions.open(_session_of(row), include_closed=True)
        verdict = await session.verify(row.get("response"))
        await session.close()
        return RowVerdict(verdict, session.revision, task_of(row, self._inputs), frozenset(), session.edited)


class RowScorer(_SessionScorer):
    """Scores rows from their responses only: without a state, the row has everything that the verifier reads.

    Without `inputs`, details of the old verdict cannot be distinguished from fields of the task.
    """

    def has_looked_back(self, row: Row) -> bool:
        """Whether the verifier read the path of the episode, which is empty here."""
        sessions = self._sessions.of(self._environment, row)
        return sessions.environment.verify_function.function in sessions.runtime.runner.look_back

    async def score(self, row: Row) -> RowVerdict:
        sessions = self._sessions.of(self._environment, row)
        verifier = sessions.environment.verify_function
        if unrecorded := (verifier.needs & UNRECORDED) | verifier.resources:
            asked = " and ".join(sorted(unrecorded))
            raise BadTask(f"verify uses {asked}, which is not recorded without a state")
        session = row.get(SESSION)
        if "session" in verifier.needs and not isinstance(session, str):
            raise BadTask(f"verify uses session, but the row has no {SESSION}")
        task = sessions.environment.parse_task(task_of(row, self._inputs))
        episode = sessions.stateless(str(session), Progress(0, 0.0), task)
        return _row_verdict(await episode.verify(row.get("response")), row, self._inputs)


class ReplayScorer:
    """Scores rows without stored sessions.

    A verifier that reads more than the response gets a session in memory, in which the row's calls have run again.
    """

    def __init__(self, environment: Environment[Any, Any], store: Store, inputs: Mapping[Key, Row]) -> None:
        self._environment = environment
        self._inputs = inputs
        self._rows = RowScorer(environment, store, inputs)
        self._stack = AsyncExitStack()
        self._replayer_of: Callable[[Row], Replayer] | None = None

    async def score(self, row: Row) -> RowVerdict:
        if reads_only_the_response(self._environment) and not self._rows.has_looked_back(row):
            with suppress(DefinitionError):  # it uses states of the session
                scored = await self._rows.score(row)
                if not self._rows.has_looked_back(row):
                    return scored
        if self._replayer_of is None:
            opened = open_replayers(self._environment, lenient=False, reads="check")
            self._replayer_of = await self._stack.enter_async_context(opened)
        return _row_verdict(await self._replayer_of(row).verdict(row, self._inputs), row, self._inputs)

    async def stop(self) -> None:
        await self._rows.stop()
        await self._stack.aclose()


def reads_only_the_response(environment: Environment[Any, Any]) -> bool:
    """Whether a verifier takes only the episode. With a state, it may still read the path of the episode."""
    return environment.verify_function.needs <= {"episode"}


def _row_verdict(verdict: Verdict, row: Row, inputs: Mapping[Key, Row]) -> RowVerdict:
    """A new verdict on a row, with the row without a verdict if known."""
    given = inputs.get(key_of(row))
    old = rescored_fields(row) or (VERDICT if given is None else changed_fields(given, row))
    return RowVerdict(verdict, None, task_of(row, inputs), old, bool(row.get(EDITED)))


@asynccontextmanager
async def open_scorer(
    environment: Environment[Any, Any],
    inputs: Callable[[], Mapping[Key, Row]],
    store: Store | None,
    stored: Callable[[Environment[Any, Any], Store], Scorer],
) -> AsyncIterator[Scorer]:
    """Open a scorer: the one that `stored` creates for a store, otherwise one that works without sessions."""
    async with open_store("memory://") as memory:
        scorer: Scorer
        if environment.state_type is None:
            scorer = RowScorer(environment, memory, inputs())
        else:
            scorer = ReplayScorer(environment, memory, inputs()) if store is None else stored(environment, store)
        try:
            yield scorer
        finally:
            await scorer.stop()


def _session_of(row: Row) -> str:
    session = row.get(SESSION)
    if not isinstance(session, str):
        raise BadTask(f"the row has no {SESSION}, so its state cannot be scored")
    return session

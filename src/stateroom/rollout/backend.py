"""Backends: where episodes run. The runner treats a store in this process and a server alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from stateroom.agent import AgentLog, Workspace
from stateroom.environment import ENV_ARGS, Environment, StoreSessions
from stateroom.errors import UnknownSession
from stateroom.rollout.rows import SESSION, Row, given_row
from stateroom.session import Lifecycle, Session, Sessions, Verdict
from stateroom.state import State
from stateroom.store import Store, open_store


class EpisodeSession(Workspace, Protocol):
    """One episode: tools are called on it, its agent's messages are answered, and it is verified.

    A `Session` is one.
    """

    @property
    def id(self) -> str | None:
        """The session's id; None if the server does not report it."""

    @property
    def parent(self) -> tuple[str, int] | None:
        """For a fork: the session and the revision that it branched from."""

    @property
    def agent(self) -> AgentLog:
        """The agent's status and conversation."""

    async def verify(self, response: Any = None) -> Verdict:
        """The verdict on the episode."""

    async def close(self) -> None:
        """End the episode."""


class Backend(Protocol):
    """Provides the session of each episode."""

    async def seed(self, row: Row, *, seed: int, began: float) -> EpisodeSession:
        """Create a session for a row, with a random seed and the start time of its clock.

        It gets the id in the row's `SESSION` field if the backend lets its caller choose ids.
        """

    async def find(self, row: Row, *, seed: int, began: float) -> EpisodeSession | None:
        """Find the session of an interrupted episode; None if the episode cannot continue."""

    async def revision(self, session: Any) -> int | None:
        """The newest revision of a session; None for a stateless one."""

    async def fork(
        self, session: Any, n: int, at: int | None = None, ids: Sequence[str] | None = None
    ) -> Sequence[EpisodeSession]:
        """Create `n` forks of a session, which may be closed, at a revision (by default the newest).

        They get these `ids` if the backend lets its caller choose ids. Forks of a stateless session start from its
        beginning.
        """


class LocalBackend:
    """The sessions of an environment and its variants (rows with their own `env_args`) in a store."""

    def __init__(self, environment: Environment[Any, Any], store: Store) -> None:
        self._environment = environment
        self._stateless = environment.state_type is None
        self.sessions = StoreSessions(store)

    def sessions_of(self, row: Row) -> Sessions[Any]:
        """The sessions of the environment instance for a row."""
        return self.sessions.of(self._environment, row)

    async def seed(self, row: Row, *, seed: int, began: float) -> EpisodeSession:
        return await self.sessions_of(row).seed(given_row(row), seed=seed, began=began, session_id=row.get(SESSION))

    async def find(self, row: Row, *, seed: int, began: float) -> EpisodeSession | None:
        if self._stateless:
            return await self.seed(row, seed=seed, began=began)
        try:
            return await self.sessions_of(row).open(row[SESSION], include_closed=True)
        except UnknownSession:  # not seeded yet
            return None

    async def revision(self, session: Any) -> int | None:
        return None if self._stateless else session.revision

    async def fork(
        self, session: Any, n: int, at: int | None = None, ids: Sequence[str] | None = None
    ) -> Sequence[EpisodeSession]:
        if self._stateless:
            return [session.restart() for _ in range(n)]
        forks: list[EpisodeSession] = await session.fork(at, n=n, ids=ids)
        return forks


@asynccontextmanager
async def local_backend(environment: Environment[Any, Any], store: str) -> AsyncIterator[LocalBackend]:
    """The sessions of an environment in the store at a URL."""
    async with open_store(store) as opened:
        backend = LocalBackend(environment, opened)
        try:
            yield backend
        finally:
            await backend.sessions.stop()


# Transcripts of episodes whose sessions are not in the run's store.


class EmptyState(State):
    """The state of a transcript, which has only a log."""


class Transcripts:
    """Stores the conversations of episodes whose sessions are on a server or stateless.

    Another process can then continue them.
    """

    def __init__(self, sessions: Sessions[Any]) -> None:
        self._sessions = sessions

    async def find(self, row: Row) -> Session[Any] | None:
        """The transcript of an episode, if the episode has begun."""
        try:
            return await self._sessions.open(row[SESSION])
        except UnknownSession:
            return None

    async def begin(self, row: Row) -> Session[Any]:
        """Create an empty transcript for an episode, replacing one of a lost session."""
        try:
            transcript = await self._sessions.open(row[SESSION])
        except UnknownSession:
            given = {name: value for name, value in given_row(row).items() if name != ENV_ARGS}  # not of this instance
            return await self._sessions.seed(given, session_id=row[SESSION])
        await transcript.rewind(1)
        return transcript


@asynccontextmanager
async def open_transcripts(store: str, lifecycle: Lifecycle) -> AsyncIterator[Transcripts]:
    """Transcripts in the store at a URL, of agents with a lifecycle."""

    class Transcript(Environment[EmptyState]):
        """The environment of transcripts."""

        name = "transcript"

    Transcript.lifecycle = lifecycle
    async with open_store(store) as opened:
        yield Transcripts(Sessions[Any](Transcript(), opened))

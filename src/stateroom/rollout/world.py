"""Where episodes take place: in this process, or on a server. The runner knows no difference between the two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from stateroom.agent import AgentLog, Workspace

Row = dict[str, Any]

SESSION = "_stateroom_session"
"""Where a row says which session is its episode's."""

PARENT = "_stateroom_parent"
"""Where a row says which session its episode's branched off, and at which revision."""


class Origin(NamedTuple):
    """Where a session branched off."""

    session: str
    revision: int


class Seat(Workspace, Protocol):
    """One episode's place in a world."""

    @property
    def id(self) -> str | None:
        """The session's id; None when whoever keeps the session does not tell."""

    @property
    def origin(self) -> Origin | None:
        """Where a fork branched off; None for a session that was seeded."""

    record: AgentLog
    """Where what its agent says and does is kept."""

    async def revision(self) -> int | None:
        """The session's newest revision; None without a state, where there is no history."""

    async def fork(self, n: int, at: int | None = None, ids: Sequence[str] | None = None) -> list[Seat]:
        """So many seats that start as this one was at a revision, by default now; it may be closed by then.

        Where this process names sessions, they get these ids. Without a state there is nothing to branch off: then
        they start as this one did.
        """

    async def verify(self, row: Row, response: Any) -> Row:
        """What the verdict adds to the episode's row; the reward is part of it."""

    async def close(self) -> None:
        """The episode is over."""


class World(Protocol):
    """Gives each episode a session of its own."""

    async def seed(self, row: Row, *, seed: int, began: float) -> Seat:
        """A new session for a row; `seed` decides its luck, and `began` is when its clock starts.

        Where this process names sessions, it gets the row's name; see `SESSION`.
        """

    async def find(self, row: Row, *, seed: int, began: float) -> Seat | None:
        """The seat of an episode that was begun before, just as it was left, if it can go on; else None."""


def given_row(row: Row) -> Row:
    """A row as the environment is given it: without what says where the runner keeps the episode."""
    return {name: value for name, value in row.items() if name not in (SESSION, PARENT)}

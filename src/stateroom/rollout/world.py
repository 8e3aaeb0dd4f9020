"""Where episodes take place: in this process, or on a server. The runner knows no difference between the two."""

from __future__ import annotations

from typing import Any, Protocol

from stateroom.agent import Place

Row = dict[str, Any]


class Seat(Place, Protocol):
    """One episode's place in a world."""

    @property
    def id(self) -> str | None:
        """The session's id; None when whoever keeps the session does not tell."""

    async def verify(self, row: Row, response: Any) -> Row:
        """What the verdict adds to the episode's row; the reward is part of it."""

    async def close(self) -> None:
        """The episode is over."""


class World(Protocol):
    """Gives each episode a session of its own."""

    async def seed(self, row: Row, *, seed: int, began: float) -> Seat:
        """A new session for a row; `seed` decides its luck, and `began` is when its clock starts."""

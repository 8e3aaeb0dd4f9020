"""How much, how long and how often an endpoint is asked."""

from __future__ import annotations

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What holds for each answer of an endpoint's, and for all that are asked for at once."""

    attempts: int = 6
    """How often an answer is asked for, before the endpoint counts as unavailable."""
    timeout: float = 300.0
    """Seconds that one attempt may take."""
    deadline: float = 900.0
    """Seconds that all attempts at one answer may take, with the pauses between them."""
    concurrency: int = 64
    """How many answers may be under way at once. One that waits for its next attempt is: so a busy server gets rest."""
    first_pause: float = 0.5
    """Seconds that the first pause may take at most; each further one may take twice as long."""
    longest_pause: float = 30.0
    """Seconds that a pause may take at most, unless the server asks for a longer one."""

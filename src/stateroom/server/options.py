"""What a server is told: all that a worker process needs to know to make its application."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from stateroom.server.keys import Key
from stateroom.session.sessions import WEEK


@dataclass(frozen=True)
class Limits:
    """How much of everything there may be."""

    body: int = 16 * 2**20
    """Bytes of a request's body."""
    head: int = 32 * 2**10
    """Bytes of a request's path and headers."""
    state: int = 64 * 2**20
    """Bytes of a state, as it is stored."""
    log: int = 2**30
    """Bytes that are stored for a session in all."""
    sessions: int = 1_000_000
    """Live sessions."""
    calls: int = 1024
    """Requests in flight."""
    seconds: float = 30.0
    """What a tool may take that sets no limit of its own."""
    receive: float = 60.0
    """Seconds in which a request must be whole, from its first byte on."""
    send: float = 30.0
    """Seconds after which a client is dropped that reads nothing of what is sent to it."""


@dataclass(frozen=True)
class Options:
    """How to serve."""

    secrets: tuple[str, ...] = field(repr=False)
    """What tokens are signed with; the first signs, the others are still good."""
    store: str = "memory://"
    ttl: float = WEEK
    """Seconds that a session lives after its last use."""
    admin_token: str | None = field(default=None, repr=False)
    keys: tuple[Key, ...] = ()
    """API keys, of which one is needed to create a session or a thread; without any, all may."""
    hosts: tuple[str, ...] | None = ()
    """Names that requests may be for, besides this machine's own (`localhost` and loopback addresses); None: any."""
    limits: Limits = Limits()
    model: str | None = None
    """What answers in threads, as a user names a model; without one, nothing does."""
    context_tokens: int | None = None
    """Tokens of a thread that the model is shown."""
    access_log: Literal["text", "json"] | None = None
    """How each request is told in the log; None when it is not."""
    figures: Path | None = None
    """The folder in which worker processes share what they count; None when there is but one."""

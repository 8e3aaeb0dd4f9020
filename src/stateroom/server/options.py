"""Options of a server: all that a worker process needs to make its application."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from stateroom.server.keys import Key
from stateroom.session import WEEK


@dataclass(frozen=True)
class Limits:
    """Limits of a server, in bytes, numbers and seconds."""

    body: int = 16 * 2**20
    """Bytes of a request's body."""
    head: int = 32 * 2**10
    """Bytes of a request's path and headers."""
    state: int = 64 * 2**20
    """Bytes of a state, as it is stored."""
    log: int = 2**30
    """Bytes that are stored for one session in total."""
    sessions: int = 1_000_000
    """Live sessions."""
    calls: int = 1024
    """Requests in flight."""
    seconds: float = 30.0
    """Seconds that a tool may run, unless it sets its own timeout."""
    receive: float = 60.0
    """Seconds in which a request must arrive completely, from its first byte on."""
    send: float = 30.0
    """Seconds after which a client that reads nothing is dropped."""


@dataclass(frozen=True)
class Options:
    """How environments are served."""

    secrets: tuple[str, ...] = field(repr=False)
    """Secrets of the tokens: the first signs, and tokens of the others stay valid."""
    store: str = "memory://"
    ttl: float = WEEK
    """Seconds that a session lives after its last use."""
    for_operator: bool = False
    """Whether only the operator is served: no endpoints for agents, and expired sessions stay in the store."""
    admin_token: str | None = field(default=None, repr=False)
    local_admin: bool = True
    """Whether the admin API answers programs on this machine if it has no token."""
    keys: tuple[Key, ...] = ()
    """API keys. Each client needs one to create a session or a thread; without keys, no client does."""
    hosts: tuple[str, ...] | None = ()
    """Host names that the server answers to, besides `localhost` and loopback addresses; None: any."""
    limits: Limits = Limits()
    extra_arguments: Literal["refuse", "ignore"] = "refuse"
    """What becomes of a call with arguments that the tool does not have: 422, or a call without these."""
    gym_compat: bool = False
    """Whether clients may do what NeMo Gym's servers allow them and this protocol refuses; see `docs/serving.md`."""
    choose_task: bool = False
    """Whether an MCP client that starts a session chooses its task; else it gets the first example."""
    model: str | None = None
    """The model that answers in threads, as `--model` names it; None: threads get no answers."""
    agent: str | None = None
    """The model that runs whole episodes at `/run`, as `--model` of a run names it; None: there is no `/run`."""
    tokens: bool = False
    """Whether the answers of the agent's model have their exact tokens."""
    api_key_env: str | None = None
    """The environment variable with the key of these models' server; None: the one of its host."""
    context_tokens: int | None = None
    """Tokens of a thread, or of an episode, that the model sees."""
    access_log: Literal["text", "json"] | None = None
    """Format of the access log; None: no access log."""
    shared_folder: Path | None = None
    """Folder in which worker processes share their counts; None for a single process."""

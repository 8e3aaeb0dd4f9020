"""The options of servers, in parts: their limits, how they serve, and which environments where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from stateroom.environment import Environment, TypedText
from stateroom.model import Exactness
from stateroom.options import Option, Unchecked, options
from stateroom.session import WEEK, MaxLog, MaxState, Timeout

ServedEnvironments = Annotated[
    Sequence[str | type[Environment[Any, Any]] | Environment[Any, Any]]
    | str
    | type[Environment[Any, Any]]
    | Environment[Any, Any],
    Unchecked,
    Field(description="Environments to serve: registered names, module:Class or path.py:Class."),
    Option(metavar="ENV...", stored=False),
]


class Key(NamedTuple):
    """A key, as its hash, and its limits per minute; None: no limit."""

    name: str
    digest: str
    sessions: int | None = None
    calls: int | None = None


@options
class Limits:
    """Limits of a server."""

    max_body: Annotated[int, Field(ge=1, description="Maximum size of a request's body, in bytes.")] = 16 * 2**20
    max_head: Annotated[int, Field(ge=1024, description="Maximum size of a request's path and headers, in bytes.")] = (
        32 * 2**10
    )
    max_state: MaxState = 64 * 2**20
    max_log: MaxLog = 2**30
    max_sessions: Annotated[int, Field(ge=1, description="Maximum number of live sessions.")] = 1_000_000
    max_calls: Annotated[int, Field(ge=1, description="Maximum requests in flight, per worker.")] = 1024
    timeout: Timeout = 30.0
    receive_timeout: Annotated[
        float, Field(ge=0.01, description="Seconds within which a request must arrive completely, from its first byte.")
    ] = 60.0
    send_timeout: Annotated[
        float, Field(ge=0.01, description="Seconds after which the server drops a client that does not read its reply.")
    ] = 30.0


@options
class ServingOptions:
    """How environments are served."""

    store: Annotated[
        str,
        Field(description="URL of the store, such as sqlite:///rooms.db."),
        Option(variable="STATEROOM_STORE"),
    ] = "sqlite:///stateroom.db"
    ttl: Annotated[float, Field(ge=0.1, description="Lifetime of a session after its last use, in seconds.")] = WEEK
    admin_token: Annotated[
        str | None,
        Field(description="Bearer token for /admin; without one, /admin only answers on this machine."),
        Option(variable="STATEROOM_ADMIN_TOKEN", stored=False),
    ] = field(default=None, repr=False)
    model: Annotated[
        str | None,
        Field(
            description="Model that answers in /threads: openai:NAME, responses:NAME@URL, chat:NAME@URL, local, "
            "replay:FILE, module:Class, path.py:Class, or a policy of the environment."
        ),
        Option("-m"),
    ] = None
    agent: Annotated[
        str | None,
        Field(
            description="Model that runs whole episodes at /run, as NeMo Gym's agent servers do; any model that "
            "`stateroom run` accepts."
        ),
    ] = None
    record_tokens: Annotated[
        Exactness | None,
        Field(
            description="Record the exact tokens of the agent's answers, as NeMo RL reads them from /run. A prompt "
            "that does not continue the previous tokens fails its episode (exact) or starts a new segment (split)."
        ),
    ] = None
    api_key_env: Annotated[
        str | None,
        Field(
            description="Environment variable with the API key of the model server; by default OPENAI_API_KEY for "
            "OpenAI, and API_KEY_ plus the host for others, such as API_KEY_MODELS_EXAMPLE."
        ),
        Option(stored=False),
    ] = None
    context_tokens: Annotated[
        int | None,
        Field(ge=1, description="Maximum tokens of a conversation that a model sees; the oldest are dropped first."),
    ] = None
    access_log: Annotated[
        Literal["text", "json"] | None, Field(description="Write a line for each request to standard error.")
    ] = None
    extra_arguments: Annotated[
        Literal["refuse", "ignore"],
        Field(description="How to treat arguments that the tool does not have."),
    ] = "refuse"
    gym_compat: Annotated[
        bool,
        Field(
            description="Allow what NeMo Gym's servers allow: calls and verify without a session, a second seed "
            "with the same cookie, and extra arguments."
        ),
    ] = False
    choose_task: Annotated[
        bool,
        Field(
            description="Let an MCP client that starts a session choose its task: an example, or its own row. By "
            "default it gets the first example."
        ),
    ] = False


@options
class ApplicationOptions(Limits, ServingOptions):
    """Options that a worker process needs to create its application."""

    secrets: tuple[str, ...] = field(kw_only=False, repr=False)
    """Secrets of the tokens: the first signs, and tokens of the others stay valid."""
    store: str = "memory://"
    for_operator: bool = False
    """Whether only the operator is served: no endpoints for agents, and expired sessions stay in the store."""
    local_admin: bool = True
    """Whether the admin API answers programs on this machine if it has no token."""
    keys: tuple[Key, ...] = ()
    """API keys. Each client needs one to create a session or a thread; without keys, no client does."""
    hosts: tuple[str, ...] | None = ()
    """Host names that the server answers to, besides `localhost` and loopback addresses; None: any."""
    shared_folder: Path | None = None
    """Folder in which worker processes share their counts; None for a single process."""


@options
class ListenOptions:
    """The environments to serve, and the address."""

    environments: ServedEnvironments = field(default=(), kw_only=False)
    env_args: Annotated[
        Mapping[str, Any] | Sequence[Mapping[str, Any]],
        Field(description="Constructor arguments of the environment; from Python, a list with one mapping for each."),
        Option(flag="--env-arg", value=TypedText, example="difficulty=hard", stored=False),
    ] = field(default_factory=dict)
    host: Annotated[str, Field(description="Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535, description="Port to listen on; 0 chooses a free one.")] = 8000
    reload: Annotated[
        bool,
        Field(
            description="Restart when source files in or below the folder of an environment change; sessions stay in "
            "the store."
        ),
    ] = False


@options
class ServeOptions(Limits, ServingOptions, ListenOptions):
    """The options of a server."""

    workers: Annotated[int, Field(ge=1, description="Number of worker processes; each serves any session.")] = 1
    allow_host: Annotated[
        Sequence[str],
        Field(
            description="Host name that the server answers to, besides localhost. If the server listens on another "
            "host, it answers only to these names."
        ),
    ] = ()
    api_keys: Annotated[
        Path | None,
        Field(
            description="File of API keys, one per line: NAME SHA256, and optionally sessions=N and calls=N, limits "
            "per minute. A client needs a key to create a session or a thread."
        ),
    ] = None

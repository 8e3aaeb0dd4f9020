"""The options of runs, by part: environment, model, episode, and collection."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Annotated, Any

import msgspec
from pydantic import AfterValidator, Field

from stateroom.agent import MAX_STEPS
from stateroom.environment import Environment, TypedText, make_environment
from stateroom.errors import BadData, InvalidOption
from stateroom.model import Exactness, Limiter, Model, ModelLimits, ModelSource, default_model, open_model
from stateroom.options import Option, Unchecked, options
from stateroom.rollout.metrics import SOLVED, Price
from stateroom.rollout.rows import Row
from stateroom.rollout.tasks import RemoteEnvironment
from stateroom.session import parsed


def as_price(given: str | Price | None) -> Price | None:
    """Convert a text such as `in=0.15,out=0.6` to a price."""
    try:
        return Price.parse(given) if isinstance(given, str) else given
    except BadData as error:
        raise InvalidOption("price", str(error)) from None


EnvironmentSpec = Annotated[
    str | type[Environment[Any, Any]] | Environment[Any, Any] | None,
    Unchecked,
    Field(description="The environment: a registered name, module:Class or path.py:Class."),
    Option(metavar="ENV"),
]

EnvArgs = Annotated[
    Mapping[str, Any],
    Field(description="Constructor arguments of the environment."),
    Option(flag="--env-arg", value=TypedText, example="difficulty=hard"),
]


@options
class EnvironmentOptions:
    """An environment and its tasks."""

    environment: EnvironmentSpec = field(default=None, kw_only=False)
    env_args: EnvArgs = field(default_factory=dict)
    input: Annotated[
        Path | str | PathLike[str] | Iterable[Any] | None,
        Unchecked,
        Field(description="Tasks as JSONL, CSV or Parquet; by default the environment's examples."),
        Option("-i", may_change=True),
    ] = None

    def make_environment(self) -> Environment[Any, Any]:
        """Create the environment; without a name, it is on a server."""
        return make_environment(RemoteEnvironment if self.environment is None else self.environment, self.env_args)


@options
class ModelOptions:
    """A model, and the limits on the requests to its servers."""

    model: Annotated[
        str | Model | type[Model] | ModelSource | None,
        Unchecked,
        Field(
            description="The model or policy: a policy of the environment (reference, noisy), gold (the gold actions "
            "of each task), openai:NAME, responses:NAME@URL, chat:NAME@URL (several servers: NAME@URL,URL), local, "
            "replay:FILE, module:Class or path.py:Class. By default reference or, if the environment has none, gold."
        ),
        Option("-m"),
    ] = None
    api_key_env: Annotated[
        str | None,
        Field(
            description="The environment variable with the model's API key; by default OPENAI_API_KEY for OpenAI, and "
            "API_KEY_ with the host for others, such as API_KEY_MODELS_EXAMPLE."
        ),
        Option(may_change=True),
    ] = None
    model_concurrency: Annotated[
        int | None,
        Field(ge=1, description="Concurrent requests to each server of the model; by default 64."),
        Option(may_change=True),
    ] = None
    requests_per_minute: Annotated[
        float | None,
        Field(ge=1, description="Requests per minute to each server of the model, evenly spaced."),
        Option(may_change=True),
    ] = None
    tokens_per_minute: Annotated[
        float | None,
        Field(ge=1, description="Tokens per minute for each server of the model, for requests and answers together."),
        Option(may_change=True),
    ] = None
    price: Annotated[
        str | Price | None,
        AfterValidator(as_price),
        Field(description="The price per million tokens, such as in=0.15,out=0.6; adds costs to rows and the summary."),
        Option(metavar="in=PRICE,out=PRICE", may_change=True),
    ] = None

    def chosen_model(
        self, environment: Environment[Any, Any], tasks: Iterable[Row]
    ) -> str | Model | type[Model] | ModelSource:
        """The model, by default the `default_model` of the environment and its tasks."""
        chosen = default_model(environment.policies, tasks) if self.model is None else self.model
        if chosen is None:
            why = f"{environment.name} has no policy named reference, and not every task has gold actions"
            raise InvalidOption("model", f"choose a model, because {why}")
        return chosen

    @property
    def model_limits(self) -> ModelLimits | None:
        """The limits on requests to each server of the model, if any."""
        given = {
            "concurrency": self.model_concurrency,
            "requests_per_minute": self.requests_per_minute,
            "tokens_per_minute": self.tokens_per_minute,
        }
        limits = {name: value for name, value in given.items() if value is not None}
        return msgspec.convert(limits, ModelLimits) if limits else None

    def open_model(self, environment: Environment[Any, Any], limiter: Limiter | None = None) -> ModelSource:
        """Open the chosen model; a `limiter` is shared with others that send requests to the same servers."""
        assert self.model is not None
        policies, limits = environment.policies, self.model_limits
        return open_model(self.model, policies, limits=limits, limiter=limiter, api_key_env=self.api_key_env)


@options
class EpisodeOptions(ModelOptions, EnvironmentOptions):
    """The options of an episode: environment, model, seed and limits."""

    seed: Annotated[int, Field(description="The random seed of the run.")] = 0
    max_steps: Annotated[int, Field(ge=1, description="The maximum number of model answers per episode.")] = MAX_STEPS
    deadline: Annotated[float | None, Field(ge=0.001, description="The time limit per episode, in seconds.")] = None
    context_tokens: Annotated[
        int | None,
        Field(ge=1, description="The context budget of the model, in tokens; the oldest items are dropped."),
    ] = None
    settings: Annotated[
        Mapping[str, Any],
        Field(
            description="Request parameters for the model, such as temperature=0.7; they override those of the tasks."
        ),
        Option(flag="--set", value=parsed, example="temperature=0.7"),
    ] = field(default_factory=dict)
    record_tokens: Annotated[
        Exactness | None,
        Field(
            description="Store the exact tokens of each answer with log-probabilities, for training; the model's "
            "server must report them, as vLLM does. If a prompt does not begin with all earlier tokens, the episode "
            "fails (exact) or a new segment starts (split)."
        ),
    ] = None


@options
class CollectOptions(EpisodeOptions):
    """The options for collecting episodes: concurrency, stores, servers and output."""

    concurrency: Annotated[int, Field(ge=1, description="Concurrent episodes."), Option("-c", may_change=True)] = 8
    store: Annotated[
        str | None,
        Field(
            description="The URL of the session store; by default an SQLite file beside the rollouts. With a server or "
            "a stateless environment, it stores the model's answers, to resume a run; by default none."
        ),
        Option(variable="STATEROOM_STORE", may_change=True),
    ] = None
    server: Annotated[
        str | None,
        Field(description="The URL of the environment's server; by default the environment runs in this process."),
        Option(may_change=True),
    ] = None
    api_key: Annotated[
        str | None,
        Field(description="The API key for the server, if it requires one to seed sessions."),
        Option(variable="STATEROOM_API_KEY", stored=False),
    ] = field(default=None, repr=False)
    admin_token: Annotated[
        str | None,
        Field(description="The admin token of the server, needed to fork sessions."),
        Option(variable="STATEROOM_ADMIN_TOKEN", stored=False),
    ] = field(default=None, repr=False)
    output: Annotated[
        Path | None,
        Field(description="The rollouts file; other files are named after it."),
        Option("-o", may_change=True),
    ] = None
    force: Annotated[
        bool, Field(description="Replace the files of an earlier run at the output."), Option(stored=False)
    ] = False
    limit: Annotated[int | None, Field(ge=1, description="Run only the first N tasks."), Option(may_change=True)] = None
    solved_threshold: Annotated[
        float,
        Field(description="The lowest reward that counts as solved, for pass@k."),
        Option(may_change=True),
    ] = SOLVED


@options
class RunOptions(CollectOptions):
    """The options of a run."""

    repeats: Annotated[
        int,
        Field(ge=1, description="Episodes per task, each with its own random seed."),
        Option("-r", may_change=True),
    ] = 1
    group: Annotated[
        int | None,
        Field(
            ge=1,
            le=1000,
            description="Episodes per task, forked from one seeded session (same state and random seed); replaces "
            "repeats.",
        ),
        Option("-g", may_change=True),
    ] = None
    engine: Annotated[
        str,
        Field(
            description="Where episodes run: local (this process), processes or processes:N (on this machine), ray or "
            "ray:ADDRESS (a Ray cluster)."
        ),
        Option(may_change=True),
    ] = "local"
    max_cost: Annotated[
        float | None,
        Field(
            ge=0,
            description="Stop starting episodes of an environment once they have cost this much, according to the "
            "price. Running episodes finish. If any were not started, the exit code is 3; resume with a higher limit.",
        ),
        Option(may_change=True),
    ] = None
    resume: Annotated[
        bool,
        Field(
            description="Continue an interrupted run with the same output and options, or start it if it never began. "
            "Episodes that are not stored start over: those on a server without a store, or in a group."
        ),
        Option(stored=False),
    ] = False

    def __post_init__(self) -> None:
        if self.group is not None and self.repeats != 1:
            raise InvalidOption("group", "cannot be combined with repeats")
        if self.max_cost is not None and self.price is None:
            raise InvalidOption("max_cost", "requires a price")
        if self.resume and self.output is None:
            raise InvalidOption("resume", "give the output of the run to resume")
        if self.resume and self.force:
            raise InvalidOption("force", "cannot be combined with resume")


def new_path(name: str, ending: str = "") -> Path:
    """A new path under rollouts/ with the time in microseconds, because runs may start at the same moment."""
    return Path("rollouts") / f"{name}-{datetime.now():%Y%m%d-%H%M%S-%f}{ending}"

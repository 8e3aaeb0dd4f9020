"""From the words of a user to a plan: for the commands and for Python alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from msgspec.structs import replace

from stateroom.agent import MAX_STEPS, Context
from stateroom.environment import Environment, make_environment
from stateroom.errors import InvalidArguments, NotFound
from stateroom.model import Exactness, Model, ModelLimits, ModelSource, default_model
from stateroom.rollout.files import RunFiles
from stateroom.rollout.metrics import SOLVED, Price
from stateroom.rollout.plan import Origin, Run
from stateroom.rollout.rows import Row
from stateroom.rollout.tasks import RemoteEnvironment, check_tasks, example_file, read_tasks

NO_STORE = "memory://"
"""The store of a run that leaves no sessions behind."""

M = TypeVar("M")

NOTHING: Mapping[str, Any] = {}


def plan_run(
    environment: str | type[Environment[Any, Any]] | Environment[Any, Any] | None = None,
    *,
    env_args: Mapping[str, Any] = NOTHING,
    input: str | PathLike[str] | Iterable[Any] | None = None,
    model: str | Model | type[Model] | ModelSource | None = None,
    api_key_env: str | None = None,
    model_concurrency: int | None = None,
    requests_per_minute: float | None = None,
    tokens_per_minute: float | None = None,
    repeats: int = 1,
    group: int | None = None,
    concurrency: int = 8,
    engine: str = "local",
    store: str | None = None,
    server: str | None = None,
    api_key: str | None = None,
    admin_token: str | None = None,
    output: str | PathLike[str] | None = None,
    limit: int | None = None,
    seed: int = 0,
    max_steps: int = MAX_STEPS,
    deadline: float | None = None,
    context_tokens: int | None = None,
    settings: Mapping[str, Any] = NOTHING,
    tokens: Exactness | None = None,
    solved_at: float = SOLVED,
    price: str | Price | None = None,
    max_cost: float | None = None,
    resume: bool = False,
    force: bool = False,
) -> Run:
    """Plan a run; the names and defaults are those of the options of `stateroom run`.

    `environment` is a registered name, `module:Class`, `path.py:Class`, a class or an instance; `env_args` are
    arguments of its constructor. `model` is what `--model` takes, or a `Policy` or `Model` class or object; by default
    the environment's reference policy or else the gold actions of its tasks. `input` is a path or a list of task rows.
    `api_key_env` names the environment variable with the key of the model's server; `model_concurrency`,
    `requests_per_minute` and `tokens_per_minute` are limits on the requests to that server. `settings` are parameters
    of the model's requests, as `--set` gives them. With `tokens` each answer has its exact tokens; a prompt that does
    not begin with those before fails its episode (`exact`), or starts a new segment (`split`). `price` is
    `in=0.15,out=0.6`, per million tokens, and no more episodes start once those of the run have cost `max_cost`.
    """
    if group is not None and repeats != 1:
        raise InvalidArguments("--group: not together with --repeats: a group is its task's episodes")
    if max_cost is not None and price is None:
        raise InvalidArguments("--max-cost: say with --price what a token costs")
    if resume and output is None:
        raise InvalidArguments("--resume: say with --output which run to resume")
    if resume and force:
        raise InvalidArguments("--force: not together with --resume, which keeps what is there")
    counts = {"repeats": repeats, "group": group, "concurrency": concurrency, "limit": limit, "max_steps": max_steps}
    for name, value in counts.items():
        if value is not None and value < 1:
            raise InvalidArguments(f"{name}: should be at least 1, not {value}")
    return Run(
        **plan_fields(
            environment,
            env_args,
            input,
            model,
            store,
            server,
            output,
            resume=resume,
            api_key_env=api_key_env,
            limits=model_limits(model_concurrency, requests_per_minute, tokens_per_minute),
        ),
        api_key=api_key or None,
        admin_token=admin_token or None,
        repeats=repeats,
        group=group,
        concurrency=concurrency,
        engine=engine,
        limit=limit,
        seed=seed,
        max_steps=max_steps,
        deadline=deadline,
        context=Context(context_tokens),
        settings=settings,
        tokens=tokens,
        solved_at=solved_at,
        price=Price.parse(price) if isinstance(price, str) else price,
        max_cost=max_cost,
        resume=resume,
        force=force,
    )


def plan_fields(
    environment: str | type[Environment[Any, Any]] | Environment[Any, Any] | None,
    env_args: Mapping[str, Any],
    input: str | PathLike[str] | Iterable[Any] | None,
    model: str | Model | type[Model] | ModelSource | None,
    store: str | None,
    server: str | None,
    output: str | PathLike[str] | None,
    *,
    kind: type[RunFiles] = RunFiles,
    resume: bool = False,
    api_key_env: str | None = None,
    limits: ModelLimits | None = None,
) -> dict[str, Any]:
    """The fields of a plan that say which model runs which tasks, and where."""
    if server is None and environment is None:
        raise InvalidArguments("ENV: say which environment, or with --server where it is served")
    chosen = RemoteEnvironment if environment is None else environment
    made = make_environment(chosen, env_args)
    files = kind(new_path(made.name, ".jsonl") if output is None else Path(output))
    resumes = resume and files.begun
    if resumes and store is None and server is None:
        _refuse_lost(made, files)
    tasks = [] if resumes else find_tasks(made, input)
    origin = Origin(chosen, env_args, chosen_model(made, tasks, model), api_key_env, limits)
    return {
        "environment": made,
        "model": origin.open_model(made),
        "tasks": tasks,
        "files": files,
        "store": store or (default_store(made, files) if server is None else NO_STORE),
        "server": server,
        "spec": environment if isinstance(environment, str) else None,
        "origin": origin,
    }


def chosen_model(environment: Environment[Any, Any], tasks: Iterable[Row], model: M | None) -> M | str:
    """The model that a user named or, by default, the `default_model` of the environment and its tasks."""
    chosen = default_model(environment.policies, tasks) if model is None else model
    if chosen is None:
        why = f"{environment.name} has no policy named reference, and not every task has gold actions"
        raise NotFound(f"--model: say who acts, since {why}")
    return chosen


def model_limits(
    model_concurrency: int | None, requests_per_minute: float | None, tokens_per_minute: float | None
) -> ModelLimits | None:
    """The limits on a model's requests that a user gave; None if there are none."""
    given = {
        "model_concurrency": model_concurrency,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
    }
    for name, value in given.items():
        if value is not None and not value >= 1:
            raise InvalidArguments(f"{name}: should be at least 1, not {value}")
    if set(given.values()) == {None}:
        return None
    limits = ModelLimits(requests_per_minute=requests_per_minute, tokens_per_minute=tokens_per_minute)
    return limits if model_concurrency is None else replace(limits, concurrency=model_concurrency)


def find_tasks(environment: Environment[Any, Any], given: str | PathLike[str] | Iterable[Any] | None) -> list[Row]:
    """The tasks in a file, or in a list; by default the environment's examples."""
    if given is None:
        given = example_file(type(environment))
    if given is None:
        raise NotFound(f"{environment.name} has no example tasks; give a file with --input")
    return (
        read_tasks(Path(given), environment) if isinstance(given, str | PathLike) else check_tasks(given, environment)
    )


def _refuse_lost(environment: Environment[Any, Any], files: RunFiles) -> None:
    """Refuse to resume a run whose sessions are not in the default store: all its episodes would start over."""
    if environment.state_type is not None and not files.sessions.exists():
        raise NotFound(f"the sessions of this run are not in {files.sessions}; give the --store that it had")


def new_path(name: str, ending: str = "") -> Path:
    """A path under rollouts/ that is named after the time, to the microsecond: runs may start side by side."""
    return Path("rollouts") / f"{name}-{datetime.now():%Y%m%d-%H%M%S-%f}{ending}"


def default_store(environment: Environment[Any, Any], files: RunFiles) -> str:
    """The store of a run's sessions by default: a file beside the rollouts, or none if the environment is stateless."""
    return f"sqlite:///{quote(str(files.sessions))}" if environment.state_type is not None else NO_STORE

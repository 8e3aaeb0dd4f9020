"""The options that `run`, `branch` and other commands share, and what they stand for."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from stateroom.environment import Environment, find_environment
from stateroom.errors import NotFound, StateroomError
from stateroom.model import open_model
from stateroom.rollout import RemoteEnvironment, RunFiles, example_file, read_tasks
from stateroom.session import contained

NO_STORE = "memory://"
"""The store of a run that leaves no sessions behind."""

EnvName = Annotated[
    str | None,
    typer.Argument(help="A registered name, module:Class or path.py:Class. Optional with --server."),
]
EnvOption = Annotated[str, typer.Option("--env", "-e", help="A registered name, module:Class or path.py:Class.")]
OnlyEnv = Annotated[str | None, typer.Option("--env", "-e", help="Only sessions of the environment with this name.")]
TaskFile = Annotated[
    Path | None, typer.Option("--input", "-i", help="Tasks as JSONL; by default the environment's examples.")
]
ModelSpec = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="The model or policy: a policy of the environment (reference, noisy), openai:NAME, responses:NAME@URL, "
        "chat:NAME@URL, local, replay:FILE, module:Class or path.py:Class.",
    ),
]
KeyVariable = Annotated[
    str | None,
    typer.Option(
        "--api-key-env",
        help="The environment variable with the key of the model's server; by default OPENAI_API_KEY for OpenAI, and "
        "API_KEY_ with the host for others, such as API_KEY_MODELS_EXAMPLE.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A parameter of the model's requests, such as temperature=0.7; it replaces that of the tasks. Repeatable.",
    ),
]
ContextTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens of the conversation that the model sees; the oldest are dropped.")
]
Repeats = Annotated[
    int, typer.Option("--repeats", "-r", min=1, help="Episodes per task, each with a random seed of its own.")
]
Group = Annotated[
    int | None,
    typer.Option(
        "--group",
        "-g",
        min=1,
        max=1000,
        help="Episodes per task, forked from one seeded session (same state and random seed); instead of --repeats.",
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue the run that wrote --output where it was interrupted, with the same options. Episodes of which "
        "nothing is stored start over: those on a server without --store, or in a --group.",
    ),
]
STORE_VARIABLE = "STATEROOM_STORE"
"""The environment variable with the store's URL, for a command without `--store`."""

StoreURL = Annotated[
    str, typer.Option("--store", envvar=STORE_VARIABLE, help="The store's URL, such as sqlite:///rooms.db.")
]
StoreChoice = Annotated[
    str | None,
    typer.Option(
        envvar=STORE_VARIABLE,
        help="The store of the sessions, as a URL; by default an SQLite file beside the rollouts.",
    ),
]
RunStore = Annotated[
    str | None,
    typer.Option(
        envvar=STORE_VARIABLE,
        help="The store of the sessions, as a URL; by default an SQLite file beside the rollouts. With --server, or "
        "for a stateless environment: the store of the model's answers for --resume, by default none.",
    ),
]
ExistingStore = Annotated[
    str | None,
    typer.Option(
        envvar=STORE_VARIABLE,
        help="The store of the sessions, as a URL; by default the SQLite file beside the rollouts.",
    ),
]
ServerURL = Annotated[
    str | None, typer.Option(help="The server of the environment, as a URL; by default it runs in this process.")
]
AdminToken = Annotated[
    str | None,
    typer.Option(
        envvar="STATEROOM_ADMIN_TOKEN",
        help="The server's admin token, with which sessions are forked.",
        show_default=False,
    ),
]
APIKey = Annotated[
    str | None,
    typer.Option(
        envvar="STATEROOM_API_KEY",
        help="The API key with which the server lets sessions be seeded.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="The rollouts file; the others are named after it.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Run only the first N tasks.")]
Seed = Annotated[int, typer.Option(help="The random seed of the run.")]
MaxSteps = Annotated[int, typer.Option(min=1, help="Answers of the model per episode.")]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def plan_settings(
    env: str | None,
    input_file: Path | None,
    model: str,
    store: str | None,
    server: str | None,
    output: Path | None,
    *,
    files: type[RunFiles] = RunFiles,
    resume: bool = False,
    api_key_env: str | None = None,
) -> dict[str, Any]:
    """The fields of a plan that say which model runs which tasks, and where."""
    if server is None and env is None:
        raise typer.BadParameter("say which environment, or with --server where it is served", param_hint="ENV")
    found = RemoteEnvironment if env is None else find_environment(env)
    environment = make(found)
    written = files(output if output is not None else new_path(environment.name, ".jsonl"))
    if resume and store is None and server is None:
        _refuse_lost(environment, written)
    return {
        "environment": environment,
        "model": open_model(model, found.policies, api_key_env=api_key_env),
        "tasks": [] if resume else read_tasks(input_file or examples_of(found), environment),
        "files": written,
        "store": store or (default_store(environment, written) if server is None else NO_STORE),
        "server": server,
    }


def _refuse_lost(environment: Environment[Any, Any], files: RunFiles) -> None:
    """Refuse to resume a run whose sessions are not in the default store: all its episodes would start over."""
    if environment.state_type is not None and files.inputs.exists() and not files.sessions.exists():
        raise NotFound(f"the sessions of this run are not in {files.sessions}; give the --store that it had")


def examples_of(environment: type[Environment[Any, Any]]) -> Path:
    """The file of example tasks of an environment, which must have one."""
    examples = example_file(environment)
    if examples is None:
        raise NotFound(f"{environment.name} has no example tasks; give a file with --input")
    return examples


def make(environment: type[Environment[Any, Any]]) -> Environment[Any, Any]:
    """An instance of an environment that the user named."""
    try:
        with contained:
            return environment()
    except StateroomError:
        raise
    except Exception as error:
        where = f"{environment.__module__}.{environment.__qualname__}"
        raise NotFound(f"{where} cannot be made without arguments: {type(error).__name__}: {error}") from error


def new_path(name: str, ending: str = "") -> Path:
    """A path under rollouts/ that is named after the time, and does not exist yet."""
    stem = f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    paths = (Path("rollouts") / f"{stem}{again}{ending}" for again in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(path for path in paths if not path.exists())


def default_store(environment: Environment[Any, Any], files: RunFiles) -> str:
    """The store of a run's sessions by default: a file beside the rollouts, or none if the environment is stateless."""
    return f"sqlite:///{quote(str(files.sessions))}" if environment.state_type is not None else NO_STORE


def settings_of(given: list[str]) -> dict[str, Any]:
    """Parameters that were given as NAME=VALUE; a value that is not JSON is a text."""
    settings: dict[str, Any] = {}
    for each in given:
        name, is_there, value = each.partition("=")
        if not (name and is_there):
            raise typer.BadParameter(f"{each!r} should be NAME=VALUE, such as temperature=0.7", param_hint="--set")
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings

"""The options that `run`, `branch` and other commands share, and what they stand for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from stateroom.cli.output import errors
from stateroom.environment import Environment, TypedText
from stateroom.errors import BadData
from stateroom.model import Exactness
from stateroom.rollout import Price, missing_prompts

EnvName = Annotated[
    str | None,
    typer.Argument(help="A registered name, module:Class or path.py:Class. Optional with --server."),
]
RunName = Annotated[
    str | None,
    typer.Argument(
        help="A registered name, module:Class or path.py:Class; with --config, a run of the file. Optional with "
        "--server, or if the file has one run.",
        metavar="ENV",
    ),
]
EnvOption = Annotated[str, typer.Option("--env", "-e", help="A registered name, module:Class or path.py:Class.")]
OnlyEnv = Annotated[str | None, typer.Option("--env", "-e", help="Only sessions of the environment with this name.")]
EnvArgs = Annotated[
    list[str] | None,
    typer.Option("--env-arg", help="An argument of the environment's constructor, as NAME=VALUE. Repeatable."),
]
TaskFile = Annotated[
    Path | None,
    typer.Option("--input", "-i", help="Tasks as JSONL, CSV or Parquet; by default the environment's examples."),
]
RolloutTasks = Annotated[
    Path | None,
    typer.Option(
        "--input",
        "-i",
        help="Tasks as JSONL, for rollouts that lack the fields of their tasks, as NeMo Gym's may; found by prompt.",
        show_default=False,
    ),
]
ModelSpec = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        help="The model or policy: a policy of the environment (reference, noisy), gold (the gold actions of each "
        "task), openai:NAME, responses:NAME@URL, "
        "chat:NAME@URL (several servers: NAME@URL,URL), local, replay:FILE, module:Class or path.py:Class. By "
        "default reference or, if the environment has none, gold.",
        show_default=False,
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
ModelConcurrency = Annotated[
    int | None,
    typer.Option(min=1, help="Requests at a time to each server of the model; by default 64.", show_default=False),
]
RequestsPerMinute = Annotated[
    float | None, typer.Option(min=1, help="Requests in a minute to each server of the model, evenly spread.")
]
TokensPerMinute = Annotated[
    float | None,
    typer.Option(min=1, help="Tokens in a minute of each server of the model: of requests and answers together."),
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
Tokens = Annotated[
    bool,
    typer.Option(
        "--tokens",
        help="Store the exact tokens of each answer and their log-probabilities, for training; the model's server must "
        "report them, as vLLM does.",
    ),
]
SplitTokens = Annotated[
    bool,
    typer.Option(
        "--split-tokens",
        help="The same, but a prompt that does not begin with all tokens before starts a new segment, instead of "
        "failing the episode.",
    ),
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
        help="Continue the run that wrote --output where it was interrupted, with the same options; start it if it "
        "never began. Episodes of which nothing is stored start over: those on a server without --store, or in a "
        "--group.",
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
Force = Annotated[bool, typer.Option("--force", help="Replace the files of an earlier run at --output.")]
Limit = Annotated[int | None, typer.Option(min=1, help="Run only the first N tasks.")]
Seed = Annotated[int, typer.Option(help="The random seed of the run.")]
MaxSteps = Annotated[int, typer.Option(min=1, help="Answers of the model per episode.")]
SolvedAt = Annotated[float, typer.Option(help="The reward from which an episode counts as solved, for pass@k.")]
PriceOption = Annotated[
    str | None,
    typer.Option(
        "--price",
        metavar="in=PRICE,out=PRICE",
        help="The price of a million tokens, such as in=0.15,out=0.6: rows and the summary get the cost.",
    ),
]
AsJSON = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def with_options(
    command: Callable[..., None], call: Callable[[dict[str, Any]], None], **options: tuple[Any, Any]
) -> Callable[..., None]:
    """A command with more options, each an annotation and a default; `call` is given all, and calls the command."""

    def run(**given: Any) -> None:
        call(given)

    hints = get_type_hints(command, include_extras=True)
    parameters = [each.replace(annotation=hints[each.name]) for each in signature(command).parameters.values()]
    for name, (annotation, default) in options.items():
        parameters.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation))
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__signature__ = signature(command).replace(parameters=parameters)  # type: ignore[attr-defined]
    return run


def warn_of_missing_prompts(environment: Environment[Any, Any], tasks: list[dict[str, Any]]) -> None:
    """Print a warning if some tasks ask nothing of the model."""
    if told := missing_prompts(environment, tasks):
        errors.print(f"warning: {told}", style="yellow", soft_wrap=True)


def price_of(given: str | None) -> Price | None:
    """The price that was given with --price."""
    try:
        return None if given is None else Price.parse(given)
    except BadData as error:
        raise typer.BadParameter(str(error), param_hint="--price") from None


def exactness_of(tokens: bool, split_tokens: bool) -> Exactness | None:
    """What --tokens and --split-tokens stand for."""
    return "split" if split_tokens else "exact" if tokens else None


def settings_of(given: list[str] | None) -> dict[str, Any]:
    """Parameters that were given as NAME=VALUE; a value that is not JSON is a text."""
    settings: dict[str, Any] = {}
    for name, value in pairs(given, "--set", "temperature=0.7"):
        try:
            settings[name] = json.loads(value)
        except ValueError:
            settings[name] = value
    return settings


def env_args_of(given: list[str] | None) -> dict[str, TypedText]:
    """Constructor arguments that were given as NAME=VALUE; the environment's annotations say what a value is."""
    return {name: TypedText(value) for name, value in pairs(given, "--env-arg", "difficulty=hard")}


def pairs(given: list[str] | None, option: str, example: str) -> Iterator[tuple[str, str]]:
    """What was given as NAME=VALUE."""
    for each in given or ():
        name, is_there, value = each.partition("=")
        if not (name and is_there):
            raise typer.BadParameter(f"{each!r} should be NAME=VALUE, such as {example}", param_hint=option)
        yield name, value

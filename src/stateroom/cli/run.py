"""`stateroom run`: collect episodes."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from stateroom.agent import MAX_STEPS, Context
from stateroom.cli.output import SOON, console, errors, number, print_json, table
from stateroom.environment import Environment, find_environment
from stateroom.errors import NotFound, StateroomError
from stateroom.model import open_model
from stateroom.rollout import Left, RemoteEnvironment, Report, Run, RunFiles, example_file, read_tasks
from stateroom.rollout import run as run_episodes
from stateroom.session.containment import contained
from stateroom.store.url import without_secrets

NO_STORE = "memory://"
"""For a run that leaves no sessions behind."""


EnvName = Annotated[
    str | None,
    typer.Argument(help="A registered name, module:Class or path.py:Class; --server can do without."),
]
TaskFile = Annotated[
    Path | None, typer.Option("--input", "-i", help="Tasks as JSONL; by default the environment's examples.")
]
ModelSpec = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="Who acts: a policy of the environment's (reference, faltering), openai:NAME, responses:NAME@URL, "
        "chat:NAME@URL, local, replay:FILE, module:Class or path.py:Class.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="A parameter of the model's requests, instead of the tasks' own, such as temperature=0.7. Repeatable.",
    ),
]
ContextTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens of its conversation that the model is shown; the oldest go first.")
]
StoreChoice = Annotated[
    str | None, typer.Option(help="Where state lives, as a URL; by default an SQLite file beside the rollouts.")
]
ServerURL = Annotated[
    str | None, typer.Option(help="Where the environment is served, as a URL; by default it runs in this process.")
]
AdminToken = Annotated[
    str | None,
    typer.Option(
        envvar="STATEROOM_ADMIN_TOKEN",
        help="The server's admin token: sessions are forked with it.",
        show_default=False,
    ),
]
APIKey = Annotated[
    str | None,
    typer.Option(
        envvar="STATEROOM_API_KEY",
        help="The API key that the server wants from those who seed sessions.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="The rollouts file; the others are named after it.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks.")]
Seed = Annotated[int, typer.Option(help="Decides all chance in the run.")]
MaxSteps = Annotated[int, typer.Option(min=1, help="How often a policy may answer in an episode.")]
AsJSON = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def run(
    env: EnvName = None,
    input_file: TaskFile = None,
    model: ModelSpec = "reference",
    repeats: Annotated[
        int, typer.Option("--repeats", "-r", min=1, help="Episodes per task, each with a luck of its own.")
    ] = 1,
    group: Annotated[
        int | None,
        typer.Option(
            "--group", "-g", min=1, max=1000, help="Episodes per task that start from one state, luck and all, instead."
        ),
    ] = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Episodes at a time.")] = 8,
    store: Annotated[
        str | None,
        typer.Option(
            help="Where state lives, as a URL; by default an SQLite file beside the rollouts. With --server, or for an "
            "environment without a state: where the answers of the model are kept for --resume, by default nowhere."
        ),
    ] = None,
    server: ServerURL = None,
    api_key: APIKey = None,
    admin_token: AdminToken = None,
    output: Output = None,
    limit: Limit = None,
    seed: Seed = 0,
    max_steps: MaxSteps = MAX_STEPS,
    deadline: Annotated[float | None, typer.Option(min=0.001, help="Seconds that an episode may take.")] = None,
    context_tokens: ContextTokens = None,
    setting: Settings = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the run that wrote --output, where it was interrupted; with the same options as then. "
            "Episodes of which nothing was kept start over: those on a server without --store, or in a --group.",
        ),
    ] = False,
    json_output: AsJSON = False,
) -> None:
    """Run episodes of an environment, verify them, and write rollouts and metrics.

    Example: stateroom run counter --model faltering --repeats 4

    A model behind an endpoint: stateroom run counter --model chat:qwen3@http://127.0.0.1:8000/v1 --set temperature=0.7

    A run that was interrupted: stateroom run counter --model faltering --output runs/a.jsonl --resume

    Groups that start from one state: stateroom run counter --model faltering --group 8

    On a server: stateroom run counter --server http://127.0.0.1:8000
    """
    if group is not None and repeats != 1:
        raise typer.BadParameter("not together with --repeats: a group is its task's episodes", param_hint="--group")
    if resume and output is None:
        raise typer.BadParameter("say with --output which run to go on with", param_hint="--resume")
    found = find_served(env, server)
    environment = make(found)
    files = RunFiles(output if output is not None else new_path(environment.name, ".jsonl"))
    if resume and store is None and server is None:
        refuse_lost(environment, files)
    plan = Run(
        environment=environment,
        model=open_model(model, found.policies),
        tasks=[] if resume else read_tasks(input_file or examples_of(found), environment),
        files=files,
        store=store or (default_store(environment, files) if server is None else NO_STORE),
        server=server,
        api_key=api_key or None,
        admin_token=admin_token or None,
        repeats=repeats,
        group=group,
        concurrency=concurrency,
        limit=limit,
        seed=seed,
        max_steps=max_steps,
        deadline=deadline,
        context=Context(context_tokens),
        settings=settings_of(setting or []),
        resume=resume,
    )
    report = collect(plan)
    if json_output:
        print_json(summary(plan, report))
    else:
        show_metrics(plan, report)
    if report.failed == report.episodes:
        raise typer.Exit(1)


def find_served(env: str | None, server: str | None) -> type[Environment[Any, Any]]:
    """The environment that a user named, or what stands for one that only a server knows."""
    if server is None and env is None:
        raise typer.BadParameter("say which environment, or with --server where it is served", param_hint="ENV")
    return RemoteEnvironment if env is None else find_environment(env)


def make(environment: type[Environment[Any, Any]]) -> Environment[Any, Any]:
    """An instance of an environment that a user named."""
    try:
        with contained:
            return environment()
    except StateroomError:
        raise
    except Exception as error:
        where = f"{environment.__module__}.{environment.__qualname__}"
        raise NotFound(f"{where} cannot be made without arguments: {type(error).__name__}: {error}") from error


def new_path(name: str, ending: str = "") -> Path:
    """A path under rollouts/ that is named after the time of day, and is not there yet."""
    stem = f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    paths = (Path("rollouts") / f"{stem}{again}{ending}" for again in ("", *(f"-{n}" for n in range(2, 1000))))
    return next(path for path in paths if not path.exists())


def default_store(environment: Environment[Any, Any], files: RunFiles) -> str:
    """Where sessions live unless the user says otherwise: beside the rollouts; without a state there are none."""
    return f"sqlite:///{quote(str(files.sessions))}" if environment.state_type is not None else NO_STORE


def refuse_lost(environment: Environment[Any, Any], files: RunFiles) -> None:
    """Refuse to go on with a run whose sessions are not where they would be: all its episodes would start over."""
    if environment.state_type is not None and files.inputs.exists() and not files.sessions.exists():
        raise NotFound(f"the sessions of this run are not in {files.sessions}; give the --store that it had")


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


def collect(plan: Run) -> Report:
    """Run a plan with a progress bar."""
    progress = new_bar()
    task = progress.add_task(plan.environment.name)

    def begin(left: Left) -> None:
        progress.update(task, total=left.episodes, completed=left.over)
        asyncio.get_running_loop().call_later(SOON, progress.start)  # a model may take long for the first episode

    def advance(row: Any) -> None:
        progress.start()  # at the first: a run that is refused shows none
        progress.advance(task)

    try:
        return asyncio.run(run_episodes(plan, advance, begin))
    except KeyboardInterrupt:
        done = f"{progress.tasks[0].completed:.0f} finished episodes are in {plan.files.rollouts}"
        errors.print(f"interrupted; {done}; go on with --resume", style="red", soft_wrap=True)
        raise typer.Exit(130) from None
    finally:
        if progress.live.is_started:
            progress.stop()


def new_bar() -> Progress:
    """A progress bar."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Progress(*columns, console=errors, transient=errors.is_terminal)  # piped, its last state is kept


def summary(plan: Run, report: Report) -> dict[str, Any]:
    """A report as one JSON object."""
    return {
        "episodes": report.episodes,
        "failed": report.failed,
        "waiting": report.waiting,
        "metrics": report.metrics["agent_metrics"],
        "files": plan.files.as_dict(),
    }


def show_metrics(plan: Run, report: Report) -> None:
    """A report as tables."""
    metrics = report.metrics["agent_metrics"]
    made = table("metric", "mean#", "min#", "max#", "median#", "std#")
    for name in sorted(
        {key.partition("/")[2] for key in metrics if "/" in key}, key=lambda key: (key != "reward", key)
    ):
        made.add_row(name, *(number(metrics[f"{kind}/{name}"]) for kind in ("mean", "min", "max", "median", "std")))
    what = f"{report.episodes} episodes of {plan.environment.name}, by {plan.model.name}"
    failed = f", {report.failed} failed" if report.failed else ""
    waiting = f", {len(report.waiting)} waiting" if report.waiting else ""
    console.print(Text.assemble((what, "bold"), (failed, "red"), (waiting, "yellow")), soft_wrap=True)
    if report.waiting:
        console.print(
            f"{report.waiting[0]} waits for input: stateroom sessions answer {report.waiting[0]} TEXT --store "
            f"{without_secrets(plan.store)}, then --resume",
            soft_wrap=True,
        )
    if report.first_error:
        console.print(f"the first failure: {report.first_error}", style="red", soft_wrap=True)
    if report.rows:
        console.print(made)
    passes = [f"{key} = {number(value)}" for key, value in metrics.items() if key.startswith("pass@")]
    if passes:
        console.print("   ".join(passes))
    show_files(plan.files)


def show_files(files: RunFiles) -> None:
    """The files of a run that are there."""
    for name, path in files.as_dict().items():
        console.print(f"{name:>9}: {path}", soft_wrap=True)


def examples_of(environment: type[Environment[Any, Any]]) -> Path:
    """The file of an environment's example tasks."""
    examples = example_file(environment)
    if examples is None:
        raise NotFound(f"{environment.name} has no example tasks; give a file with --input")
    return examples

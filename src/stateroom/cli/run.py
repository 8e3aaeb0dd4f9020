"""`stateroom run`: collect episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from inspect import isabstract
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from stateroom.agent import MAX_STEPS
from stateroom.cli.environments import example_file
from stateroom.cli.output import console, errors, number, print_json, table
from stateroom.environment import Environment, find_environment, load_class
from stateroom.errors import NotFound, StateroomError
from stateroom.model import Policy
from stateroom.rollout import RemoteEnvironment, Report, Run, RunFiles, read_tasks
from stateroom.rollout import run as run_episodes

NO_STORE = "memory://"
"""For a run that leaves no sessions behind."""


EnvName = Annotated[
    str | None,
    typer.Argument(help="A registered name, module:Class or path.py:Class; --server can do without."),
]
TaskFile = Annotated[
    Path | None, typer.Option("--input", "-i", help="Tasks as JSONL; by default the environment's examples.")
]
PolicyName = Annotated[
    str,
    typer.Option(
        "--policy", "-p", help="A policy of the environment's (reference, faltering), module:Class or path.py:Class."
    ),
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
    policy: PolicyName = "reference",
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
    store: StoreChoice = None,
    server: ServerURL = None,
    admin_token: AdminToken = None,
    output: Output = None,
    limit: Limit = None,
    seed: Seed = 0,
    max_steps: MaxSteps = MAX_STEPS,
    deadline: Annotated[float | None, typer.Option(min=0.001, help="Seconds that an episode may take.")] = None,
    json_output: AsJSON = False,
) -> None:
    """Run episodes of an environment, verify them, and write rollouts and metrics.

    Example: stateroom run counter --policy faltering --repeats 4

    Groups that start from one state: stateroom run counter --policy faltering --group 8

    On a server: stateroom run counter --server http://127.0.0.1:8000
    """
    if group is not None and repeats != 1:
        raise typer.BadParameter("not together with --repeats: a group is its task's episodes", param_hint="--group")
    found = find_served(env, store, server)
    environment = make(found)
    files = RunFiles(output if output is not None else new_path(environment.name, ".jsonl"))
    plan = Run(
        environment=environment,
        policy=find_policy(found, policy),
        policy_name=policy,
        tasks=read_tasks(input_file or examples_of(found), environment),
        files=files,
        store=store or (default_store(environment, files) if server is None else NO_STORE),
        server=server,
        admin_token=admin_token or None,
        repeats=repeats,
        group=group,
        concurrency=concurrency,
        limit=limit,
        seed=seed,
        max_steps=max_steps,
        deadline=deadline,
    )
    report = collect(plan)
    if json_output:
        print_json(summary(plan, report))
    else:
        show_metrics(plan, report)
    if report.failed == report.episodes:
        raise typer.Exit(1)


def find_served(env: str | None, store: str | None, server: str | None) -> type[Environment[Any, Any]]:
    """The environment that a user named, or what stands for one that only a server knows."""
    if server is not None and store is not None:
        raise typer.BadParameter("not together with --server, which has a store of its own", param_hint="--store")
    if server is None and env is None:
        raise typer.BadParameter("say which environment, or with --server where it is served", param_hint="ENV")
    return RemoteEnvironment if env is None else find_environment(env)


def make(environment: type[Environment[Any, Any]]) -> Environment[Any, Any]:
    """An instance of an environment that a user named."""
    try:
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


def find_policy(environment: type[Environment[Any, Any]], name: str) -> Callable[[int], Policy]:
    """The policy that a name of the environment's, or `module:Class`, stands for."""
    found = environment.policies.get(name)
    if found is None:
        if ":" not in name:
            known = ", ".join(environment.policies) or "none of its own"
            raise NotFound(
                f"{environment.name} has no policy {name!r}; it has {known}. "
                "One of your own is module:Class or path.py:Class"
            )
        found = load_class(name)
    if not (isinstance(found, type) and issubclass(found, Policy)):
        raise NotFound(f"{name} is not a subclass of stateroom.model.Policy")
    if isabstract(found):
        raise NotFound(f"{name} cannot act: it has no {' and no '.join(sorted(found.__abstractmethods__))} of its own")
    return found


def collect(plan: Run) -> Report:
    """Run a plan with a progress bar."""
    progress = new_bar()
    task = progress.add_task(plan.environment.name, total=len(plan.inputs()))

    def advance(row: Any) -> None:
        progress.start()  # at the first: a run that is refused shows none
        progress.advance(task)

    try:
        return asyncio.run(run_episodes(plan, advance))
    except KeyboardInterrupt:
        done = f"{progress.tasks[0].completed:.0f} finished episodes are in {plan.files.rollouts}"
        errors.print(f"interrupted; {done}", style="red", soft_wrap=True)
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
    what = f"{report.episodes} episodes of {plan.environment.name}, {plan.policy_name} policy"
    failed = f", {report.failed} failed" if report.failed else ""
    console.print(Text.assemble((what, "bold"), (failed, "red")), soft_wrap=True)
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

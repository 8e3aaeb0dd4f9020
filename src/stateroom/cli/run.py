"""`stateroom run`: collect episodes."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from rich.text import Text

from stateroom.agent import MAX_STEPS
from stateroom.cli.options import (
    AdminToken,
    APIKey,
    AsJSON,
    ContextTokens,
    EnvArgs,
    EnvName,
    Force,
    Group,
    KeyVariable,
    Limit,
    MaxSteps,
    ModelConcurrency,
    ModelSpec,
    Output,
    PriceOption,
    Repeats,
    RequestsPerMinute,
    Resume,
    RunStore,
    Seed,
    ServerURL,
    Settings,
    SolvedAt,
    SplitTokens,
    TaskFile,
    Tokens,
    TokensPerMinute,
    env_args_of,
    exactness_of,
    price_of,
    settings_of,
    warn_of_missing_prompts,
)
from stateroom.cli.output import (
    console,
    counted,
    errors,
    measured_speed,
    number,
    print_json,
    show_files,
    show_speed,
    table,
    with_error,
)
from stateroom.rollout import SOLVED, ProgressBar, Report, Run, plan_run, run_with_progress
from stateroom.store import without_secrets


def run(
    env: EnvName = None,
    env_arg: EnvArgs = None,
    input_file: TaskFile = None,
    model: ModelSpec = "reference",
    api_key_env: KeyVariable = None,
    model_concurrency: ModelConcurrency = None,
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    repeats: Repeats = 1,
    group: Group = None,
    concurrency: Annotated[int, typer.Option("--concurrency", "-c", min=1, help="Episodes at a time.")] = 8,
    engine: Annotated[
        str,
        typer.Option(
            help="Where episodes run: local (this process), processes or processes:N (of this machine), ray or "
            "ray:ADDRESS (a Ray cluster)."
        ),
    ] = "local",
    store: RunStore = None,
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
    tokens: Tokens = False,
    split_tokens: SplitTokens = False,
    resume: Resume = False,
    force: Force = False,
    solved_at: SolvedAt = SOLVED,
    price: PriceOption = None,
    json_output: AsJSON = False,
) -> None:
    """Run episodes of an environment, verify them, and write rollouts and metrics.

    Example: stateroom run counter --model noisy --repeats 4

    A model behind an endpoint: stateroom run counter --model chat:qwen3@http://127.0.0.1:8000/v1 --set temperature=0.7

    Resume a run: stateroom run counter --model noisy --output runs/a.jsonl --resume

    Groups that start from one state: stateroom run counter --model noisy --group 8

    On a server: stateroom run counter --server http://127.0.0.1:8000

    On all cores: stateroom run counter --model noisy --repeats 100 --engine processes
    """
    plan = plan_run(
        env,
        env_args=env_args_of(env_arg),
        input=input_file,
        model=model,
        api_key_env=api_key_env,
        model_concurrency=model_concurrency,
        requests_per_minute=requests_per_minute,
        tokens_per_minute=tokens_per_minute,
        repeats=repeats,
        group=group,
        concurrency=concurrency,
        engine=engine,
        store=store,
        server=server,
        api_key=api_key,
        admin_token=admin_token,
        output=output,
        limit=limit,
        seed=seed,
        max_steps=max_steps,
        deadline=deadline,
        context_tokens=context_tokens,
        settings=settings_of(setting),
        tokens=exactness_of(tokens, split_tokens),
        solved_at=solved_at,
        price=price_of(price),
        resume=resume,
        force=force,
    )
    warn_of_missing_prompts(plan.tasks)
    _finish(plan, collect(plan), json_output)


def collect(plan: Run) -> Report:
    """Run a plan with a progress bar."""
    bar = ProgressBar(plan.environment.name)
    try:
        return asyncio.run(run_with_progress(plan, bar))
    except KeyboardInterrupt:
        done = counted(bar.done, "finished episode is", "finished episodes are")
        told = f"interrupted; {done} in {plan.files.rollouts}; continue with --resume"
        errors.print(told, style="red", soft_wrap=True)
        raise typer.Exit(130) from None


def _finish(plan: Run, report: Report, json_output: bool) -> None:
    """Print a report; the exit code is 1 if every episode failed."""
    if json_output:
        print_json(
            {
                "episodes": report.episodes,
                "failed": report.failed,
                "waiting": report.waiting,
                **measured_speed(report.elapsed, report.rows[report.earlier :]),
                "tool_failures": report.tool_failures.counts,
                "metrics": report.metrics["agent_metrics"],
                "files": plan.files.as_dict(),
            }
        )
    else:
        _show(plan, report)
    if report.failed == report.episodes:
        raise typer.Exit(1)


def _show(plan: Run, report: Report) -> None:
    """Print a report as tables."""
    metrics = report.metrics["agent_metrics"]
    what = f"{counted(report.episodes, 'episode', 'episodes')} of {plan.environment.name}, by {plan.model.name}"
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
    if report.tool_failures:
        console.print(str(report.tool_failures), style="red", soft_wrap=True)
    if report.rows:
        made = table("metric", "mean#", "±#", "min#", "max#", "median#", "std#")
        names = {key.partition("/")[2] for key in metrics if key.startswith("mean/")}
        for name in sorted(names, key=lambda key: (key != "reward", key)):
            figures = (metrics.get(f"{kind}/{name}") for kind in ("mean", "stderr", "min", "max", "median", "std"))
            made.add_row(name, *("" if figure is None else number(figure) for figure in figures))
        console.print(made)
    passes = [f"{key} = {with_error(metrics, key, key)}" for key in metrics if key.startswith("pass@")]
    if passes:
        console.print("   ".join(passes))
    show_speed(report.elapsed, report.rows[report.earlier :])
    show_files(plan.files)

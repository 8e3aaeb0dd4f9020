"""`stateroom run`: collect episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import typer
from rich.text import Text

from stateroom.cli.command import Given
from stateroom.cli.configuration import ConfigFiles, Configuration, Overrides, names_and_overrides, run_options
from stateroom.cli.options import AsJSON, warn_of_missing_prompts
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
from stateroom.errors import BadConfig
from stateroom.rollout import (
    ProgressBar,
    Report,
    Run,
    RunOptions,
    agent_metrics,
    concat_runs,
    run_with_progress,
)
from stateroom.store import without_secrets

NOT_ALL_STARTED = 3
"""The exit code of a run whose --max-cost was reached."""

SHOWN_PASSES = 3
"""Columns of pass@k, where there is a line for each environment."""


def run(
    given: Given[RunOptions],
    overrides: Overrides = None,
    config: ConfigFiles = None,
    json_output: AsJSON = False,
) -> None:
    """Run episodes of an environment, verify them, and write rollouts and metrics.

    Example: stateroom run counter --model noisy --repeats 4

    A model behind an endpoint: stateroom run counter --model chat:qwen3@http://127.0.0.1:8000/v1 --set temperature=0.7

    Resume a run: stateroom run counter --model noisy --output runs/a.jsonl --resume

    Groups that start from one state: stateroom run counter --model noisy --group 8

    On a server: stateroom run counter --server http://127.0.0.1:8000

    On all cores: stateroom run counter --model noisy --repeats 100 --engine processes

    A run of a file: stateroom run --config stateroom.yaml NAME run.repeats=8
    """
    names, changes = names_and_overrides([given.typed.get("environment", ""), *(overrides or ())], config)
    if not config:
        finish({"": Run.of(given.options({}))}, json_output)
        return
    if len(names) > 1:
        raise BadConfig(f"name one run, not {', '.join(names)}")
    name = names[0] if names else None
    configuration = Configuration.load(config, changes, name)
    options = run_options(configuration, configuration.run_named(name), given)
    finish({name: Run.of(each) for name, each in options.items()}, json_output)


def finish(plans: Mapping[str, Run], json_output: bool) -> None:
    """Carry out plans one after another, and print their reports.

    The exit code is 1 if every episode failed, or if a resumed run would try some of them again; 3 if some were not
    started.
    """
    for each in plans.values():
        warn_of_missing_prompts(each.environment, each.tasks)
    done = {name: (each, collect(each)) for name, each in plans.items()}
    if len(done) == 1:
        [(only, report)] = done.values()
        if json_output:
            print_json(_data(only, report))
        else:
            _show(only, report)
    elif json_output:
        print_json({**_overall(done), "environments": {name: _data(*each) for name, each in done.items()}})
    else:
        _show_all(done)
    reports = [report for _, report in done.values()]
    if any(report.transient for report in reports) or all(report.failed == report.episodes for report in reports):
        raise typer.Exit(1)
    if any(report.not_started for report in reports):
        raise typer.Exit(NOT_ALL_STARTED)


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


def _data(plan: Run, report: Report) -> dict[str, Any]:
    return {
        "episodes": report.episodes,
        "failed": report.failed,
        "transient": report.transient,
        "waiting": report.waiting,
        "not_started": report.not_started,
        **measured_speed(report.elapsed, report.rows[report.earlier :]),
        "tool_failures": report.tool_failures.counts,
        "metrics": report.metrics["agent_metrics"],
        "files": plan.files.as_dict(),
    }


def _overall(done: Mapping[str, tuple[Run, Report]]) -> dict[str, Any]:
    """What was measured in the episodes of several environments together."""
    reports = [report for _, report in done.values()]
    new = (row for report in reports for row in report.rows[report.earlier :])
    solved_threshold = next(plan.options.solved_threshold for plan, _ in done.values())
    return {
        "episodes": sum(report.episodes for report in reports),
        "failed": sum(report.failed for report in reports),
        **measured_speed(sum(report.elapsed for report in reports), new),
        "metrics": agent_metrics(concat_runs(report.rows for report in reports), solved_threshold),
    }


def _show_all(done: Mapping[str, tuple[Run, Report]]) -> None:
    """Print the reports of several environments, and what they come to together."""
    overall = _overall(done)
    figures = {name: (each.episodes, each.failed, each.metrics["agent_metrics"]) for name, (_, each) in done.items()}
    show_metrics({**figures, "overall": (overall["episodes"], overall["failed"], overall["metrics"])})
    for name, (plan, report) in done.items():
        for note in _notes(plan, report):
            console.print(Text.assemble((f"{name}: ", "bold"), note), soft_wrap=True)
    cost = f", cost {overall['cost']:,.4g}" if "cost" in overall else ""
    console.print(f"{overall['elapsed']:,.1f} s{cost}")
    for plan, _ in done.values():
        console.print(f"rollouts: {plan.files.rollouts}", soft_wrap=True)


def show_metrics(figures: Mapping[str, tuple[int, int, Mapping[str, float]]]) -> None:
    """Print a line for each environment: its episodes, those that failed, and the metrics of the others."""
    known = [metrics for _, _, metrics in figures.values() if metrics]
    passes = [name for name in (known[0] if known else ()) if name.startswith("pass@")]
    common = [name for name in passes if all(name in each for each in known)]
    names = ("mean/reward", *common[:SHOWN_PASSES], "mean/tool_calls")
    titles = (name.removeprefix("mean/").replace("_", " ") for name in names)
    made = table("environment", "episodes#", "failed#", *(f"{title}#" for title in titles))
    for name, (episodes, failed, metrics) in figures.items():
        shown = (number(metrics[each]) if each in metrics else "-" for each in names)
        made.add_row(name, str(episodes), str(failed), *shown)
    console.print(made)


def _notes(plan: Run, report: Report) -> list[Text]:
    """What a person should know besides the metrics: who waits, and what failed."""
    notes = []
    if report.waiting:
        answer = f"stateroom sessions answer {report.waiting[0]} TEXT --store {without_secrets(plan.store)}"
        notes.append(Text(f"{report.waiting[0]} waits for input: {answer}, then --resume"))
    if report.transient:
        told = f"{counted(report.transient, 'failure', 'failures')} may pass: --resume tries them again"
        notes.append(Text(told, "red"))
    if report.not_started:
        left = counted(report.not_started, "episode was", "episodes were")
        spent = f"{left} not started: the others have cost {report.cost:,.4g}"
        notes.append(Text(f"{spent}; --resume with a higher --max-cost runs them", "yellow"))
    if report.first_error:
        notes.append(Text(f"the first failure: {report.first_error}", "red"))
    if report.tool_failures:
        notes.append(Text(str(report.tool_failures), "red"))
    return notes


def _show(plan: Run, report: Report) -> None:
    """Print a report as tables."""
    metrics = report.metrics["agent_metrics"]
    what = f"{counted(report.episodes, 'episode', 'episodes')} of {plan.environment.name}, by {plan.model.name}"
    failed = f", {report.failed} failed" if report.failed else ""
    waiting = f", {len(report.waiting)} waiting" if report.waiting else ""
    console.print(Text.assemble((what, "bold"), (failed, "red"), (waiting, "yellow")), soft_wrap=True)
    for note in _notes(plan, report):
        console.print(note, soft_wrap=True)
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

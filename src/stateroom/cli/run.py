"""`stateroom run`: collect episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from rich.text import Text

from stateroom.cli.command import OptionSources, Output
from stateroom.cli.config import ConfigFiles, Configuration, Overrides, names_and_overrides, run_options
from stateroom.cli.options import warn_of_missing_prompts
from stateroom.cli.output import (
    console,
    counted,
    failure_lines,
    interruptible,
    known_number,
    measured_speed,
    print_table,
    say,
    show_files,
    show_speed,
    with_error,
)
from stateroom.errors import BadConfig
from stateroom.rollout import (
    ProgressBar,
    Report,
    RunOptions,
    RunPlan,
    agent_metrics,
    concat_runs,
    run_with_progress,
)
from stateroom.store import without_secrets

NOT_ALL_STARTED = 3
"""The exit code of a run that reached --max-cost."""

MAX_PASSES_SHOWN = 3
"""The most pass@k columns in a table with one line per environment."""


def run(
    given: OptionSources[RunOptions],
    overrides: Overrides = None,
    config: ConfigFiles = None,
) -> Output:
    """Run episodes of an environment, verify them, and write rollouts and metrics.

    Example: stateroom run counter --model noisy --repeats 4

    A model behind an endpoint: stateroom run counter --model chat:qwen3@http://127.0.0.1:8000/v1 --set temperature=0.7

    Resume a run: stateroom run counter --model noisy --output runs/a.jsonl --resume

    Groups that start from the same state: stateroom run counter --model noisy --group 8

    On a server: stateroom run counter --server http://127.0.0.1:8000

    On all cores: stateroom run counter --model noisy --repeats 100 --engine processes

    A run from a file: stateroom run --config stateroom.yaml NAME run.repeats=8
    """
    names, changes = names_and_overrides([given.typed.get("environment", ""), *(overrides or ())], config)
    if not config:
        return _carry_out({"": RunPlan.of(given.options({}))})
    if len(names) > 1:
        raise BadConfig(f"name a single run, not {', '.join(names)}")
    name = names[0] if names else None
    configuration = Configuration.load(config, changes, name)
    options = run_options(configuration, configuration.run_named(name), given)
    return _carry_out({name: RunPlan.of(each) for name, each in options.items()})


def _carry_out(plans: Mapping[str, RunPlan]) -> Output:
    """Run plans one after another.

    The exit code is 1 if every episode failed or a resumed run would retry some; 3 if some were not started.
    """
    for plan in plans.values():
        warn_of_missing_prompts(plan.environment, plan.tasks)
    reports = {name: (plan, collect(plan)) for name, plan in plans.items()}
    done = [report for _, report in reports.values()]
    if any(report.transient for report in done) or all(report.failed == report.episodes for report in done):
        code = 1
    else:
        code = NOT_ALL_STARTED if any(report.not_started for report in done) else 0
    if len(reports) == 1:
        [(plan, report)] = reports.values()
        return Output(lambda: _report_data(plan, report), lambda: _print_report(plan, report), code)
    return Output(lambda: _reports_data(reports), lambda: _print_reports(reports), code)


def collect(plan: RunPlan) -> Report:
    """Run a plan with a progress bar."""
    bar = ProgressBar(plan.environment.name)

    def what_is_kept() -> str:
        done = counted(bar.done, "finished episode is", "finished episodes are")
        return f"{done} in {plan.files.rollouts}; continue with --resume"

    with interruptible(what_is_kept):
        return asyncio.run(run_with_progress(plan, bar))


def _report_data(plan: RunPlan, report: Report) -> dict[str, Any]:
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


def _reports_data(reports: Mapping[str, tuple[RunPlan, Report]]) -> dict[str, Any]:
    return {
        **_overall(reports),
        "environments": {name: _report_data(plan, report) for name, (plan, report) in reports.items()},
    }


def _overall(reports: Mapping[str, tuple[RunPlan, Report]]) -> dict[str, Any]:
    """The total time and cost of several environments."""
    done = [report for _, report in reports.values()]
    new = (row for report in done for row in report.rows[report.earlier :])
    solved_threshold = next(plan.options.solved_threshold for plan, _ in reports.values())
    return {
        "episodes": sum(report.episodes for report in done),
        "failed": sum(report.failed for report in done),
        **measured_speed(sum(report.elapsed for report in done), new),
        "metrics": agent_metrics(concat_runs(report.rows for report in done), solved_threshold),
    }


def _print_reports(reports: Mapping[str, tuple[RunPlan, Report]]) -> None:
    """Print the reports of several environments, and their totals."""
    overall = _overall(reports)
    figures = {name: measured(report) for name, (_, report) in reports.items()}
    show_metrics({**figures, "overall": (overall["episodes"], overall["failed"], overall["metrics"])})
    for name, (plan, report) in reports.items():
        for note in _notes(plan, report):
            say(Text.assemble((f"{name}: ", "bold"), note))
    cost = f", cost {overall['cost']:,.4g}" if "cost" in overall else ""
    console.print(f"{overall['elapsed']:,.1f} s{cost}")
    for plan, _ in reports.values():
        say(f"rollouts: {plan.files.rollouts}")


def measured(report: Report) -> tuple[int, int, Mapping[str, float]]:
    """The number of episodes, the number that failed, and the metrics of the others."""
    return report.episodes, report.failed, report.metrics["agent_metrics"]


def show_metrics(figures: Mapping[str, tuple[int, int, Mapping[str, float]]]) -> None:
    """Print a line for each environment: its episodes, those that failed, and the metrics of the others."""
    known = [metrics for _, _, metrics in figures.values() if metrics]
    passes = [name for name in (known[0] if known else ()) if name.startswith("pass@")]
    common = [name for name in passes if all(name in each for each in known)]
    names = ("mean/reward", *common[:MAX_PASSES_SHOWN], "mean/tool_calls")
    titles = (name.removeprefix("mean/").replace("_", " ") for name in names)
    rows = [
        (name, str(episodes), str(failed), *(known_number(metrics, metric, "-") for metric in names))
        for name, (episodes, failed, metrics) in figures.items()
    ]
    print_table(("environment", "episodes#", "failed#", *(f"{title}#" for title in titles)), rows)


def _notes(plan: RunPlan, report: Report) -> list[Text]:
    """Notes below the metrics: waiting agents, failures and unstarted episodes."""
    notes = []
    if report.waiting:
        answer = f"stateroom sessions answer {report.waiting[0]} TEXT --store {without_secrets(plan.store)}"
        notes.append(Text(f"{report.waiting[0]} waits for input: {answer}, then --resume"))
    if report.transient:
        failures = counted(report.transient, "failure", "failures")
        notes.append(Text(f"{failures} may be temporary; retry them with --resume", "red"))
    if report.not_started:
        left = counted(report.not_started, "episode was", "episodes were")
        spent = f"{left} not started, because the others cost {report.cost:,.4g}"
        notes.append(Text(f"{spent}; run them with --resume and a higher --max-cost", "yellow"))
    return [*notes, *failure_lines(report)]


def _print_report(plan: RunPlan, report: Report) -> None:
    """Print a report as tables."""
    metrics = report.metrics["agent_metrics"]
    what = f"{counted(report.episodes, 'episode', 'episodes')} of {plan.environment.name}, by {plan.model.name}"
    failed = f", {report.failed} failed" if report.failed else ""
    waiting = f", {len(report.waiting)} waiting" if report.waiting else ""
    say(Text.assemble((what, "bold"), (failed, "red"), (waiting, "yellow")))
    for note in _notes(plan, report):
        say(note)
    if report.rows:
        names = {key.partition("/")[2] for key in metrics if key.startswith("mean/")}
        rows = [
            (
                name,
                *(
                    known_number(metrics, f"{kind}/{name}")
                    for kind in ("mean", "stderr", "min", "max", "median", "std")
                ),
            )
            for name in sorted(names, key=lambda name: (name != "reward", name))
        ]
        print_table(("metric", "mean#", "±#", "min#", "max#", "median#", "std#"), rows)
    passes = [f"{key} = {with_error(metrics, key, key)}" for key in metrics if key.startswith("pass@")]
    if passes:
        console.print("   ".join(passes))
    show_speed(report.elapsed, report.rows[report.earlier :])
    show_files(plan.files)

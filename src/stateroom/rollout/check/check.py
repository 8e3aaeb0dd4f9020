"""Checks an environment before anything runs on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stateroom.environment import Environment, make_environment
from stateroom.errors import BadTask, NotFound, StateroomError
from stateroom.rollout.check import isolation, tasks, tools, verdicts
from stateroom.rollout.check.episodes import Episodes, Play, PlayFailure, play_episodes
from stateroom.rollout.check.findings import (
    ISOLATION,
    PLAYED,
    SEED,
    TASKS,
    TOOLS,
    VERIFIER,
    CheckReport,
    Fault,
    Finding,
    finding,
    skipped,
)
from stateroom.rollout.rows import Row
from stateroom.rollout.tasks import example_file, read_tasks

NO_ARGUMENTS: Mapping[str, Any] = {}


async def check_environment(
    environment: type[Environment[Any, Any]],
    task_file: Path | None = None,
    *,
    env_args: Mapping[str, Any] = NO_ARGUMENTS,
    everything: bool = False,
    on_play: Callable[[], None] = lambda: None,
) -> CheckReport:
    """Check an environment with the tasks of a file, its examples, or else tasks that it generates.

    Its instances are made with `env_args`, the arguments of its constructor.
    Of many tasks a sample is played, unless `everything` is set. `on_play` is called for each episode.
    """
    try:
        instance = make_environment(environment, env_args)
    except StateroomError as error:
        return CheckReport.undefined(environment.name, str(error))
    try:
        rows, source = _rows(instance, task_file)
    except (BadTask, NotFound) as error:
        unread = finding(TASKS, [Fault(line) for line in str(error).splitlines()], "")
        findings = [tools.check_schema(instance, ()), unread, *_skipped(PLAYED, "the tasks cannot be used")]
        return CheckReport(environment.name, findings)
    findings = [tools.check_schema(instance, rows), tasks.check_tasks(instance, rows, source)]
    chosen = dict(enumerate(rows)) if everything else tasks.sample(rows)
    async with play_episodes(environment, env_args, chosen, on_play) as episodes:
        findings += await _check_episodes(episodes)
        outcomes = verdicts.outcomes(episodes, len(rows))
    return CheckReport(environment.name, findings, len(rows), len(chosen), outcomes)


def _skipped(checks: Sequence[str], why: str) -> list[Finding]:
    return [skipped(name, why) for name in checks]


def _rows(environment: Environment[Any, Any], task_file: Path | None) -> tuple[Sequence[Row], str]:
    """The tasks to check with, and where they are from."""
    kind = type(environment)
    path = task_file or example_file(kind)
    if path is not None:
        return read_tasks(path, environment), path.name
    if not tasks.has_generator(kind):
        raise NotFound("there are no tasks: set examples = 'tasks.jsonl', or give a file as `input`")
    return tasks.generated(kind, tasks.SAMPLE), "the generator"


async def _check_episodes(episodes: Episodes) -> list[Finding]:
    if episodes.endless is not None and episodes.endless.failure is not None:
        return _endless(episodes.endless, episodes.endless.failure)
    seeded = await isolation.check_seed(episodes)
    if seeded.result == "problem":
        return [seeded, *_skipped(PLAYED[1:], "the seeds are not in order")]
    same = await isolation.check_determinism(episodes)
    isolated = (
        skipped(ISOLATION, "episodes differ each time, so that nothing can be told")
        if same.result == "problem"
        else await isolation.check_isolation(episodes)
    )
    return [
        seeded,
        same,
        isolated,
        isolation.check_hidden_state(episodes),
        isolation.check_read_back(episodes),
        verdicts.check_reference(episodes),
        verdicts.check_idle(episodes),
        verdicts.check_shortcuts(episodes),
        verdicts.check_verifier(episodes),
        tools.check_tools(episodes),
        tools.check_cost(episodes),
    ]


def _endless(play: Play, failure: PlayFailure) -> list[Finding]:
    """The findings if an episode does not end: no other check can run."""
    check = {"seed": SEED, "play": TOOLS, "verify": VERIFIER}[failure.phase]
    told = finding(check, [Fault(f"task {play.task}, by {play.policy.name}: {failure.why}")], "")
    return [told if name == check else skipped(name, "an episode does not end") for name in PLAYED]

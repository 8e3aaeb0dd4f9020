"""`check_environment`: run all checks on an environment."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from stateroom.agent import request_of
from stateroom.environment import Environment, make_environment
from stateroom.errors import BadTask, NotFound, StateroomError
from stateroom.rollout.check import isolation, tools, verdicts
from stateroom.rollout.check.episodes import Episodes, Play, PlayFailure
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
    listed,
    skipped,
)
from stateroom.rollout.rows import Row
from stateroom.rollout.tasks import example_file, generate_tasks, has_prompt, read_tasks
from stateroom.session import contained
from stateroom.state import deep_equal

NO_ARGUMENTS: Mapping[str, Any] = {}

MAX_TASKS_PLAYED = 20
"""The most tasks played by default."""

TASKS_GENERATED = 5
"""The number of generated tasks that are checked."""


async def check_environment(
    environment: type[Environment[Any, Any]],
    task_file: Path | None = None,
    *,
    env_args: Mapping[str, Any] = NO_ARGUMENTS,
    everything: bool = False,
    on_play: Callable[[], None] = lambda: None,
) -> CheckReport:
    """Check an environment with the tasks of a file, its examples, or generated tasks.

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
        findings = [tools.check_schema(instance, ()), unread, *_skipped(PLAYED, "the tasks are invalid")]
        return CheckReport(environment.name, findings)
    findings = [tools.check_schema(instance, rows), _check_tasks(instance, rows, source)]
    chosen = dict(enumerate(rows)) if everything else _sample(rows)
    async with Episodes(environment, env_args, chosen, on_play) as episodes:
        findings += await _check_episodes(episodes)
        outcomes = verdicts.outcomes(episodes, len(rows))
    return CheckReport(environment.name, findings, len(rows), len(chosen), outcomes)


def _skipped(checks: Sequence[str], why: str) -> list[Finding]:
    return [skipped(name, why) for name in checks]


def _rows(environment: Environment[Any, Any], task_file: Path | None) -> tuple[Sequence[Row], str]:
    """The tasks to check with, and their source."""
    kind = type(environment)
    path = task_file or example_file(kind)
    if path is not None:
        return read_tasks(path, environment), path.name
    if not _has_generator(kind):
        raise NotFound("the environment has no tasks; set examples = 'tasks.jsonl', or give a file as `input`")
    return _generated(kind, MAX_TASKS_PLAYED), "the generator"


async def _check_episodes(episodes: Episodes) -> list[Finding]:
    if episodes.endless is not None and episodes.endless.failure is not None:
        return _endless(episodes.endless, episodes.endless.failure)
    seeded = await isolation.check_seed(episodes)
    if seeded.result == "problem":
        return [seeded, *_skipped(PLAYED[1:], "seeding failed its check")]
    same = await isolation.check_determinism(episodes)
    isolated = (
        skipped(ISOLATION, "episodes differ each time, so they cannot be compared")
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
    """The findings for an endless episode, after which no other check can run."""
    check = {"seed": SEED, "play": TOOLS, "verify": VERIFIER}[failure.phase]
    endless = finding(check, [Fault(f"task {play.task}, by {play.policy.name}: {failure.why}")], "")
    return [endless if name == check else skipped(name, "an episode does not end") for name in PLAYED]


# The check `tasks`: every row can be used, and has a prompt.


def _check_tasks(environment: Environment[Any, Any], rows: Sequence[Row], source: str) -> Finding:
    """Each row has a prompt and a unique id, and names only tools that exist."""
    bare = [] if environment.user_opens else _without_prompt(rows)
    faults = [*bare, *_alike(rows), *_unknown_tools(environment, rows)]
    if _has_generator(type(environment)):
        faults += _generator_faults(environment)
    return finding(TASKS, faults, f"{len(rows)} from {source}, all different")


def _has_generator(environment: type[Environment[Any, Any]]) -> bool:
    """Whether an environment generates tasks."""
    return environment.generate.__func__ is not Environment.generate.__func__  # type: ignore[attr-defined]


def _generated(environment: type[Environment[Any, Any]], number: int) -> list[Row]:
    """Tasks that an environment generates. Raises `BadTask` if its generator fails."""
    try:
        with contained:
            return generate_tasks(environment, number, seed=0)
    except Exception as error:
        raise BadTask(f"generate failed: {type(error).__name__}: {error}") from error


def _generator_faults(environment: Environment[Any, Any]) -> Iterator[Fault]:
    try:
        first, again = (_generated(type(environment), TASKS_GENERATED) for _ in range(2))
    except BadTask as error:
        yield Fault(str(error))
        return
    if not deep_equal(first, again):
        yield Fault("generate returns different tasks for the same seed; use only `rng` for randomness")
    for row in first:
        try:
            environment.parse_task(row)
        except BadTask as error:
            yield Fault(f"generate returns an invalid task: {error}")
            return


def _sample(rows: Sequence[Row]) -> dict[int, Row]:
    """Some of the rows by number, evenly spaced."""
    number = min(MAX_TASKS_PLAYED, len(rows))
    return {index: rows[index] for index in (place * len(rows) // number for place in range(number))}


def _without_prompt(rows: Sequence[Row]) -> Iterator[Fault]:
    bare = [number for number, row in enumerate(rows) if not has_prompt(row)]
    if bare:
        yield Fault(f"task {listed(bare)}: no prompt; add one in responses_create_params.input", False)


def _alike(rows: Sequence[Row]) -> Iterator[Fault]:
    for numbers in _groups((row["id"], number) for number, row in enumerate(rows) if _has_id(row)):
        yield Fault(f"task {listed(numbers)}: duplicate id {rows[numbers[0]]['id']!r}")
    without_ids = ({name: value for name, value in row.items() if name != "id"} for row in rows)
    for numbers in _groups((json.dumps(row, sort_keys=True), number) for number, row in enumerate(without_ids)):
        yield Fault(f"task {listed(numbers)}: identical tasks, which count more than once", False)


def _has_id(row: Row) -> bool:
    return isinstance(row.get("id"), str | int)


def _groups(numbered: Iterable[tuple[Hashable, int]]) -> list[list[int]]:
    """The numbers of equal items, grouped."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for thing, number in numbered:
        groups[thing].append(number)
    return [numbers for numbers in groups.values() if len(numbers) > 1]


def _unknown_tools(environment: Environment[Any, Any], rows: Sequence[Row]) -> Iterator[Fault]:
    for number, row in enumerate(rows):
        offered = request_of(row).get("tools") or []
        unknown = [tool.get("name") for tool in offered if tool.get("name") not in environment.tools]
        if unknown:
            yield Fault(f"task {number}: unknown tool {listed(unknown)}")

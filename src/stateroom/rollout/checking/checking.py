"""Checking an environment before anything runs on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stateroom.environment import Environment
from stateroom.errors import BadTask, NotFound
from stateroom.rollout.checking import cost, schema, tasks, tools
from stateroom.rollout.checking.actors import REFERENCE
from stateroom.rollout.checking.bench import Bench, played
from stateroom.rollout.checking.determinism import DETERMINISM, SEED, check_determinism, check_seed
from stateroom.rollout.checking.finding import Fault, Finding, finding, skipped
from stateroom.rollout.checking.isolation import (
    HIDDEN,
    ISOLATION,
    READ_BACK,
    check_hidden_state,
    check_isolation,
    check_read_back,
)
from stateroom.rollout.checking.playing import Broke, Play
from stateroom.rollout.checking.verdicts import IDLE, VERIFIER, check_idle, check_reference, check_verifier
from stateroom.rollout.tasks import example_file, read_tasks
from stateroom.rollout.world import Row
from stateroom.session.containment import contained

PLAYED = (SEED, DETERMINISM, ISOLATION, HIDDEN, READ_BACK, REFERENCE, IDLE, VERIFIER, tools.NAME, cost.NAME)
"""The checks that play episodes, in the order in which they are told."""


@dataclass(frozen=True)
class Report:
    """What all checks of an environment came to."""

    environment: str
    findings: list[Finding] = field(default_factory=list)
    tasks: int = 0
    played: int = 0
    """How many of the tasks were played."""

    @property
    def problems(self) -> list[str]:
        """What has to be mended, each with the name of its check."""
        return [f"{each.check}: {line}" for each in self.findings for line in each.found[: each.problems]]


async def check(
    environment: type[Environment[Any, Any]],
    task_file: Path | None = None,
    *,
    everything: bool = False,
    on_play: Callable[[], None] = lambda: None,
) -> Report:
    """Check an environment by its tasks: those of a file, or its examples, or else such as it generates.

    Of many tasks some are played, unless it is to be `everything`. `on_play` is told of each episode.
    """
    try:
        with contained:
            instance = environment()
    except Exception as error:  # noqa: BLE001 - whatever an author's own code raises
        told = f"{environment.__name__}() cannot be made without arguments: {type(error).__name__}: {error}"
        return undefined(environment.name, told)
    findings = [schema.check_schema(instance)]
    try:
        rows, source = _rows(instance, task_file)
    except (BadTask, NotFound) as error:
        findings.append(finding(tasks.NAME, [Fault(line) for line in str(error).splitlines()], ""))
        return Report(environment.name, [*findings, *_skipped(PLAYED, "the tasks cannot be used")])
    findings.append(tasks.check_tasks(instance, rows, source))
    chosen = dict(enumerate(rows)) if everything else tasks.sample(rows)
    async with played(environment, chosen, on_play) as bench:
        findings += await _looked_at(bench)
    return Report(environment.name, findings, len(rows), len(chosen))


def undefined(name: str, why: str) -> Report:
    """The report on an environment that cannot even be made."""
    return Report(name, [finding(schema.NAME, [Fault(why)], ""), *_skipped((tasks.NAME, *PLAYED), "it is not defined")])


def _skipped(checks: Sequence[str], why: str) -> list[Finding]:
    return [skipped(name, why) for name in checks]


def _rows(environment: Environment[Any, Any], task_file: Path | None) -> tuple[list[Row], str]:
    """The tasks to check with, and where they are from."""
    kind = type(environment)
    path = task_file or example_file(kind)
    if path is not None:
        return read_tasks(path, environment), path.name
    if not tasks.generates(kind):
        raise NotFound("there are no tasks: set examples = 'tasks.jsonl', or give a file with --tasks")
    return tasks.generated(kind, tasks.SAMPLE), "the generator"


def _stopped(play: Play, broke: Broke) -> list[Finding]:
    """What can be told if something does not end: it would not a second time, either."""
    check = {"seed": SEED, "play": tools.NAME, "verify": VERIFIER}[broke.where]
    told = finding(check, [Fault(f"task {play.task}, by {play.actor.name}: {broke.why}")], "")
    return [told if name == check else skipped(name, "an episode does not end") for name in PLAYED]


async def _looked_at(bench: Bench) -> list[Finding]:
    if bench.stuck is not None and bench.stuck.broke is not None:
        return _stopped(bench.stuck, bench.stuck.broke)
    seeded = await check_seed(bench)
    if seeded.result == "problem":
        return [seeded, *_skipped(PLAYED[1:], "the seeds are not in order")]
    same = await check_determinism(bench)
    apart = (
        skipped(ISOLATION, "episodes differ each time, so that nothing can be told")
        if same.result == "problem"
        else await check_isolation(bench)
    )
    hidden, read_back = check_hidden_state(bench), check_read_back(bench)
    judged = [check_reference(bench), check_idle(bench), check_verifier(bench)]
    return [seeded, same, apart, hidden, read_back, *judged, tools.check_tools(bench), cost.check_cost(bench)]

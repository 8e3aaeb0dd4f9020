"""Rescoring: new rewards for rollouts, from stored sessions or by running their calls again."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from msgspec import structs

from stateroom.environment import Environment
from stateroom.errors import BadTask, CannotWrite, NotFound, StoreUnavailable
from stateroom.jsonl import Appender, line_of, quick_line_of, read_lines, repair, replace_lines
from stateroom.rollout.description import RunDescription, arguments_of, changed_arguments
from stateroom.rollout.files import RunFiles, ensure_new
from stateroom.rollout.index import RunIndex
from stateroom.rollout.metrics import SOLVED, aggregate_lazily
from stateroom.rollout.plan import agent_ref
from stateroom.rollout.replay import find_inputs
from stateroom.rollout.rows import (
    COST,
    EDITED,
    FAILURE,
    INDICES,
    REVERIFIED,
    SESSION,
    TOKENS,
    Key,
    Row,
    RowsOf,
    failure_fields,
    key_of,
    parse_row,
    response_fields,
    verdict_fields,
)
from stateroom.rollout.runner import run_all
from stateroom.rollout.scorer import FirstScorer, RowVerdict, StoredScorer, open_scorer
from stateroom.rollout.search import ANSWERS, Search
from stateroom.session import contained
from stateroom.store import Store

RUNNERS_FIELDS = ("response", "tool_calls", "truncated", *TOKENS, COST)
RUNNERS_PREFIXES = ("_ng_", "_stateroom_")
"""Fields of a row that belong to the runner and that verdicts do not replace."""


class RewardChange(NamedTuple):
    """A reward before and after."""

    task: int
    before: float
    after: float


class TaskChange(NamedTuple):
    """The mean rewards of a task's episodes."""

    task: int
    episodes: int
    before: float
    after: float


@dataclass
class RescoreReport:
    """The results of scoring rows."""

    rows: Sequence[Row] = ()
    """The measurements and indices of the scored rows."""
    changes: list[RewardChange] = field(default_factory=list)
    """The rewards before and after, for rows that had a reward before."""
    reasons: Counter[str] = field(default_factory=Counter)
    """The number of refused rows per reason."""
    edited: int = 0
    """Scored rows that a person edited, which cannot be compared."""
    resumed: int = 0
    """Rows that were scored before an interruption."""
    metrics: dict[str, Any] = field(default_factory=dict)
    changed_arguments: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """The constructor arguments that differ from the run: the run's value and the current one."""

    @property
    def refused(self) -> int:
        """Rows that could not be scored."""
        return self.reasons.total()

    def refuse(self, row: Row, error: BaseException) -> Row:
        """Count a row that could not be scored; returns the row for the failures file."""
        failure = {**row, **failure_fields(error, otherwise="refused")}
        self.reasons[failure["error"].replace(repr(row.get(SESSION)), "…")] += 1
        return failure

    def tasks(self) -> list[TaskChange]:
        """The tasks whose mean reward changed, largest changes first."""
        by_task: dict[int, list[RewardChange]] = defaultdict(list)
        for change in self.changes:
            by_task[change.task].append(change)
        means = (
            TaskChange(task, len(some), fmean(one.before for one in some), fmean(one.after for one in some))
            for task, some in by_task.items()
        )
        changed = [task for task in means if task.before != task.after]
        return sorted(changed, key=lambda task: (-abs(task.after - task.before), task.task))


# New verdicts for all rows.


async def rescore_rollouts(
    environment: Environment[Any, Any],
    rollouts: Path,
    files: RunFiles,
    store: Store | None = None,
    *,
    tasks: Path | None = None,
    at: int | None = None,
    solved_threshold: float | None = None,
    concurrency: int = 32,
    on_row: Callable[[], None] = lambda: None,
) -> RescoreReport:
    """Score all rows of a rollouts file again, and write each to `files` when it is scored.

    `store` has the sessions that the rows name. If they name none, a verifier that reads more than the response gets a
    session in which the calls of the row have run again; `tasks` is the task file for rows without the fields of their
    tasks. `at` is the revision to score or, if negative, a number of steps before the scored one. `solved_threshold` is
    the lowest reward that counts as solved, by default as in the run. `on_row` is called for each row. Rows that cannot
    be scored go to the failures file with the reason. After an interruption, repeat the call to continue. Raises
    `CannotWrite` if `files` come from other rollouts, or from another environment or revision.
    """
    _ensure_exists(rollouts)
    if environment.state_type is None and at is not None:
        raise NotFound(f"{environment.name} is stateless, so you cannot choose a revision")
    if at is not None or names_sessions(rollouts):
        _ensure_store(environment, store)
    report = RescoreReport(changed_arguments=changed_arguments(environment, RunFiles(rollouts)))
    seen: set[Key] = set()
    digest_of = partial(_digest, environment, at)
    inputs = partial(find_inputs, rollouts, environment, tasks)
    async with open_scorer(environment, inputs, store, partial(StoredScorer, at=at)) as scorer:
        done = _resume(rollouts, files, digest_of, report)
        description = _description(environment, RunFiles(rollouts), files, solved_threshold)
        with description.timed(files), Appender(files.rollouts) as scored, Appender(files.failures) as failures:

            async def score(job: tuple[int, bytes]) -> None:
                number, line = job
                digest = digest_of(line)
                row: Row = {}
                try:
                    with contained:
                        row = parse_row(line, number)
                        if key_of(row) in seen:
                            raise BadTask("duplicate episode: an earlier row has the same task and rollout index")
                        seen.add(key_of(row))
                        if digest not in done:
                            scored.write(quick_line_of(_rescored_row(row, await scorer.score(row), digest)))
                except (StoreUnavailable, CannotWrite):
                    raise  # not caused by the row
                except Exception as error:  # noqa: BLE001 - the author's code may raise anything
                    failures.append(report.refuse(row, error))
                on_row()

            await run_all(read_lines(rollouts), concurrency, score)
    _read_changes(report, RunIndex.of(files))
    if not (report.rows or report.refused):
        raise BadTask(f"{rollouts} has no rows")
    report.metrics = aggregate_lazily(report.rows, description.solved_threshold)
    files.write_metrics(_agent(files) or agent_ref(environment), report.metrics)
    return report


def _description(
    environment: Environment[Any, Any], of: RunFiles, files: RunFiles, solved_threshold: float | None
) -> RunDescription:
    """The description of rescored rollouts: the run's description with new times."""
    description = RunDescription.read(of) or RunDescription(environment.name)
    before = RunDescription.read(files)
    return structs.replace(
        description,
        env_args=arguments_of(environment),
        options={**description.options, "rescored": str(of.rollouts)},
        solved_threshold=description.solved_threshold if solved_threshold is None else solved_threshold,
        started=None if before is None else before.started,
        finished=None,
        elapsed=0.0 if before is None else before.elapsed,
    )


def names_sessions(rollouts: Path) -> bool:
    """Whether rollouts name their sessions, which those of other programs do not. Raises `NotFound` if missing."""
    _ensure_exists(rollouts)
    return any(b'"%b"' % SESSION.encode() in line for _, line in read_lines(rollouts))


def _ensure_store(environment: Environment[Any, Any], store: Store | None) -> None:
    if environment.state_type is not None and store is None:
        raise NotFound(f"{environment.name} has a state, so name the store of its sessions")


def _ensure_exists(rollouts: Path) -> None:
    if not rollouts.is_file():
        raise NotFound(f"the rollouts file {rollouts} does not exist")


def _rescored_row(row: Row, scored: RowVerdict, digest: str) -> Row:
    """A row with the old verdict replaced by a new one."""
    fields = _checked_fields(scored)
    others = {name: value for name, value in row.items() if name not in scored.old and name != EDITED}
    uncovered = {name: scored.task[name] for name in scored.old if name in scored.task}
    change = {"reward": row.get("reward"), "revision": scored.revision, "fields": [*fields], "of": digest}
    return {**others, **uncovered, **fields, **_runners_fields(row, scored), REVERIFIED: change}


def _checked_fields(scored: RowVerdict) -> Row:
    """The fields of a new verdict. Raises `TypeError` if they are not JSON data."""
    fields = verdict_fields(scored.verdict)
    json.dumps(fields)
    return fields


def _runners_fields(row: Row, scored: RowVerdict) -> Row:
    fields = {name: row[name] for name in row if name in RUNNERS_FIELDS or name.startswith(RUNNERS_PREFIXES)}
    fields.pop(EDITED, None)  # refers to the state that was scored before
    return {**fields, EDITED: True} if scored.edited else fields


def _agent(files: RunFiles) -> Any:
    """The model of the episodes as named in the rows."""
    return next((row["agent_ref"] for row in RowsOf(files.rollouts) if row.get("agent_ref")), None)


def _read_changes(report: RescoreReport, index: RunIndex) -> None:
    """Add rescored rows to the report."""
    report.rows = Search(index).measured()
    rewards = index.select("SELECT task, before, reward FROM rows WHERE before NOTNULL AND reward NOTNULL ORDER BY id")
    report.changes = [RewardChange(*row) for row in rewards]
    [(report.edited,)] = index.select("SELECT count(*) FROM rows WHERE edited")


def _digest(environment: Environment[Any, Any], at: int | None, line: bytes) -> str:
    """Identifies the original row and the settings of a rescored row."""
    kind = type(environment)
    asked = f"{kind.__module__}\n{kind.__qualname__}\n{at}\n{environment.made_with or ''}\n".encode()
    return blake2b(asked + line, digest_size=16).hexdigest()


def _resume(rollouts: Path, files: RunFiles, digest_of: Callable[[bytes], str], report: RescoreReport) -> set[str]:
    """Create or repair the output file; returns the digests of finished rows, which the report counts."""
    path = files.rollouts
    if not path.exists():
        files.prepare()
        with Appender(path) as scored:
            scored.write(b"")  # so the file exists even if no row can be scored
        return set()
    _ensure_same_rows(path)
    repair(path)
    done = {parse_row(line, number)[REVERIFIED]["of"] for number, line in read_lines(path)}
    if not done <= {digest_of(line) for _, line in read_lines(rollouts)}:
        raise CannotWrite(f"{path} is from other rollouts, or another environment or revision; give another `output`")
    report.resumed = len(done)
    files.failures.unlink(missing_ok=True)  # refused rows are retried
    return done


def _ensure_same_rows(path: Path) -> None:
    """Refuse a file with rows that are not rescored, before changing it."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.endswith(b"\n") and REVERIFIED not in parse_row(line, number):
                ensure_new(path)


# First verdicts for episodes whose judge failed.


async def score_failures(
    environment: Environment[Any, Any],
    files: RunFiles,
    store: Store | None = None,
    *,
    solved_threshold: float | None = None,
    concurrency: int = 32,
    on_row: Callable[[], None] = lambda: None,
) -> RescoreReport:
    """Score the episodes of a run that have no verdict because their judge failed; `on_row` is called for each.

    Scored episodes move from the failures file to the rollouts file; the report has the reasons for the others. After
    an interruption, repeat the call to continue. No other process may write to the run's files meanwhile.
    """
    _ensure_exists(files.rollouts)
    _ensure_store(environment, store)
    report = RescoreReport(changed_arguments=changed_arguments(environment, files))
    async with AsyncExitStack() as stack:
        stack.enter_context(files.lock())
        repair(files.rollouts)
        index = RunIndex.of(files)
        index.ensure_whole("inputs", "rollouts")
        waiting, inputs, rows = unscored_rows(files), index.inputs, list[Row]()
        for key in [*waiting]:  # an interruption may leave rows in both files
            for (reward,) in index.select(f"SELECT reward FROM {ANSWERS} AND task = ? AND rollout = ?", key):
                del waiting[key]
                rows.append({**dict(zip(INDICES, key, strict=True)), "reward": reward})
                report.resumed += 1
        first_scorer = open_scorer(environment, lambda: inputs, store, partial(FirstScorer, inputs=inputs))
        scorer = await stack.enter_async_context(first_scorer)
        rollouts = stack.enter_context(Appender(files.rollouts))

        async def score(row: Row) -> None:
            try:
                with contained:
                    if "reward" in row:
                        again = "run the same reverify command again"
                        raise BadTask(f"the episode already has a reward, and rescoring it failed; {again}")
                    done = _scored_row(row, await scorer.score(row))
                    rollouts.write(line_of(done))
                    rows.append(done)
                    report.edited += bool(done.get(EDITED))
            except (StoreUnavailable, CannotWrite):
                raise  # not caused by the row
            except Exception as error:  # noqa: BLE001 - the author's code may raise anything
                report.refuse(row, error)
            on_row()

        await run_all(waiting.values(), concurrency, score)
        if solved_threshold is None:
            described = RunDescription.read(files)
            solved_threshold = SOLVED if described is None else described.solved_threshold
        report.rows = rows
        report.metrics = aggregate_lazily(Search(RunIndex.of(files)).measured(), solved_threshold)
        if rows:
            _remove_scored(files.failures, {key_of(row) for row in rows})
            files.write_metrics(_agent(files), report.metrics)
    return report


def unscored_rows(files: RunFiles) -> dict[Key, Row]:
    """The episodes in the failures file that lack only a verdict; the last row of each episode counts."""
    return {
        key_of(row): {name: value for name, value in row.items() if name not in FAILURE}
        for _, row in _failures(files.failures)
        if _lacks_a_verdict(row)
    }


def _remove_scored(path: Path, scored: set[Key]) -> None:
    """Remove episodes that now have a verdict from the failures file."""
    left = [line for line, row in _failures(path) if not (_lacks_a_verdict(row) and key_of(row) in scored)]
    if left:
        replace_lines(path, (line + b"\n" for line in left))
    else:
        path.unlink()


def _failures(path: Path) -> Iterator[tuple[bytes, Row]]:
    """The lines of the failures file with their rows; an unreadable line has an empty row."""
    for number, line in read_lines(path) if path.exists() else ():
        try:
            yield line, parse_row(line, number)
        except BadTask:  # incomplete
            yield line, {}


def _lacks_a_verdict(row: Row) -> bool:
    return row.get("_ng_failure_class") == "judge"


def _scored_row(row: Row, scored: RowVerdict) -> Row:
    """The row with this verdict, as the run would have written it."""
    fields = _checked_fields(scored)
    return {**scored.task, **fields, **response_fields(row.get("response")), **_runners_fields(row, scored)}

"""Episodes of a run that ended without a verdict, since a judge's model failed: they get it later."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from stateroom.environment import Environment
from stateroom.errors import BadTask, CannotWrite, NotFound, StoreUnavailable
from stateroom.rollout.files import Appender, RunFiles, line_of, write_whole
from stateroom.rollout.judges import Judged, OpenJudge, is_runners, judging
from stateroom.rollout.measured import TOKENS, Measured
from stateroom.rollout.metrics import aggregate
from stateroom.rollout.reverify import Reverified
from stateroom.rollout.rows import Key, inputs_of, key_of, lines_of, row_of, verdict_fields
from stateroom.rollout.workers import share_out
from stateroom.rollout.world import Row
from stateroom.session.containment import contained
from stateroom.store import Store

FAILURE = frozenset({"_ng_failure_class", "_ng_failure_terminal", "error"})
"""Fields that say how an episode broke down."""


@dataclass(frozen=True)
class Unjudged:
    """A run, some of whose episodes lack a verdict."""

    environment: Environment[Any, Any]
    files: RunFiles
    store: Store | None = None
    """Where the sessions are; an environment without a state has none."""
    concurrency: int = 32


async def judge_unjudged(plan: Unjudged, on_row: Callable[[], None] = lambda: None) -> Reverified:
    """Judge the episodes that lack a verdict; those that get it go from the failures to the rollouts.

    The others stay where they are, and the report says why. If this was interrupted, doing it again goes on where it
    ended. The run itself must have ended: nobody else may write to its files meanwhile.
    """
    files = plan.files
    if not files.rollouts.is_file():
        raise NotFound(f"there is no rollouts file {files.rollouts}")
    with files.held():
        return await _judge_all(plan, on_row)


async def _judge_all(plan: Unjudged, on_row: Callable[[], None]) -> Reverified:
    files = plan.files
    _mend_the_end(files.rollouts)
    report, waiting, inputs = Reverified(), waiting_in(files), inputs_of(files.rollouts)
    everything = Measured(inputs)
    for number, line in lines_of(files.rollouts):
        row = row_of(line, number)
        noted = everything.note(row)
        if waiting.pop(key_of(row), None) is not None:  # this was interrupted before
            report.rows.append(noted)
            report.resumed += 1
    stored = partial(OpenJudge, plan.environment, inputs=inputs)
    async with judging(plan.environment, lambda: inputs, plan.store, stored) as judge:
        with Appender(files.rollouts) as rollouts:

            async def do(row: Row) -> None:
                try:
                    with contained:
                        _refuse_judged(row)
                        done = _ended(row, await judge.judge(row))
                        rollouts.write(line_of(done))
                        report.rows.append(everything.note(done))
                except (StoreUnavailable, CannotWrite):
                    raise  # it is not the row's fault
                except Exception as error:  # noqa: BLE001 - whatever an author's own code raises
                    report.refuse(row, error)
                on_row()

            await share_out(waiting.values(), plan.concurrency, do)
    report.metrics = aggregate(everything.rows())
    if report.rows:
        _take_out(files.failures, {key_of(row) for row in report.rows})
        files.write_metrics(everything.agent, report.metrics)
    return report


# The failures file.


def waiting_in(files: RunFiles) -> dict[Key, Row]:
    """The episodes among a run's failures that lack nothing but a verdict; of one that is there twice, the last."""
    found = (row for _, row in _failures(files.failures) if _waits(row))
    return {key_of(row): {name: value for name, value in row.items() if name not in FAILURE} for row in found}


def _take_out(path: Path, judged: set[Key]) -> None:
    """Leave all in the failures file but the episodes that have a verdict now."""
    left = [line for line, row in _failures(path) if not (_waits(row) and key_of(row) in judged)]
    if left:
        write_whole(path, (line + b"\n" for line in left))
    else:
        path.unlink()


def _failures(path: Path) -> Iterator[tuple[bytes, Row]]:
    """The lines of the failures file, and what they say: nothing, if that cannot be read."""
    for number, line in lines_of(path) if path.exists() else ():
        try:
            yield line, row_of(line, number)
        except BadTask:  # cut short
            yield line, {}


def _waits(row: Row) -> bool:
    return row.get("_ng_failure_class") == "judge"


def _refuse_judged(row: Row) -> None:
    if "reward" in row:
        raise BadTask(
            "the episode had a reward, and was to get a new one: the same reverify as then tries again what failed"
        )


# The rollouts file.


def _ended(row: Row, judged: Judged) -> Row:
    """The row that the run would have written, had it had the verdict."""
    fields = verdict_fields(judged.verdict)
    json.dumps(fields)  # all else was JSON before, and the verifier's part must be too
    own = {name: value for name, value in row.items() if is_runners(name)}
    return {**judged.task, **fields, **_seen_in(row.get("response")), **own}


def _seen_in(response: Any) -> Row:
    """What the runner measures in a response."""
    if not isinstance(response, dict):
        return {}
    calls = sum(item.get("type") == "function_call" for item in response.get("output", ()))
    usage = response.get("usage") or {}
    return {
        "tool_calls": calls,
        "truncated": int(response.get("status") == "incomplete"),
        **{name: usage[name] for name in TOKENS if name in usage},
    }


def _mend_the_end(path: Path) -> None:
    """See that the file ends with a whole line: whoever was killed while writing one has left no row."""
    end, line = 0, b"\n"
    with path.open("rb+") as file:
        for line in file:
            end += len(line)
        if line.endswith(b"\n"):
            return
        try:
            json.loads(line)
        except ValueError:
            file.truncate(end - len(line))
        else:
            file.write(b"\n")

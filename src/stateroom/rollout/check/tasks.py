"""The check `tasks`: every row can be used, and has a prompt."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

from stateroom.environment import Environment
from stateroom.errors import BadTask
from stateroom.rollout.check.findings import TASKS, Fault, Finding, finding, listed
from stateroom.rollout.rows import Row
from stateroom.rollout.tasks import generate_tasks, has_prompt
from stateroom.session import contained
from stateroom.state import deep_equal

SAMPLE = 20
"""Tasks that are played by default."""

GENERATED = 5
"""Generated tasks that are checked."""


def check_tasks(environment: Environment[Any, Any], rows: Sequence[Row], source: str) -> Finding:
    """Each row has a prompt and an id of its own, and names only tools that exist."""
    bare = [] if environment.user_opens else _without_prompt(rows)
    faults = [*bare, *_alike(rows), *_unknown_tools(environment, rows)]
    if has_generator(type(environment)):
        faults += _generator_faults(environment)
    return finding(TASKS, faults, f"{len(rows)} from {source}, no two alike")


def has_generator(environment: type[Environment[Any, Any]]) -> bool:
    """Whether an environment has a generator of tasks."""
    return environment.generate.__func__ is not Environment.generate.__func__  # type: ignore[attr-defined]


def generated(environment: type[Environment[Any, Any]], number: int) -> list[Row]:
    """Tasks of an environment's generator; `BadTask` if it fails."""
    try:
        with contained:
            return generate_tasks(environment, number, seed=0)
    except Exception as error:
        raise BadTask(f"generate broke down: {type(error).__name__}: {error}") from error


def _generator_faults(environment: Environment[Any, Any]) -> Iterator[Fault]:
    try:
        first, again = (generated(type(environment), GENERATED) for _ in range(2))
    except BadTask as error:
        yield Fault(str(error))
        return
    if not deep_equal(first, again):
        yield Fault("generate gives other tasks for the same seed; use only `rng` for chance")
    for row in first:
        try:
            environment.parse_task(row)
        except BadTask as error:
            yield Fault(f"generate gives a row that is not a task: {error}")
            return


def sample(rows: Sequence[Row]) -> dict[int, Row]:
    """Some of the rows by number, evenly spread."""
    number = min(SAMPLE, len(rows))
    return {index: rows[index] for index in (place * len(rows) // number for place in range(number))}


def _without_prompt(rows: Sequence[Row]) -> Iterator[Fault]:
    bare = [number for number, row in enumerate(rows) if not has_prompt(row)]
    if bare:
        yield Fault(f"task {listed(bare)}: there is no prompt; put one into responses_create_params.input", False)


def _alike(rows: Sequence[Row]) -> Iterator[Fault]:
    for numbers in _groups((row["id"], number) for number, row in enumerate(rows) if _has_id(row)):
        yield Fault(f"task {listed(numbers)}: they have the same id, {rows[numbers[0]]['id']!r}")
    without_ids = ({name: value for name, value in row.items() if name != "id"} for row in rows)
    for numbers in _groups((json.dumps(row, sort_keys=True), number) for number, row in enumerate(without_ids)):
        yield Fault(f"task {listed(numbers)}: they are the same, and count more than once", False)


def _has_id(row: Row) -> bool:
    return isinstance(row.get("id"), str | int)


def _groups(numbered: Iterable[tuple[Hashable, int]]) -> list[list[int]]:
    """The numbers of things that are equal to one another."""
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for thing, number in numbered:
        groups[thing].append(number)
    return [numbers for numbers in groups.values() if len(numbers) > 1]


def _unknown_tools(environment: Environment[Any, Any], rows: Sequence[Row]) -> Iterator[Fault]:
    for number, row in enumerate(rows):
        told = row.get("responses_create_params", {}).get("tools") or []
        unknown = [tool.get("name") for tool in told if tool.get("name") not in environment.tools]
        if unknown:
            yield Fault(f"task {number}: it names {listed(unknown)}, and there is no such tool")

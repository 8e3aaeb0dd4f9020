"""Task files, whose rows are checked before a run."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from os import PathLike
from pathlib import Path
from random import Random
from typing import Any

from pydantic_core import PydanticSerializationError, to_jsonable_python

from stateroom.agent import task_items
from stateroom.environment import Environment, variant_of
from stateroom.errors import BadTask, InvalidOption, NotFound
from stateroom.jsonl import parse_object
from stateroom.model import text_of
from stateroom.rollout.lazy import SpooledRows
from stateroom.rollout.rows import Row
from stateroom.rollout.source import read_source

MAX_COMPLAINTS = 10
"""The most invalid rows in one error."""


class RemoteEnvironment(Environment):
    """A placeholder for an environment that only a server has; the rows describe its tools."""


def example_file(environment: type[Environment[Any, Any]]) -> Path | None:
    """The environment's file of example tasks, next to its module or that of a base class."""
    if environment.examples is None:
        return None
    bases = environment.__mro__[: environment.__mro__.index(Environment)]
    paths = [Path(inspect.getfile(base)).parent / environment.examples for base in bases]
    return next((path for path in paths if path.is_file()), paths[0])


def find_tasks(environment: Environment[Any, Any], given: str | PathLike[str] | Iterable[Any] | None) -> Sequence[Row]:
    """The tasks in a file, or in a list; by default the environment's examples."""
    if given is None:
        given = example_file(type(environment))
    if given is None:
        raise InvalidOption("input", f"give a task file, because {environment.name} has no examples")
    if isinstance(given, str | PathLike):
        return read_tasks(Path(given), environment)
    return check_tasks(given, environment)


def read_tasks(path: Path, environment: Environment[Any, Any]) -> Sequence[Row]:
    """The rows of a task file of any format. Raises `BadTask` with the file, line and field of invalid rows."""
    if not path.exists():
        raise NotFound(f"the task file {path} does not exist")
    return _checked(read_source(path, other=".jsonl"), environment, f"{path} has no tasks")


def check_tasks(rows: Iterable[Any], environment: Environment[Any, Any]) -> Sequence[Row]:
    """Convert rows or typed tasks to rows. Raises `BadTask` with the index and field of invalid ones."""
    given = ((f"task {number}", row) for number, row in enumerate(rows))
    return _checked(given, environment, "the list of tasks is empty")


def _checked(given: Iterable[tuple[str, Any]], environment: Environment[Any, Any], none: str) -> Sequence[Row]:
    """Check rows, and keep them in a temporary file, because they may not fit into memory."""
    rows = SpooledRows()
    complaints: list[str] = []
    for where, each in given:
        try:
            rows.append(checked_row(each, environment))
        except BadTask as error:
            complaints.append(f"{where}: {error}")
    if complaints:
        more = [f"and {len(complaints) - MAX_COMPLAINTS} more"] if len(complaints) > MAX_COMPLAINTS else []
        raise BadTask("\n".join(complaints[:MAX_COMPLAINTS] + more))
    if not rows:
        raise BadTask(none)
    return rows


def checked_row(given: Any, environment: Environment[Any, Any]) -> Row:
    """Convert a line of a task file, a row or a typed task to a row. Raises `BadTask` if it is invalid."""
    try:
        row = parse_object(given) if isinstance(given, bytes) else to_jsonable_python(given)
    except (ValueError, PydanticSerializationError) as error:
        raise BadTask(str(error)) from None
    if not isinstance(row, dict):
        raise BadTask(f"a task row must be an object, not {row!r:.100}")
    variant_of(environment, row).parse_task(row)
    request = row.get("responses_create_params", {})
    given, tools = request.get("input"), request.get("tools")
    if not (given is None or isinstance(given, str) or _are_items(given)):
        raise BadTask("responses_create_params.input: must be a text or a list of items")
    if not (tools is None or _are_items(tools)):
        raise BadTask("responses_create_params.tools: must be a list of tools")
    return row


def has_prompt(row: Row) -> bool:
    """Whether a row has a prompt."""
    return any(text_of(item).strip() for item in task_items(row))


def _are_items(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def generate_tasks(environment: type[Environment[Any, Any]], number: int, seed: int) -> list[Row]:
    """Rows from the environment's generator; the same seed gives the same rows."""
    rng = Random(seed)
    return [environment.generate(rng) for _ in range(number)]


def missing_prompts(environment: Environment[Any, Any], tasks: Iterable[Row]) -> str | None:
    """A warning about tasks without a prompt; None if all have one, or the user speaks first."""
    if environment.user_opens:
        return None
    bare = [number for number, task in enumerate(tasks) if not has_prompt(task)]
    if not bare:
        return None
    what = "1 task has" if len(bare) == 1 else f"{len(bare):,} tasks have"
    return f"{what} no prompt (first: task {bare[0]}); add one in responses_create_params.input"

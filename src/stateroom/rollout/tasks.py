"""Task files: rows of JSONL, checked before anything runs."""

from __future__ import annotations

import inspect
from pathlib import Path
from random import Random
from typing import Any

from stateroom.environment import Environment, Task
from stateroom.errors import BadTask, NotFound
from stateroom.jsonl import parse_object, read_lines
from stateroom.rollout.rows import Row

MOST = 10
"""Bad rows that are reported at once."""


class RemoteEnvironment(Environment):
    """Stands for an environment that only a server has: the rows must describe its tools."""

    def parse_task(self, row: Any) -> Task:
        task = super().parse_task(row)
        if not task.responses_create_params.get("tools"):
            raise BadTask("responses_create_params.tools: needed here; or name the environment, which knows its tools")
        return task


def example_file(environment: type[Environment[Any, Any]]) -> Path | None:
    """The environment's file of example tasks."""
    if environment.examples is None:
        return None
    return Path(inspect.getfile(environment)).parent / environment.examples


def read_tasks(path: Path, environment: Environment[Any, Any]) -> list[Row]:
    """The rows of a task file. If some are bad, `BadTask` names each with file, line and field."""
    if not path.is_file():
        raise NotFound(f"there is no task file {path}")
    rows: list[Row] = []
    complaints: list[str] = []
    for number, line in read_lines(path):
        try:
            rows.append(_row(line, environment))
        except BadTask as error:
            complaints.append(f"{path}, line {number}: {error}")
    if complaints:
        more = [f"and {len(complaints) - MOST} more"] if len(complaints) > MOST else []
        raise BadTask("\n".join(complaints[:MOST] + more))
    if not rows:
        raise BadTask(f"{path} has no tasks")
    return rows


def _row(line: bytes, environment: Environment[Any, Any]) -> Row:
    try:
        row = parse_object(line)
    except ValueError as error:
        raise BadTask(str(error)) from None
    environment.parse_task(row)
    request = row.get("responses_create_params", {})
    given, tools = request.get("input"), request.get("tools")
    if not (given is None or isinstance(given, str) or _are_items(given)):
        raise BadTask("responses_create_params.input: should be a text or a list of items")
    if not (tools is None or _are_items(tools)):
        raise BadTask("responses_create_params.tools: should be a list of tools")
    return row


def _are_items(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def generate_tasks(environment: type[Environment[Any, Any]], number: int, seed: int) -> list[Row]:
    """Rows from the environment's own generator; the same seed gives the same rows."""
    rng = Random(seed)
    return [environment.generate(rng) for _ in range(number)]

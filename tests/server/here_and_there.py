"""Runs in this process and on a server, which must give the same files."""

import json
from pathlib import Path
from typing import Any

from stateroom import Environment
from stateroom.model import ModelSource, Policy
from stateroom.rollout import Report, RunFiles, RunPlan, run
from tests.plans import make_run
from tests.rows import OWN, rows, without


def plan(folder: Path, name: str, environment: Environment[Any, Any], policy: type[Policy], **more: Any) -> RunPlan:
    files, model = RunFiles(folder / f"{name}.jsonl"), ModelSource("some_policy", policy)
    settings: dict[str, Any] = {"environment": environment, "model": model, "files": files, "repeats": 3}
    return make_run(**(settings | more))


def lines(path: Path) -> list[str]:
    """The lines of a file in a fixed order, letter by letter but for the names of the sessions."""
    found = rows(path)
    names = [row.get("_stateroom_session") for row in found]
    assert None in names or len(set(names)) == len(names)
    return [json.dumps(without(row, *OWN)) for row in found]


async def run_to_failure(
    folder: Path, server: str, environment: Environment[Any, Any], policy: type[Policy], **more: Any
) -> dict[str, Any]:
    """The row of the only one of a run's episodes on a server that fails."""
    there = plan(folder, "there", environment, policy, **{"repeats": 1, **more}, server=server)
    report = await run(there)
    [failed] = rows(there.files.failures)
    assert (report.failed, str(report.first_error)) == (1, failed["error"])
    return failed


async def run_in_both(
    folder: Path, server: str, environment: Environment[Any, Any], policy: type[Policy], **more: Any
) -> tuple[Report, RunPlan]:
    """Run the same here and on the server; all files must be the same. Gives the report and the plan of the latter."""
    here = plan(folder, "here", environment, policy, **more)
    there = plan(folder, "there", environment, policy, server=server, **more)
    reports = [await run(here), await run(there)]
    assert [report.first_error for report in reports] == [None, None]
    assert lines(there.files.rollouts) == lines(here.files.rollouts)
    assert lines(there.files.inputs) == lines(here.files.inputs)
    assert there.files.metrics.read_bytes() == here.files.metrics.read_bytes()
    assert set(there.files.as_dict()) - {"tool_failures"} == {"rollouts", "inputs", "metrics", "run"}
    return reports[1], there

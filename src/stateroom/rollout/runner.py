"""The runner: collects episodes, in process, and loses none that finished."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from stateroom.agent import MAX_STEPS, Trajectory, act
from stateroom.environment import Environment
from stateroom.errors import PolicyFailed, StateroomError, StoreError
from stateroom.model import Policy, input_items
from stateroom.rollout.files import Appender, RunFiles, line_of
from stateroom.rollout.metrics import aggregate
from stateroom.rollout.rows import verdict_fields
from stateroom.rollout.tasks import Row
from stateroom.session import Session, Sessions
from stateroom.store import open_store

logger = logging.getLogger(__name__)

EPOCH = 1_735_689_600.0
"""When the clocks of a run's sessions start, so that the same run gives the same rows: 1 January 2025."""


@dataclass(frozen=True)
class Run:
    """What is to be run."""

    environment: Environment[Any, Any]
    policy: Callable[[int], Policy]
    """Gives a policy for an episode, from a seed."""
    policy_name: str
    tasks: list[Row]
    files: RunFiles
    store: str
    repeats: int = 1
    concurrency: int = 8
    limit: int | None = None
    seed: int = 0
    max_steps: int = MAX_STEPS
    deadline: float | None = None
    """Seconds that one episode may take."""

    def inputs(self) -> Iterator[Row]:
        """The rows to run: the first `limit` tasks, each `repeats` times in a row."""
        agent = {"type": "responses_api_agents", "name": self.policy_name}
        for index, task in enumerate(self.tasks[: self.limit]):
            for repeat in range(self.repeats):
                yield {"agent_ref": agent, **task, "_ng_task_index": index, "_ng_rollout_index": repeat}


@dataclass
class Report:
    """What a run came to."""

    episodes: int
    failed: int = 0
    rows: list[Row] = field(default_factory=list)
    """The finished episodes: what was measured in each, and its indices and session."""
    first_error: str | None = None
    """What the first episode that broke down died of."""
    metrics: dict[str, Any] = field(default_factory=dict)


async def run(plan: Run, on_episode: Callable[[Row], None] = lambda row: None) -> Report:
    """Run all episodes, so many at a time, writing each as it ends; `on_episode` is told of each."""
    inputs = list(plan.inputs())
    plan.files.prepare()
    report = Report(len(inputs))
    waiting = iter(inputs)
    async with open_store(plan.store) as store:
        plan.files.begin(inputs)
        sessions = Sessions[Any](plan.environment, store)
        with Appender(plan.files.rollouts) as rollouts, Appender(plan.files.failures) as failures:

            async def work() -> None:
                for row in waiting:  # shared: each row goes to whoever is free
                    ended = await _episode_or_failure(plan, sessions, row)
                    if ended.measured is None:
                        failures.write(ended.line)
                        report.failed += 1
                        report.first_error = report.first_error or ended.row["error"]
                    else:
                        rollouts.write(ended.line)
                        report.rows.append(ended.measured)
                    on_episode(ended.row)

            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(plan.concurrency, len(inputs))):
                        group.create_task(work())
            except ExceptionGroup as error:  # no episode's: a file that cannot be written, say
                raise error.exceptions[0] from None
    report.metrics = _summary(plan, report.rows)
    return report


class _Ended(NamedTuple):
    """How an episode ended."""

    row: Row
    line: bytes
    measured: Row | None
    """None when it broke down."""


async def _episode_or_failure(plan: Run, sessions: Sessions[Any], row: Row) -> _Ended:
    """One episode; if it breaks down, the row is for the failures file."""
    session: Session[Any] | None = None
    try:
        seed = _episode_seed(plan, row)
        session = await sessions.seed(row, seed=seed, began=EPOCH)
        return await _episode(plan, session, row, seed)
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise  # the run was cancelled; else something of the environment's own
        if not isinstance(error, StateroomError):
            logger.warning("an episode of %s broke down", plan.environment.name, exc_info=error)
        failure = {
            **row,
            "_ng_failure_class": _failure_class(error),
            "_ng_failure_terminal": not isinstance(error, StoreError),
            "error": f"{type(error).__name__}: {error}",
            **({"_stateroom_session": session.id} if session is not None else {}),
        }
        return _Ended(failure, line_of(failure), None)


async def _episode(plan: Run, session: Session[Any], row: Row, seed: int) -> _Ended:
    request = row.get("responses_create_params", {})
    tools = request.get("tools") or plan.environment.tool_definitions()
    trajectory = await act(
        session,
        _policy(plan, seed),
        input_items(request.get("input")),
        tools,
        max_steps=plan.max_steps,
        deadline=plan.deadline,
    )
    response = _response(plan, trajectory, tools, seed)
    verdict = await session.verify(response)
    await session.close()
    measured = {
        **verdict_fields(verdict),
        "tool_calls": sum(item["type"] == "function_call" for item in trajectory.output),
        "truncated": int(trajectory.status == "incomplete"),
        "_ng_task_index": row["_ng_task_index"],
        "_ng_rollout_index": row["_ng_rollout_index"],
        "_stateroom_session": session.id,
    }
    done = {**row, **measured, "response": response}
    return _Ended(done, line_of(done), measured)


def _policy(plan: Run, seed: int) -> Policy:
    try:
        return plan.policy(seed)
    except (Exception, SystemExit) as error:
        raise PolicyFailed(f"{plan.policy_name} cannot be made: {type(error).__name__}: {error}") from error


def _response(plan: Run, trajectory: Trajectory, tools: list[Any], seed: int) -> dict[str, Any]:
    """The trajectory as a Responses object."""
    return {
        "id": f"resp_{seed:016x}",
        "object": "response",
        "created_at": EPOCH,
        "status": trajectory.status,
        "model": plan.policy_name,
        "output": trajectory.output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": tools,
    }


def _episode_seed(plan: Run, row: Row) -> int:
    """A seed of its own for each episode, the same in every run with the same `--seed`."""
    text = f"{plan.environment.name}/{plan.seed}/{row['_ng_task_index']}/{row['_ng_rollout_index']}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1


def _failure_class(error: BaseException) -> str:
    if isinstance(error, PolicyFailed):
        return "policy"
    return "store" if isinstance(error, StoreError) else "environment"


def _summary(plan: Run, rows: list[Row]) -> dict[str, Any]:
    """Aggregate what the verifier and the runner measured, and write it down."""
    found = aggregate(rows)
    agent = {"type": "responses_api_agents", "name": plan.policy_name}
    plan.files.metrics.write_text(json.dumps([{"agent_ref": agent, **found}], indent=2) + "\n", encoding="utf-8")
    return found

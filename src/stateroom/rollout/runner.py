"""The runner: collects episodes, and loses none that finished."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, NamedTuple

from stateroom.agent import MAX_STEPS, Trajectory, act
from stateroom.environment import Environment
from stateroom.errors import NotFound, PolicyFailed, ServerUnavailable, StateroomError, StoreError
from stateroom.model import Policy, input_items
from stateroom.rollout.files import Appender, RunFiles, line_of
from stateroom.rollout.local import local_world
from stateroom.rollout.metrics import aggregate
from stateroom.rollout.world import Row, Seat, World
from stateroom.session.execution import was_cancelled

logger = logging.getLogger(__name__)

EPOCH = 1_735_689_600.0
"""When the clocks of a run's sessions start, so that the same run gives the same rows: 1 January 2025."""

ONLY_TURN = "0"
"""An episode is one turn: its calls have the same ids in every run."""


@dataclass(frozen=True)
class Run:
    """What is to be run."""

    environment: Environment[Any, Any]
    policy: Callable[[int], Policy]
    """Gives a policy for an episode, from a seed."""
    policy_name: str
    tasks: list[Row]
    files: RunFiles
    store: str = "memory://"
    """Where the sessions live, if they do so here."""
    server: str | None = None
    """The URL of the server where the episodes take place; None when they take place in this process."""
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
    async with _world(plan) as world:
        plan.files.begin(inputs)
        with Appender(plan.files.rollouts) as rollouts, Appender(plan.files.failures) as failures:

            async def work() -> None:
                for row in waiting:  # shared: each row goes to whoever is free
                    ended = await _episode_or_failure(plan, world, row)
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


def _world(plan: Run) -> AbstractAsyncContextManager[World]:
    """Where the episodes of a plan take place."""
    if plan.server is None:
        return local_world(plan.environment, plan.store)
    try:
        from stateroom.rollout.remote import remote_world  # noqa: PLC0415 - this imports an HTTP client
    except ModuleNotFoundError as error:
        raise NotFound(f"a server cannot be reached without {error.name}: pip install 'stateroom[server]'") from error
    return remote_world(plan.server, plan.environment.tools, plan.concurrency)


class _Ended(NamedTuple):
    """How an episode ended."""

    row: Row
    line: bytes
    measured: Row | None
    """None when it broke down."""


async def _episode_or_failure(plan: Run, world: World, row: Row) -> _Ended:
    """One episode; if it breaks down, the row is for the failures file."""
    seat: Seat | None = None
    try:
        seed = _episode_seed(plan, row)
        seat = await world.seed(row, seed=seed, began=EPOCH)
        return await _episode(plan, seat, row, seed)
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        if was_cancelled(error):
            raise  # the run was; else it is something of the environment's own
        if not isinstance(error, StateroomError):
            logger.warning("an episode of %s broke down", plan.environment.name, exc_info=error)
        failure = {
            **row,
            "_ng_failure_class": _failure_class(error),
            "_ng_failure_terminal": not isinstance(error, StoreError | ServerUnavailable),
            "error": f"{type(error).__name__}: {error}",
            **_session_of(seat),
        }
        return _Ended(failure, line_of(failure), None)


async def _episode(plan: Run, seat: Seat, row: Row, seed: int) -> _Ended:
    request = row.get("responses_create_params", {})
    tools = request.get("tools") or plan.environment.tool_definitions()
    trajectory = await act(
        seat,
        _policy(plan, seed),
        input_items(request.get("input")),
        tools,
        max_steps=plan.max_steps,
        deadline=plan.deadline,
        turn=ONLY_TURN,
    )
    response = _response(plan, trajectory, tools, seed)
    found = await seat.verify(row, response)
    await seat.close()
    measured = {
        **found,
        "tool_calls": sum(item["type"] == "function_call" for item in trajectory.output),
        "truncated": int(trajectory.status == "incomplete"),
        "_ng_task_index": row["_ng_task_index"],
        "_ng_rollout_index": row["_ng_rollout_index"],
        **_session_of(seat),
    }
    done = {**row, **measured, "response": response}
    return _Ended(done, line_of(done), measured)


def _session_of(seat: Seat | None) -> Row:
    """Where to find the episode's session, if that is known."""
    return {} if seat is None or seat.id is None else {"_stateroom_session": seat.id}


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
    if isinstance(error, ServerUnavailable):
        return "server"
    return "store" if isinstance(error, StoreError) else "environment"


def _summary(plan: Run, rows: list[Row]) -> dict[str, Any]:
    """Aggregate what the verifier and the runner measured, and write it down."""
    found = aggregate(rows)
    agent = {"type": "responses_api_agents", "name": plan.policy_name}
    plan.files.metrics.write_text(json.dumps([{"agent_ref": agent, **found}], indent=2) + "\n", encoding="utf-8")
    return found

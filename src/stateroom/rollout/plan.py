"""What is to be done with an environment's tasks, in whichever way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from stateroom.agent import MAX_STEPS, Trajectory
from stateroom.environment import Environment
from stateroom.errors import NotFound, PolicyFailed
from stateroom.model import Item, Policy
from stateroom.rollout.files import RunFiles
from stateroom.rollout.local import local_world
from stateroom.rollout.world import Row, World

EPOCH = 1_735_689_600.0
"""When the clocks of a run's sessions start, so that the same run gives the same rows: 1 January 2025."""


@dataclass(frozen=True)
class Plan:
    """Who acts in which tasks of an environment, where, and within what limits."""

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
    admin_token: str | None = None
    """The token of that server's admin API, which forks sessions."""
    concurrency: int = 8
    limit: int | None = None
    """Only the first so many tasks."""
    seed: int = 0
    max_steps: int = MAX_STEPS
    deadline: float | None = None
    """Seconds that one episode may take."""

    @property
    def agent(self) -> dict[str, str]:
        """Who acts, as files name them."""
        return {"type": "responses_api_agents", "name": self.policy_name}

    def inputs_for(self, rollouts: int) -> list[Row]:
        """The rows to run: the first `limit` tasks, each so many times in a row."""
        return [
            {"agent_ref": self.agent, **task, "_ng_task_index": index, "_ng_rollout_index": rollout}
            for index, task in enumerate(self.tasks[: self.limit])
            for rollout in range(rollouts)
        ]

    def world(self, *, forking: bool) -> AbstractAsyncContextManager[World]:
        """Where the episodes take place, and can branch off one another if need be."""
        if self.server is None:
            return local_world(self.environment, self.store)
        try:
            from stateroom.rollout.remote import remote_world  # noqa: PLC0415 - this imports an HTTP client
        except ModuleNotFoundError as error:
            raise NotFound(
                f"a server cannot be reached without {error.name}: pip install 'stateroom[server]'"
            ) from error
        return remote_world(
            self.server, self.environment.tools, self.concurrency, forking=forking, admin_token=self.admin_token
        )

    def seed_of(self, *place: int | str) -> int:
        """A seed of its own for each place in a run, the same in every run with the same `seed`."""
        text = "/".join(map(str, (self.environment.name, self.seed, *place)))
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1

    def new_policy(self, seed: int) -> Policy:
        """A policy for an episode."""
        try:
            return self.policy(seed)
        except (Exception, SystemExit) as error:
            raise PolicyFailed(f"{self.policy_name} cannot be made: {type(error).__name__}: {error}") from error

    def tools_for(self, row: Row) -> list[Item]:
        """The tools that a policy is told of."""
        return row.get("responses_create_params", {}).get("tools") or self.environment.tool_definitions()

    def response(self, trajectory: Trajectory, tools: list[Item], seed: int) -> dict[str, Any]:
        """A trajectory as a Responses object."""
        return {
            "id": f"resp_{seed:016x}",
            "object": "response",
            "created_at": EPOCH,
            "status": trajectory.status,
            "model": self.policy_name,
            "output": trajectory.output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": tools,
        }

"""What is to be done with an environment's tasks, in whichever way."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from stateroom.agent import MAX_STEPS, Agent, Context, Trajectory
from stateroom.environment import Environment
from stateroom.errors import NotFound
from stateroom.model import Item, ModelSource, input_items
from stateroom.rollout.files import RunFiles
from stateroom.rollout.local import local_world
from stateroom.rollout.world import Row, World, given_row

NOT_SETTINGS = frozenset({"input", "tools"})
"""What a row says of a request that an agent is given otherwise."""

EPOCH = 1_735_689_600.0
"""When the clocks of a run's sessions start, so that the same run gives the same rows: 1 January 2025."""


@dataclass(frozen=True)
class Plan:
    """Who acts in which tasks of an environment, where, and within what limits."""

    environment: Environment[Any, Any]
    model: ModelSource
    tasks: list[Row]
    files: RunFiles
    store: str = "memory://"
    """Where the sessions live, if they do so here."""
    server: str | None = None
    """The URL of the server where the episodes take place; None when they take place in this process."""
    api_key: str | None = None
    """The key that the server wants from those who seed sessions."""
    admin_token: str | None = None
    """The token of that server's admin API, which forks sessions."""
    concurrency: int = 8
    limit: int | None = None
    """Only the first so many tasks."""
    seed: int = 0
    max_steps: int = MAX_STEPS
    deadline: float | None = None
    """Seconds that one episode may take."""
    context: Context = field(default_factory=Context)
    """How much of its conversation the model is shown."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the Responses API that are used instead of those in the rows."""

    @property
    def agent(self) -> dict[str, str]:
        """Who acts, as files name them."""
        return {"type": "responses_api_agents", "name": self.model.name}

    def inputs_for(self, rollouts: int) -> list[Row]:
        """The rows to run: the first `limit` tasks, each so many times in a row."""
        return [
            {"agent_ref": self.agent, **given_row(task), "_ng_task_index": index, "_ng_rollout_index": rollout}
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
            self.server,
            self.environment,
            self.concurrency,
            forking=forking,
            api_key=self.api_key,
            admin_token=self.admin_token,
        )

    def seed_of(self, *place: int | str) -> int:
        """A seed of its own for each place in a run, the same in every run with the same `seed`."""
        text = "/".join(map(str, (self.environment.name, self.seed, *place)))
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1

    def new_agent(self, row: Row, seed: int, max_steps: int | None = None) -> Agent:
        """Who acts in an episode."""
        asked = row.get("responses_create_params", {})
        settings = {name: value for name, value in {**asked, **self.settings}.items() if name not in NOT_SETTINGS}
        return Agent(
            self.model.for_episode(seed),
            context=self.context,
            settings=settings,
            seed=seed,
            max_steps=max_steps or self.max_steps,
            deadline=self.deadline,
        )

    def items_of(self, row: Row) -> list[Item]:
        """What the conversation of an episode begins with."""
        return input_items(row.get("responses_create_params", {}).get("input"))

    def tools_for(self, row: Row) -> list[Item]:
        """The tools that a policy is told of."""
        return row.get("responses_create_params", {}).get("tools") or self.environment.tool_definitions()

    def response(self, trajectory: Trajectory, tools: list[Item], seed: int) -> dict[str, Any]:
        """A trajectory as a Responses object."""
        response = {
            "id": f"resp_{seed:016x}",
            "object": "response",
            "created_at": EPOCH,
            "status": trajectory.status,
            "model": self.model.name,
            "output": trajectory.output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": tools,
        }
        if trajectory.usage is not None:
            response["usage"] = trajectory.usage.plain()
        return response

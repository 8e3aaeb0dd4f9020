"""Plans: which model runs which tasks, where, and within which limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from stateroom.agent import MAX_STEPS, Agent, Context, Trajectory
from stateroom.environment import Environment, variant_of
from stateroom.errors import BadTask, NotFound
from stateroom.model import Item, ModelSource, input_items, with_ids
from stateroom.rollout.backend import Backend, local_backend
from stateroom.rollout.files import RunFiles
from stateroom.rollout.metrics import SOLVED, Price
from stateroom.rollout.rows import Row, given_row

NOT_SETTINGS = frozenset({"input", "tools"})
"""Parameters of a row's request that are not the model's settings."""

EPOCH = 1_735_689_600.0
"""When the clocks of a run's sessions start, 1 January 2025: so the same run gives the same rows."""


def agent_ref(environment: Environment[Any, Any]) -> dict[str, str]:
    """The name of an environment's agent in files.

    NeMo Gym compares runs whose agents have the same name, and finds an agent's servers by it.
    """
    return {"type": "responses_api_agents", "name": f"{environment.name}_agent"}


@dataclass(frozen=True)
class Plan:
    """Which model runs which tasks of an environment, where, and within which limits."""

    environment: Environment[Any, Any]
    model: ModelSource
    tasks: list[Row]
    files: RunFiles
    force: bool = field(default=False, kw_only=True)
    """Remove the files of an earlier run, instead of refusing to write."""
    store: str = "memory://"
    """The URL of the store of the sessions, unless a server has them."""
    server: str | None = None
    """The URL of the server that the episodes run on; None for this process."""
    api_key: str | None = None
    """The API key with which the server lets sessions be seeded."""
    admin_token: str | None = None
    """The token of the server's admin API, which forks sessions."""
    concurrency: int = 8
    limit: int | None = None
    """Run only the first N tasks."""
    seed: int = 0
    max_steps: int = MAX_STEPS
    deadline: float | None = None
    """Seconds that an episode may take."""
    context: Context = field(default_factory=Context)
    """How much of its conversation the model sees."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the Responses API that replace those in the rows."""
    solved_at: float = SOLVED
    """The reward from which an episode counts as solved."""
    price: Price | None = None
    """The price of the model's tokens."""
    spec: str | None = None
    """The environment as the user named it."""

    @property
    def agent(self) -> dict[str, str]:
        """The agent, as files name it: as the tasks do, or else after the environment."""
        return next((task["agent_ref"] for task in self.tasks if "agent_ref" in task), agent_ref(self.environment))

    def inputs_for(self, rollouts: int) -> list[Row]:
        """The rows to run: the first `limit` tasks, each `rollouts` times."""
        return [
            {"agent_ref": self.agent, **given_row(task), "_ng_task_index": index, "_ng_rollout_index": rollout}
            for index, task in enumerate(self.tasks[: self.limit])
            for rollout in range(rollouts)
        ]

    def backend(self, *, forks: bool) -> AbstractAsyncContextManager[Backend]:
        """Where the episodes run; with `forks`, a server must be able to fork sessions."""
        if self.server is None:
            return local_backend(self.environment, self.store)
        try:
            from stateroom.rollout.remote import remote_backend  # noqa: PLC0415 - this imports an HTTP client
        except ModuleNotFoundError as error:
            raise NotFound(
                f"a server cannot be reached without {error.name}: pip install 'stateroom[server]'"
            ) from error
        return remote_backend(
            self.server,
            self.environment,
            self.concurrency,
            forks=forks,
            api_key=self.api_key,
            admin_token=self.admin_token,
        )

    def seed_of(self, *place: int | str) -> int:
        """The seed of a place in a run (a task and a rollout, say); it follows from the plan's `seed`."""
        text = "/".join(map(str, (self.environment.name, self.seed, *place)))
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1

    def new_agent(self, row: Row, seed: int, max_steps: int | None = None) -> Agent:
        """The agent of an episode."""
        asked = row.get("responses_create_params", {})
        settings = {name: value for name, value in {**asked, **self.settings}.items() if name not in NOT_SETTINGS}
        return Agent(
            self.model.for_episode(seed, row),
            context=self.context,
            settings=settings,
            seed=seed,
            max_steps=max_steps or self.max_steps,
            deadline=self.deadline,
        )

    def check_model(self, rows: Iterable[Row]) -> None:
        """Raise `BadTask` if there is no model for one of the rows."""
        for row in rows:
            try:
                self.model.check_task(row)
            except BadTask as error:
                raise BadTask(f"task {row['_ng_task_index']}: {error}") from None

    def items_of(self, row: Row) -> list[Item]:
        """The items that an episode's conversation starts with."""
        return input_items(row.get("responses_create_params", {}).get("input"))

    def tools_for(self, row: Row) -> list[Item]:
        """The tools that the model is offered."""
        return row.get("responses_create_params", {}).get("tools") or (
            variant_of(self.environment, row).tool_definitions()
        )

    def cost_of(self, response: Row) -> Row:
        """What a response has cost, as a field of its row; none without a price."""
        return {} if self.price is None else self.price.cost(response)

    def response(self, trajectory: Trajectory, tools: list[Item], seed: int) -> dict[str, Any]:
        """A trajectory as a Responses object."""
        response = {
            "id": f"resp_{seed:016x}",
            "object": "response",
            "created_at": EPOCH,
            "status": trajectory.status,
            "model": self.model.name,
            "output": with_ids(trajectory.output),
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": tools,
        }
        if trajectory.usage is not None:
            response["usage"] = trajectory.usage.plain()
        return response

"""Plans: which model runs which tasks, where, and within which limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from stateroom.agent import MAX_STEPS, Agent, Context, Trajectory
from stateroom.environment import Environment, make_environment, variant_of
from stateroom.errors import BadTask, NotFound
from stateroom.model import (
    Exactness,
    Item,
    Limiter,
    Model,
    ModelLimits,
    ModelSource,
    input_items,
    open_model,
    with_ids,
)
from stateroom.rollout.backend import Backend, local_backend
from stateroom.rollout.files import RunFiles
from stateroom.rollout.metrics import SOLVED, Price
from stateroom.rollout.rows import INDICES, PARENT, SESSION, Row, given_row, key_of
from stateroom.session import new_session_id

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
class Origin:
    """What an environment and a model are made from, as a user named or gave them."""

    environment: str | type[Environment[Any, Any]] | Environment[Any, Any]
    env_args: Mapping[str, Any]
    model: str | Model | type[Model] | ModelSource
    api_key_env: str | None = None
    limits: ModelLimits | None = None

    def make_environment(self) -> Environment[Any, Any]:
        return make_environment(self.environment, self.env_args)

    def open_model(self, environment: Environment[Any, Any], limiter: Limiter | None = None) -> ModelSource:
        """The model; a `limiter` is shared with others that send requests to the same servers."""
        policies, variable = environment.policies, self.api_key_env
        return open_model(self.model, policies, limits=self.limits, limiter=limiter, api_key_env=variable)


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
    tokens: Exactness | None = None
    """Whether each answer has its exact tokens, and what becomes of those that do not continue the ones before."""
    solved_at: float = SOLVED
    """The reward from which an episode counts as solved."""
    price: Price | None = None
    """The price of the model's tokens."""
    spec: str | None = None
    """The environment as the user named it."""
    origin: Origin | None = field(default=None, repr=False)
    """What another process makes the environment and the model from."""

    @property
    def agent(self) -> dict[str, str]:
        """The agent, as files name it: as the tasks do, or else after the environment."""
        return next((task["agent_ref"] for task in self.tasks if "agent_ref" in task), agent_ref(self.environment))

    @property
    def task_count(self) -> int:
        """The number of tasks to run."""
        return len(self.tasks[: self.limit])

    def inputs_for(self, rollouts: int) -> Iterator[Row]:
        """The rows to run: the first `limit` tasks, each `rollouts` times."""
        agent = self.agent
        return (
            {"agent_ref": agent, **given_row(task), "_ng_task_index": index, "_ng_rollout_index": rollout}
            for index, task in enumerate(self.tasks[: self.limit])
            for rollout in range(rollouts)
        )

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
            rows=self.tasks[: self.limit],
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
            tokens=self.tokens,
        )

    def check_model(self) -> None:
        """Raise `BadTask` if there is no model for one of the tasks to run."""
        for row in self.inputs_for(1):
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
        if trajectory.instructions:
            response["instructions"] = trajectory.instructions
        return response


@dataclass(frozen=True)
class Run(Plan):
    """A run of episodes."""

    repeats: int = 1
    """Episodes per task, each with a random seed of its own."""
    group: int | None = None
    """Episodes per task, forked from one seeded session (same state and random seed), instead of `repeats`."""
    max_cost: float | None = None
    """Start no more episodes once those of the run have cost this much."""
    resume: bool = False
    """Continue the run of the same files: its unfinished episodes, from where each was interrupted."""
    engine: str = "local"
    """In which processes the episodes run: `local`, `processes`, `processes:N`, `ray` or `ray:ADDRESS`."""
    lease: float = 30.0
    """Seconds without a word after which a worker is lost, and its episodes go to others; so long these lease them."""

    @property
    def keeps_sessions(self) -> bool:
        """Whether the sessions are in this run's store."""
        return self.server is None and self.environment.state_type is not None

    @property
    def keeps_transcripts(self) -> bool:
        """Whether only what the agents say is in this run's store."""
        return not self.keeps_sessions and self.group is None and not self.store.startswith("memory:")

    @property
    def rollouts(self) -> int:
        """Episodes per task."""
        return self.repeats if self.group is None else self.group

    def inputs(self) -> Iterator[Row]:
        """The rows to run: the first `limit` tasks, with all episodes of a task in sequence.

        Each names its session, so that the session can be found again. They are made one by one, with other sessions
        each time.
        """
        names_sessions = self.keeps_sessions or self.keeps_transcripts
        forks = self.keeps_sessions and self.group is not None
        parent: Row = {}
        for row in self.inputs_for(self.rollouts):
            if forks and row["_ng_rollout_index"] == 0:
                parent = {PARENT: {"session": new_session_id(), "revision": 1}}
            session = {SESSION: new_session_id()} if names_sessions else {}
            yield {**row, **session, **parent}

    def seed_for(self, row: Row) -> int:
        """The random seed of a row's episode; without indices it follows from the session's id."""
        return self.seed_of(*(key_of(row) if set(INDICES) <= row.keys() else (row[SESSION],)))

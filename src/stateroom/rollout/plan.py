"""Plans: which model runs which tasks, where, and with which limits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from hashlib import blake2b
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from stateroom.agent import Agent, Context, Trajectory, request_of
from stateroom.environment import Environment, variant_of
from stateroom.errors import BadTask, InvalidOption, needs
from stateroom.model import Item, ModelSource, response_object
from stateroom.options import takes
from stateroom.rollout.backend import Backend, local_backend
from stateroom.rollout.files import RunFiles
from stateroom.rollout.options import CollectOptions, EpisodeOptions, RunOptions, as_price, new_path
from stateroom.rollout.rows import INDICES, PARENT, SESSION, Row, given_row, key_of
from stateroom.rollout.tasks import RemoteEnvironment, find_tasks
from stateroom.session import new_session_id

P = TypeVar("P", bound="Plan")

NO_STORE = "memory://"
"""The store of a run that does not keep sessions."""

NOT_SETTINGS = frozenset({"input", "tools"})
"""Parameters of a row's request that are not settings of the model."""

EPOCH = 1_735_689_600.0
"""The start time of the clocks of a run's sessions, 1 January 2025, so a repeated run has the same rows."""


def agent_ref(environment: Environment[Any, Any]) -> dict[str, str]:
    """The name of an environment's agent in files.

    NeMo Gym compares runs with the same agent name, and finds the servers of an agent by name.
    """
    return {"type": "responses_api_agents", "name": f"{environment.name}_agent"}


@dataclass(frozen=True)
class EpisodePlan:
    """The environment, the model and the settings of an episode."""

    environment: Environment[Any, Any]
    model: ModelSource
    options: EpisodeOptions

    def seed_of(self, *place: int | str) -> int:
        """The seed for a place in a run, such as a task and a rollout, derived from the run's `seed`."""
        text = "/".join(map(str, (self.environment.name, self.options.seed, *place)))
        return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1

    def new_agent(self, row: Row, seed: int, max_steps: int | None = None) -> Agent:
        """The agent of an episode."""
        options = self.options
        asked = {**request_of(row), **options.settings}
        settings = {name: value for name, value in asked.items() if name not in NOT_SETTINGS}
        return Agent(
            self.model.for_episode(seed, row),
            context=Context(options.context_tokens),
            settings=settings,
            seed=seed,
            max_steps=max_steps or options.max_steps,
            deadline=options.deadline,
            tokens=options.record_tokens,
        )

    def tools_for(self, row: Row) -> list[Item]:
        """The tools that the model is offered."""
        return request_of(row).get("tools") or variant_of(self.environment, row).tool_definitions()

    def cost_of(self, response: Row) -> Row:
        """The cost of a response as a field of its row; empty without a price."""
        price = as_price(self.options.price)
        return {} if price is None else price.cost(response)

    def seed_of_row(self, row: Row) -> int:
        """The random seed of a row's episode; without indices, it is derived from the session's id."""
        return self.seed_of(*(key_of(row) if set(INDICES) <= row.keys() else (row[SESSION],)))

    def response(self, trajectory: Trajectory, tools: list[Item], seed: int) -> dict[str, Any]:
        """A trajectory as a Responses object."""
        response = response_object(
            f"{seed:016x}", self.model.name, trajectory.output, tools, status=trajectory.status, created_at=EPOCH
        )
        if trajectory.usage is not None:
            response["usage"] = trajectory.usage.plain()
        if trajectory.instructions:
            response["instructions"] = trajectory.instructions
        return response


@dataclass(frozen=True)
class Plan(EpisodePlan):
    """A plan to run a model on the tasks of an environment and write files."""

    options: CollectOptions
    tasks: Sequence[Row]
    files: RunFiles

    @property
    def store(self) -> str:
        """The URL of the session store, unless a server has the sessions."""
        return self.options.store or NO_STORE

    @property
    def agent_ref(self) -> dict[str, str]:
        """The agent as named in files: as in the tasks, otherwise after the environment."""
        return next((task["agent_ref"] for task in self.tasks if "agent_ref" in task), agent_ref(self.environment))

    @property
    def task_count(self) -> int:
        """The number of tasks to run."""
        return len(self.tasks[: self.options.limit])

    def inputs_for(self, rollouts: int) -> Iterator[Row]:
        """The rows to run: the first `limit` tasks, each `rollouts` times."""
        agent = self.agent_ref
        return (
            {"agent_ref": agent, **given_row(task), "_ng_task_index": index, "_ng_rollout_index": rollout}
            for index, task in enumerate(self.tasks[: self.options.limit])
            for rollout in range(rollouts)
        )

    def backend(self, *, forks: bool) -> AbstractAsyncContextManager[Backend]:
        """Open the backend of the episodes; with `forks`, a server must be able to fork sessions."""
        options = self.options
        if options.server is None:
            return local_backend(self.environment, self.store)
        with needs("a server", "server"):
            from stateroom.rollout.remote import remote_backend  # noqa: PLC0415 - this imports an HTTP client
        return remote_backend(
            options.server,
            self.environment,
            options.concurrency,
            rows=self.tasks[: options.limit],
            forks=forks,
            api_key=options.api_key or None,
            admin_token=options.admin_token or None,
        )

    def check_model(self) -> None:
        """Raise `BadTask` if the model cannot run one of the tasks."""
        for row in self.inputs_for(1):
            try:
                self.model.check_task(row)
            except BadTask as error:
                raise BadTask(f"task {row['_ng_task_index']}: {error}") from None


@dataclass(frozen=True)
class RunPlan(Plan):
    """A run of episodes."""

    options: RunOptions
    lease: float = 30.0
    """Seconds of silence after which a worker counts as lost; also the length of leases on its episodes."""

    @classmethod
    def of(cls, options: RunOptions) -> RunPlan:
        """Create the plan for options."""
        return make_plan(cls, options, RunFiles)

    @property
    def keeps_sessions(self) -> bool:
        """Whether the sessions are in this run's store."""
        return self.options.server is None and self.environment.state_type is not None

    @property
    def keeps_transcripts(self) -> bool:
        """Whether the run's store has only the transcripts of the agents."""
        return not self.keeps_sessions and self.options.group is None and not self.store.startswith("memory:")

    @property
    def rollouts(self) -> int:
        """Episodes per task."""
        return self.options.repeats if self.options.group is None else self.options.group

    def inputs(self) -> Iterator[Row]:
        """The rows to run: the first `limit` tasks, with all episodes of a task in sequence.

        Each row names its session, so a resumed run can find it. The rows are created one by one, with new session ids
        on each iteration.
        """
        names_sessions = self.keeps_sessions or self.keeps_transcripts
        forks = self.keeps_sessions and self.options.group is not None
        parent: Row = {}
        for row in self.inputs_for(self.rollouts):
            if forks and row["_ng_rollout_index"] == 0:
                parent = {PARENT: {"session": new_session_id(), "revision": 1}}
            session = {SESSION: new_session_id()} if names_sessions else {}
            yield {**row, **session, **parent}


@takes(RunOptions)
def plan_run(options: RunOptions) -> RunPlan:
    """Plan a run."""
    return RunPlan.of(options)


def make_plan(kind: type[P], options: CollectOptions, files_kind: type[RunFiles], **more: Any) -> P:
    """Create a plan, with defaults for the options that are not set."""
    if options.server is None and options.environment is None:
        raise InvalidOption("environment", "name an environment or a server")
    environment = options.make_environment()
    files = files_kind(new_path(environment.name, ".jsonl") if options.output is None else Path(options.output))
    resumes = getattr(options, "resume", False) and files.begun
    if resumes and options.store is None and options.server is None:
        _ensure_sessions_are_kept(environment, files)
    tasks = [] if resumes else find_tasks(environment, options.input)
    chosen = replace(
        options,
        environment=RemoteEnvironment if options.environment is None else options.environment,
        model=options.chosen_model(environment, tasks),
        store=options.store or (default_store(environment, files) if options.server is None else None),
        input=options.input if isinstance(options.input, str | PathLike) else None,
        output=files.rollouts,
    )
    return kind(environment, chosen.open_model(environment), chosen, tasks, files, **more)


def _ensure_sessions_are_kept(environment: Environment[Any, Any], files: RunFiles) -> None:
    """Refuse to resume a run without its session store, because all episodes would start over."""
    if environment.state_type is not None and not files.sessions.exists():
        raise InvalidOption("store", f"give the store of the run, because its sessions are not in {files.sessions}")


def default_store(environment: Environment[Any, Any], files: RunFiles) -> str:
    """The default session store of a run: a file beside the rollouts, or none for a stateless environment."""
    return f"sqlite:///{quote(str(files.sessions))}" if environment.state_type is not None else NO_STORE

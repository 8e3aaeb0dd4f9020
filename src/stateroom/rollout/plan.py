"""Plans: which model runs which tasks, where, and within which limits."""

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
"""The store of a run that leaves no sessions behind."""

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
class EpisodePlan:
    """What an episode needs: an environment, a model, and how that acts."""

    environment: Environment[Any, Any]
    model: ModelSource
    options: EpisodeOptions

    def seed_of(self, *place: int | str) -> int:
        """The seed of a place in a run (a task and a rollout, say); it follows from the run's `seed`."""
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
        """What a response has cost, as a field of its row; none without a price."""
        price = as_price(self.options.price)
        return {} if price is None else price.cost(response)

    def seed_of_row(self, row: Row) -> int:
        """The random seed of a row's episode; without indices it follows from the session's id."""
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
    """Which model runs which tasks of an environment, where, and what is written."""

    options: CollectOptions
    tasks: Sequence[Row]
    files: RunFiles

    @property
    def store(self) -> str:
        """The URL of the store of the sessions, unless a server has them."""
        return self.options.store or NO_STORE

    @property
    def agent_ref(self) -> dict[str, str]:
        """The agent, as files name it: as the tasks do, or else after the environment."""
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
        """Where the episodes run; with `forks`, a server must be able to fork sessions."""
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
        """Raise `BadTask` if there is no model for one of the tasks to run."""
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
    """Seconds of silence after which a worker counts as lost, and its episodes go to others, who lease them as long."""

    @classmethod
    def of(cls, options: RunOptions) -> RunPlan:
        """The run with some options."""
        return make_plan(cls, options, RunFiles)

    @property
    def keeps_sessions(self) -> bool:
        """Whether the sessions are in this run's store."""
        return self.options.server is None and self.environment.state_type is not None

    @property
    def keeps_transcripts(self) -> bool:
        """Whether only what the agents say is in this run's store."""
        return not self.keeps_sessions and self.options.group is None and not self.store.startswith("memory:")

    @property
    def rollouts(self) -> int:
        """Episodes per task."""
        return self.options.repeats if self.options.group is None else self.options.group

    def inputs(self) -> Iterator[Row]:
        """The rows to run: the first `limit` tasks, with all episodes of a task in sequence.

        Each names its session, so that the session can be found again. They are made one by one, with other sessions
        each time.
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
    """A plan of a kind, by its options: what they leave open is chosen."""
    if options.server is None and options.environment is None:
        raise InvalidOption("environment", "say which, or name the server where one is")
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
    """Refuse to resume a run whose sessions are not in the default store: all its episodes would start over."""
    if environment.state_type is not None and not files.sessions.exists():
        raise InvalidOption("store", f"give the one that this run had: its sessions are not in {files.sessions}")


def default_store(environment: Environment[Any, Any], files: RunFiles) -> str:
    """The store of a run's sessions by default: a file beside the rollouts, or none if the environment is stateless."""
    return f"sqlite:///{quote(str(files.sessions))}" if environment.state_type is not None else NO_STORE

"""`Engine`, which starts the workers of a run, and the messages between workers and their driver."""

from __future__ import annotations

import pickle
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Any, Protocol, Self

import msgspec

from stateroom.errors import EngineFailed, InvalidOption, StateroomError
from stateroom.jsonl import parse_object
from stateroom.model import Limiter
from stateroom.rollout.engines.permits import AboutRequest, Permitted
from stateroom.rollout.plan import RunPlan
from stateroom.rollout.rows import Key, Row, is_transient

BEATS_PER_LEASE = 6
"""Signs of life that an idle worker sends within the time after which it counts as lost."""


class WorkerLost(StateroomError):
    """A worker died or is silent; another one continues its episodes."""


class Assign(msgspec.Struct, frozen=True):
    """To a worker: the rows of episodes to run. A group is assigned as a whole."""

    rows: list[Row]
    resumes: bool
    """Whether another worker or an earlier process may have begun them."""


class Ack(msgspec.Struct, frozen=True):
    """To a worker: the rows of these episodes are written, so their sessions can be closed."""

    keys: list[Key]


class Finished(msgspec.Struct, frozen=True):
    """From a worker: an episode has ended or waits for input."""

    key: Key
    line: bytes
    """The row, as a line of the rollouts or failures."""
    error: str | None
    """Why the episode failed, in one line; None if it did not."""
    transient: bool
    """Whether the failure may be temporary, so a resumed run retries the episode."""
    waits_in: str | None
    """The session, if the episode waits for input."""
    cost: float = 0.0
    """The cost of the model's tokens, if the row has it."""

    def row(self) -> Row | None:
        """The row of an episode with a reward."""
        return parse_object(self.line) if self.error is None and self.waits_in is None else None


class ToolFailed(msgspec.Struct, frozen=True):
    """From a worker: a tool call failed because of an error in the environment."""

    failure: Row


class Refused(msgspec.Struct, frozen=True):
    """From a worker: it cannot work."""

    why: str
    transient: bool
    """Whether another worker may succeed later."""

    @classmethod
    def of(cls, error: StateroomError) -> Self:
        """Create the message for an error."""
        return cls(str(error), is_transient(error))

    def error(self) -> StateroomError:
        """The error that the driver raises."""
        return WorkerLost(f"a worker has stopped: {self.why}") if self.transient else EngineFailed(self.why)


ToWorker = Assign | Ack | Permitted
FromWorker = Finished | ToolFailed | AboutRequest


class Worker(Protocol):
    """A worker, as its driver sees it. Both methods raise `WorkerLost`."""

    async def send(self, messages: Sequence[ToWorker]) -> None:
        """Send it messages."""

    async def receive(self) -> Sequence[FromWorker]:
        """Wait for its messages; an empty list is a sign of life."""

    async def stop(self) -> None:
        """Stop it. Unfinished episodes can be resumed. May be called again if it was interrupted."""


class Engine(ABC):
    """Starts workers. Use it as an async context manager."""

    def __init__(self, plan: RunPlan, workers: int) -> None:
        self.plan = plan
        self.workers = workers
        """The number of workers."""
        self.resources = AsyncExitStack()
        """Resources and workers of the engine, closed with it."""

    @property
    def slots(self) -> int:
        """Concurrent episodes per worker."""
        return -(-self.plan.options.concurrency // self.workers)

    @abstractmethod
    async def start(self) -> Worker:
        """Start a worker. Raises `WorkerLost` if it dies first, and other errors if none can be started."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.resources.aclose()


class PickledPlan:
    """A plan as bytes."""

    def __init__(self, plan: RunPlan, dump: Callable[[Any], bytes] = pickle.dumps) -> None:
        """Raises `InvalidOption` if another process cannot create the plan's environment or model."""
        if plan.options.environment is None or plan.options.model is None:
            raise InvalidOption("engine", "only a plan created by `plan_run` can run in other processes")
        try:
            self._parts = dump((plan.options, plan.files, plan.lease))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InvalidOption(
                "engine",
                f"another process cannot create this environment or model: {error}; name them as module:Class or "
                "path.py:Class",
            ) from error
        self._path = [*sys.path]
        self.lease = plan.lease

    def open(self, limiter: Limiter) -> RunPlan:
        """The plan in another process, with a limiter for requests to models."""
        sys.path += [each for each in self._path if each not in sys.path]
        try:
            options, files, lease = pickle.loads(self._parts)
        except (AttributeError, ModuleNotFoundError) as error:
            raise InvalidOption(
                "engine",
                f"a worker cannot import the environment or model: {error}; define the class in a module, not in a "
                "notebook or the main program",
            ) from error
        environment = options.make_environment()
        return RunPlan(environment, options.open_model(environment, limiter), options, [], files, lease)

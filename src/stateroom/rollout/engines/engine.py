"""`Engine`: starts the workers of a run; and the messages between these and their driver."""

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
"""Signs of life that a worker without messages gives within the time after which it is lost."""


class WorkerLost(StateroomError):
    """A worker has died, or is silent; another one continues its episodes."""


class Assign(msgspec.Struct, frozen=True):
    """To a worker: the rows of episodes to run. Those of a group are given together."""

    rows: list[Row]
    resumes: bool
    """Whether another worker, or an earlier process, may have begun them."""


class Ack(msgspec.Struct, frozen=True):
    """To a worker: the rows of these episodes are in the run's files, so that their sessions can be closed."""

    keys: list[Key]


class Finished(msgspec.Struct, frozen=True):
    """From a worker: an episode has ended, or waits."""

    key: Key
    line: bytes
    """Its row, as a line of the rollouts or of the failures."""
    error: str | None
    """Why it failed, in a line; None if it did not."""
    transient: bool
    """Whether it failed for a reason that may pass, so that a resumed run tries it again."""
    waits_in: str | None
    """Its session, if it waits for input."""
    cost: float = 0.0
    """What the model's tokens have cost, as far as its row tells."""

    def row(self) -> Row | None:
        """The row of an episode with a reward."""
        return parse_object(self.line) if self.error is None and self.waits_in is None else None


class ToolFailed(msgspec.Struct, frozen=True):
    """From a worker: a tool call failed because of the author's code."""

    failure: Row


class Refused(msgspec.Struct, frozen=True):
    """From a worker: it cannot work."""

    why: str
    transient: bool
    """Whether another one may have no such trouble, a little later."""

    @classmethod
    def of(cls, error: StateroomError) -> Self:
        """Why a worker cannot work."""
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
        """Its messages, when there are some; none from time to time, as a sign of life."""

    async def stop(self) -> None:
        """End it. Episodes that it has not finished can be resumed. May be called again, if it was interrupted."""


class Engine(ABC):
    """Starts workers. Use it as an async context manager."""

    def __init__(self, plan: RunPlan, workers: int) -> None:
        self.plan = plan
        self.workers = workers
        """How many workers there should be."""
        self.resources = AsyncExitStack()
        """What the engine has begun, workers too; it is ended with the engine."""

    @property
    def slots(self) -> int:
        """Episodes that each worker runs at a time."""
        return -(-self.plan.options.concurrency // self.workers)

    @abstractmethod
    async def start(self) -> Worker:
        """A new worker that is ready; `WorkerLost` if it dies before, and other errors if there can be none."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.resources.aclose()


class PickledPlan:
    """A plan as bytes."""

    def __init__(self, plan: RunPlan, dump: Callable[[Any], bytes] = pickle.dumps) -> None:
        """Raises `InvalidOption` if another process could not make the plan's environment or model."""
        if plan.options.environment is None or plan.options.model is None:
            raise InvalidOption("engine", "only a plan that `plan_run` has made can run in other processes")
        try:
            self._parts = dump((plan.options, plan.files, plan.lease))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InvalidOption(
                "engine",
                f"another process cannot have this environment or model: {error}; name them as module:Class or "
                "path.py:Class",
            ) from error
        self._path = [*sys.path]
        self.lease = plan.lease

    def open(self, limiter: Limiter) -> RunPlan:
        """The plan, in another process, whose requests to models pass this limiter."""
        sys.path += [each for each in self._path if each not in sys.path]
        try:
            options, files, lease = pickle.loads(self._parts)
        except (AttributeError, ModuleNotFoundError) as error:
            raise InvalidOption(
                "engine",
                f"a worker cannot find what it is to run: {error}; put the class into a module, and not into a "
                "notebook or the program that is started",
            ) from error
        environment = options.make_environment()
        return RunPlan(environment, options.open_model(environment, limiter), options, [], files, lease)

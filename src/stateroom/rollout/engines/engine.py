"""`Engine`: starts the workers of a run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import NoReturn, Protocol, Self

from stateroom.errors import EngineFailed, StateroomError
from stateroom.rollout.engines.messages import FromWorker, Refused, ToWorker
from stateroom.rollout.plan import Run
from stateroom.rollout.rows import is_transient

BEATS = 6
"""Signs of life that a worker with nothing to tell gives within the time after which it is lost."""


class WorkerLost(StateroomError):
    """A worker has died, or is silent; another one continues its episodes."""


def refusal(error: StateroomError) -> Refused:
    """Why a worker cannot work."""
    return Refused(str(error), is_transient(error))


def raise_refusal(refused: Refused) -> NoReturn:
    raise WorkerLost(f"a worker has stopped: {refused.why}") if refused.transient else EngineFailed(refused.why)


class Worker(Protocol):
    """A worker, as its driver sees it. Both methods raise `WorkerLost`."""

    async def send(self, messages: Sequence[ToWorker]) -> None:
        """Tell it something."""

    async def receive(self) -> Sequence[FromWorker]:
        """What it has to tell, when there is something; nothing from time to time, as a sign of life."""

    async def stop(self) -> None:
        """End it. Episodes that it has not finished can be resumed. May be called again, if it was interrupted."""


class Engine(ABC):
    """Starts workers. Use it as an async context manager."""

    def __init__(self, plan: Run, workers: int) -> None:
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.resources.aclose()

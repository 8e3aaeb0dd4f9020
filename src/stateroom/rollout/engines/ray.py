"""`RayEngine`: workers as actors on a Ray cluster."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

import ray
from ray import cloudpickle
from ray.exceptions import RayError

from stateroom.errors import EngineFailed, InvalidOption, StateroomError
from stateroom.rollout.engines.engine import (
    BEATS_PER_LEASE,
    Engine,
    FromWorker,
    PickledPlan,
    Refused,
    ToWorker,
    Worker,
    WorkerLost,
)
from stateroom.rollout.engines.worker import EpisodeWorker, Heartbeat, Link, open_worker
from stateroom.rollout.plan import RunPlan
from stateroom.store import without_secrets

STOP_SECONDS = 10.0
"""The time that a worker has to stop, in seconds."""

GATHER_SECONDS = 0.02
"""The time in which a worker batches messages, in seconds: a call on Ray costs more than a short episode."""

CONNECT_SECONDS = 10.0
"""The time limit to connect to a cluster, in seconds."""

OF_ONE_MACHINE = ("memory", "sqlite", "file")
"""Stores that other machines cannot reach."""


class RayEngine(Engine):
    """One worker per core of a Ray cluster: the one at an address, or a new one on this machine."""

    def __init__(self, plan: RunPlan, address: str | None) -> None:
        super().__init__(plan, 1)
        self._address = address = address or os.environ.get("RAY_ADDRESS")
        if address is not None and (plan.keeps_sessions or plan.keeps_transcripts):
            _ensure_shared_store(plan.store)
        self._pickled = PickledPlan(plan, cloudpickle.dumps)

    async def __aenter__(self) -> Self:
        if not ray.is_initialized():
            try:
                await _check_answers(self._address)
                ray.init(self._address or "local", logging_level="WARNING", include_dashboard=False)
            except (OSError, RayError) as error:
                raise EngineFailed(f"the Ray cluster at {self._address} cannot be reached: {error}") from error
            self.resources.callback(ray.shutdown)
        self.workers = max(1, min(int(ray.cluster_resources().get("CPU", 1)), self.plan.options.concurrency))
        return self

    async def start(self) -> Worker:
        actor = ray.remote(_Actor).options(num_cpus=1, max_concurrency=8)
        worker = _RayWorker(actor.remote(self._pickled, self.slots), silence=self.plan.lease)
        self.resources.push_async_callback(worker.stop)
        await worker.introduce()
        return worker


async def _check_answers(address: str | None) -> None:
    """Raise `OSError` if nothing listens at HOST:PORT, because Ray itself would retry for minutes."""
    host, _, port = (address or "").rpartition(":")
    if host and port.isdecimal():
        async with asyncio.timeout(CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host, int(port))
        writer.close()


def _ensure_shared_store(url: str) -> None:
    if url.partition(":")[0] in OF_ONE_MACHINE:
        raise InvalidOption(
            "store",
            f"workers on other machines of a Ray cluster cannot reach {without_secrets(url)}; give a shared store, "
            "such as redis://HOST or postgresql://HOST/DATABASE",
        )


class _RayWorker:
    """The driver's side of a worker."""

    def __init__(self, actor: Any, *, silence: float) -> None:
        self._actor = actor
        self._silence = silence

    async def introduce(self) -> None:
        """Wait until it is ready."""
        if (refused := await self._call("start")) is not None:
            raise refused.error()

    async def send(self, messages: Sequence[ToWorker]) -> None:
        self._actor.send.remote(messages)  # not awaited: a busy actor replies late, and `receive` notices a lost one

    async def receive(self) -> Sequence[FromWorker]:
        try:
            async with asyncio.timeout(self._silence):
                return await self._call("receive")  # type: ignore[no-any-return]
        except TimeoutError:
            raise WorkerLost("a worker on Ray is silent") from None

    async def _call(self, name: str, *arguments: Any) -> Any:
        try:
            return await getattr(self._actor, name).remote(*arguments)
        except RayError as error:
            raise WorkerLost(f"a worker on Ray has died: {error}") from error

    async def stop(self) -> None:
        with suppress(WorkerLost, TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._call("stop")
        ray.kill(self._actor)


class _Actor:
    """A worker, in its process on the cluster."""

    def __init__(self, plan: PickledPlan, slots: int) -> None:
        self._pickled = plan
        self._slots = slots
        self._link = Link(Heartbeat(plan.lease))
        self._stopped = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> Refused | None:
        """Begin."""
        opened: asyncio.Future[EpisodeWorker] = asyncio.get_running_loop().create_future()
        try:
            plan = self._pickled.open(self._link.limiter)
            self._running = asyncio.create_task(self._run(plan, opened))
            self._worker = await opened
        except StateroomError as error:
            return Refused.of(error)
        return None

    async def _run(self, plan: RunPlan, opened: asyncio.Future[EpisodeWorker]) -> None:
        try:
            async with open_worker(plan, self._slots, self._link) as worker:
                opened.set_result(worker)
                await self._stopped.wait()
        except Exception as error:
            if opened.done():
                raise
            opened.set_exception(error)

    async def send(self, messages: Sequence[ToWorker]) -> None:
        await self._worker.send(messages)

    async def receive(self) -> Sequence[FromWorker]:
        self._link.heartbeat.renew()
        await asyncio.sleep(GATHER_SECONDS)
        try:
            async with asyncio.timeout(self._pickled.lease / BEATS_PER_LEASE):
                return await self._worker.receive()
        except TimeoutError:
            return []

    async def stop(self) -> None:
        self._stopped.set()
        if self._running is not None:
            await self._running

"""`ProcessEngine`: workers in processes on this machine, connected by sockets."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import socket
import sys
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import suppress
from threading import Timer
from typing import Any

from stateroom.errors import StateroomError, check_posix
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

STOP_SECONDS = 10.0
"""The time that a worker has to stop, in seconds."""

PROGRAM = "from stateroom.rollout.engines.processes import main; main()"

LENGTH_BYTES = 4
"""The prefix of each message: its length."""


class ProcessEngine(Engine):
    """One worker per process; by default one per core.

    Raises `UnsupportedSystem` on Windows, where a process cannot inherit an open socket by its number.
    """

    def __init__(self, plan: RunPlan, workers: int | None) -> None:
        check_posix("the engine 'processes'", "local or ray")
        super().__init__(plan, min(workers or os.cpu_count() or 1, plan.options.concurrency))
        self._pickled = PickledPlan(plan)

    async def start(self) -> Worker:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                reader, writer = await asyncio.open_connection(sock=ours)
            except BaseException:
                ours.close()
                raise
            self.resources.callback(writer.close)
            process = await asyncio.create_subprocess_exec(  # last, so no process is left over if this is cancelled
                sys.executable, "-c", PROGRAM, str(theirs.fileno()), pass_fds=[theirs.fileno()]
            )
        worker = _ProcessWorker(process, reader, writer, silence=self.plan.lease)
        self.resources.push_async_callback(worker.stop)
        await worker.introduce(self._pickled, self.slots)
        return worker


class _ProcessWorker:
    """The driver's side of a worker."""

    def __init__(self, process: Process, reader: StreamReader, writer: StreamWriter, *, silence: float) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._silence = silence

    async def introduce(self, plan: PickledPlan, slots: int) -> None:
        """Send it the plan, and wait until it is ready."""
        await self._write((plan, slots))
        if isinstance(refused := await self._read(), Refused):
            raise refused.error()

    async def send(self, messages: Sequence[ToWorker]) -> None:
        await self._write(messages)

    async def receive(self) -> Sequence[FromWorker]:
        try:
            async with asyncio.timeout(self._silence):
                messages: Sequence[FromWorker] | Refused = await self._read()
        except TimeoutError:
            raise WorkerLost(f"worker process {self._process.pid} is silent") from None
        if isinstance(messages, Refused):
            raise messages.error()
        return messages

    async def _write(self, message: Any) -> None:
        try:
            await write(self._writer, message)
        except OSError as error:
            raise self._lost() from error

    async def _read(self) -> Any:
        try:
            return await read(self._reader)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise self._lost() from error

    def _lost(self) -> WorkerLost:
        return WorkerLost(f"worker process {self._process.pid} has died")

    async def stop(self) -> None:
        """Close the connection, which ends the process; kill it if it does not end."""
        self._writer.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS):
                await self._process.wait()
                return
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


async def write(writer: StreamWriter, message: Any) -> None:
    """Send a message to the process at the other end, which is trusted."""
    content = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    writer.write(len(content).to_bytes(LENGTH_BYTES, "big") + content)
    await writer.drain()


async def read(reader: StreamReader) -> Any:
    size = int.from_bytes(await reader.readexactly(LENGTH_BYTES), "big")
    return pickle.loads(await reader.readexactly(size))


# In the worker's process.


def main() -> None:
    """Work for the driver at the other end of a socket until it closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        asyncio.run(_work(connection))


async def _work(connection: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=connection)
    try:
        plan, slots = await read(reader)
        try:
            link = Link(Heartbeat(plan.lease))
            async with open_worker(plan.open(link.limiter), slots, link) as worker:
                await write(writer, None)
                await _talk(worker, link.heartbeat, reader, writer, beat=plan.lease / BEATS_PER_LEASE)
        except StateroomError as error:
            await write(writer, Refused.of(error))
    except (asyncio.IncompleteReadError, OSError):
        pass  # the driver is gone


async def _talk(
    worker: EpisodeWorker, heartbeat: Heartbeat, reader: StreamReader, writer: StreamWriter, *, beat: float
) -> None:
    """Exchange messages until the driver closes the connection."""

    async def hear() -> None:
        while True:
            await worker.send(await read(reader))

    hearing = asyncio.create_task(hear())
    try:
        while not hearing.done():
            receiving = asyncio.create_task(worker.receive())
            await asyncio.wait({receiving, hearing}, timeout=beat, return_when=asyncio.FIRST_COMPLETED)
            if receiving.done():
                await write(writer, receiving.result())
            else:
                receiving.cancel()
                await write(writer, [])
            heartbeat.renew()
        hearing.result()
    finally:
        hearing.cancel()
        end = Timer(STOP_SECONDS, os._exit, [1])  # the driver may be gone and unable to kill this process
        end.daemon = True
        end.start()

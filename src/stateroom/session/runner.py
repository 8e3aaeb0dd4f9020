"""Running an author's code so that it cannot stall or break the session or the process.

Async functions run on the event loop, under a timeout. Others run on a worker thread, so that one that blocks stalls
nobody and can be left behind when its time is up. A thread costs a hundred microseconds a call, which is most of a
quick tool's time; so a plain function that has been quick many times in a row runs on the loop from then on. When it is
slow there it goes back to threads, and must be quick ten times as often to return: a machine that was busy for a moment
costs it little, and a tool that blocks now and then stalls the loop ever more rarely. One that raises there what it was
not meant to goes back for good, and one with a timeout of its own always has a thread.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from itertools import count
from math import inf
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import Any

from stateroom.errors import Busy, StateroomError, TimedOut
from stateroom.pauses import Pauses
from stateroom.session.containment import Asked, PathNotLoaded, contained
from stateroom.session.environment import Procedure

QUICK_SECONDS = 0.001
"""Seconds within which a function counts as quick."""

QUICK_RUNS = 25
"""Quick runs in a row after which a function runs on the loop."""

SLOW_SECONDS = 0.010
"""Seconds after which a function that ran on the loop goes back to threads."""

QUICK_RUNS_FACTOR = 10
"""Factor by which more quick runs are needed each time that it does."""

MAX_THREADS = 1024
"""Functions that can be at work, or stuck, on threads at once."""

PAUSES = Pauses(first=0.02, longest=0.5)
"""Between two looks for a thread that is free."""

IDLE_SECONDS = 5.0
"""Seconds that a worker thread waits for more work before it ends."""


class Runner:
    """Runs procedures, each within a timeout of its own or this one, and learns which of them are quick."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self.look_back: set[Callable[..., Any]] = set()
        """The verifiers that look back at an episode's path, as far as known."""
        self.paces: dict[Callable[..., Any], Pace] = {}
        """The speeds of the plain functions that have run."""
        self._workers = _Workers()
        if _garbage not in gc.callbacks:
            gc.callbacks.append(_garbage)

    async def run(self, procedure: Procedure, arguments: dict[str, Any]) -> Any:
        """Call the function; raises `TimedOut`, or what the function raises, as an `Exception`."""
        function = procedure.function
        timeout = procedure.timeout or self.timeout
        with contained:
            if procedure.is_async:
                return await _within(timeout, asyncio.ensure_future(_awaited(function(**arguments))))
            if procedure.timeout is not None:
                call = partial(function, **arguments)
            else:
                pace = self.paces.setdefault(function, Pace())
                if pace.on_loop:
                    return pace.run(function, arguments)
                call = partial(pace.run, function, arguments)
            work = self._workers.run(call) or await self._workers.run_later(call, timeout)
            return await _within(timeout, work)


class _Garbage:
    """Knows when Python last collected garbage: such a pause does not make the function slow that it interrupted."""

    collected = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            self.collected = perf_counter()


_garbage = _Garbage()


class Pace:
    """The speed of a function."""

    __slots__ = ("needed", "on_loop", "quick_runs")

    def __init__(self) -> None:
        self.quick_runs = 0
        self.needed: float = QUICK_RUNS
        self.on_loop = False

    def run(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        """Call a function, and see how long it takes; what it raises is yet to be contained."""
        start = perf_counter()
        try:
            return function(**arguments)
        except BaseException as error:
            if self.on_loop and not isinstance(error, StateroomError | PathNotLoaded | Asked):
                self.on_loop, self.needed = False, inf  # it may need a loop of its own, say
            raise
        finally:
            seconds = perf_counter() - start
            if seconds > QUICK_SECONDS:
                self.quick_runs = 0
                if seconds > SLOW_SECONDS and self.on_loop and _garbage.collected < start:
                    self.on_loop, self.needed = False, self.needed * QUICK_RUNS_FACTOR
            elif not self.on_loop:
                self.quick_runs += 1
                self.on_loop = self.quick_runs >= self.needed


async def _within(timeout: float, work: asyncio.Future[Any]) -> Any:
    """Wait for some work for so long and no longer: work that will not be cancelled is left behind."""
    try:
        done, _ = await asyncio.wait((work,), timeout=timeout)
    except asyncio.CancelledError:
        work.cancel()
        work.add_done_callback(_hear_out)
        raise
    if not done:
        work.cancel()
        work.add_done_callback(_hear_out)
        raise TimedOut(f"{timeout:g} s")
    return work.result()


_authors: contextvars.ContextVar[bool] = contextvars.ContextVar("stateroom-authors", default=False)
"""Whether a task runs an author's function, or was started by one."""


async def _awaited(work: Coroutine[Any, Any, Any]) -> Any:
    """Await an author's function in a task of its own: a SystemExit must not reach the loop, which would stop for it.

    Nor must one from a task that the function starts, with `asyncio.gather`, say.
    """
    loop = asyncio.get_running_loop()
    if loop.get_task_factory() is None:
        loop.set_task_factory(_new_task)
    _authors.set(True)
    with contained:
        return await work


def _new_task(loop: asyncio.AbstractEventLoop, work: Any, /, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(_spared(work) if _authors.get() else work, loop=loop, **options)


async def _spared(work: Coroutine[Any, Any, Any]) -> Any:
    """Await a coroutine; what would stop the loop is contained, and all else is as the author's code expects it."""
    try:
        return await work
    except (SystemExit, KeyboardInterrupt):
        with contained:
            raise


def _hear_out(work: asyncio.Future[Any]) -> None:
    """Retrieve the outcome of abandoned work, or the loop would log a warning."""
    if not work.cancelled():
        work.exception()


class _Workers:
    """Daemon threads that start and end with the work; a function that never returns only costs its thread."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], None]]] = []
        self._threads = 0

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any] | None:
        """Run a function on a thread; None if all of them are at work."""
        try:
            inbox = self._idle.pop()
        except IndexError:
            if self._threads >= MAX_THREADS:
                return None
            inbox = self._start()
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()
        inbox.put(partial(self._work, inbox, partial(context.run, function), loop, done))
        return done

    async def run_later(self, function: Callable[[], Any], timeout: float) -> asyncio.Future[Any]:
        """Run a function as soon as a thread is free; `Busy` if none is in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                for looks in count(1):
                    await asyncio.sleep(PAUSES.after(looks))
                    if (work := self.run(function)) is not None:
                        return work
        raise Busy(f"{MAX_THREADS} tools are already running or stuck; try again later")

    def _start(self) -> SimpleQueue[Callable[[], None]]:
        self._threads += 1
        inbox: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._serve, args=(inbox,), name="stateroom-tool", daemon=True).start()
        return inbox

    def _serve(self, inbox: SimpleQueue[Callable[[], None]]) -> None:
        while True:
            try:
                work = inbox.get(timeout=IDLE_SECONDS)
            except Empty:
                with suppress(ValueError):  # not idle any more: work is on its way
                    self._idle.remove(inbox)
                    self._threads -= 1
                    return
                continue
            work()
            del work  # what it holds must not outlive it

    def _work(
        self,
        inbox: SimpleQueue[Callable[[], None]],
        function: Callable[[], Any],
        loop: asyncio.AbstractEventLoop,
        done: asyncio.Future[Any],
    ) -> None:
        result, error = None, None
        try:
            with contained:
                result = function()
        except BaseException as raised:  # noqa: BLE001 - it is raised again where the function was awaited
            error = raised
        self._idle.append(inbox)
        with suppress(RuntimeError):  # the loop has gone
            loop.call_soon_threadsafe(_deliver, done, result, error)


def _deliver(done: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if done.done():  # nobody waits for it any more
        return
    if error is None:
        done.set_result(result)
    else:
        done.set_exception(error)

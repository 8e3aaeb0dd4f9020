"""Running an author's code without letting it stall, hang or break the session, or the process.

Async functions run on the event loop, under a timeout. Others run on a worker thread, so that one that blocks stalls
nobody and can be left behind when its time is up. A thread costs a hundred microseconds a call, which is most of a
quick tool's time; so a plain function that has been quick many times in a row runs on the loop from then on. When it is
slow there it goes back to threads, and must be quick ten times as often to return: a machine that was busy for a moment
costs it little, and a tool that blocks now and then stalls the loop ever more rarely. One that raises there what it was
not meant to goes back for good, and one with a timeout of its own always has a thread.

Whatever such code raises is `contained`: it ends the call that ran it, and nothing else.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import signal
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from math import inf
from queue import Empty, SimpleQueue
from time import perf_counter
from types import TracebackType
from typing import Any

from stateroom.errors import Busy, StateroomError, TimedOut
from stateroom.session.program import Asked, PathNotLoaded, Procedure

QUICK = 0.001
"""Seconds within which a function counts as quick."""

PROVEN = 25
"""So many quick runs in a row let a function run on the loop."""

SLOW = 0.010
"""Seconds after which a function that ran on the loop goes back to threads."""

HARDER = 10
"""So many times more quick runs are needed each time that it does."""

MOST_THREADS = 1024
"""So many functions can be at work, or stuck, on threads at once."""

IDLE_SECONDS = 5.0
"""How long a worker thread waits for more work before it ends."""


class _Contained:
    """Lets nothing but an `Exception` out of a block that runs an author's code: `with contained:`.

    `SystemExit`, `KeyboardInterrupt`, `GeneratorExit`, `CancelledError` and their like would end a thread, a task, the
    event loop or the process, and `StopIteration` changes on its way out of a coroutine. Instead of such an error, an
    `Exception` of the same name is raised, which has the error as its cause. What reaches the block from outside goes
    on as it is: a cancellation of the task, Ctrl-C, and the end of a coroutine that nobody awaits any more.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, PathNotLoaded | Asked) or _is_from_outside(error, traceback):
            return
        if isinstance(error, RuntimeError) and error.args == ("coroutine raised StopIteration",):
            error = error.__cause__ or error
        try:
            words = str(error)
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                return
        except BaseException:  # noqa: BLE001 - the text of an author's error is made by the author's code too
            words = "its text cannot be read"
        name = type(error).__name__
        told = type(name, (Exception,), {"__module__": type(error).__module__})(words)
        raise told.with_traceback(error.__traceback__) from error


contained = _Contained()


def _is_from_outside(error: BaseException, traceback: TracebackType | None) -> bool:
    """Whether an error that left a block was not raised by what the block ran."""
    match error:
        case asyncio.CancelledError():
            with suppress(RuntimeError):  # a thread has no task
                task = asyncio.current_task()
                return task is not None and task.cancelling() > 0
        case KeyboardInterrupt():  # asyncio.run and servers have handlers of their own, which do not raise it here
            on_main = threading.current_thread() is threading.main_thread()
            return on_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        case GeneratorExit():
            return traceback is None or traceback.tb_next is None
    return False


class Runner:
    """Runs procedures, and learns which of them are quick."""

    def __init__(self) -> None:
        self.look_back: set[Callable[..., Any]] = set()
        """The verifiers that are known to ask how an episode came to its state."""
        self._paces: dict[Callable[..., Any], Pace] = {}
        self._workers = _Workers()

    async def run(self, procedure: Procedure, arguments: dict[str, Any], default_timeout: float) -> Any:
        """Call the function; raises `TimedOut`, or what the function raises, as an `Exception`."""
        function = procedure.function
        timeout = procedure.timeout or default_timeout
        with contained:
            if procedure.is_async:
                return await _within(timeout, asyncio.ensure_future(_awaited(function(**arguments))))
            if procedure.timeout is not None:
                return await _within(timeout, self._workers.run(partial(function, **arguments)))
            pace = self._paces.setdefault(function, Pace())
            if pace.on_loop:
                return pace.timed(function, arguments)
            return await _within(timeout, self._workers.run(partial(pace.timed, function, arguments)))

    def quick(self, procedure: Procedure) -> Pace | None:
        """The pace of a function that may run on the loop: what its `timed` raises is yet to be contained."""
        pace = self._paces.get(procedure.function)
        return pace if pace is not None and pace.on_loop else None


class _Garbage:
    """Knows when Python last stopped to collect garbage: a pause that is no fault of the function it fell into."""

    collected = 0.0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop":
            self.collected = perf_counter()


_garbage = _Garbage()
gc.callbacks.append(_garbage)


class Pace:
    """How quick a function has been."""

    __slots__ = ("needed", "on_loop", "quick_runs")

    def __init__(self) -> None:
        self.quick_runs = 0
        self.needed: float = PROVEN
        self.on_loop = False

    def timed(self, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
        start = perf_counter()
        try:
            return function(**arguments)
        except (StateroomError, PathNotLoaded, Asked):
            raise
        except BaseException:
            if self.on_loop:  # it may need a thread, for a loop of its own, say
                self.on_loop, self.needed = False, inf
            raise
        finally:
            seconds = perf_counter() - start
            if seconds > QUICK:
                self.quick_runs = 0
                if seconds > SLOW and self.on_loop and _garbage.collected < start:
                    self.on_loop, self.needed = False, self.needed * HARDER
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
    """Take note of how work that was left behind ended, or the loop complains that nobody did."""
    if not work.cancelled():
        work.exception()


class _Workers:
    """Daemon threads that come and go with the work: one that never returns costs its thread and no more."""

    def __init__(self) -> None:
        self._idle: list[SimpleQueue[Callable[[], None]]] = []
        self._threads = 0

    def run(self, function: Callable[[], Any]) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Any] = loop.create_future()
        context = contextvars.copy_context()
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = self._start()
        inbox.put(partial(self._work, inbox, partial(context.run, function), loop, done))
        return done

    def _start(self) -> SimpleQueue[Callable[[], None]]:
        if self._threads >= MOST_THREADS:
            raise Busy(f"{MOST_THREADS} tools are at work already, or stuck; try again in a second")
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

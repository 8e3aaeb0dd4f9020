"""Containment: what an author's code raises ends the call that ran it, and nothing else."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from types import TracebackType


class PathNotLoaded(BaseException):
    """A verifier reads the episode's path before it is loaded. Author code must not catch it."""


class Asked(BaseException):
    """A tool asks a question that has no answer yet. Author code must not catch it."""


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
        stand_in = type(name, (Exception,), {"__module__": type(error).__module__})(words)
        raise stand_in.with_traceback(error.__traceback__) from error


contained = _Contained()


def _is_from_outside(error: BaseException, traceback: TracebackType | None) -> bool:
    """Whether an error that left a block was not raised by what the block ran."""
    import asyncio  # noqa: PLC0415 - an author's imports stay light, and few errors come here

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

"""Containment: an error in an author's code ends only the call that ran it, and is reported with its place."""

from __future__ import annotations

import inspect
import signal
import sysconfig
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from traceback import format_exception, walk_tb
from types import CodeType, TracebackType
from typing import Any

import msgspec

from stateroom.errors import EnvironmentFailed, ModelFailed, shortened

FRAMEWORK = str(Path(__file__).parents[1])
GALLERY = str(Path(FRAMEWORK, "gallery"))
STANDARD_LIBRARY = sysconfig.get_path("stdlib")
INSTALLED = ("site-packages", "dist-packages")
"""Folders of installed packages."""


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


# Errors and their places. Authors read them; models never do.


class Cause(msgspec.Struct, frozen=True, gc=False):
    """An error that an author's code raised."""

    error: str
    """The type and the text: `ValueError: no such seat`."""
    traceback: str
    place: str | None = None
    """The deepest line of the author's own code: `airline.py:88 in cancel`."""

    def plain(self) -> dict[str, Any]:
        """The same as JSON data."""
        return {"place": self.place, "error": self.error, "traceback": self.traceback}


def cause_of(error: BaseException, function: Callable[..., Any] | None = None) -> Cause:
    """The cause of a failure, as text: an exception would keep the frames, and the drafts in them, alive.

    `function` is the author's function that failed. It is the place if no line of the author's raised the error.
    """
    is_model = isinstance(error, ModelFailed)
    while error.__cause__ is not None and isinstance(error, EnvironmentFailed | ModelFailed):
        error = error.__cause__
        known = getattr(error, "cause", None)
        if isinstance(known, Cause):
            return known
    code = None if function is None else code_of(function)
    place = _raised_at(error.__traceback__, code, installed=code is None and not is_model)
    if place is None and code is not None:
        place = _place(code, code.co_firstlineno)
    text = "".join(format_exception(type(error), error, _without_framework(error.__traceback__)))
    return Cause(shortened(f"{type(error).__name__}: {error}"), shortened(text), place)


def code_of(function: Any) -> CodeType | None:
    """The code of a function or method; None for one that was not written in Python."""
    return getattr(inspect.unwrap(getattr(function, "__func__", function)), "__code__", None)


def _raised_at(trace: TracebackType | None, code: CodeType | None, *, installed: bool) -> str | None:
    """The deepest line in an author's file; else, if `installed`, in any package but this one."""
    lines = [(frame.f_code, line) for frame, line in walk_tb(trace)]
    own_file = None if code is None else code.co_filename
    own = [at for at in lines if at[0].co_filename == own_file or not _is_library(at[0].co_filename)]
    others = [at for at in lines if any(name in at[0].co_filename for name in INSTALLED)] if installed else []
    outside = [at for at in others if not at[0].co_filename.startswith(FRAMEWORK)]
    return _place(*(own or outside)[-1]) if own or outside else None


def _is_library(file: str) -> bool:
    if file.startswith(FRAMEWORK):
        return not file.startswith(GALLERY)
    return file.startswith((STANDARD_LIBRARY, "<frozen", "<string>")) or any(name in file for name in INSTALLED)


def _place(code: CodeType, line: int) -> str:
    return f"{Path(code.co_filename).name}:{line} in {code.co_name}"


def _without_framework(trace: TracebackType | None) -> TracebackType | None:
    """A traceback from the first frame that is not the framework's, if there is one."""
    start = trace
    while start is not None and start.tb_frame.f_code.co_filename.startswith(FRAMEWORK):
        if start.tb_frame.f_code.co_filename.startswith(GALLERY):
            break
        start = start.tb_next
    return start or trace

"""The cause of a failure: what an author's code raised, and where. Authors read it; models never do."""

from __future__ import annotations

import inspect
import sysconfig
from collections.abc import Callable
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


class Cause(msgspec.Struct, frozen=True, gc=False):
    """What an author's code raised."""

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

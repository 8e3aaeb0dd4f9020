"""Sessions for code without `async`: coroutines run on an event loop on a thread of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import wraps
from html import escape
from threading import Thread
from typing import Any, Self, TypeVar

from stateroom.session.agent import SessionAgent
from stateroom.session.lease import Lease
from stateroom.session.log import LogEntry
from stateroom.session.log_reader import entry_line
from stateroom.session.session import Session
from stateroom.session.sessions import Sessions
from stateroom.session.stateless import StatelessSession

T = TypeVar("T")


class BackgroundLoop:
    """An event loop on a thread of its own, so that blocking code can wait for coroutines, in a running loop too."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # A store may close when the interpreter ends, and then no thread can start: one is ready for it.
        self._loop.run_in_executor(None, int)
        self._thread = Thread(target=self._loop.run_forever, name="stateroom-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and return its result. On Ctrl-C it is cancelled, and has ended when this raises."""
        future: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []

        def begin() -> None:
            tasks.append(self._loop.create_task(coroutine))
            tasks[0].add_done_callback(end)

        def end(task: asyncio.Task[T]) -> None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is None:
                future.set_result(task.result())
            else:
                future.set_exception(error)

        self._loop.call_soon_threadsafe(begin)
        try:
            return future.result()
        except KeyboardInterrupt:
            self._loop.call_soon_threadsafe(lambda: tasks[0].cancel())  # noqa: PLW0108 - it may begin only now
            with suppress(asyncio.CancelledError, Exception):
                future.result()
            raise

    @property
    def is_open(self) -> bool:
        return not self._loop.is_closed()

    def close(self) -> None:
        """End the loop and its thread."""
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LogEntries(list[LogEntry]):
    """A session's log; a notebook shows it as a table."""

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{entry.revision}</td><td>{escape(entry.kind)}</td>"
            f"<td style='text-align: left'>{escape(entry_line(entry))}</td></tr>"
            for entry in self
        )
        return f"<table><tr><th>revision</th><th>kind</th><th>what</th></tr>{rows}</table>"


class Blocking:
    """Wraps a `Session`, `Sessions` or a part of them in blocking methods with the same names.

    A coroutine's result is returned, an async iterator becomes a list, and a lease works in a plain `with`.
    """

    def __init__(self, original: Any, loop: BackgroundLoop) -> None:
        self._original = original
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._original)

    def __dir__(self) -> list[str]:
        return dir(self._original)

    def __getattr__(self, name: str) -> Any:
        member = getattr(self._original, name)
        return self._method(member) if inspect.ismethod(member) else self._wrapped(member)

    def _method(self, method: Callable[..., Any]) -> Callable[..., Any]:
        async def result(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            returned = method(*args, **kwargs)
            if inspect.isawaitable(returned):
                return await returned
            return [item async for item in returned] if isinstance(returned, AsyncIterator) else returned

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._wrapped(self._loop.run(result(args, kwargs)))

        return call

    def _wrapped(self, value: Any) -> Any:
        if isinstance(value, ORIGINALS):
            return Blocking(value, self._loop)
        if isinstance(value, list):
            is_log = value and isinstance(value[0], LogEntry)
            return LogEntries(value) if is_log else [self._wrapped(item) for item in value]
        return value

    def __enter__(self) -> Self:
        self._loop.run(self._original.__aenter__())
        return self

    def __exit__(self, *raised: object) -> None:
        self._loop.run(self._original.__aexit__(*raised))


ORIGINALS = (Session, StatelessSession, Sessions, SessionAgent, Lease)
"""The types that are returned as a `Blocking`."""

"""A store whose operations are counted and timed."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import ParamSpec, TypeVar

from stateroom.errors import Conflict, SessionError
from stateroom.server.monitoring.metrics import Figures
from stateroom.store import OPERATIONS, Store, Work, WrappedStore

P = ParamSpec("P")
T = TypeVar("T")


class MeasuredStore(WrappedStore):
    """A store whose operations are counted and timed."""

    def __init__(self, store: Store, figures: Figures) -> None:
        super().__init__(store)
        self._count = {operation: figures.of_store(operation).called for operation in OPERATIONS}

    async def around(
        self, operation: str, session: str | None, work: Callable[P, Work[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        outcome = "error"
        start = perf_counter()
        try:
            result = await work(*args, **kwargs)
            outcome = "ok"
            return result
        except Conflict:
            outcome = "conflict"
            raise
        except SessionError:
            outcome = "refused"
            raise
        finally:
            self._count[operation](outcome, perf_counter() - start)

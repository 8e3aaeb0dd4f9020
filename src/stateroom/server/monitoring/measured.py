"""A store that is watched: every operation goes through one place, where it can be timed or traced."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Coroutine, Sequence
from time import perf_counter
from typing import Any, Self, TypeVar

from stateroom.errors import Conflict, SessionError, UnknownStore
from stateroom.server.monitoring.metrics import OPERATIONS, Figures
from stateroom.store import Entry, Head, Loaded, Snapshot, Store

T = TypeVar("T")

Work = Coroutine[Any, Any, T]


class WatchedStore(Store):
    """Another store, of which `around` sees every operation.

    The methods are no coroutines of their own but return that of `around`, which spares each of them one.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    @abstractmethod
    def around(self, operation: str, session: str | None, work: Work[T]) -> Work[T]:
        """Does the work of an operation, on one session if it names one."""

    @classmethod
    async def open(cls, url: str) -> Self:
        raise UnknownStore(f"{cls.__name__} has no URL: it is put around a store that is open")

    async def close(self) -> None:
        await self.store.close()

    def create(self, head: Head, entries: Sequence[Entry] = (), snapshot: Snapshot | None = None) -> Work[None]:
        return self.around("create", head.id, self.store.create(head, entries, snapshot))

    def append(
        self,
        session: str,
        entry: Entry,
        *,
        expires: float | None,
        snapshot: Snapshot | None = None,
        closes: bool = False,
    ) -> Work[None]:
        work = self.store.append(session, entry, expires=expires, snapshot=snapshot, closes=closes)
        return self.around("append", session, work)

    def touch(self, session: str, *, now: float, expires: float) -> Work[None]:
        return self.around("touch", session, self.store.touch(session, now=now, expires=expires))

    def head(self, session: str) -> Work[Head]:
        return self.around("head", session, self.store.head(session))

    def heads(
        self, *, environment: str | None = None, before: Head | None = None, limit: int = 100
    ) -> Work[list[Head]]:
        return self.around("heads", None, self.store.heads(environment=environment, before=before, limit=limit))

    def load(self, session: str, at: int | None = None) -> Work[Loaded]:
        return self.around("load", session, self.store.load(session, at))

    def entries(self, session: str, *, after: int = 0, until: int | None = None) -> Work[list[Entry]]:
        return self.around("entries", session, self.store.entries(session, after=after, until=until))

    def find_call(self, session: str, call_id: str) -> Work[Entry | None]:
        return self.around("find_call", session, self.store.find_call(session, call_id))

    def sweep(self, now: float) -> Work[int]:
        return self.around("sweep", None, self.store.sweep(now))

    def delete(self, session: str) -> Work[None]:
        return self.around("delete", session, self.store.delete(session))

    def count(self, now: float) -> Work[int]:
        return self.around("count", None, self.store.count(now))


class MeasuredStore(WatchedStore):
    """A store whose operations are counted and timed."""

    def __init__(self, store: Store, figures: Figures) -> None:
        super().__init__(store)
        self._count = {operation: figures.of_store(operation).called for operation in OPERATIONS}

    async def around(self, operation: str, session: str | None, work: Work[T]) -> T:
        outcome = "error"
        start = perf_counter()
        try:
            result = await work
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

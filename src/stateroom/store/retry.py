"""`patience=SECONDS`: a store that is reached over a network, and may be away for a moment.

What fails with `StoreUnavailable` is done again, after pauses that grow and are random, so that workers which lost the
same server do not all come back at once. No attempt begins later than the patience allows.

Whether an attempt that failed so has been done nobody knows. Most operations can be done twice with no harm. An append
or a creation is guarded: a second time it is refused. If it is refused after an attempt whose end is unknown, the store
is asked whether what it has is what that attempt wrote: the whole entry with its call id, which whoever writes to
such a store makes unique. `sweep` and `prune` tell what their last attempt has done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count
from random import uniform
from time import monotonic
from typing import Any, ParamSpec, TypeVar, cast

from stateroom.errors import StateroomError, StoreUnavailable, UnknownSession
from stateroom.store.contract import Commit, Entry, Head, Store
from stateroom.store.wrapper import Work, WrappedStore

P = ParamSpec("P")
T = TypeVar("T")

PATIENCE = 10.0
"""For how many seconds an operation is tried, unless the URL says otherwise."""
FIRST_PAUSE = 0.02
LONGEST_PAUSE = 1.0


class PatientStore(WrappedStore):
    """Another store, whose operations are tried again while it cannot be reached."""

    def __init__(self, store: Store, patience: float = PATIENCE) -> None:
        super().__init__(store)
        self.patience = patience
        self._under_way = 0
        self._closed = False
        self._idle = asyncio.Event()
        """Set when the store is to close, and nothing is under way any more."""

    async def close(self) -> None:
        self._closed = True
        if self._under_way:
            await self._idle.wait()  # no longer than the patience of the last of them
        await super().close()

    async def around(
        self, operation: str, session: str | None, work: Callable[P, Work[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._closed:
            raise StoreUnavailable("this store is closed")
        started = monotonic()
        self._under_way += 1
        try:
            return await work(*args, **kwargs)
        except StoreUnavailable as error:
            return await self._again(started, error, operation, work, *args, **kwargs)
        finally:
            self._under_way -= 1
            if self._closed and not self._under_way:
                self._idle.set()

    async def _again(
        self,
        started: float,
        error: StoreUnavailable,
        operation: str,
        work: Callable[P, Work[T]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T:
        """Do what has failed once, and may be done all the same."""
        for failures in count(1):
            await self._pause(failures, started, error)
            try:
                try:
                    return await work(*args, **kwargs)
                except StoreUnavailable:
                    raise
                except StateroomError as refusal:
                    if await self._was_done(operation, args, refusal):
                        return cast(T, None)  # which is all that such an operation returns
                    raise
            except StoreUnavailable as another:
                error = another
        raise AssertionError

    async def _pause(self, failures: int, started: float, error: StoreUnavailable) -> None:
        """Wait a little, or give up."""
        pause = uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** min(failures, 10)))
        passed = monotonic() - started
        if passed + pause > self.patience:
            raise StoreUnavailable(f"{error} (attempts: {failures}, in {passed:.1f} s)") from error
        await asyncio.sleep(pause)

    async def _was_done(self, operation: str, args: Sequence[Any], refusal: StateroomError) -> bool:
        """Whether an operation is refused because an attempt before, of which nothing was heard, has done it."""
        match operation:
            case "append":
                return await self._has_entry(*args)
            case "create":
                return await self._has_session(*args)
            case "delete":
                return isinstance(refusal, UnknownSession)
        return False

    async def _has_entry(self, commit: Commit) -> bool:
        entry = commit.entry
        return await self.store.entries(commit.session, after=entry.revision - 1, until=entry.revision) == [entry]

    async def _has_session(self, head: Head, entries: Sequence[Entry] = (), *_: Any) -> bool:
        try:
            found = await self.store.head(head.id)
            first = await self.store.entries(head.id, after=head.parent_revision, until=head.revision)
        except UnknownSession:
            return False
        return _origin(found) == _origin(head) and first == list(entries)


def _origin(head: Head) -> tuple[object, ...]:
    """What never changes of a session."""
    return head.created, head.environment, head.owner, head.parent, head.parent_revision

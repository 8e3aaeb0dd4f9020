"""`timeout=SECONDS`: retries for a store that is reached over a network.

An operation that fails with `StoreUnavailable` is repeated after growing, random pauses, so that workers which lost the
same server do not all return at once. No attempt begins after the timeout.

Whether a failed attempt was carried out is not known. Most operations can be repeated without harm. An append or a
creation is guarded: it is refused the second time. If it is refused after a failed attempt, the store is asked whether
it has what that attempt wrote: the whole entry with its call id, which writers to such a store make unique. `sweep` and
`prune` return what their last attempt did.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from time import monotonic
from typing import Any, ParamSpec, TypeVar, cast

from stateroom.errors import StateroomError, StoreUnavailable, UnknownSession
from stateroom.pauses import Pauses
from stateroom.store.concurrency import Gate
from stateroom.store.contract import Store
from stateroom.store.records import Commit, Head, Record
from stateroom.store.wrapper import Work, WrappedStore

P = ParamSpec("P")
T = TypeVar("T")

RETRY_SECONDS = 10.0
"""Seconds for which an operation is retried, unless the URL says otherwise."""
PAUSES = Pauses(first=0.04, longest=1.0)


class RetryStore(WrappedStore):
    """Another store, with operations repeated while it cannot be reached."""

    def __init__(self, store: Store, timeout: float = RETRY_SECONDS) -> None:
        super().__init__(store)
        self.timeout = timeout
        self._gate = Gate("this store")

    async def close(self) -> None:
        await self._gate.close()  # waits at most for the timeout
        await super().close()

    async def around(
        self, operation: str, session: str | None, work: Callable[P, Work[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        started, failures = monotonic(), 0
        with self._gate:
            while True:
                try:
                    try:
                        return await work(*args, **kwargs)
                    except StoreUnavailable:
                        raise
                    except StateroomError as refusal:
                        if failures and await self._was_done(operation, args, refusal):
                            return cast(T, None)  # which is all that such an operation returns
                        raise
                except StoreUnavailable as error:  # though it may have been carried out
                    failures += 1
                    await self._pause(failures, started, error)

    async def _pause(self, failures: int, started: float, error: StoreUnavailable) -> None:
        """Wait a little, or give up."""
        pause = PAUSES.after(failures)
        passed = monotonic() - started
        if passed + pause > self.timeout:
            raise StoreUnavailable(f"{error} (attempts: {failures}, in {passed:.1f} s)") from error
        await asyncio.sleep(pause)

    async def _was_done(self, operation: str, args: Sequence[Any], refusal: StateroomError) -> bool:
        """Whether an operation is refused because an earlier attempt, with a lost answer, carried it out."""
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

    async def _has_session(self, record: Record) -> bool:
        head = record.head
        try:
            stored = await self.store.head(head.id)
            first = await self.store.entries(head.id, after=head.parent_revision, until=head.revision)
        except UnknownSession:
            return False
        return _origin(stored) == _origin(head) and first == record.entries


def _origin(head: Head) -> tuple[object, ...]:
    """The fields of a session that never change."""
    return head.created, head.environment, head.owner, head.parent, head.parent_revision

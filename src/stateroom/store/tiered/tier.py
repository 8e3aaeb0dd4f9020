"""One tier: a store that may be unreachable, also when it is opened, and the marks in its heads.

A mark takes the place of the lease's holder in a head, with a lease that ends in the year 9999, so that no other holder
gets it. It remembers what it replaces: a session that was moved, or is being moved, looks as it did before.

| tier | mark | |
|---|---|---|
| warm | none | the session is here, whatever the cold tier says |
| warm | leaving | it is here, and cannot be changed until it is in the cold tier |
| warm | arriving | it is not here yet: the cold tier has it until it is open here |
| warm | buried | it was here; the cold tier has it. The next sweep of buried sessions removes the rest |
| cold | none | it is here, at rest, if the warm tier does not have it |
| cold | thawing | as with none, while it is moved to the warm tier |
| cold | away | it went to the warm tier; this is a copy of what it was then |
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Literal, ParamSpec, Self, TypeVar, cast
from uuid import uuid4

import msgspec
from msgspec.structs import replace

from stateroom.errors import StoreUnavailable
from stateroom.store.contract import Store
from stateroom.store.records import Head
from stateroom.store.url import opened, without_secrets
from stateroom.store.wrapper import Work, WrappedStore

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)


FOREVER = 253_370_764_800.0
"""The year 9999."""

BURIED = -FOREVER
"""The expiry of a buried session: a sweep at this time removes buried sessions, and nothing else."""

_PREFIX = "stateroom-tier:"

Kind = Literal["leaving", "arriving", "thawing", "away"]


class _Unopened:
    """Stands in for a store that is opened before one of its methods is called."""

    shared = True
    remote = True
    large = Store.large

    def __init__(self, find: Callable[[], Any]) -> None:
        self._find = find

    @property
    def maintenance(self) -> _Unopened:
        return _Unopened(lambda: self._find().maintenance)

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            return getattr(self._find(), name)(*args, **kwargs)

        return call


class Tier(WrappedStore):
    """A store that may be unreachable. If it is so when it is opened, each operation tries to open it.

    The first failure and the recovery are logged.
    """

    def __init__(self, name: str, url: str, store: Store | None = None) -> None:
        super().__init__(store or cast(Store, _Unopened(lambda: self.store)))
        self.name = name
        self.url = url
        self.shown = without_secrets(url)
        self.trouble: str | None = None
        """Why it could not be reached when it was last needed."""
        self._is_open = store is not None
        self._opening = asyncio.Lock()
        self._closed = False

    @classmethod
    async def reach(cls, name: str, url: str) -> Self:
        """The tier at a URL, reachable or not."""
        tier = cls(name, url)
        try:
            await tier._open()
        except StoreUnavailable as error:
            tier._note(str(error))
        return tier

    async def _open(self) -> None:
        async with self._opening:
            if not self._is_open:
                self.store = await opened(self.url)
                self.shared = self.store.shared
                self._is_open = True

    async def close(self) -> None:
        self._closed = True
        if self._is_open:
            await super().close()

    async def around(
        self, operation: str, session: str | None, work: Callable[P, Work[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        try:
            if not self._is_open:
                await self._open()
            result = await work(*args, **kwargs)
        except StoreUnavailable as error:
            self._note(str(error))
            raise StoreUnavailable(f"the {self.name} tier cannot be reached: {error}") from error
        if self.trouble is not None:
            self._note(None)
        return result

    def _note(self, trouble: str | None) -> None:
        if self._closed:
            return
        if trouble is None:
            logger.warning("the %s tier (%s) can be reached again", self.name, self.shown)
        elif self.trouble is None:
            logger.warning("the %s tier (%s) cannot be reached: %s", self.name, self.shown, trouble)
        self.trouble = trouble

    def state(self) -> str:
        """Its URL, and whether it could be reached when it was last needed."""
        return f"{self.shown}: {f'cannot be reached: {self.trouble}' if self.trouble else 'reachable'}"


# Marks.


class Mark(msgspec.Struct, frozen=True):
    """Where a session is, or goes; `token` identifies the move."""

    kind: Kind
    token: str
    holder: str | None
    until: float
    closed: bool
    expires: float

    @property
    def text(self) -> str:
        """The mark as the holder of a lease."""
        return _PREFIX + msgspec.json.encode(self).decode()


def new_token() -> str:
    """A unique token for a move."""
    return uuid4().hex


def mark_for(head: Head, kind: Kind, token: str) -> Mark:
    """A mark that remembers what it replaces in this head."""
    return Mark(kind, token, head.holder, head.leased_until, head.closed, head.expires)


def mark_of(head: Head) -> Mark | None:
    """The mark of a head."""
    if head.holder is None or not head.holder.startswith(_PREFIX):
        return None
    try:
        return msgspec.json.decode(head.holder[len(_PREFIX) :], type=Mark)
    except msgspec.DecodeError:  # damaged: then it is a lease that never ends, of this session and no other
        return None


def kind_of(head: Head) -> Kind | None:
    """The kind of a head's mark."""
    mark = mark_of(head)
    return mark.kind if mark else None


def is_buried(head: Head) -> bool:
    """Whether this is only the rest of a session that has moved to the cold tier."""
    return head.expires == BURIED


def marked(head: Head, kind: Literal["arriving", "away"], token: str) -> Head:
    """A head that cannot be added to, is not counted, and is not swept."""
    mark = mark_for(head, kind, token)
    return replace(head, holder=mark.text, leased_until=FOREVER, closed=True, expires=FOREVER)


def visible(head: Head) -> Head:
    """A head without its mark."""
    mark = mark_of(head)
    if mark is None:
        return head
    if mark.kind in ("leaving", "thawing"):  # which was a lease, so the fence went up by one
        return replace(head, holder=mark.holder, leased_until=mark.until, fence=head.fence - 1)
    return replace(head, holder=mark.holder, leased_until=mark.until, closed=mark.closed, expires=mark.expires)

"""Where objects are: the few things that a store of sessions needs of a bucket or a folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Iterable
from datetime import datetime
from typing import Any, NamedTuple

Version = Any
"""What tells one content of an object from every other that it had or will have."""


class Missing(Exception):
    """There is no object of this name."""


class Moved(Exception):
    """The object is not, or not any more, at the version that was named."""


class Found(NamedTuple):
    """An object's content, and its version."""

    data: bytes
    version: Version


class Listed(NamedTuple):
    """An object as a listing tells of it."""

    name: str
    size: int
    written: datetime
    tag: str | None
    """Changes with the content; None where a listing cannot tell."""


class Place(ABC):
    """Objects by name. All that is acknowledged is durable, and seen by every later reader and listing.

    Raises `StoreUnavailable` for whatever cannot be done just now.
    """

    remote: bool
    """Whether it is reached over a network."""
    url: str

    @abstractmethod
    async def read(self, name: str) -> Found:
        """An object, whole; raises `Missing`."""

    @abstractmethod
    async def read_changed(self, name: str, version: Version) -> Found | None:
        """An object, or None if it is still at this version; raises `Missing`."""

    @abstractmethod
    async def read_part(self, name: str, start: int, end: int) -> bytes:
        """Some bytes of an object, at least one; raises `Missing`."""

    @abstractmethod
    async def write(self, name: str, data: bytes) -> None:
        """Add an object under a name that nobody else uses."""

    @abstractmethod
    async def swap(self, name: str, data: bytes, version: Version | None) -> Version:
        """Put new content in the place of a version, or of nothing; its version. Else `Moved`, and nothing is done.

        No content may come twice under one name. It is sent once: `Moved` is never the echo of a swap that was done.
        """

    @abstractmethod
    def list(self, folder: str, after: str = "") -> AsyncGenerator[list[Listed]]:
        """The objects in a folder and below, in the order of their names, those after a name, in portions."""

    @abstractmethod
    async def remove(self, names: Iterable[str]) -> None:
        """Remove objects that nobody writes any more; those that are not there do not matter."""

    async def vacuum(self) -> None:
        """Remove what writers who died have left behind unseen."""
        return

    @abstractmethod
    async def close(self) -> None:
        """Let go of all resources."""

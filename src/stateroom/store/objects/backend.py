"""Where objects are kept: the `Backend` interface, and `Folder`, its implementation with files.

`file://` is for one machine and any number of processes. A file is written under another name, synced (`fsync`) and
renamed; then the folder is synced. So an acknowledged write survives a loss of power, and a reader never sees half a
file. To compare and rename in one step, a process holds a lock (`flock`, on one of a fixed number of files) for some
microseconds; the system releases it if the process dies. All files are for their owner alone.
"""

from __future__ import annotations

import asyncio
import errno
import os
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from stateroom.errors import BadData, StoreUnavailable, check_posix
from stateroom.locks import try_lock
from stateroom.store.objects.layout import new_name

T = TypeVar("T")

LOCK_SECONDS = 5.0
"""Seconds to wait for a lock, which a stopped process may hold."""
MAX_THREADS = 16
"""Most files that are synced at the same time."""
LEFT_BEHIND_SECONDS = 3600.0
"""Seconds after which an unfinished file belongs to a writer that died."""
LOCKS, UNFINISHED = ".locks", ".unfinished"
UNREADABLE = (errno.EIO, errno.EACCES, errno.EISDIR)
"""Errors of one object and not of all: a bad sector, a wrong owner, a folder in its place."""

Version = Any
"""Identifies one content of an object among all that it had or will have."""


class Missing(Exception):
    """No object has this name."""


class Moved(Exception):
    """The object is not at the expected version."""


class Found(NamedTuple):
    """An object's content, and its version."""

    data: bytes
    version: Version


class Listed(NamedTuple):
    """An object in a listing."""

    name: str
    size: int
    written: datetime
    tag: str | None
    """Changes with the content; None if the backend does not list it."""


class ObjectBackend(ABC):
    """Objects by name. What is acknowledged is durable, and seen by every later reader and listing.

    Raises `StoreUnavailable` for all that fails for now.
    """

    remote: bool
    """Whether it is reached over a network."""

    def __init__(self, url: str, threads: int) -> None:
        self.url = url
        self._threads = ThreadPoolExecutor(threads, "stateroom-objects")

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do work that blocks on one of our threads."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

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
        """Add an object under a unique name."""

    @abstractmethod
    async def swap(self, name: str, data: bytes, version: Version | None) -> Version:
        """Replace a version, or nothing, by new content; its version. Otherwise raises `Moved`, and nothing is done.

        No content may come twice under one name. It is sent once: `Moved` is never the echo of a swap that was done.
        """

    @abstractmethod
    def list(self, folder: str, after: str = "") -> AsyncGenerator[list[Listed]]:
        """The objects in a folder and below, after a name, in the order of their names, in portions."""

    async def list_all(self, folder: str) -> Sequence[Listed]:
        """All objects in a folder and below."""
        return [listed async for portion in self.list(folder) for listed in portion]

    @abstractmethod
    async def remove(self, names: Iterable[str]) -> None:
        """Remove objects that are not written any more; missing ones are ignored."""

    async def vacuum(self) -> None:
        """Remove what writers that died have left behind."""
        return

    async def close(self) -> None:
        """Release all resources."""
        await asyncio.to_thread(self._threads.shutdown)


class Folder(ObjectBackend):
    """Objects in a folder. Raises `UnsupportedSystem` on Windows, where the names in a folder cannot be synced."""

    remote = False

    def __init__(self, root: Path, url: str) -> None:
        check_posix("a file:// store", "sqlite:///FILE")
        super().__init__(url, MAX_THREADS)
        self.root = root

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await self.in_thread(work)
        except FileNotFoundError as error:
            raise Missing(error.filename) from error
        except OSError as error:
            raise StoreUnavailable(f"{self.url}: {error.strerror or error}") from error

    async def _read(self, name: str, work: Callable[[], T]) -> T:
        """Read an object. One that the system cannot read is damaged; the others may be well."""
        try:
            return await self._run(work)
        except StoreUnavailable as error:
            if isinstance(error.__cause__, OSError) and error.__cause__.errno in UNREADABLE:
                raise BadData(f"{name} cannot be read: {error}") from error
            raise

    async def read(self, name: str) -> Found:
        data = await self._read(name, (self.root / name).read_bytes)
        return Found(data, _digest(data))

    async def read_changed(self, name: str, version: Version) -> Found | None:
        data = await self._read(name, (self.root / name).read_bytes)
        there = _digest(data)
        return None if there == version else Found(data, there)

    async def read_part(self, name: str, start: int, end: int) -> bytes:
        def work() -> bytes:
            with (self.root / name).open("rb") as file:
                return os.pread(file.fileno(), end - start, start)

        return await self._read(name, work)

    async def write(self, name: str, data: bytes) -> None:
        await self._run(lambda: self._write(name, data))

    async def swap(self, name: str, data: bytes, version: Version | None) -> Version:
        await self._run(lambda: self._write(name, data, lambda: self._check(name, version)))
        return _digest(data)

    def _write(self, name: str, data: bytes, check: Callable[[], None] | None = None) -> None:
        target = self.root / name
        self._make_folder(self.root / UNFINISHED)
        unfinished = self.root / UNFINISHED / new_name()
        try:
            file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                _write_all(file, data)
                os.fsync(file)
            finally:
                os.close(file)
            if check is None:
                self._move(unfinished, target)
            else:
                with self._lock(name):
                    check()
                    self._move(unfinished, target)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise
        _sync(target.parent)

    def _check(self, name: str, version: Version | None) -> None:
        try:
            there = _digest((self.root / name).read_bytes())
        except FileNotFoundError:
            there = None
        if there != version:
            raise Moved(name)

    def _move(self, unfinished: Path, target: Path) -> None:
        while True:
            self._make_folder(target.parent)
            try:
                return os.replace(unfinished, target)
            except FileNotFoundError:  # the folder was empty, and another process has just removed it
                if not unfinished.exists():
                    raise

    def _make_folder(self, folder: Path) -> None:
        if not folder.is_dir():
            self._make_folder(folder.parent)
            folder.mkdir(0o700, exist_ok=True)
            _sync(folder.parent)

    @contextmanager
    def _lock(self, name: str) -> Iterator[None]:
        """Keep every other writer of a name out."""
        self._make_folder(self.root / LOCKS)
        path = self.root / LOCKS / blake2b(name.encode(), digest_size=1).hexdigest()
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            give_up = time.monotonic() + LOCK_SECONDS
            while not try_lock(file):
                if time.monotonic() > give_up:
                    raise StoreUnavailable(f"{self.url}: another process holds the lock on {name}")
                time.sleep(0.0005)
            yield
        finally:
            os.close(file)  # which ends the lock

    async def list(self, folder: str, after: str = "") -> AsyncGenerator[list[Listed]]:
        def work() -> list[Listed]:
            files = sorted((name, path) for name, path in self._walk(self.root / folder, folder) if name > after)
            listed: list[Listed] = []
            for name, path in files:
                with suppress(FileNotFoundError):
                    status = os.stat(path)
                    listed.append(Listed(name, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC), None))
            return listed

        yield await self._run(work)

    def _walk(self, folder: Path, name: str) -> Iterator[tuple[str, str]]:
        try:
            items = list(os.scandir(folder))
        except (FileNotFoundError, NotADirectoryError):
            return
        for item in items:
            path = f"{name}/{item.name}" if name else item.name
            if item.is_dir():
                if item.name not in (LOCKS, UNFINISHED):
                    yield from self._walk(folder / item.name, path)
            else:
                yield path, item.path

    async def remove(self, names: Iterable[str]) -> None:
        def work() -> None:
            folders = set()
            for name in names:
                (self.root / name).unlink(missing_ok=True)
                folders.add((self.root / name).parent)
            for folder in folders:
                if folder != self.root:
                    with suppress(OSError):  # it is not empty
                        folder.rmdir()

        await self._run(work)

    async def vacuum(self) -> None:
        def work() -> None:
            for path in (self.root / UNFINISHED).glob("*"):
                with suppress(FileNotFoundError):
                    if path.stat().st_mtime < time.time() - LEFT_BEHIND_SECONDS:
                        path.unlink()

        await self._run(work)


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _sync(folder: Path) -> None:
    """Sync the names of a folder, if it still exists."""
    with suppress(FileNotFoundError):
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(file)
        finally:
            os.close(file)

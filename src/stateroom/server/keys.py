"""API keys: which clients may create sessions and threads, and how much each may do in a minute."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_UN, flock
from hashlib import sha256
from hmac import compare_digest
from mmap import mmap
from pathlib import Path
from typing import Literal

from stateroom.errors import DefinitionError, NotFound, RateLimited, UnknownKey
from stateroom.server.options import Key
from stateroom.server.request import HTTPRequest, bearer_token
from stateroom.server.tokens import api_key_of

MINUTE = 60.0

FORM = "NAME SHA256 [sessions=N] [calls=N]"
"""A line in a file of keys."""

_LINE = re.compile(r"([A-Za-z0-9_-]{1,64})\s+([0-9a-f]{64})(?:\s+sessions=(\d{1,9}))?(?:\s+calls=(\d{1,9}))?")

Counted = Literal["sessions", "calls"]


def read_keys(path: Path) -> tuple[Key, ...]:
    """The keys in a file, one per line; empty lines and lines that begin with # are skipped."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"cannot read API keys from {path}: {getattr(error, 'strerror', 'it is not a text')}") from error
    keys: dict[str, Key] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise DefinitionError(f"{path}:{number}: this is not an API key; one is {FORM}")
        name, digest, *limits = found.groups()
        if name in keys:
            raise DefinitionError(f"{path}:{number}: there is another API key named {name!r}")
        keys[name] = Key(name, digest, *(None if limit is None else int(limit) for limit in limits))
    if not keys:
        raise DefinitionError(f"{path} has no API keys; a line is {FORM}")
    return tuple(keys.values())


class Keys:
    """The known keys, and what was done with each in the current minute of the clock. Without keys all may come.

    Worker processes share one `folder`, and count together in a file there.
    """

    def __init__(self, keys: Sequence[Key], now: Callable[[], float], folder: Path | None = None) -> None:
        self._keys = {key.name: key for key in keys}
        self._now = now
        self._counts = _Counts(self._keys, folder)

    def __bool__(self) -> bool:
        return bool(self._keys)

    def admit(self, request: HTTPRequest, token: bytes | None) -> None:
        """Count a call for the key in a valid token or, without a token, for the key that the request has.

        Reading needs no key. Raises `UnknownKey` and `RateLimited`.
        """
        if not self._keys:
            return
        if token is not None:
            request.key = api_key_of(token)  # tokens that an admin made have none
        elif request.scope["method"] not in ("GET", "HEAD"):
            request.key = self._find(bearer_token(request.headers))
        self._count(request, "calls")

    def admit_session(self, request: HTTPRequest) -> None:
        """Count a new session for the key that the request was admitted with."""
        if self._keys:
            self._count(request, "sessions")

    def _find(self, given: bytes | None) -> str:
        if given is None:
            raise UnknownKey("this server wants an API key: send it as Authorization: Bearer KEY")
        digest = sha256(given).hexdigest()
        found = [key.name for key in self._keys.values() if compare_digest(key.digest, digest)]
        if not found:
            raise UnknownKey("this API key is not known here; send a good one as Authorization: Bearer KEY")
        return found[0]

    def _count(self, request: HTTPRequest, what: Counted) -> None:
        if not request.key:
            return
        key = self._keys.get(request.key)
        if key is None:
            raise UnknownKey(f"the API key {request.key!r}, which this session was made with, is not good any more")
        limit: int | None = getattr(key, what)
        now = self._now()
        if not self._counts.add(key.name, what, int(now // MINUTE), limit):
            seconds = int(MINUTE - now % MINUTE) + 1
            problem = f"the API key {key.name!r} is limited to {what}={limit} a minute; try again in {seconds} seconds"
            raise RateLimited(problem, seconds)


class _Counts:
    """Counts by name: a row of whole numbers, with the minute, the sessions and the calls of each name."""

    def __init__(self, names: Iterable[str], folder: Path | None) -> None:
        self._places = {name: 3 * place for place, name in enumerate(names)}
        size = 3 * len(self._places)
        self._row: list[int] | memoryview[int] = [0] * size
        self._file = None
        if folder is not None and size:
            self._file = (folder / "keys").open("a+b")
            self._file.truncate(8 * size)  # a new file; another process may have made it already
            self._row = memoryview(mmap(self._file.fileno(), 8 * size)).cast("q")

    def add(self, name: str, what: Counted, minute: int, limit: int | None) -> bool:
        """Count one more; False if that exceeds the limit."""
        place = self._places[name]
        cell = place + (1 if what == "sessions" else 2)
        with self._alone():
            row = self._row
            if row[place] != minute:
                row[place], row[place + 1], row[place + 2] = minute, 0, 0
            if limit is not None and row[cell] >= limit:
                return False
            row[cell] += 1
            return True

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the file against other processes."""
        if self._file is None:
            yield
            return
        flock(self._file, LOCK_EX)
        try:
            yield
        finally:
            flock(self._file, LOCK_UN)

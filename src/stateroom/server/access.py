"""Access control: a server's host names, its operator, and clients with API keys.

A web page from elsewhere can reach a server on its reader's machine: it posts across origins, or gives its own name
the machine's address. A browser reveals both, in `Origin` and in `Host`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from hmac import compare_digest
from ipaddress import IPv6Address, ip_address
from mmap import mmap
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from stateroom.errors import DefinitionError, Forbidden, NotFound, RateLimited, UnknownKey
from stateroom.locks import lock, unlock
from stateroom.server.http import HTTPRequest, NotOperator, bearer_token
from stateroom.server.options import ApplicationOptions, Key
from stateroom.server.tokens import COOKIE, TOKEN_HEADER, api_key_of

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")

_PROXY_HEADERS = (b"forwarded", b"via", b"x-real-ip")
"""Headers, besides `X-Forwarded-…`, that a proxy adds."""

MAX_HOSTS_CACHED = 256
"""Allowed values of `Host` that are remembered."""


class AllowedHosts:
    """This machine's own names (`localhost` and loopback addresses), and others that are allowed."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._names = {_checked(name) for name in names}
        self.known: set[bytes | None] = {None}
        """Values of `Host` that were found to be allowed. A request without one is."""

    def check(self, request: HTTPRequest) -> None:
        """Raise `Forbidden` if a request is not meant for this server."""
        problem = self.problem(request.headers)
        if problem is not None:
            names = ", ".join(["localhost", *sorted(self._names)])
            raise Forbidden(
                f"this request {problem}, but this server only answers to {names}; to allow other hosts, set the "
                "server's option `allow_host`"
            )

    def problem(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Why a request is not meant for this server; None if it is."""
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if host not in self.known:
            name = _name_of(host or b"")
            if not (name in self._names or _is_own(name)):
                return f"is for the host {_text(host or b'')}"
            if len(self.known) < MAX_HOSTS_CACHED:
                self.known.add(host)
        if origin is None:
            return None
        page = origin.lower().partition(b"://")[2]  # another server of this machine is another site
        allowed = page == (host or b"").lower() or _name_of(page) in self._names
        return None if allowed else f"comes from a web page of {_text(origin)}"


def hosts_at(address: str, allowed: Iterable[str]) -> tuple[str, ...] | None:
    """Return the names that a server at this address answers to, besides this machine's own; None for any."""
    names = tuple(map(_checked, allowed))
    return names if names or is_loopback(address) else None


def is_loopback(address: str) -> bool:
    """Whether an IP address can be reached from this machine only."""
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return (mapped or parsed).is_loopback


def is_for_this_machine(request: HTTPRequest) -> bool:
    """Whether a request names this machine as a browser on it does: `localhost`, or a loopback address."""
    return _is_own(_name_of(request.headers.get(b"host", b"")))


def _is_own(name: str) -> bool:
    return name == "localhost" or is_loopback(name)


def _name_of(host: bytes) -> str:
    """The name or address in a host, without its port."""
    try:
        return urlsplit(f"//{_text(host)}").hostname or ""
    except ValueError:  # half of an IPv6 address
        return ""


def _checked(name: str) -> str:
    name = name.lower()
    if not _NAME.fullmatch(name):
        raise DefinitionError(f"{name!r} is not the name of a host; one is rooms.example, without a scheme and a port")
    return name


def _text(value: bytes) -> str:
    return value.decode("latin-1")


# APIs for the operator of a server: the admin API, and those of extensions.

_THIS_MACHINE = AllowedHosts()


def check_admin(request: HTTPRequest, options: ApplicationOptions) -> None:
    """Raise unless a client may use the admin API."""
    if options.admin_token is None and not options.local_admin:
        raise Forbidden(
            "the admin API is closed, because Studio on this server has a token or is read-only; to open it, set "
            "an admin token"
        )
    check_operator(request, options.admin_token, "admin")


def check_operator(request: HTTPRequest, token: str | None, api: str) -> None:
    """Raise unless a client may use an API for operators: with its token or, if there is none, from this machine."""
    if _has_session(request):
        raise Forbidden(
            f"this request has a session's token, as a model's requests do, and models may not use the {api} API: "
            "send the request without the session's cookie and headers"
        )
    given = bearer_token(request.headers)
    if token is None:
        problem = _remote_problem(request)
        if problem is not None:
            raise Forbidden(
                f"without a token, only programs on the server's machine can use the {api} API, but this request "
                f"{problem}; start the server with --{api}-token, and send the token as Authorization: Bearer TOKEN"
            )
    elif given is None or not compare_digest(given, token.encode()):
        problem = "missing bearer token" if given is None else f"this is not the {api} token"
        message = f"{problem}; send the {api} token as Authorization: Bearer TOKEN"
        raise NotOperator(message, api)


def _has_session(request: HTTPRequest) -> bool:
    """Whether a request has a session's token, valid or not: a model could wait until its own is out of date."""
    cookies = request.cookies.split(b";")
    return any(cookie.strip().startswith(COOKIE) for cookie in cookies) or TOKEN_HEADER in request.headers


def _remote_problem(request: HTTPRequest) -> str | None:
    """The sign that a request does not come from a program on this machine, if there is one.

    Two others send requests from this machine: a proxy, for anybody, and a browser, for a web page. A model's client
    may send the token of a session or a thread as a bearer token.
    """
    client = request.scope["client"]
    if client is None or not is_loopback(client[0]):
        return f"comes from {client[0] if client else 'a socket without an address'}"
    problem = _THIS_MACHINE.problem(request.headers)
    if problem is not None:
        return problem
    for name in request.headers:
        if name in _PROXY_HEADERS or name.startswith(b"x-forwarded-"):
            return f"comes through a proxy: it has the header {_text(name)}"
    if request.scope["http_version"] == "1.0":  # nginx speaks it to a backend, and may show in nothing else
        return "uses HTTP/1.0, as proxies do"
    return None if bearer_token(request.headers) is None else "has an unknown bearer token"


# API keys: which clients may create sessions and threads, and how much each may do in a minute.

MINUTE_SECONDS = 60.0

FORM = "NAME SHA256 [sessions=N] [calls=N]"
"""A line in a file of keys."""

_LINE = re.compile(r"([A-Za-z0-9_-]{1,64})\s+([0-9a-f]{64})(?:\s+sessions=(\d{1,9}))?(?:\s+calls=(\d{1,9}))?")

Counted = Literal["sessions", "calls"]


def read_keys(path: Path) -> tuple[Key, ...]:
    """Read the keys in a file, one per line; empty lines and lines that begin with # are skipped."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise NotFound(f"cannot read API keys from {path}: {getattr(error, 'strerror', 'not a text file')}") from error
    keys: dict[str, Key] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None:
            raise DefinitionError(f"{path}:{number}: not an API key; write {FORM}")
        name, digest, *limits = match.groups()
        if name in keys:
            raise DefinitionError(f"{path}:{number}: duplicate API key name {name!r}")
        keys[name] = Key(name, digest, *(None if limit is None else int(limit) for limit in limits))
    if not keys:
        raise DefinitionError(f"{path} has no API keys; write lines of {FORM}")
    return tuple(keys.values())


class Keys:
    """The known keys, and the counts of each in the current minute. Without keys, every client is admitted.

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
            raise UnknownKey("this server needs an API key; send it as Authorization: Bearer KEY")
        digest = sha256(given).hexdigest()
        names = [key.name for key in self._keys.values() if compare_digest(key.digest, digest)]
        if not names:
            raise UnknownKey("unknown API key; send a valid one as Authorization: Bearer KEY")
        return names[0]

    def _count(self, request: HTTPRequest, what: Counted) -> None:
        if not request.key:
            return
        key = self._keys.get(request.key)
        if key is None:
            raise UnknownKey(f"the API key {request.key!r}, with which this session was created, is no longer valid")
        limit: int | None = getattr(key, what)
        now = self._now()
        if not self._counts.add(key.name, what, int(now // MINUTE_SECONDS), limit):
            seconds = int(MINUTE_SECONDS - now % MINUTE_SECONDS) + 1
            problem = (
                f"the API key {key.name!r} is limited to {what}={limit} per minute; try again in {seconds} seconds"
            )
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
        lock(self._file)
        try:
            yield
        finally:
            unlock(self._file)

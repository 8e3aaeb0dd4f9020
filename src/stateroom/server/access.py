"""Who may send requests: the host names that a server answers to, and the clients of its admin API.

A web page from elsewhere can reach a server on its reader's machine: it posts across origins, or gives its own name
the machine's address. A browser tells both, in `Origin` and in `Host`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hmac import compare_digest
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException

from stateroom.errors import DefinitionError, Forbidden
from stateroom.server.options import ApplicationOptions
from stateroom.server.request import HTTPRequest, bearer_token
from stateroom.server.tokens import COOKIE, TOKEN_HEADER

_NAME = re.compile(r"[a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?")

_PROXY_HEADERS = (b"forwarded", b"via", b"x-real-ip")
"""Headers, besides `X-Forwarded-…`, that a proxy adds."""

REMEMBERED = 256
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
                f"this request {problem}, and this server answers to {names} only; name others with the server's "
                "option `allow_host`"
            )

    def problem(self, headers: Mapping[bytes, bytes]) -> str | None:
        """Why a request is not meant for this server; None if it is."""
        host, origin = headers.get(b"host"), headers.get(b"origin")
        if host not in self.known:
            name = _name_of(host or b"")
            if not (name in self._names or _is_own(name)):
                return f"is for the host {_text(host or b'')}"
            if len(self.known) < REMEMBERED:
                self.known.add(host)
        if origin is None:
            return None
        page = origin.lower().partition(b"://")[2]  # another server of this machine is another site
        allowed = page == (host or b"").lower() or _name_of(page) in self._names
        return None if allowed else f"is of a web page of {_text(origin)}"


def hosts_at(address: str, allowed: Iterable[str]) -> tuple[str, ...] | None:
    """The names that a server at this address answers to, besides this machine's own; None: any."""
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
            "the admin API is closed, because Studio on this server has a token or is for reading only; give "
            "the server an admin token to open it"
        )
    check_operator(request, options.admin_token, "admin")


def check_operator(request: HTTPRequest, token: str | None, api: str) -> None:
    """Raise unless a client may use an API for operators: with its token or, if there is none, from this machine."""
    if _has_session(request):
        raise Forbidden(
            f"this request has a session's token, as requests of its model do, and a model gets no {api}: send the "
            "request without the session's cookie and headers"
        )
    given = bearer_token(request.headers)
    if token is None:
        problem = _remote_problem(request)
        if problem is not None:
            raise Forbidden(
                f"without a token the {api} API answers only to programs on the server's own machine, and this request "
                f"{problem}; start the server with --{api}-token, and send the token as Authorization: Bearer TOKEN"
            )
    elif given is None or not compare_digest(given, token.encode()):
        problem = "there is no bearer token" if given is None else f"this is not the {api} token"
        message = f"{problem}: send the {api} token as Authorization: Bearer TOKEN"
        raise HTTPException(401, message, {"www-authenticate": f'Bearer realm="stateroom {api}"'})


def _has_session(request: HTTPRequest) -> bool:
    """Whether a request has a session's token, valid or not: a model could wait until its own is out of date."""
    cookies = request.cookies.split(b";")
    return any(cookie.strip().startswith(COOKIE) for cookie in cookies) or TOKEN_HEADER in request.headers


def _remote_problem(request: HTTPRequest) -> str | None:
    """What shows that a request is not of a program on this machine; None if nothing does.

    Two others send requests from this machine: a proxy, for anybody, and a browser, for a web page. A model's client
    may send the token of a session or a thread as a bearer token.
    """
    client = request.scope["client"]
    if client is None or not is_loopback(client[0]):
        return f"came from {client[0] if client else 'a socket without an address'}"
    problem = _THIS_MACHINE.problem(request.headers)
    if problem is not None:
        return problem
    for name in request.headers:
        if name in _PROXY_HEADERS or name.startswith(b"x-forwarded-"):
            return f"came through a proxy, which says so in {_text(name)}"
    if request.scope["http_version"] == "1.0":  # nginx speaks it to a backend, and may show in nothing else
        return "is HTTP/1.0, as those of proxies are"
    return None if bearer_token(request.headers) is None else "has a bearer token, which is none of this server's"

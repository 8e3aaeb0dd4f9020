"""Who may use the admin API: whoever has its token, or without one, programs on the server's own machine."""

from __future__ import annotations

from hmac import compare_digest
from ipaddress import IPv6Address, ip_address
from urllib.parse import urlsplit

from stateroom.server.faults import error_reply
from stateroom.server.http import Reply, Scope

_OF_PROXIES = (b"forwarded", b"via", b"x-real-ip")
"""Headers, besides `X-Forwarded-…`, by which a proxy shows."""


def refusal(scope: Scope, token: str | None) -> Reply | None:
    """The reply to a client that may not use the admin API; None for one that may."""
    if token is None:
        stranger = _stranger(scope)
        return None if stranger is None else _forbidden(stranger)
    given = bearer(scope)
    if given is not None and compare_digest(given, token.encode()):
        return None
    return _unauthorized("there is no bearer token" if given is None else "this is not the admin token")


def _forbidden(stranger: str) -> Reply:
    return error_reply(
        403,
        "forbidden",
        "without a token the admin API answers only to programs on the server's own machine, and this request "
        f"{stranger}; start the server with --admin-token, and send the token as Authorization: Bearer TOKEN",
    )


def _unauthorized(problem: str) -> Reply:
    reply = error_reply(401, "unauthorized", f"{problem}: send the admin token as Authorization: Bearer TOKEN")
    return Reply(reply.status, reply.body, headers=((b"www-authenticate", b'Bearer realm="stateroom admin"'),))


def bearer(scope: Scope) -> bytes | None:
    """The token that a request comes with, if any."""
    for value in _headers(scope, b"authorization"):
        scheme, _, given = value.partition(b" ")
        if scheme.lower() == b"bearer" and given.strip():
            return given.strip()
    return None


def _stranger(scope: Scope) -> str | None:
    """What shows that a request is not of a program on this machine; None if nothing does.

    Two kinds of strangers come from the machine itself: a proxy, for anybody, and a browser, for a web page. The page
    has an origin of its own, or has given its own name this machine's address.
    """
    client = scope["client"]
    if client is None or not _is_loopback(client[0]):
        return f"came from {client[0] if client else 'a socket without an address'}"
    hosts = _headers(scope, b"host")
    for host in hosts:
        if not _names_this_machine(host):
            return f"is for the host {_text(host)}"
    for origin in _headers(scope, b"origin"):
        if not any(origin.lower() == scope["scheme"].encode() + b"://" + host.lower() for host in hosts):
            return f"is of a web page of {_text(origin)}"
    for name, _ in scope["headers"]:
        if name in _OF_PROXIES or name.startswith(b"x-forwarded-"):
            return f"came through a proxy, which says so in {_text(name)}"
    if scope["http_version"] == "1.0":  # as nginx speaks to what is behind it, which may be all that shows of it
        return "is HTTP/1.0, as those of proxies are"
    return None if hosts else "names no host"


def _names_this_machine(host: bytes) -> bool:
    try:
        name = urlsplit(f"//{_text(host)}").hostname or ""
    except ValueError:  # half of an IPv6 address
        return False
    return name == "localhost" or _is_loopback(name)


def _is_loopback(address: str) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, IPv6Address) else None
    return (mapped or parsed).is_loopback


def _headers(scope: Scope, wanted: bytes) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == wanted]


def _text(value: bytes) -> str:
    return value.decode("latin-1")

"""Who may use the admin API: whoever has its token, or without one, programs on the server's own machine."""

from __future__ import annotations

from hmac import compare_digest

from stateroom.server.faults import error_reply
from stateroom.server.hosted import COOKIE, TOKEN_HEADER
from stateroom.server.hosts import Hosts, is_loopback
from stateroom.server.http import Reply, Request

_OF_PROXIES = (b"forwarded", b"via", b"x-real-ip")
"""Headers, besides `X-Forwarded-…`, by which a proxy shows."""

_THIS_MACHINE = Hosts()


def refusal(request: Request, token: str | None) -> Reply | None:
    """The reply to a client that may not use the admin API; None for one that may."""
    if _has_session(request):
        return error_reply(
            403,
            "forbidden",
            "this request comes with a session's token, as those of its model do, and a model gets no admin: send the "
            "request without the session's cookie and headers",
        )
    given = request.bearer
    if token is None:
        stranger = _stranger(request)
        return None if stranger is None else _forbidden(stranger)
    if given is not None and compare_digest(given, token.encode()):
        return None
    return _unauthorized("there is no bearer token" if given is None else "this is not the admin token")


def _has_session(request: Request) -> bool:
    """Whether a session's token comes along. It need not be good: a model could wait until its own is out of date."""
    cookies = request.cookies.split(b";") if request.cookies else ()
    return any(cookie.strip().startswith(COOKIE) for cookie in cookies) or request.header(TOKEN_HEADER) is not None


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


def _stranger(request: Request) -> str | None:
    """What shows that a request is not of a program on this machine; None if nothing does.

    Two kinds of strangers come from the machine itself: a proxy, for anybody, and a browser, for a web page. A model's
    client may send the token of a session or a thread as a bearer token.
    """
    scope = request.scope
    client = scope["client"]
    if client is None or not is_loopback(client[0]):
        return f"came from {client[0] if client else 'a socket without an address'}"
    stranger = _THIS_MACHINE.stranger(scope)
    if stranger is not None:
        return stranger
    for name, _ in scope["headers"]:
        if name in _OF_PROXIES or name.startswith(b"x-forwarded-"):
            return f"came through a proxy, which says so in {name.decode('latin-1')}"
    if scope["http_version"] == "1.0":  # as nginx speaks to what is behind it, which may be all that shows of it
        return "is HTTP/1.0, as those of proxies are"
    return None if request.bearer is None else "has a bearer token, which is none of this server's"

"""The HTTP client: the connection of an episode to a server, and the server's admin API."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import quote

import aiohttp
from msgspec import Raw
from yarl import URL

from stateroom.errors import BadVerdict, NotFound, ServerFailed, ServerUnavailable, Unauthorized
from stateroom.pauses import Pauses

MAX_ATTEMPTS = 4
"""The most attempts per request."""

PAUSES = Pauses(first=0.2, longest=2.0)
"""The pauses between attempts."""

MAX_WAIT_SECONDS = 90.0
"""The longest wait that a server may request, in seconds; for a longer one the request fails."""

UNAVAILABLE = frozenset({429, 502, 503, 504})
"""Statuses of servers and gateways that may accept the same request later."""

REFUSED = frozenset({401, 403})

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

MAX_CHARACTERS_QUOTED = 300
"""Characters of an unknown server's error that are quoted in a message."""


@dataclass(frozen=True)
class ServerReply:
    """A server's reply to a request."""

    status: int
    text: str
    headers: Mapping[str, str] = field(repr=False)

    @property
    def content(self) -> dict[str, Any]:
        """The body if it is a JSON object, otherwise an empty one."""
        try:
            body = json.loads(self.text)
        except (ValueError, RecursionError):
            return {}
        return body if isinstance(body, dict) else {}

    @property
    def error(self) -> dict[str, Any]:
        """The error of a Stateroom server, with its `code` and `message`, otherwise an empty object."""
        error = self.content.get("error")
        return error if isinstance(error, dict) and isinstance(error.get("code"), str) else {}

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later. A tool that timed out is not retried."""
        return self.status in UNAVAILABLE and self.error.get("code") not in ("timeout", "model_failed")

    def expect(self, what: str) -> dict[str, Any]:
        """The body of a reply with status 200. Raises the `failure` of any other reply."""
        if self.status != 200:
            raise self.failure(what)
        return self.content

    def failure(self, what: str) -> ServerFailed | ServerUnavailable:
        """The error that ends the episode after this reply; `what` names the request."""
        error = self.error
        answer = f"{error['code']}: {error.get('message')}" if error else self.text.strip()[:MAX_CHARACTERS_QUOTED]
        kind = ServerUnavailable if self.is_transient else ServerFailed
        return kind(f"{what} got {self.status} {answer}".rstrip())


class Verbatim(NamedTuple):
    """The output of a call on a server, byte for byte, as the model reads it."""

    content: Raw
    code: str | None = None
    """Why the call failed, if the server reports it."""


def checked_reward(reward: Any, what: str) -> float:
    """The reward in a reply to `what`. Raises `BadVerdict` if it is not a finite number."""
    if type(reward) not in (int, float) or not isfinite(reward):
        raise BadVerdict(f"the reward in the server's reply to {what} is not a number: {json.dumps(reward):.100}")
    return reward  # type: ignore[no-any-return]


class ServerConnection:
    """Sends the requests of one episode, with safe retries and the cookies that identify it."""

    def __init__(self, client: aiohttp.ClientSession, root: str, cookies: Mapping[str, str] = NO_HEADERS) -> None:
        self._client = client
        self._root = root
        self._cookies = dict(cookies)

    def with_cookies(self, cookies: Mapping[str, str]) -> ServerConnection:
        """A connection for another episode: a copy that also sends these cookies."""
        return ServerConnection(self._client, self._root, {**self._cookies, **cookies})

    async def post(self, path: str, body: Any, headers: Mapping[str, str], *, repeatable: bool) -> ServerReply:
        """Post JSON.

        A request that was never sent is always retried; one that may have arrived, only if it is `repeatable`.
        """
        return await self._retry("POST", path, json.dumps(body).encode(), headers, repeatable)

    async def get(self, path: str, headers: Mapping[str, str] = NO_HEADERS) -> ServerReply:
        return await self._retry("GET", path, None, headers, True)

    async def get_once(self, path: str) -> ServerReply:
        """Send a GET request without retries."""
        try:
            return await self._request("GET", path, None, NO_HEADERS)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unavailable(path, error) from error

    async def _retry(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str], repeatable: bool
    ) -> ServerReply:
        attempt = 0
        while True:
            attempt += 1
            wait = PAUSES.after(attempt)
            try:
                reply = await self._request(method, path, data, headers)
            except aiohttp.ClientConnectorError as error:  # nothing was sent
                if attempt == MAX_ATTEMPTS:
                    raise self._unavailable(path, error) from error
            except (aiohttp.ClientError, TimeoutError) as error:
                if attempt == MAX_ATTEMPTS or not repeatable:
                    raise self._unavailable(path, error) from error
            else:
                if attempt == MAX_ATTEMPTS or not (repeatable and reply.is_transient):
                    return reply
                wait += _retry_after(reply)
                if wait > MAX_WAIT_SECONDS:
                    return reply
            await asyncio.sleep(wait)

    async def _request(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> ServerReply:
        sent = {**headers, **({"Content-Type": "application/json"} if data is not None else {})}
        if self._cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        url = self._root + path
        async with self._client.request(method, url, data=data, headers=sent, allow_redirects=False) as reply:
            text = await reply.text(errors="replace")  # first, because a truncated reply counts as no reply
            for cookie in reply.headers.getall("Set-Cookie", ()):
                name, _, value = cookie.partition(";")[0].partition("=")
                self._cookies[name.strip()] = value.strip()  # verbatim: a library would change the quotes
            return ServerReply(reply.status, text, reply.headers)

    def _unavailable(self, path: str, error: Exception) -> ServerUnavailable:
        return ServerUnavailable(f"no answer from {self._root}{path}: {_reason(error)}")


def _retry_after(reply: ServerReply) -> float:
    """The wait that the server requests, in seconds."""
    seconds = reply.headers.get("Retry-After", "")
    return float(seconds) if seconds.isdecimal() else 0.0


def _reason(error: Exception) -> str:
    """Why a connection failed, in the system's words."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return str(error.strerror)
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


class AdminClient:
    """The admin API of a Stateroom server, which forks sessions."""

    def __init__(self, connection: ServerConnection, token: str | None, stateless: bool) -> None:
        self._connection = connection
        self._headers = bearer(token)
        self.stateless = stateless
        """Whether the environment's sessions are stateless, and so unknown to the admin API."""

    async def revision(self, session: str) -> int:
        """A session's newest revision."""
        what = f"/admin/sessions/{quote(session, safe='')}"
        reply = await self._connection.get(what, self._headers)
        revision = reply.expect(what).get("revision")
        if type(revision) is not int:
            raise ServerFailed(f"{what} returned no revision: {reply.text:.100}")
        return revision

    async def fork(self, session: str, n: int, at: int) -> list[dict[str, Any]]:
        """`n` forks of a session at a revision, each with its `id` and its `token`."""
        what = f"/admin/sessions/{quote(session, safe='')}/fork"
        # Safe to repeat: unused forks of an earlier attempt expire.
        reply = await self._connection.post(what, {"at": at, "n": n}, self._headers, repeatable=True)
        return reply.expect(what).get("sessions") or []


async def find_admin_api(client: aiohttp.ClientSession, root: str, token: str | None) -> AdminClient:
    """Find the admin API of the server with the environment at a URL.

    On a server with several environments, it is one path segment above the environment.
    """
    for place in dict.fromkeys((root, str(URL(root).parent).rstrip("/"))):
        connection = ServerConnection(client, place)
        reply = await connection.get("/admin/sessions?limit=1", bearer(token))
        if reply.status in REFUSED:
            raise Unauthorized(
                f"the admin API at {place}, needed to fork sessions, refused: {reply.error.get('message')}. "
                "Give the server's admin token as `admin_token`, or in STATEROOM_ADMIN_TOKEN"
            )
        if reply.status == 200 and "sessions" in reply.content:
            return AdminClient(connection, token, await is_stateless(ServerConnection(client, root)))
    raise NotFound(f"the server at {root} cannot fork sessions: it does not have the admin API of a Stateroom server")


async def is_stateless(connection: ServerConnection) -> bool:
    """Whether the sessions of an environment are stateless."""
    return (await connection.get("/reverify_mode")).text == '"stateless"'


def bearer(token: str | None) -> dict[str, str]:
    """The header that authorizes a request."""
    return {} if token is None else {"Authorization": f"Bearer {token}"}

"""One episode's way to a server: its cookies, and requests that are tried again where that does no harm."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import random
from types import MappingProxyType
from typing import Any

import aiohttp

from stateroom.errors import ServerFailed, ServerUnavailable

TRIES = 4
"""How often a request is sent at most."""

PAUSE = 0.1
"""About so many seconds pass before the second try, and twice as many before each further one."""

LONGEST_WAIT = 90.0
"""A server that asks for more seconds than this is not waited for any longer."""

UNAVAILABLE = frozenset({429, 502, 503, 504})
"""Statuses which say that a request, or a gateway's, did not get through; a little later it may."""

NOTHING: Mapping[str, str] = MappingProxyType({})

SHOWN = 300
"""Characters of an unknown server's error that go into a message."""


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    text: str
    headers: Mapping[str, str] = field(repr=False)

    @property
    def content(self) -> dict[str, Any]:
        """The body, if it is a JSON object; else an empty one."""
        try:
            found = json.loads(self.text)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def error(self) -> dict[str, Any]:
        """The error that the body tells of as Stateroom's servers do, with a code and a message; else nothing."""
        found = self.content.get("error")
        return found if isinstance(found, dict) and isinstance(found.get("code"), str) else {}

    @property
    def may_do_later(self) -> bool:
        """True when the same request may do a little later; the time of a tool that is up is up."""
        return self.status in UNAVAILABLE and self.error.get("code") not in ("timeout", "model_failed")

    def failure(self, what: str) -> ServerFailed | ServerUnavailable:
        """Why the episode cannot go on after this reply; `what` names the request."""
        error = self.error
        told = f"{error['code']}: {error.get('message')}" if error else self.text.strip()[:SHOWN]
        kind = ServerUnavailable if self.may_do_later else ServerFailed
        return kind(f"{what} got {self.status} {told}".rstrip())


class Wire:
    """Sends requests, and keeps the cookies that come back: a server knows an episode by them."""

    def __init__(self, client: aiohttp.ClientSession, root: str, cookies: Mapping[str, str] = NOTHING) -> None:
        self._client = client
        self._root = root
        self._cookies = dict(cookies)

    def twin(self, cookies: Mapping[str, str]) -> Wire:
        """Another episode's way to the same server, with these cookies in the place of their namesakes."""
        return Wire(self._client, self._root, {**self._cookies, **cookies})

    async def post(self, path: str, body: Any, headers: Mapping[str, str], *, repeatable: bool) -> Reply:
        """Post JSON.

        What was never sent is tried again in any case, and what may have arrived only if it is `repeatable`.
        """
        return await self._insist("POST", path, json.dumps(body).encode(), headers, repeatable)

    async def get(self, path: str, headers: Mapping[str, str] = NOTHING) -> Reply:
        """Get what lies at a path."""
        return await self._insist("GET", path, None, headers, True)

    async def look(self, path: str) -> Reply:
        """The same, tried once."""
        try:
            return await self._request("GET", path, None, NOTHING)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._unavailable(path, error) from error

    async def _insist(
        self, method: str, path: str, data: bytes | None, headers: Mapping[str, str], repeatable: bool
    ) -> Reply:
        tried = 0
        while True:
            tried += 1
            wait = PAUSE * 2 ** (tried - 1) * (0.5 + random())
            try:
                reply = await self._request(method, path, data, headers)
            except aiohttp.ClientConnectorError as error:  # nothing was sent
                if tried == TRIES:
                    raise self._unavailable(path, error) from error
            except (aiohttp.ClientError, TimeoutError) as error:
                if tried == TRIES or not repeatable:
                    raise self._unavailable(path, error) from error
            else:
                if tried == TRIES or not (repeatable and reply.may_do_later):
                    return reply
                wait += _asked_to_wait(reply)
                if wait > LONGEST_WAIT:
                    return reply
            await asyncio.sleep(wait)

    async def _request(self, method: str, path: str, data: bytes | None, headers: Mapping[str, str]) -> Reply:
        sent = {**headers, **({"Content-Type": "application/json"} if data is not None else {})}
        if self._cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self._cookies.items())
        url = self._root + path
        async with self._client.request(method, url, data=data, headers=sent, allow_redirects=False) as reply:
            for cookie in reply.headers.getall("Set-Cookie", ()):
                name, _, value = cookie.partition(";")[0].partition("=")
                self._cookies[name.strip()] = value.strip()  # as it came: a library would quote it in its own way
            return Reply(reply.status, await reply.text(errors="replace"), reply.headers)

    def _unavailable(self, path: str, error: Exception) -> ServerUnavailable:
        return ServerUnavailable(f"no answer from {self._root}{path}: {_reason(error)}")


def _asked_to_wait(reply: Reply) -> float:
    """The seconds after which the server wants to be asked again."""
    seconds = reply.headers.get("Retry-After", "")
    return float(seconds) if seconds.isdecimal() else 0.0


def _reason(error: Exception) -> str:
    """What went wrong with a connection, in the system's words."""
    if isinstance(error, TimeoutError):
        return "it took too long"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return str(error.strerror)
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__

"""The ASGI application: one model, asked by either API."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from stateroom.errors import NotFound
from stateroom.model import ModelSource, answer_of
from stateroom.server.faults import wrong_field
from stateroom.server.hosts import Hosts
from stateroom.server.http import (
    LIMITS,
    TOO_LARGE,
    Disconnected,
    InFlight,
    Receive,
    Reply,
    Request,
    Scope,
    Send,
    send_reply,
)
from stateroom.server.model import chat, responses
from stateroom.server.model.asked import Asked
from stateroom.server.model.faults import UnknownModel, error_reply, fault
from stateroom.server.model.made import Made
from stateroom.server.options import Limits
from stateroom.state import to_json

EVENTS = b"text/event-stream; charset=utf-8"

MODELS = "/v1/models"

PROBES = frozenset({"/", "/health"})
"""Paths that are answered however many requests are in flight."""


class API(NamedTuple):
    """How one of the APIs is spoken."""

    read: Callable[[Mapping[str, Any]], Asked]
    whole: Callable[[Made], dict[str, Any]]
    events: Callable[[Made], Iterator[bytes]]


APIS = {
    "/v1/responses": API(responses.read, responses.whole, responses.events),
    "/v1/chat/completions": API(chat.read, chat.whole, chat.events),
}


class ModelApplication:
    """Serves the models of a source, which it closes when it stops.

    It keeps nothing between requests: each has the whole conversation, and a policy is made anew for it, with a seed
    that is the same for all requests of an episode.
    """

    def __init__(
        self,
        source: ModelSource,
        limits: Limits,
        hosts: Sequence[str] | None = (),
        on_start: Callable[[], None] | None = None,
    ) -> None:
        self.source = source
        self.name = source.name
        self.limits = limits
        self.in_flight = InFlight(limits.calls)
        self._on_start = on_start
        self._hosts = None if hosts is None else Hosts(hosts)
        self._since = int(time.time())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._lifespan(scope, receive, send)
            return
        request = Request(scope, receive, self.limits.body)
        what = f"{scope['method']} {scope['path']}"
        try:
            if scope["path"] in PROBES:
                reply = await self._endpoint(scope["method"], scope["path"])(request)
            else:
                if self._hosts is not None and (refused := self._hosts.refusal(scope)) is not None:
                    raise refused
                await request.body()
                with self.in_flight:
                    reply = await self._endpoint(scope["method"], scope["path"])(request)
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the client is told
            reply = fault(error, what)
        await send_reply(scope, send, reply)

    def _endpoint(self, method: str, path: str) -> Callable[[Request], Awaitable[Reply]]:
        reads = method in ("GET", "HEAD")
        if path in APIS:
            return self._answer if method == "POST" else _only("POST")
        if path == MODELS or path.startswith(f"{MODELS}/"):
            return self._models if reads else _only("GET")
        if path in PROBES:
            return _health if reads else _only("GET")
        raise NotFound(f"there is nothing at {path}; there are {', '.join([*APIS, MODELS])} and /health")

    async def _answer(self, request: Request) -> Reply:
        api = APIS[request.scope["path"]]
        body = await request.json()
        self._check_model(body.get("model"))
        asked = api.read(body)
        model = self.source.for_episode(asked.request.seed)
        made = Made(asked, await answer_of(model, asked.request), self.name)
        if asked.stream:
            return Reply(200, b"".join(api.events(made)), EVENTS, ((b"cache-control", b"no-cache"),))
        return Reply(200, to_json(api.whole(made)))

    async def _models(self, request: Request) -> Reply:
        described = {"id": self.name, "object": "model", "created": self._since, "owned_by": "stateroom"}
        name = request.scope["path"].removeprefix(MODELS).removeprefix("/")
        if not name:
            return Reply(200, to_json({"object": "list", "data": [described]}))
        self._check_model(name)
        return Reply(200, to_json(described))

    def _check_model(self, name: Any) -> None:
        if not isinstance(name, str):
            raise wrong_field("model", f"should be the model's name, {self.name!r}")
        if name != self.name:
            raise UnknownModel(f"there is no model {name!r:.200} here; this server has {self.name!r}")

    async def refuse_head(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose head is larger than it may be."""
        message = f"the path and headers are larger than {self.limits.head:,} bytes"
        await send_reply(scope, send, error_reply(431, "invalid_request_error", "head_too_large", message))

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            return  # a WebSocket, say: it is refused
        await receive()
        if self._on_start is not None:
            self._on_start()
        if "state" in scope:
            scope["state"] |= {LIMITS: self.limits, TOO_LARGE: self.refuse_head}  # for the protocol
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.source.close()
        await send({"type": "lifespan.shutdown.complete"})


async def _health(request: Request) -> Reply:
    return Reply(200, b'{"status":"ok"}')


def _only(method: str) -> Callable[[Request], Awaitable[Reply]]:
    """Refuses a request whose method a path does not answer."""

    async def refuse(request: Request) -> Reply:
        message = f"{request.scope['path']} answers {method} only"
        reply = error_reply(405, "invalid_request_error", "method_not_allowed", message)
        return Reply(reply.status, reply.body, headers=((b"allow", method.encode()),))

    return refuse

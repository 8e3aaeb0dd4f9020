"""The ASGI application of a model, with OpenAI's APIs."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple
from urllib.parse import unquote

from sse_starlette import ServerSentEvent
from starlette.routing import Router

from stateroom import errors
from stateroom.model import Answer, ModelSource, Request as ToModel, answer_of
from stateroom.server.asgi import ASGIApplication
from stateroom.server.http import (
    RETRY_AFTER,
    Endpoint,
    HTTPRequest,
    HTTPResponse,
    ProbeReply,
    Receive,
    Scope,
    Send,
    json_response,
    wrong_field,
)
from stateroom.server.model import chat, responses
from stateroom.server.model.conversations import (
    PATH as CONVERSATIONS,
    ConversationEnvironment,
    Conversations,
    ConversationState,
)
from stateroom.server.model.request import ModelRequest, ModelResponse
from stateroom.server.operation import get, post, routes_of
from stateroom.server.options import Limits
from stateroom.server.process import Server, configured, log_to_stderr
from stateroom.server.sweep import SessionCount, Sweeper
from stateroom.session import WEEK, Sessions
from stateroom.state import to_json
from stateroom.store import open_store

logger = logging.getLogger(__name__)

EVENTS = b"text/event-stream; charset=utf-8"

MODELS = "/v1/models"

STOP_SECONDS = 30.0
"""Seconds that answers may still take when the server stops."""

OPENAI_STATUS: dict[type[errors.StateroomError], tuple[int, str | None]] = {
    errors.InvalidArguments: (400, None),
    errors.UnknownSession: (404, "not_found"),  # deleted meanwhile
    errors.SessionLeased: (409, "conversation_locked"),
    errors.ModelFailed: (500, "model_failed"),
}
"""Status and code of errors for which OpenAI's APIs have others."""

HEADERS = {500: ((b"x-should-retry", b"false"),), 503: (RETRY_AFTER,)}
"""Headers by status, with which OpenAI's clients decide whether and when to retry."""


class UnknownModel(errors.NotFound):
    """The model is not the one that is served."""


class API(NamedTuple):
    """One of the APIs: how it reads a request, and writes an answer."""

    read: Callable[[Mapping[str, Any]], ModelRequest]
    whole: Callable[[ModelResponse], dict[str, Any]]
    events: Callable[[ModelResponse], Iterator[ServerSentEvent]]


RESPONSES = "/v1/responses"

APIS = {
    RESPONSES: API(responses.read, responses.whole, responses.events),
    "/v1/chat/completions": API(chat.read, chat.whole, chat.events),
}


class ModelApplication(ASGIApplication):
    """Serves the models of a source, which it closes when it stops.

    Each request gets a new policy, whose seed is the same for all requests of an episode. A request has the whole
    conversation, or names one that the server keeps in its store. Nothing else is kept between requests.
    """

    conversations: Conversations
    """Set by `start`."""

    def __init__(
        self,
        source: ModelSource,
        limits: Limits,
        hosts: Sequence[str] | None = (),
        on_start: Callable[[], None] | None = None,
        store: str = "memory://",
    ) -> None:
        super().__init__(limits, hosts)
        self.source = source
        self.name = source.name
        self._on_start = on_start
        self._store = store
        self._since = int(time.time())
        self._resources = AsyncExitStack()
        self.endpoints = {path: self._endpoint(api) for path, api in APIS.items()}

    async def start(self) -> None:
        self._resources.push_async_callback(self.source.close)
        store = await self._resources.enter_async_context(open_store(self._store))
        sessions = Sessions[ConversationState](ConversationEnvironment(), store)
        count = SessionCount(store, self.limits.max_sessions, time.time)
        await self._resources.enter_async_context(Sweeper([sessions], count, WEEK))
        self.conversations = Conversations(sessions, count)
        operations = [
            *(post(path, endpoint) for path, endpoint in self.endpoints.items()),
            *self.conversations.operations(),
            *(get(path, self._models) for path in (MODELS, f"{MODELS}/")),
            get(f"{MODELS}/{{name:path}}", self._model),
            *(get(path, _health) for path in ("/", "/health")),
        ]
        self.router = self.with_errors(Router(routes_of(operations), redirect_slashes=False, default=_unknown))
        if self._on_start is not None:
            self._on_start()

    async def stop(self) -> None:
        await self._resources.aclose()

    def _endpoint(self, api: API) -> Endpoint:
        async def answer(request: HTTPRequest) -> HTTPResponse:
            body = request.json()
            self._check_model(body.get("model"))
            conversation = body.pop("conversation", None) if api is APIS[RESPONSES] else None
            if conversation is None:
                asked = api.read(body)
                made = ModelResponse(asked, await self._ask(asked.request), self.name)
            else:
                made = await self.conversations.answer(_conversation_id(conversation), body, self._ask, self.name)
            if not made.asked.stream:
                return json_response(api.whole(made))
            events = b"".join(event.encode() for event in api.events(made))
            return HTTPResponse(200, events, EVENTS, ((b"cache-control", b"no-cache"),))

        return answer

    async def _ask(self, request: ToModel) -> Answer:
        return await answer_of(self.source.for_episode(request.seed), request)

    async def _models(self, request: HTTPRequest) -> HTTPResponse:
        return json_response({"object": "list", "data": [self._described()]})

    async def _model(self, request: HTTPRequest, name: str) -> dict[str, Any]:
        self._check_model(unquote(name))
        return self._described()

    def _described(self) -> dict[str, Any]:
        return {"id": self.name, "object": "model", "created": self._since, "owned_by": "stateroom"}

    def _check_model(self, name: Any) -> None:
        if not isinstance(name, str):
            raise wrong_field("model", f"should be the name of the model, {self.name!r}")
        if name != self.name:
            raise UnknownModel(f"unknown model {name!r:.200}; this server has {self.name!r}")

    # Errors, in the form that OpenAI's clients expect.

    def response_to(self, error: Exception, what: str) -> HTTPResponse:
        if isinstance(error, UnknownModel):
            return _error_response(404, "invalid_request_error", "model_not_found", str(error), "model")
        if isinstance(error, errors.StateroomError) and error.code is not None:
            own = (OPENAI_STATUS[kind] for kind in type(error).__mro__ if kind in OPENAI_STATUS)
            status, code = next(own, (error.status, error.code))
            field = next(iter(error.fields), None) if isinstance(error, errors.InvalidArguments) else None
            kind = "server_error" if status >= 500 else "invalid_request_error"
            return _error_response(status, kind, code, str(error), field)
        logger.error("%s failed", what, exc_info=error)
        message = f"{what} failed: unexpected {type(error).__name__}; the server's log has more"
        return _error_response(500, "server_error", "internal_error", message)

    def error_response(self, status: int, code: str, message: str) -> HTTPResponse:
        return _error_response(status, "invalid_request_error", code, message)


async def _unknown(scope: Scope, receive: Receive, send: Send) -> None:
    known = f"{', '.join([*APIS, CONVERSATIONS, MODELS])} and /health"
    raise errors.NotFound(f"unknown path {unquote(scope['path'])}; this server has {known}")


def _conversation_id(given: Any) -> str:
    conversation = given.get("id") if isinstance(given, dict) else given
    if not isinstance(conversation, str):
        raise wrong_field("conversation", "should be the id of a conversation")
    return conversation


async def _health(request: HTTPRequest) -> HTTPResponse:
    return json_response(ProbeReply())


def _error_response(status: int, kind: str, code: str | None, message: str, field: str | None = None) -> HTTPResponse:
    body = to_json({"error": {"message": message, "type": kind, "param": field, "code": code}})
    return HTTPResponse(status, body, headers=HEADERS.get(status, ()))


def run_model(
    source: ModelSource,
    listening: socket.socket,
    limits: Limits,
    hosts: Sequence[str] | None,
    announce: Callable[[], None],
    store: str,
) -> None:
    """Serve a model until a signal stops the server: answers in progress finish, and new requests are refused.

    `announce` is called when the server is ready. `hosts` are the names that it answers to, besides this machine's own;
    None allows any. `store` is the URL of the store for conversations.
    """
    log_to_stderr()
    Server(configured(lambda: ModelApplication(source, limits, hosts, announce, store), STOP_SECONDS)).run([listening])

"""Traces: a span for each request, and below it a span for each operation of the store.

Names and attributes follow OpenTelemetry's conventions for HTTP servers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from opentelemetry import trace
from opentelemetry.propagate import extract
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer

from stateroom.errors import SessionError
from stateroom.server.asgi import SEND_WHOLE
from stateroom.server.http import ASGIApp, Message, Receive, Scope, Send
from stateroom.store import Store, Work, WrappedStore
from stateroom.version import __version__

P = ParamSpec("P")
T = TypeVar("T")

METHODS = {"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE"}
"""Other methods are not named in spans: a client could make up any number of them."""

PlaceOf = Callable[[str, str], tuple[str | None, str | None]]
"""The route that answers a method and a path, and its environment."""


def start_tracing(exporters: Sequence[SpanExporter]) -> Tracing:
    """Trace this process, for these exporters; they also get the spans that tools make."""
    named = OTELResourceDetector().detect().attributes
    provider = TracerProvider(resource=Resource.create({"service.name": "stateroom", **named}))
    for exporter in exporters:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return Tracing(provider)


class Tracing:
    """Makes the spans of a server."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("stateroom", __version__)

    def around(self, app: ASGIApp, place_of: PlaceOf) -> ASGIApp:
        """The application, with a span for each request."""
        return TracedApplication(app, place_of, self._tracer)

    def store(self, store: Store) -> TracedStore:
        """A store, with a span for each operation."""
        return TracedStore(store, self._tracer)

    async def shutdown(self) -> None:
        """Send all spans that are not sent yet."""
        await asyncio.to_thread(self._provider.shutdown)


class TracedApplication:
    """An ASGI application with a span for each request, which continues the client's trace."""

    def __init__(self, app: ASGIApp, place_of: PlaceOf, tracer: Tracer) -> None:
        self._app = app
        self._place_of = place_of
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        name, attributes = self._described(scope)
        with self._tracer.start_as_current_span(
            name, context=extract(headers), kind=SpanKind.SERVER, attributes=attributes
        ) as span:

            async def send_noted(message: Message) -> None:
                if message["type"] == "http.response.start":
                    _note_response(span, message)
                await send(message)

            scope.pop(SEND_WHOLE, None)  # so that every response is sent here
            await self._app(scope, receive, send_noted)

    def _described(self, scope: Scope) -> tuple[str, dict[str, str]]:
        """The name and the attributes of a request's span at its start."""
        method = scope["method"] if scope["method"] in METHODS else "_OTHER"
        attributes = {"http.request.method": method, "url.path": scope["path"], "url.scheme": scope["scheme"]}
        route, environment = self._place_of(scope["method"], scope["path"])
        if method == "_OTHER":
            attributes["http.request.method_original"] = scope["method"]
        if environment is not None:
            attributes["stateroom.environment"] = environment
        name = "HTTP" if method == "_OTHER" else method
        if route is not None:
            attributes["http.route"] = route
            name = f"{name} {route}"
        return name, attributes


def _note_response(span: Span, message: Message) -> None:
    status = message["status"]
    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(StatusCode.ERROR)
        span.set_attribute("error.type", str(status))
    for name, value in message.get("headers", ()):
        if name == b"set-cookie":  # every response in a session has its token, once it is verified
            subject = value.partition(b"=")[2].partition(b".")[0]
            span.set_attribute("stateroom.session", subject.partition(b"~")[0].decode())


class TracedStore(WrappedStore):
    """A store with a span for each operation."""

    def __init__(self, store: Store, tracer: Tracer) -> None:
        super().__init__(store)
        self._tracer = tracer

    async def around(
        self, operation: str, session: str | None, work: Callable[P, Work[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        with self._tracer.start_as_current_span(
            f"store.{operation}",
            attributes={} if session is None else {"stateroom.session": session},
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                return await work(*args, **kwargs)
            except Exception as error:
                span.set_attribute("error.type", type(error).__name__)
                if not isinstance(error, SessionError):  # a problem of the session is not a fault of the store
                    span.set_status(StatusCode.ERROR, str(error))
                raise

"""Traces: when there are any, what they tell, and that they reach a collector."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib.metadata import EntryPoints
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from stateroom.errors import Conflict, StoreUnavailable
from stateroom.gallery import CounterEnvironment
from stateroom.server import Application, ApplicationOptions, tracing as tracing_module
from stateroom.server.spans import Tracing
from stateroom.server.tracing import configure
from stateroom.store import Commit, Entry, Head, Store
from tests.messages import says
from tests.server.test_metrics import Faulty

ROW = {"responses_create_params": {"input": "count"}, "initial_count": 0, "expected_count": 0}
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = {"traceparent": f"00-{TRACE}-{PARENT}-01"}

ENVIRONMENT = '''
from opentelemetry import trace
from stateroom import Environment, State, tool

class Room(State):
    value: int = 0

class Workshop(Environment[Room]):
    """Works, and breaks."""

    def verify(self, state: Room) -> float:
        return 1.0

    @tool
    def work(self, state: Room) -> int:
        """Do some work."""
        with trace.get_tracer("workshop").start_as_current_span("the author's own"):
            state.value += 1
        return state.value

    @tool
    def smash(self, state: Room) -> None:
        """Break."""
        raise ZeroDivisionError
'''


@pytest.fixture(autouse=True)
def _nothing_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


class Collector:
    """Takes spans in, as OpenTelemetry's own collector would."""

    def __init__(self) -> None:
        self.spans: list[SimpleNamespace] = []
        self.url = ""

    async def receive(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/x-protobuf"
        for group in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
            service = _plain(group.resource.attributes)["service.name"]
            for scope in group.scope_spans:
                for span in scope.spans:
                    id, parent, trace = (value.hex() for value in (span.span_id, span.parent_span_id, span.trace_id))
                    told = {"name": span.name, "kind": span.kind, "status": span.status.code, "service": service}
                    ids = {"id": id, "parent": parent, "trace": trace}
                    self.spans.append(SimpleNamespace(**told, **ids, attributes=_plain(span.attributes)))
        return web.Response()

    def named(self, name: str) -> SimpleNamespace:
        """The only span of this name."""
        [found] = [span for span in self.spans if span.name == name]
        return found

    def below(self, parent: SimpleNamespace) -> list[str]:
        return [span.name for span in self.spans if span.parent == parent.id]


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    made = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", made.receive)
    async with TestServer(app) as server:
        made.url = f"http://127.0.0.1:{server.port}"
        yield made


async def stop(command: Any) -> None:
    """End a server, which sends all that it has traced."""
    command.signal(signal.SIGTERM)
    assert await asyncio.to_thread(command.wait) == 0


async def test_a_server_sends_its_traces_to_a_collector(
    collector: Collector, launch: Any, connect: Any, tmp_path: Path
) -> None:
    (tmp_path / "workshop.py").write_text(ENVIRONMENT)
    command = await asyncio.to_thread(launch, "workshop.py:Workshop", OTEL_EXPORTER_OTLP_ENDPOINT=collector.url)
    client = await connect(command.root)
    session = (await client.post("/seed_session"))[1]["session_id"]
    assert (await client.post("/ng-rollout/r1/work", headers=TRACEPARENT))[0] == 200
    assert (await client.post("/smash"))[0] == 500
    assert (await client.post("/made_up_by_a_model"))[0] == 404
    await stop(command)

    called = collector.named("POST /work")
    assert (called.trace, called.parent, called.service) == (TRACE, PARENT, "stateroom")
    assert (called.kind, called.status) == (2, 0)  # a server's; nothing went wrong
    assert called.attributes == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/work",
        "stateroom.environment": "workshop",
        "stateroom.session": session,
        "url.path": "/ng-rollout/r1/work",
        "url.scheme": "http",
    }
    assert sorted(collector.below(called)) == ["store.append", "the author's own"]
    appended = next(span for span in collector.spans if span.parent == called.id and span.name == "store.append")
    assert (appended.trace, appended.attributes) == (TRACE, {"stateroom.session": session})

    seeded = collector.named("POST /seed_session")
    assert seeded.parent == ""
    assert seeded.attributes["stateroom.session"] == session
    assert collector.below(seeded) == ["store.create"]

    smashed = collector.named("POST /smash")
    assert (smashed.status, smashed.attributes["error.type"]) == (2, "500")

    unknown = collector.named("POST")  # a name for all that clients make up
    assert unknown.status == 0
    assert unknown.attributes["url.path"] == "/made_up_by_a_model"
    assert "http.route" not in unknown.attributes


async def test_a_service_has_the_name_that_it_is_given(collector: Collector, launch: Any, connect: Any) -> None:
    settings = {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces"}
    command = await asyncio.to_thread(launch, "counter", OTEL_SERVICE_NAME="rooms", **settings)
    await (await connect(command.root)).get("/health")
    await stop(command)
    assert collector.named("GET /health").service == "rooms"


@dataclass
class Traced:
    """Traces that stay in memory."""

    tracing: Tracing
    memory: InMemorySpanExporter

    def span(self, name: str) -> ReadableSpan:
        [found] = [span for span in self.memory.get_finished_spans() if span.name == name]
        return found


@pytest.fixture
def traced() -> Traced:
    provider, memory = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    return Traced(Tracing(provider), memory)


async def test_a_refusal_of_the_store_is_no_fault_but_a_failure_is(traced: Traced, store: Store) -> None:
    watched = traced.tracing.store(Faulty(store))
    await watched.create(Head("room", "counter", "", 0.0, 10.0, 0))
    with pytest.raises(Conflict):
        await watched.append(Commit("room", Entry(7, "call", 1.0, b""), expires=None))
    with pytest.raises(StoreUnavailable):
        await watched.head("room")
    assert await watched.sweep(20.0) == 1
    refused, failed = traced.span("store.append"), traced.span("store.head")
    assert refused.status.status_code is StatusCode.UNSET
    assert refused.attributes == {"stateroom.session": "room", "error.type": "Conflict"}
    assert (failed.status.status_code, failed.status.description) == (StatusCode.ERROR, "gone fishing")
    assert failed.attributes == {"stateroom.session": "room", "error.type": "StoreUnavailable"}
    assert traced.span("store.sweep").attributes == {}


async def request(traced: Traced, method: str, path: str) -> None:
    """Send a request to an application that has no server around it."""
    app = Application([CounterEnvironment()], ApplicationOptions(("good for one test only",)), tracing=traced.tracing)
    await app.start()
    scope = {"type": "http", "method": method, "path": path, "scheme": "https", "headers": [], "query_string": b""}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(_: Any) -> None:
        return

    await traced.tracing.around(app, app.place_of)(scope, receive, send)
    await app.stop()


@pytest.mark.parametrize(
    ("method", "path", "name", "route"),
    [
        ("GET", "/metrics", "GET /metrics", "/metrics"),
        ("GET", "/admin/sessions/abc", "GET /admin", "/admin"),
        ("PUT", "/increment_counter", "PUT", None),
        ("BREW", "/coffee", "HTTP", None),
    ],
)
async def test_a_span_is_named_by_its_route(
    method: str, path: str, name: str, route: str | None, traced: Traced
) -> None:
    await request(traced, method, path)
    span = traced.span(name)
    assert span.kind is SpanKind.SERVER
    assert span.attributes
    assert span.attributes.get("http.route") == route
    assert span.attributes["url.path"] == path
    assert "stateroom.environment" not in span.attributes
    if method == "BREW":
        assert span.attributes["http.request.method"] == "_OTHER"
        assert span.attributes["http.request.method_original"] == "BREW"


async def test_a_request_that_breaks_the_application_is_a_fault(traced: Traced) -> None:
    async def broken(*_: Any) -> None:
        raise ZeroDivisionError

    scope = {"type": "http", "method": "GET", "path": "/", "scheme": "http", "headers": []}
    with pytest.raises(ZeroDivisionError):
        await traced.tracing.around(broken, lambda *_: (None, None))(scope, None, None)  # type: ignore[arg-type]
    assert traced.span("GET").status.status_code is StatusCode.ERROR


UNASKED = [
    {},
    {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
    {"OTEL_TRACES_EXPORTER": "", "OTEL_EXPORTER_OTLP_ENDPOINT": ""},
    {"OTEL_SDK_DISABLED": "True", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"},
]


def test_nothing_is_imported_unless_traces_are_asked_for() -> None:
    program = f"""
import os, sys, stateroom.server.process, stateroom.server.tracing as tracing
before = dict(os.environ)
for variables in {UNASKED}:
    os.environ.clear()
    os.environ.update(before | variables)
    assert tracing.configure() is None, variables
    print([name for name in sys.modules if name.startswith('opentelemetry')])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n" * len(UNASKED), "")


ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("variables", "installed"),
    [
        ({"OTEL_TRACES_EXPORTER": "pigeon"}, True),
        (ENDPOINT, False),
        ({**ENDPOINT, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, True),
    ],
    ids=["exporter", "packages", "protocol"],
)
def test_what_is_missing_for_traces_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variables: dict[str, str], installed: bool
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    if not installed:
        monkeypatch.setattr(tracing_module, "entry_points", lambda **_: EntryPoints())
    assert configure() is None
    says(caplog.messages[-1])

"""A server of models that does what a test tells it to: it answers, refuses, hangs, or talks rubbish."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import uvicorn

from stateroom.model import Answer, Limiter, ModelLimits, Request, answer_of, input_items, open_model
from stateroom.model.address import ModelAddress
from stateroom.model.endpoint import Endpoint, EndpointPool, Question, Trouble
from stateroom.model.limiter import Timing
from stateroom.model.remote import ChatModel, ResponsesModel

KEY = "sk-the-key-of-the-tests-0123456789"


@dataclass
class Reply:
    """What a server sends back; a text is sent as it is."""

    body: Any
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


class Hang:
    """No reply, as long as the client waits."""


@dataclass
class Asked:
    """What a server was asked."""

    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Server:
    """Gives its replies one after the other, and the last again and again."""

    url: str
    replies: list[Reply | Hang | Callable[[Asked], Reply]] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    heard: threading.Event = field(default_factory=threading.Event)
    """Set once it was asked something."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        asked = Asked(scope["path"], headers, json.loads(body))
        self.asked.append(asked)
        self.heard.set()
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Hang):
            while (await receive())["type"] != "http.disconnect":
                pass
            return
        await _send(send, reply(asked) if callable(reply) else reply)


async def _send(send: Any, reply: Reply) -> None:
    text = reply.body if isinstance(reply.body, str) else json.dumps(reply.body)
    headers = {"content-type": "application/json", **reply.headers}
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": reply.status, "headers": pairs})
    await send({"type": "http.response.body", "body": text.encode()})


class Host:
    """Where the servers of all tests are, each under a path of its own: to start and stop one takes long."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.servers: dict[str, Server] = {}

    def new_server(self) -> Server:
        name = uuid4().hex
        self.servers[name] = Server(f"{self.url}/{name}/v1")
        return self.servers[name]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.servers[scope["path"].split("/")[1]](scope, receive, send)


@contextmanager
def hosting() -> Iterator[Host]:
    """Run a host on a port of its own, in a thread of its own."""
    listening = socket.create_server(("127.0.0.1", 0))
    address, port = listening.getsockname()
    host = Host(f"http://{address}:{port}")
    program = uvicorn.Server(uvicorn.Config(host, lifespan="off", log_config=None, access_log=False))
    thread = threading.Thread(target=program.run, args=([listening],), name="models")
    thread.start()
    try:
        yield host
    finally:
        program.should_exit = True
        thread.join()


class FakeEndpoint(Endpoint):
    """An endpoint without a server, that is told what comes of each attempt; the last again and again."""

    def __init__(self, name: str, found: list[dict[str, Any] | Trouble], until: asyncio.Event | None = None) -> None:
        super().__init__(name, ModelAddress("m", f"http://{name}/v1"))
        self.given: list[float] = []
        """The seconds that each attempt was given."""
        self.asked = asyncio.Event()
        self._found = found
        self._until = until

    async def attempt(self, question: Question, seconds: float) -> dict[str, Any] | Trouble:
        self.given.append(seconds)
        self.asked.set()
        if self._until is not None:
            await self._until.wait()
        await asyncio.sleep(0)
        return self._found.pop(0) if len(self._found) > 1 else self._found[0]


class FakeTime:
    """A clock that only the pauses move on, and a chance that always takes the longest pause."""

    def __init__(self) -> None:
        self.time = 0.0
        self.pauses: list[float] = []

    def later(self, seconds: float, call: Callable[[], None]) -> asyncio.Handle:
        self.pauses.append(seconds)
        self.time += seconds
        return asyncio.get_running_loop().call_soon(call)

    @property
    def timing(self) -> Timing:
        return Timing(self.later, lambda: self.time, lambda: 1_000_000_000 + self.time, lambda low, high: high)


class StoppedTime(FakeTime):
    """A clock that stands still until a test moves it on."""

    def __init__(self) -> None:
        super().__init__()
        self._due: list[Callable[[], None]] = []

    def later(self, seconds: float, call: Callable[[], None]) -> asyncio.Handle:
        self._due.append(call)
        return asyncio.get_running_loop().call_soon(lambda: None)

    def advance(self, seconds: float) -> None:
        """Let some seconds pass, and all that waits look at the clock."""
        self.time += seconds
        due, self._due = self._due, []
        for call in due:
            call()


@asynccontextmanager
async def asking(
    kind: str,
    url: str,
    limits: ModelLimits | None = None,
    clock: FakeTime | None = None,
    key: str = KEY,
    limiter: Limiter | None = None,
) -> AsyncIterator[ChatModel | ResponsesModel]:
    """A model behind one or more URLs, which speaks `chat` or `responses`."""
    name, timing = f"{kind}:m@{url}", (clock or FakeTime()).timing
    endpoints = [Endpoint(f"{kind}:m@{each}", ModelAddress("m", each, key), timing.today) for each in url.split(",")]
    pool = EndpointPool(name, endpoints, limits or ModelLimits(), limiter, timing)
    try:
        yield ChatModel(pool) if kind == "chat" else ResponsesModel(pool, sends_seed=True)
    finally:
        await pool.close()


HELLO = Request(items=input_items("Hello."))


async def answered(kind: str, server: Server, request: Request = HELLO, **options: Any) -> Answer:
    """What a model behind a server answers."""
    async with asking(kind, server.url, **options) as model:
        return await answer_of(model, request)


async def answered_by(spec: str, **options: Any) -> Answer:
    """What the model of a spec answers."""
    async with open_model(spec, {}, **options) as source:
        return await answer_of(source.for_episode(0), HELLO)


def completion(message: dict[str, Any], finish: str = "stop", **more: Any) -> Reply:
    """A reply of Chat Completions."""
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}
    return Reply({"id": "c", "object": "chat.completion", "choices": [choice], **more})


def response(*output: dict[str, Any], status: str = "completed", **more: Any) -> Reply:
    """A reply of Responses."""
    return Reply({"id": "r", "object": "response", "status": status, "output": [*output], **more})


def says(kind: str, text: str) -> Reply:
    """A reply of either, that is a word of the assistant's."""
    if kind == "chat":
        return completion({"content": text})
    part = {"type": "output_text", "text": text, "annotations": []}
    return response({"type": "message", "role": "assistant", "status": "completed", "content": [part]})

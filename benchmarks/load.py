"""The load client, a process of its own: `python -m benchmarks.load '{"mode": "requests", "port": 8000}'`.

It prints its findings as JSON. It speaks HTTP/1.1 by hand on uvloop: requests are bytes made beforehand, and only what
it needs of a reply is read, because an HTTP library would be slower than the servers.

Checked by hand against `wrk -t1 -c64` in turns, on two cores: the echo of `benchmarks.bare` answers 31,000 to 33,500
requests/s to `wrk` and 32,000 to 34,000 to this client, which then uses little more than half of a core; a server that
only writes a fixed reply shows its limit, 100,000 requests/s.
"""

from __future__ import annotations

import asyncio
import gc
import re
import sys
import time
from collections.abc import Callable, Generator
from statistics import quantiles
from typing import Any, Literal, NamedTuple

import msgspec
import uvloop

STEPS = 3
TOOLS = [("increment_counter", {"count": 1})] * STEPS + [("get_counter_value", {})]


class Plan(msgspec.Struct, frozen=True):
    """What to send.

    - `requests`: each connection seeds a session, untimed, then sends increments to it.
    - `episodes`: each connection plays whole episodes, and checks the counter that it reads and the reward.
    - `seeds`: `number` sessions are seeded, and left.
    """

    mode: Literal["requests", "episodes", "seeds"]
    port: int
    connections: int = 64
    seconds: float = 0.4
    ramp: float = 0.1  # seconds of the same load beforehand, not counted
    number: int = 0
    cookie: str = ""  # sent in `requests` to a server that sets none, so that it receives the same bytes


class Findings(msgspec.Struct, frozen=True):
    """What came of it. Anything in `bad` makes the rest worthless: `complaint` is the first such reply."""

    requests: float  # per second
    episodes: float  # per second
    p50: float  # seconds
    p99: float
    bad: int
    complaint: str
    busy: float  # the share of one core that this client used: near 1, it measures itself
    cookie: str  # of the last session


class Reply(NamedTuple):
    status: bytes
    cookie: bytes
    body: bytes


class Counted(msgspec.Struct):
    count: int


class Verified(msgspec.Struct):
    reward: float


Script = Generator[bytes, Reply, None]
"""Yields requests, and is sent the reply to each."""


class Tally:
    """What all connections count, between `start` and `end` only."""

    def __init__(self, start: float = 0.0, end: float = float("inf")) -> None:
        self.start, self.end = start, end
        self.latencies: list[float] = []
        self.episodes = 0
        self.bad = 0
        self.complaint = ""
        self.cookie = b""

    def complain(self, reply: Reply) -> None:
        self.bad += 1
        self.complaint = self.complaint or f"{reply.status.decode()} {reply.body[:500].decode(errors='replace')}"


class Connection(asyncio.Protocol):
    """One kept connection: runs a script, one request at a time, and ends it at the first reply other than 200."""

    def __init__(self) -> None:
        self.received = b""
        self.done: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport: asyncio.Transport = transport

    def run(self, script: Script, tally: Tally) -> asyncio.Future[None]:
        self.done = asyncio.get_running_loop().create_future()
        self.script, self.tally = script, tally
        self._next(lambda: next(script))
        return self.done

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self.received:
            data = self.received + data
        reply = parse(data)
        if reply is None:
            self.received = data
            return
        self.received = b""
        tally = self.tally
        if tally.start <= now <= tally.end:
            tally.latencies.append(now - self.sent)
        if reply.status != b"200":
            tally.complain(reply)
            self.script.close()
        self._next(lambda: self.script.send(reply))

    def _next(self, request: Callable[[], bytes]) -> None:
        self.sent = time.perf_counter()
        try:
            self.transport.write(request())
        except StopIteration:
            if self.done is not None:
                self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if self.done is not None and not self.done.done():
            self.done.set_exception(error or ConnectionError("the server closed a connection"))


_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
_COOKIE = re.compile(rb"\r\nset-cookie:[ \t]*([^;\r]+)", re.IGNORECASE)


def parse(data: bytes) -> Reply | None:
    """The reply, or nothing when it is not all there."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    length = _LENGTH.search(data, 0, end)
    if length is None:
        raise ValueError(f"a reply without a content-length: {data[:end].decode(errors='replace')}")
    missing = end + 4 + int(length[1]) - len(data)
    if missing > 0:
        return None
    if missing < 0:
        raise ValueError("more bytes than the reply")
    cookie = _COOKIE.search(data, 0, end)
    return Reply(data[9:12], cookie[1] if cookie else b"", data[end + 4 :])


class Request:
    """A POST of JSON, ready but for the cookie."""

    def __init__(self, path: str, body: object) -> None:
        content = msgspec.json.encode(body)
        self.head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n"
        ).encode()
        self.tail = b"\r\n" + content

    def bare(self) -> bytes:
        return self.head + self.tail

    def within(self, cookie: bytes) -> bytes:
        return b"%sCookie: %s\r\n%s" % (self.head, cookie, self.tail) if cookie else self.bare()


def task(initial: int) -> dict[str, Any]:
    text = "Use the tools to change the counter: add 1, then add 1, then add 1. Then read it and tell me its value."
    return {
        "responses_create_params": {"input": text},
        "initial_count": initial,
        "expected_count": initial + STEPS,
    }


def response(initial: int) -> dict[str, Any]:
    """What a model's whole episode looks like when it is verified: about 1.5 kB."""
    items: list[dict[str, Any]] = []
    for number, (name, arguments) in enumerate(TOOLS):
        result = {"success": True} if arguments else {"count": initial + STEPS}
        call = {"type": "function_call", "call_id": f"call_{number}", "name": name, "status": "completed"}
        items.append(call | {"arguments": msgspec.json.encode(arguments).decode()})
        output = msgspec.json.encode(result).decode()
        items.append({"type": "function_call_output", "call_id": f"call_{number}", "output": output})
    said = {"type": "output_text", "text": f"The counter is at {initial + STEPS}.", "annotations": []}
    items.append({"type": "message", "role": "assistant", "status": "completed", "content": [said]})
    return {
        "id": "resp_70ee32b482f4e913",
        "object": "response",
        "created_at": 1735689600.0,
        "status": "completed",
        "model": "load",
        "output": items,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def seeding(number: int, tally: Tally) -> Script:
    request = Request("/seed_session", task(0)).bare()
    for _ in range(number):
        reply = yield request
        tally.cookie = reply.cookie


def incrementing(cookie: bytes, tally: Tally) -> Script:
    request = Request("/increment_counter", {"count": 1}).within(cookie)
    while time.perf_counter() < tally.end:
        yield request


def playing(initial: int, tally: Tally) -> Script:
    """Episodes that begin at a number of this connection's own, so that a mixed-up session shows."""
    seed = Request("/seed_session", task(initial)).bare()
    calls = [Request(f"/{name}", arguments) for name, arguments in TOOLS]
    verify = Request("/verify", task(initial) | {"response": response(initial)})
    counted, verified = msgspec.json.Decoder(Counted), msgspec.json.Decoder(Verified)
    while time.perf_counter() < tally.end:
        cookie = (yield seed).cookie
        for call in calls:
            reply = yield call.within(cookie)
        if counted.decode(reply.body).count != initial + STEPS:
            return tally.complain(reply)
        reply = yield verify.within(cookie)
        if verified.decode(reply.body).reward != 1.0:
            return tally.complain(reply)
        if tally.start <= time.perf_counter() <= tally.end:
            tally.episodes += 1
            tally.cookie = cookie


async def load(plan: Plan) -> Findings:
    loop = asyncio.get_running_loop()
    connections = [
        (await loop.create_connection(Connection, "127.0.0.1", plan.port))[1] for _ in range(plan.connections)
    ]
    if plan.mode == "seeds":
        tally = Tally()
        share = plan.number // plan.connections
        scripts = [seeding(share + (i < plan.number % plan.connections), tally) for i in range(plan.connections)]
    elif plan.mode == "requests":
        seeds = [Tally() for _ in connections]
        await asyncio.gather(*(one.run(seeding(1, own), own) for one, own in zip(connections, seeds, strict=True)))
        for own in seeds:
            if own.bad:
                raise RuntimeError(f"a session could not be seeded: {own.complaint}")
        tally = _window(plan)
        scripts = [incrementing(own.cookie or plan.cookie.encode(), tally) for own in seeds]
        tally.cookie = seeds[0].cookie
    else:
        tally = _window(plan)
        scripts = [playing(initial, tally) for initial in range(plan.connections)]
    gc.disable()
    start, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one.run(script, tally) for one, script in zip(connections, scripts, strict=True)))
    elapsed = time.perf_counter() - start
    busy = (time.process_time() - used) / elapsed
    for one in connections:
        one.transport.close()
    seconds = elapsed if plan.mode == "seeds" else plan.seconds
    percents = quantiles(tally.latencies or [0.0, 0.0], n=100)
    return Findings(
        requests=len(tally.latencies) / seconds,
        episodes=tally.episodes / seconds,
        p50=percents[49],
        p99=percents[98],
        bad=tally.bad,
        complaint=tally.complaint,
        busy=busy,
        cookie=tally.cookie.decode(),
    )


def _window(plan: Plan) -> Tally:
    start = time.perf_counter() + plan.ramp
    return Tally(start, start + plan.seconds)


if __name__ == "__main__":
    print(msgspec.json.encode(uvloop.run(load(msgspec.json.decode(sys.argv[1], type=Plan)))).decode())

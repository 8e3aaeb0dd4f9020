"""What the server costs over HTTP: requests, episodes, idle sessions, and its start.

Each server is a process of its own with one worker, and so is the load client.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import IO

import msgspec

from benchmarks.load import Findings, Plan
from benchmarks.timing import Figure
from tests.servers.redis import RedisServer

HERE = Path(__file__).parent.parent
SERVE = [sys.executable, "-m", "stateroom.cli", "serve", "counter"]
UVICORN = [sys.executable, "-m", "uvicorn", "--loop", "uvloop", "--http", "httptools", "--lifespan", "off"]
QUIET = ["--no-access-log", "--log-level", "warning"]
IMPORTS = (
    "import stateroom.cli.app, stateroom.server, stateroom.gallery.counter, stateroom.store.memory, uvloop, uvicorn;"
    "import uvicorn.lifespan.on, uvicorn.protocols.http.httptools_impl; print(flush=True)"
)
ROUNDS = 25
SESSIONS, TTL = 10_000, 8
PATIENCE = 20.0
"""Seconds that a server has to get ready, to stop, and to let go of expired sessions."""


class Server:
    """A running server, and what it said."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: IO[bytes]) -> None:
        self.process, self.port, self._log = process, port, log

    @property
    def said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]

    def resident(self) -> int:
        """Bytes of memory in use, as the system counts them: pages that an allocator keeps for later included."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * 4096


async def requests() -> list[Figure]:
    """Calls of `increment_counter` in 64 sessions at once, against an echo of the same bytes.

    The echo reads the same request and replies with the same bytes, on uvicorn with uvloop and httptools; it parses
    nothing and sets no cookie. The load client uses raw sockets on uvloop. Client and server share the cores, so use
    an idle machine: on a busy one the ratio falls. The durable line is on SQLite.
    """
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        echo = stack.enter_context(serving_bare("echo"))
        memory = stack.enter_context(_serving("memory://"))
        sqlite = stack.enter_context(_serving(f"sqlite:///{folder}/sessions.db"))
        servers = [echo, memory, sqlite]
        cookie = _load(memory, mode="requests", seconds=0.5).cookie
        for server in (echo, sqlite):
            _load(server, mode="requests", seconds=0.5)
        rounds = [[_load(server, mode="requests", cookie=cookie) for server in servers] for _ in range(ROUNDS)]
    bare, ours, durable = (median(findings.requests for findings in column) for column in zip(*rounds, strict=True))
    bare_p99, our_p99, _ = (median(findings.p99 for findings in column) for column in zip(*rounds, strict=True))
    return [
        Figure("increments/s over HTTP against an echo", ours / bare, 0.5, "at least", _rates(ours, bare)),
        Figure("their p99 against the echo's", our_p99 / bare_p99, 4, "at most", _milli(our_p99, bare_p99)),
        Figure("durable increments/s against the echo", durable / bare, 0.33, "at least", _rates(durable, bare)),
    ]


async def episodes() -> list[Figure]:
    """Whole episodes over HTTP (seed, three increments, read, verify), 64 at once, against a bare app.

    The bare app decodes with msgspec, counts in a dict under a random cookie, and stores nothing.
    """
    with serving_bare("counters") as counters, _serving("memory://") as server:
        for one in (counters, server):
            _load(one, mode="episodes", seconds=0.5)
        rounds = [[_load(one, mode="episodes").episodes for one in (counters, server)] for _ in range(ROUNDS)]
    bare, ours = (median(column) for column in zip(*rounds, strict=True))
    return [Figure("episodes/s over HTTP against a bare app", ours / bare, 0.45, "at least", _rates(ours, bare))]


async def scaling() -> list[Figure]:
    """Increments of 64 sessions on one Redis, by two workers against one.

    The workers share the cores with Redis and the load client. Where these keep nine tenths of all cores busy, two
    workers only have to do no less than one. Each request also takes a little more work, since each worker has fewer
    sessions whose commits it can batch.
    """
    with RedisServer() as redis, _serving(redis.url) as one, _serving(redis.url, "--workers", "2") as two:
        for server in (one, two):
            _load(server, mode="requests", seconds=0.5)
        rounds = [[_load_watched(server) for server in (one, two)] for _ in range(ROUNDS)]
    (alone, cores_alone), (both, cores_both) = (
        (median(rate for rate, _ in column), median(cores for _, cores in column))
        for column in zip(*rounds, strict=True)
    )
    cores = os.cpu_count() or 1
    detail = f"{_rates(both, alone)}; of {cores} cores {cores_both:.2f} / {cores_alone:.2f} are busy"
    what = "increments/s over HTTP on one Redis, two workers against one"
    bar = 1.0 if cores_both >= 0.9 * cores else 1.5
    return [Figure(what, both / alone, bar, "at least", detail)]


def _load_watched(server: Server) -> tuple[float, float]:
    """Requests per second, and how many cores of the machine were busy meanwhile."""
    busy, total = _ticks()
    requests = _load(server, mode="requests", seconds=2.0).requests
    busy_after, total_after = _ticks()
    return requests, (busy_after - busy) / (total_after - total) * (os.cpu_count() or 1)


def _ticks() -> tuple[int, int]:
    """What all cores have done so far, and could have done."""
    spent = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(spent) - spent[3] - spent[4], sum(spent)  # without the idle ones, and those that wait for a disk


async def idle() -> list[Figure]:
    """The server's memory with 10,000 idle sessions, and after they expired and were swept.

    Python's allocator keeps some of the memory. With `PYTHONMALLOC=malloc` it keeps none, and the server is about 10%
    slower.
    """
    with _serving("memory://", "--ttl", str(TTL)) as server:
        _load(server, mode="seeds", number=64)  # what the first of them loads is not the price of a session
        empty = server.resident()
        began = time.monotonic()
        _load(server, mode="seeds", number=SESSIONS)
        full = server.resident()
        if time.monotonic() - began > TTL:
            raise RuntimeError(f"the first of {SESSIONS:,} sessions expired before the last was seeded")
        after, waited = _settled(server, empty)
    each = (full - empty) / SESSIONS / 1000
    detail = f"{_mega(after)} {waited:.0f} s later, {_mega(full)} with all, {_mega(empty)} before"
    return [
        Figure("kB of memory for an idle session, of 10,000", each, 4, "at most", f"{_mega(full)} / {_mega(empty)}"),
        Figure("memory after their expiry against before", after / empty, 1.25, "at most", detail),
    ]


def _settled(server: Server, empty: int) -> tuple[int, float]:
    """The least memory seen once all have expired, and the seconds until it was back, or was given up."""
    began = time.monotonic()
    time.sleep(TTL)
    least = server.resident()
    while least > 1.05 * empty and time.monotonic() - began < TTL + PATIENCE:
        time.sleep(0.25)
        least = min(least, server.resident())
    return least, time.monotonic() - began


async def start() -> list[Figure]:
    """Seconds from `stateroom serve` to the first 200 of `/ready`.

    The second line leaves out the time that the imports take by themselves.
    """
    rounds = [(_start(), _imports()) for _ in range(ROUNDS + 1)][1:]
    command, imports = (median(column) for column in zip(*rounds, strict=True))
    detail = f"{command * 1000:.0f} ms, imports {imports * 1000:.0f} ms"
    return [
        Figure("seconds from start to ready", command, 2, "at most", detail),
        Figure("the same after imports", max(command - imports, 0.0), 1, "at most", detail),
    ]


def _start() -> float:
    began = time.perf_counter()
    with _serving("memory://"):
        return time.perf_counter() - began


def _imports() -> float:
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", IMPORTS], stdout=subprocess.PIPE) as process:
        line = process.stdout.readline() if process.stdout else b""
        seconds = time.perf_counter() - began
    if not line:
        raise RuntimeError("what the command imports could not be imported")
    return seconds


def _load(server: Server, **plan: object) -> Findings:
    """Runs the load client. One bad reply and there is no figure."""
    asked = msgspec.convert({"port": server.port} | plan, Plan)
    command = [sys.executable, "-m", "benchmarks.load", msgspec.json.encode(asked).decode()]
    run = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"the load client failed: {run.stderr[-2000:]}\nthe server said: {server.said}")
    findings = msgspec.json.decode(run.stdout, type=Findings)
    if findings.bad:
        raise RuntimeError(f"{findings.bad} bad replies, the first: {findings.complaint}\nserver: {server.said}")
    return findings


@contextmanager
def _serving(store: str, *options: str) -> Iterator[Server]:
    with _running([*SERVE, "--store", store, *options], ready="/ready") as server:
        yield server


@contextmanager
def serving_bare(app: str) -> Iterator[Server]:
    """A bare app, as a process of its own."""
    with _running([*UVICORN, *QUIET, f"benchmarks.bare:{app}"], ready=None) as server:
        yield server


@contextmanager
def _running(command: list[str], ready: str | None) -> Iterator[Server]:
    """Starts a server on a free port, waits for a 200 (or only to be let in), and ends it whatever happens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*command, "--port", str(port)], cwd=HERE, stdout=log, stderr=subprocess.STDOUT)
        try:
            server = Server(process, port, log)
            deadline = time.monotonic() + PATIENCE
            while not _answers(port, ready):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{' '.join(command)} did not get ready: {server.said}")
                time.sleep(0.002)
            yield server
        finally:
            _end(process)


def _answers(port: int, path: str | None) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
            if path is None:
                return True
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            return connection.recv(12) == b"HTTP/1.1 200"
    except OSError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _rates(ours: float, bare: float) -> str:
    return f"{ours:,.0f}/s / {bare:,.0f}/s"


def _milli(ours: float, bare: float) -> str:
    return f"{ours * 1000:.1f} ms / {bare * 1000:.1f} ms"


def _mega(size: int) -> str:
    return f"{size / 1e6:.0f} MB"

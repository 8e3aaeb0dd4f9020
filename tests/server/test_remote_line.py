"""Our runner and our server, and between them a line that cannot be trusted: nothing is lost, or done twice."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from stateroom.gallery import CounterEnvironment
from stateroom.model import open_model
from stateroom.pauses import Pauses
from stateroom.rollout import Run, RunFiles, client, generate_tasks, run
from tests.plans import make_run
from tests.rows import comparable, rows

TASKS = generate_tasks(CounterEnvironment, 8, seed=1)


def plan(folder: Path, name: str, policy: str, **more: Any) -> Run:
    files = RunFiles(folder / f"{name}.jsonl")
    model = open_model(policy, CounterEnvironment.policies)
    return make_run(CounterEnvironment(), model, TASKS, files, repeats=3, **more)


Answer = Callable[[int, bytes, Callable[[], Awaitable[bytes]]], Awaitable[bytes | None]]
"""Given the number of a request, the request and how to pass it on: the reply, or None to hang up."""


async def read_message(reader: asyncio.StreamReader) -> bytes:
    """One HTTP request, or reply, that has its length in its head."""
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return head + await reader.readexactly(int(lengths[0]) if lengths else 0)


@asynccontextmanager
async def between(server: str, answer: Answer) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """A proxy before a server: its URL, and how to make an end of it."""
    where = urlsplit(server)
    passed = 0
    writers: set[asyncio.StreamWriter] = set()
    ended = False

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal passed
        upstream_reader, upstream = await asyncio.open_connection(where.hostname, where.port)
        writers.update((writer, upstream))
        try:
            while True:
                request = await read_message(reader)
                passed += 1

                async def pass_on(request: bytes = request) -> bytes:
                    upstream.write(request)
                    return await read_message(upstream_reader)

                reply = await answer(passed, request, pass_on)
                if reply is None:
                    return
                writer.write(reply)
                if b"connection: close" in reply:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()
            upstream.close()

    listening = await asyncio.start_server(connected, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()

    def end() -> None:
        nonlocal ended
        ended = True
        listening.close()
        for writer in writers:
            writer.transport.abort()

    try:
        yield f"http://{host}:{port}", end
    finally:
        if not ended:
            end()
        await listening.wait_closed()


def reply_of(status: str, body: bytes = b"<h1>Sorry</h1>") -> bytes:
    return f"HTTP/1.1 {status}\r\nretry-after: 0\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body


def every_fifth(passed_on: bool, reply: bytes | None) -> Answer:
    """Instead of each fifth reply another one, or none, whether or not the request is passed on.

    The same request gets through when it comes again: nobody has bad luck for ever.
    """
    unlucky: set[bytes] = set()

    async def answer(number: int, request: bytes, pass_on: Callable[[], Awaitable[bytes]]) -> bytes | None:
        if number % 5 or request in unlucky:
            return await pass_on()
        unlucky.add(request)
        if passed_on:
            await pass_on()
        return reply

    return answer


TROUBLES: dict[str, tuple[bool, bytes | None]] = {
    "cut off before": (False, None),
    "cut off after": (True, None),
    "cut off within": (True, b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 50\r\n\r\n{"),
    "nonsense": (True, b"220 mail.example ESMTP\r\n\r\n"),
    "busy": (False, reply_of("503 Busy", b'{"error":{"code":"busy","message":"later"}}')),
    "bad gateway": (True, reply_of("502 Bad Gateway")),
    "slow gateway": (True, reply_of("504 Gateway Timeout")),
}


@pytest.mark.parametrize("trouble", TROUBLES)
async def test_a_bad_line_changes_nothing(serve: Any, tmp_path: Path, trouble: str) -> None:
    served = await serve()
    here = plan(tmp_path, "here", "noisy")
    await run(here)
    async with between(served.url, every_fifth(*TROUBLES[trouble])) as (url, _):
        there = plan(tmp_path, "there", "noisy", server=url)
        report = await run(there)
    assert report.first_error is None
    assert comparable(there.files.rollouts) == comparable(here.files.rollouts)
    assert 0 < report.metrics["agent_metrics"]["mean/reward"] < 1


async def test_a_server_that_goes_away_fails_the_episodes_that_are_left(
    serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSES", Pauses(0.0, 0.0))
    served = await serve()

    async def stops(number: int, request: bytes, pass_on: Callable[[], Awaitable[bytes]]) -> bytes | None:
        if number == 60:
            end()
        return await pass_on()

    async with between(served.url, stops) as (url, end):
        there = plan(tmp_path, "there", "reference", server=url, concurrency=4)
        report = await run(there)
    finished, failed = rows(there.files.rollouts), rows(there.files.failures)
    assert (len(finished), len(failed)) == (24 - report.failed, report.failed)
    assert finished
    assert failed
    assert {row["reward"] for row in finished} == {1.0}
    for row in failed:
        assert (row["_ng_failure_class"], row["_ng_failure_terminal"]) == ("server", False)
        assert row["error"].startswith(f"ServerUnavailable: no answer from {url}/")
    begun = [row for row in failed if "_stateroom_session" in row]
    assert 0 < len(begun) <= 4

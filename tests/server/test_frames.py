"""A write call over HTTP passes few of our functions."""

from functools import partial
from pathlib import Path
from typing import Any

from stateroom.gallery import CounterEnvironment
from tests.frames import shortest_walk


async def test_a_warm_write_call_passes_few_functions(serve: Any, wire: Any, tmp_path: Path) -> None:
    served = await serve(CounterEnvironment(), store=f"sqlite:///{tmp_path / 'rooms.db'}")
    reader, writer = await wire(int(served.url.rpartition(":")[2]))

    async def post(path: str, body: str, cookie: str = "") -> str:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(f"{head}{body}".encode())
        reply = (await reader.readuntil(b"\r\n\r\n")).decode()
        assert reply.startswith("HTTP/1.1 200")
        await reader.readexactly(int(reply.partition("content-length: ")[2].partition("\r\n")[0]))
        return reply

    reply = await post("/seed_session", '{"initial_count": 0, "expected_count": 1}')
    cookie = reply.partition("set-cookie: ")[2].partition(";")[0]
    walk = await shortest_walk(partial(post, "/increment_counter", '{"count": 1}', cookie))
    assert len(walk.steps) <= 55, str(walk)
    assert len(walk.files) <= 16, str(walk)

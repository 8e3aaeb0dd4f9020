"""The way of a call through the server, counted in Python frames: a layer more shows here."""

import asyncio
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import stateroom
from stateroom.gallery.counter import CounterEnvironment

ROOT = str(Path(stateroom.__file__).parent)

FRAMES, FILES = 70, 28
"""What a warm write over HTTP on SQLite passes, in all of Stateroom; the aim is 55 frames in 16 files."""

SERVER_FRAMES, SERVER_FILES = 16, 5
"""The server's own share."""


class Frames:
    """Notes each function of ours that is called or resumed, in all threads, while it is on."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []
        self.on = False

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if self.on and event == "call" and code.co_filename.startswith(ROOT):
            self.found.append((code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname))

    def below(self, folder: str) -> tuple[int, int]:
        """Numbers of frames and of files in a folder."""
        found = [file for file, _ in self.found if file.startswith(folder)]
        return len(found), len({*found})

    def __str__(self) -> str:
        return "\n".join(f"{number:3} {file}: {name}" for number, (file, name) in enumerate(self.found, 1))


@pytest.fixture
def frames() -> Any:
    found, before = Frames(), (sys.getprofile(), threading.getprofile())
    threading.setprofile(found)  # before the store starts its thread
    sys.setprofile(found)
    yield found
    sys.setprofile(before[0])
    threading.setprofile(before[1])


async def test_a_warm_write_call_passes_few_frames(serve: Any, wire: Any, tmp_path: Path, frames: Frames) -> None:
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
    for _ in range(20):
        await post("/increment_counter", '{"count": 1}', cookie)
    await asyncio.sleep(0)
    frames.on = True
    await post("/increment_counter", '{"count": 1}', cookie)
    frames.on = False
    (count, files), (of_server, server_files) = frames.below(""), frames.below("server/")
    told = f"{count} frames in {files} files, {of_server} in {server_files} of the server:\n{frames}"
    assert count <= FRAMES, told
    assert files <= FILES, told
    assert of_server <= SERVER_FRAMES, told
    assert server_files <= SERVER_FILES, told

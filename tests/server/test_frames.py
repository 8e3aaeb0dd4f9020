"""The way of a call through the server, counted in Python frames: a layer more shows here."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import stateroom
from stateroom.gallery.counter import CounterEnvironment

ROOT = str(Path(stateroom.__file__).parent)

FRAMES, FILES = 69, 28
"""What a warm write over HTTP on SQLite passes, in all of Stateroom; the aim is 55 frames in 16 files."""

SERVER_FRAMES, SERVER_FILES = 16, 5
"""The server's own share."""


class Frames:
    """A profiler that notes each function of ours that is called or resumed in this thread."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(ROOT):
            self.found.append((code.co_filename.removeprefix(f"{ROOT}/"), code.co_qualname))

    def below(self, folder: str) -> tuple[int, int]:
        """Numbers of frames and of files in a folder."""
        found = [file for file, _ in self.found if file.startswith(folder)]
        return len(found), len({*found})

    def __str__(self) -> str:
        return "\n".join(f"{number:3} {file}: {name}" for number, (file, name) in enumerate(self.found, 1))


async def test_a_warm_write_call_passes_few_frames(serve: Any, wire: Any, tmp_path: Path) -> None:
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
    for _ in range(100):  # until the runner knows that the tool is quick
        await post("/increment_counter", '{"count": 1}', cookie)
    measured = []
    for _ in range(10):  # on a busy machine the runner may take a call for a slow one
        frames, before = Frames(), sys.getprofile()
        sys.setprofile(frames)
        try:
            await post("/increment_counter", '{"count": 1}', cookie)
        finally:
            sys.setprofile(before)
        measured.append(frames)
    frames = min(measured, key=lambda frames: len(frames.found))
    (count, files), (of_server, server_files) = frames.below(""), frames.below("server/")
    told = f"{count} frames in {files} files, {of_server} in {server_files} of the server:\n{frames}"
    assert count <= FRAMES, told
    assert files <= FILES, told
    assert of_server <= SERVER_FRAMES, told
    assert server_files <= SERVER_FILES, told

"""llama.cpp in this process: a GGUF file that answers one request at a time, in a thread of its own."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from threading import Event
from typing import Any

import msgspec

from stateroom.errors import ModelFailed, NotFound

CONTEXT = 8192
"""Tokens of a conversation and its answer; fewer if the model was made for fewer."""

QUIET = -1
"""How much llama.cpp logs: nothing, since what goes wrong is in its replies."""


class Reply(msgspec.Struct, frozen=True):
    """What was generated."""

    text: str
    cut_off: bool
    """Whether a limit came before the end."""
    usage: dict[str, Any] | None


class Engine:
    """A file, loaded when it is first needed. Requests wait for each other: so the same one has the same reply."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._check()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stateroom-local")
        self._server: Any = None
        self._closing = Event()

    def _check(self) -> None:
        if find_spec("xllamacpp") is None:
            raise NotFound("a local model needs xllamacpp: pip install 'stateroom[local]'")
        if not self.path.is_file():
            raise NotFound(f"there is no file {self.path}")
        with self.path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise NotFound(f"{self.path} is not a GGUF file")

    async def complete(self, body: dict[str, Any]) -> Reply:
        """The reply to a request of Chat Completions, in llama.cpp's own dialect.

        A request that is cancelled is not generated any further.
        """
        gone = Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._complete, body, gone)
        finally:
            gone.set()

    async def close(self) -> None:
        """Give back the memory, the threads and the socket; what is being generated ends here."""
        if not self._closing.is_set():
            self._closing.set()
            self._thread.submit(self._unload)
        await asyncio.to_thread(self._thread.shutdown)

    def _complete(self, body: dict[str, Any], gone: Event) -> Reply:
        def unwanted() -> bool:
            return gone.is_set() or self._closing.is_set()

        def hear(chunk: dict[str, Any]) -> bool:
            chunks.append(chunk)
            return unwanted()  # True says stop

        chunks: list[dict[str, Any]] = []
        if unwanted():
            raise ModelFailed(f"{self.path.name} is closed")
        self._load()
        try:
            self._server.handle_chat_completions(
                {**body, "stream": True, "stream_options": {"include_usage": True}}, hear
            )
        except ValueError as error:
            raise ModelFailed(f"{self.path.name} refuses the request: {error}") from error
        return _reply(chunks, self.path.name)

    def _load(self) -> None:
        if self._server is not None:
            return
        import xllamacpp  # noqa: PLC0415 - only here is it needed

        params = xllamacpp.CommonParams()
        params.model.path = str(self.path)
        params.n_ctx = CONTEXT
        params.n_parallel = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = _threads()
        params.verbosity = QUIET
        params.enable_reasoning = 0  # an answer is one JSON object from its first token on
        params.n_threads_http = 1  # it always listens, on a port of this machine; nobody is told the key to it
        params.api_keys = [token_hex(32)]
        params.ui = params.endpoint_slots = False
        try:
            self._server = xllamacpp.Server(params)
        except RuntimeError as error:
            raise ModelFailed(
                f"llama.cpp cannot load {self.path}: the file is damaged, or of a kind unknown"
            ) from error

    def _unload(self) -> None:
        self._server = None


def _threads() -> int:
    """Half of the cores: its threads wait for the slowest of them, so one that must share its core holds all up."""
    return max(1, (os.cpu_count() or 1) // 2)


def _reply(chunks: list[dict[str, Any]], name: str) -> Reply:
    """What the chunks of a stream come to."""
    for chunk in chunks:
        if "error" in chunk:
            raise ModelFailed(f"{name} refuses the request: {chunk['error'].get('message')}")
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    ended = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    if not ended:
        raise ModelFailed(f"{name} was stopped before its answer was whole")
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    return Reply(text, ended[-1] == "length", next((chunk["usage"] for chunk in chunks if "usage" in chunk), None))

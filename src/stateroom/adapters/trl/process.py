"""What a process has open: an event loop for all sessions, and the environments that run on it."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from hashlib import blake2b
from secrets import token_hex
from typing import Any

from stateroom.environment import Environment, StoreSessions, make_environment
from stateroom.rollout import EPOCH
from stateroom.session import BackgroundLoop
from stateroom.store import open_store


@dataclass(frozen=True)
class Source:
    """What an environment and its sessions are made from. It pickles, so that each process opens its own."""

    environment: str | type[Environment[Any, Any]] | Environment[Any, Any]
    env_args: Mapping[str, Any]
    store: str
    """The URL of the store of the sessions."""
    seed: int = 0
    """What the random seeds of the episodes follow from."""
    id: str = field(default_factory=lambda: token_hex(8), repr=False)
    """By which a copy in the same process finds what is open already."""

    def make_environment(self) -> Environment[Any, Any]:
        return make_environment(self.environment, self.env_args)


class OpenedEnvironment:
    """An environment and its store, open in this process."""

    def __init__(self, source: Source) -> None:
        self.environment = source.make_environment()
        self._source = source
        self._resources = AsyncExitStack()
        store = background_loop().run(self._resources.enter_async_context(open_store(source.store)))
        self._sessions = StoreSessions(store)
        self._resources.push_async_callback(self._sessions.stop)
        self._begun: Counter[str] = Counter()
        """Number of episodes of each row."""

    async def next_session(self, text: str, last: Any) -> Any:
        """A session for the row in a JSON text, in place of the instance's last one."""
        row = json.loads(text)
        if last is not None:
            await last.close()
            if self._source.store.startswith("memory:") and self.environment.state_type is not None:
                await self._sessions.store.delete(last.id)
        sessions = self._sessions.of(self.environment, row)
        return await sessions.seed(row, seed=self._next_seed(text), began=EPOCH)

    def _next_seed(self, text: str) -> int:
        """The random seed of a row's next episode, so that a run with the same settings has the same seeds."""
        row = blake2b(text.encode(), digest_size=16).hexdigest()
        self._begun[row] += 1
        return seed_of(self.environment.name, self._source.seed, row, self._begun[row])

    async def close(self) -> None:
        await self._resources.aclose()


_OPENED: dict[tuple[int, str], OpenedEnvironment] = {}
"""What is open, by process and source: a forked process has none of its parent's threads."""

_LOOPS: dict[int, BackgroundLoop] = {}
"""The event loop of all sessions, by process."""

_OPENING = threading.RLock()


def background_loop() -> BackgroundLoop:
    """The event loop of this process."""
    process = os.getpid()
    with _OPENING:
        if process not in _LOOPS:
            _LOOPS[process] = BackgroundLoop()
            # Not `atexit`: that is after the executors are shut down, and stores end their threads with one.
            threading._register_atexit(_close, process)  # type: ignore[attr-defined]
        return _LOOPS[process]


def open_environment(source: Source) -> OpenedEnvironment:
    """What this process has open for a source."""
    key = os.getpid(), source.id
    with _OPENING:
        if key not in _OPENED:
            _OPENED[key] = OpenedEnvironment(source)
        return _OPENED[key]


def seed_of(*place: int | str) -> int:
    """A random seed that follows from a place in the training, and from the rank of this process in it."""
    text = "/".join(map(str, (os.environ.get("RANK", "0"), *place)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) >> 1


def _close(process: int) -> None:
    """Close all that a process has open, unless a fork of it is what ends."""
    if process == os.getpid():
        for key in [key for key in _OPENED if key[0] == process]:
            _LOOPS[process].run(_OPENED.pop(key).close())
        _LOOPS.pop(process).close()

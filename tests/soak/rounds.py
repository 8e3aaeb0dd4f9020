"""A round of the soak: what it is given, how it is played again, and the test that is written when it fails."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from tests.servers.postgresql import PostgreSQLServer
from tests.servers.redis import RedisServer
from tests.servers.s3 import CREDENTIALS, S3Server
from tests.servers.stores import fresh_store

FOUND = Path(__file__).parents[1] / "found"
SHORTENING = 60.0
"""Seconds for finding a shorter program that fails too."""
START: dict[str, Callable[[], Any]] = {
    "redis": lambda: RedisServer(durable=True),
    "postgresql": lambda: PostgreSQLServer(quick=False),
    "s3": S3Server,
}


class Place(ExitStack):
    """A folder, servers that start when they are first needed, and an event loop that outlasts the rounds."""

    def __enter__(self) -> Self:
        self.folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="stateroom-soak-")))
        self.runner = self.enter_context(asyncio.Runner())
        self.servers: dict[str, Any] = {}
        return self

    def server_url(self, name: str) -> str:
        kind = name.removesuffix("_url")
        if kind not in self.servers:
            os.environ.update(CREDENTIALS if kind == "s3" else {})
            self.servers[kind] = self.enter_context(START[kind]())
        url: str = self.servers[kind].url
        return url

    def fresh_store(self, kind: str) -> Any:
        """The URL of a store that nobody used before, as a context."""
        return fresh_store(kind, self.server_url, self.folder)

    @contextmanager
    def fresh_folder(self) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            yield Path(folder)


@dataclass
class Tally:
    """What was done, and what went wrong."""

    rounds: int = 0
    operations: int = 0
    kills: int = 0
    """Workers killed or paused, servers restarted."""
    lost: int = 0
    doubled: int = 0
    failures: list[str] = field(default_factory=list)
    """The seeds of the rounds that failed."""
    seconds: float = 0.0


@dataclass
class Round:
    """What a part plays: on a store of a kind, decided by the seed, and so many steps long."""

    place: Place
    store: str
    seed: str
    steps: int
    tally: Tally = field(default_factory=Tally)
    blob: bytes | None = None
    """The one program that Hypothesis is to run."""


Play = Callable[[Round], None]
"""Plays a round, and raises when a promise is broken."""


def replay(play: Play, store: str, seed: str, steps: int, blob: bytes | None = None) -> Tally:
    """Play one round by itself."""
    with Place() as place:
        played = Round(place, store, seed, steps, blob=blob)
        play(played)
        return played.tally


def shortest(play: Play, failed: Round) -> int:
    """The least number of steps with which a round was seen to fail, looked for by halves within a minute."""
    until, least, most = time.monotonic() + SHORTENING, 0, failed.steps
    while least < most and time.monotonic() < until:
        steps = (least + most) // 2
        try:
            play(Round(failed.place, failed.store, failed.seed, steps))
        except Exception:  # noqa: BLE001 (whatever a broken promise leads to)
            most = steps
        else:
            least = steps + 1
    return most


def write_test(play: Play, failed: Round, error: BaseException) -> Path:
    """Write a test that plays a round which has failed; gives its path."""
    part = play.__module__.rpartition(".")[2]
    name = f"{part}_on_{failed.store}_{re.sub('[^0-9]+', '_', failed.seed).strip('_')}"
    told = "\n".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])
    comment = "\n".join(f"# {line[:110]}".rstrip() for line in told.splitlines()[:60])
    blob = "" if failed.blob is None else f", blob={failed.blob!r}"
    FOUND.mkdir(exist_ok=True)
    path = FOUND / f"test_{name}.py"
    path.write_text(
        f'"""A round of `make soak` that failed: {part} on {failed.store}, seed {failed.seed}."""\n\n'
        f"from tests.soak.{part} import play\nfrom tests.soak.rounds import replay\n\n{comment}\n\n\n"
        f"def test_{name}() -> None:\n"
        f'    replay(play, "{failed.store}", "{failed.seed}", steps={failed.steps}{blob})\n',
        encoding="utf-8",
    )
    return path

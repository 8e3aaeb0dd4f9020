"""Keeps the sessions of the version that runs it: `python -m tests.corpus.make NAME`. See the README beside it."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from stateroom import open_store
from tests.corpus.keeping import pack
from tests.corpus.seeding import Seeding
from tests.servers.postgresql import PostgreSQLServer
from tests.servers.redis import RedisServer

HERE = Path(__file__).parent
GUARD = "compress=zstd&keys=env:STATEROOM_CORPUS_KEYS"
KEYS = "corpus:" + "A" * 43 + "="
"""What guards the store that is encrypted; it guards nothing else."""


async def make(url: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Seed the sessions in a fresh store; their ids, and what they come to, by labels."""
    async with open_store(url) as store:
        seeding = Seeding(store)
        told = {
            "cabinets": await seeding.cabinets(),
            "shared": await seeding.shops(),
            "voyages": await seeding.voyages(),
            "errands": await seeding.errands(),
            "villages": await seeding.villages(),
            "stances": seeding.stances,
        }
        return seeding.ids, told


def stores(stack: ExitStack) -> Iterator[tuple[str, str]]:
    """The kinds of stores, each with the URL of a fresh one."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    yield "sqlite", f"sqlite:///{folder / 'plain.db'}"
    yield "sqlite-guarded", f"sqlite:///{folder / 'guarded.db'}?{GUARD}"
    yield "file", f"file://{folder / 'rooms'}"
    yield "redis", f"{stack.enter_context(RedisServer()).url}?prefix=corpus:"
    yield "postgresql", f"{stack.enter_context(PostgreSQLServer()).url}?schema=kept_sessions"


def main(name: str) -> None:
    target = HERE / name
    target.mkdir()
    os.environ["STATEROOM_CORPUS_KEYS"] = KEYS
    ids: dict[str, dict[str, str]] = {}
    told: dict[str, Any] = {}
    with ExitStack() as stack:
        for kind, url in stores(stack):
            ids[kind], expected = asyncio.run(make(url))
            assert told in ({}, expected), f"{kind} tells another story"
            told = expected
            pack(kind, url, target)
    (target / "expected.json").write_text(written({"ids": ids, **told}, 4) + "\n")


def written(value: Any, depth: int) -> str:
    """JSON with lines of its own for what is so deep, and not for what is deeper."""
    if depth and value and isinstance(value, dict):
        parts = [f"{json.dumps(name)}: {written(part, depth - 1)}" for name, part in value.items()]
        return "{\n" + ",\n".join(parts) + "\n}"
    if depth and value and isinstance(value, list):
        return "[\n" + ",\n".join(written(part, depth - 1) for part in value) + "\n]"
    return json.dumps(value, ensure_ascii=False)


if __name__ == "__main__":
    main(sys.argv[1])

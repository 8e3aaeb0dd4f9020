from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.servers.redis import RedisCluster, RedisKeys, RedisServer
from tests.servers.stores import fresh_store
from tests.store.rooms import bare

Register = Callable[[str, str], None]
"""Lets a scheme stand for a class, `module:Class`, as another package does."""


Fresh = Callable[[str], str]
"""Gives the URL of a store of a kind that nobody used before."""


@pytest.fixture
def fresh(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fresh]:
    with ExitStack() as stores:
        yield lambda kind: stores.enter_context(fresh_store(kind, request.getfixturevalue, tmp_path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where an SQLite file may be made."""
    return tmp_path / "rooms.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
async def store(url: str) -> AsyncIterator[Any]:
    """The store itself, which tries nothing twice."""
    async with bare(url) as opened:
        yield opened


@pytest.fixture(scope="session")
def server() -> Iterator[RedisServer]:
    """A server whose doings can be looked at, since no other process uses it."""
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture
def keys(url: str) -> Iterator[RedisKeys]:
    """The keys of a store in Redis."""
    with RedisKeys(url) as keys:
        yield keys


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Register:
    def install(scheme: str, target: str) -> None:
        information = tmp_path / f"{scheme}-1.0.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {scheme}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(f"[stateroom.stores]\n{scheme} = {target}\n")
        monkeypatch.syspath_prepend(tmp_path)

    return install

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.servers.postgresql import PostgreSQLServer
from tests.servers.redis import RedisServer
from tests.servers.s3 import CREDENTIALS, S3Server

pytest.register_assert_rewrite("stateroom.store.conformance")


@pytest.hookimpl(optionalhook=True)  # one can do without xdist
def pytest_xdist_auto_num_workers() -> int:
    """Three for two cores: often a test waits, for a disk, a server or a process that it has started."""
    return (3 * (os.cpu_count() or 1) + 1) // 2


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """A PostgreSQL database: one that the environment names, or that of a server of our own."""
    given = os.environ.get("STATEROOM_TEST_POSTGRES_URL")
    if given:
        yield given
        return
    with PostgreSQLServer() as server:
        yield server.url


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A Redis server: one that the environment names, or one of our own. Each test has a prefix of its own in it."""
    given = os.environ.get("STATEROOM_TEST_REDIS_URL")
    if given:
        yield given
        return
    with RedisServer() as server:
        yield server.url


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """A bucket: one that the environment names, or that of a server of our own. Each test has a prefix of its own."""
    given = os.environ.get("STATEROOM_TEST_S3_URL")
    if given:
        yield given
        return
    with S3Server() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield server.url


@pytest.fixture
def fresh_url(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """Gives the URL of a fresh store of a kind, on a server where it needs one."""

    def make(kind: str) -> str:
        name = f"t{uuid4().hex[:12]}"
        match kind:
            case "memory":
                return "memory://"
            case "sqlite":
                return f"sqlite:///{tmp_path / 'rooms.db'}"
            case "file":
                return f"file://{tmp_path / 'rooms'}"
            case "redis":
                return f"{request.getfixturevalue('redis_url')}?prefix={name}:"
            case _:
                return f"{request.getfixturevalue('postgresql_url')}?schema={name}"

    return make


@pytest.fixture
def quick_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where the system has one: to bring many files to a disk takes long."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="stateroom-") as folder:
        yield Path(folder)

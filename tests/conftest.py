import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

import tests.examples  # noqa: F401 - it chooses the profile of Hypothesis
from stateroom.store import Store, open_store
from tests.messages import Recorder
from tests.more import IS_THERE
from tests.servers.s3 import CREDENTIALS
from tests.servers.shared import ADDRESS, SharedServers, shared_url

pytest.register_assert_rewrite("stateroom.store.conformance")
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each process that a test starts compiles Stateroom anew
sys.dont_write_bytecode = False
MEMORY = Path("/dev/shm")
if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > 4 * 2**30:
    os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)  # to bring so many files to a disk takes long
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in what a shell starts with `&`; processes would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)  # one can do without xdist
def pytest_xdist_auto_num_workers() -> int:
    """More than there are cores: often a test waits, for a disk, a server or a process that it has started."""
    cores = os.cpu_count() or 1
    return cores + min(cores // 2 or 1, 4)


LONG = ("test_what_a_page_shows_works", "faults/", "test_resume_killed", "test_time_travel", "test_schemathesis")
"""Parts of the names of tests that take seconds."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what cannot run here; each worker begins with its share of what takes long, so that none ends late."""
    left_out = [item for item in items for need in item.iter_markers("more") if not IS_THERE[need.args[0]]]
    for marker, need in (("browser", "Chromium"), ("node", "Node")):
        if not IS_THERE[need]:
            left_out += [item for item in items if item.get_closest_marker(marker)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    workers = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    long: list[pytest.Item] = []
    short: list[pytest.Item] = []
    for item in items:
        (long if any(part in item.nodeid for part in LONG) else short).append(item)
    size = -(-len(items) // workers)
    items.clear()
    for number in range(workers):
        first = long[number::workers]
        items += [*first, *short[: size - len(first)]]
        del short[: size - len(first)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if config.option.markexpr == "not more":
        browser = "" if IS_THERE["Chromium"] else "a browser, "
        what = f"{browser}NeMo Gym, trainers, a local model, Ray or faults"
        terminalreporter.write_line(f"left out: the tests with {what}; make test-more runs them")


def pytest_collection() -> None:
    """What is collected stays, and is not looked through for garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What was collected stays out of it from now on; what tests make goes soon enough."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-messages", action="store_true", help="record the texts of tests/messages.py")


def pytest_configure(config: pytest.Config) -> None:
    """The process that runs the tests, or starts the workers that do, keeps their servers."""
    config.pluginmanager.register(Recorder())
    if ADDRESS not in os.environ:
        config.add_cleanup(SharedServers().stop)


@pytest.fixture(scope="session")
def postgresql_url() -> str:
    """A PostgreSQL database: one that the environment names, or that of the run's server."""
    return os.environ.get("STATEROOM_TEST_POSTGRES_URL") or shared_url("postgresql")


@pytest.fixture(scope="session")
def redis_url() -> str:
    """A Redis server: one that the environment names, or the run's. Each test has a prefix of its own in it."""
    return os.environ.get("STATEROOM_TEST_REDIS_URL") or shared_url("redis")


@pytest.fixture(scope="session")
def s3_url() -> Iterator[str]:
    """A bucket: one that the environment names, or that of the run's server. Each test has a prefix of its own."""
    given = os.environ.get("STATEROOM_TEST_S3_URL")
    if given:
        yield given
        return
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield shared_url("s3")


STORES = ["memory", "sqlite", "redis", "postgresql"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of a `store` has one in memory, and one of each kind if it is marked with `every_store`."""
    if "store_kind" in metafunc.fixturenames:
        every = metafunc.definition.get_closest_marker("every_store")
        shared = every and every.kwargs.get("shared")
        metafunc.parametrize("store_kind", STORES[1:] if shared else STORES if every else ["memory"])


@pytest.fixture
def url(store_kind: str, fresh_url: Callable[[str], str]) -> str:
    """Where a fresh store may be opened."""
    return fresh_url(store_kind)


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    async with open_store(url) as opened:
        yield opened


@pytest.fixture
def snapshot_every_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each commit writes a snapshot, so that a short session has many, and can be pruned anywhere."""
    monkeypatch.setattr("stateroom.session.cached_session.MIN_SNAPSHOT", 0)
    monkeypatch.setattr("stateroom.session.cached_session.SNAPSHOT_RATIO", 0)


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

"""What works on Windows. The modules that only POSIX has are blocked here, so that Linux shows it too."""

import subprocess
import sys
from pathlib import Path

import pytest

import stateroom
from stateroom import errors
from stateroom.errors import UnsupportedSystem
from stateroom.server.options import ApplicationOptions
from stateroom.server.process import ApplicationFactory, bind, run
from stateroom.store.url import opened
from tests.messages import raises
from tests.patience import PATIENCE

BLOCKED = ["fcntl", "grp", "pwd", "resource", "termios"]

WITHOUT_POSIX = f"""
import asyncio, os, sys, types  # asyncio first: to it, a system with msvcrt is Windows
for name in {BLOCKED}:
    sys.modules[name] = None
for name in ("O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "pread"):
    delattr(os, name)
locked = []
lock = lambda descriptor, mode, count: locked.append(os.lseek(descriptor, 0, os.SEEK_CUR))
sys.modules["msvcrt"] = types.SimpleNamespace(locking=lock, LK_NBLCK=2)
"""

IN_PROCESS = """
import asyncio
import stateroom
from stateroom.gallery import CounterEnvironment

async def main(url):
    async with stateroom.open_store(url) as store:
        sessions = stateroom.Sessions(CounterEnvironment(), store)
        session = await sessions.seed({"initial_count": 3, "expected_count": 4})
        twin = await session.fork()
        await session.call("increment_counter", {"count": 1})
        await twin.rewind(to=1)
        print((await sessions.open(session.id)).state.value, twin.state.value)

for url in ("memory://", "sqlite:///rooms.db"):
    asyncio.run(main(url))
for again in (False, True):
    print(stateroom.run("counter", output="rollouts.jsonl", force=again).metrics["mean/reward"], len(locked))
"""

EVERY_MODULE = f"""
import pkgutil, stateroom, stateroom.errors
from importlib import import_module
from traceback import extract_tb
for module in pkgutil.walk_packages(stateroom.__path__, "stateroom."):
    if not module.name.endswith("__main__"):
        try:
            import_module(module.name)
        except (ImportError, stateroom.errors.MissingPackage) as error:  # an extra that is not installed
            error = error.__cause__ or error
            files = [frame.filename for frame in extract_tb(error.__traceback__) if "importlib" not in frame.filename]
            if error.name in {BLOCKED} and files[-1].startswith(stateroom.__path__[0]):
                print(module.name, "needs", error.name)
"""


def without_posix(program: str, folder: Path) -> list[str]:
    command = [sys.executable, "-c", WITHOUT_POSIX + program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.skipif(sys.platform == "win32", reason="there the other tests show it")
def test_sessions_and_runs_in_process_need_no_posix(tmp_path: Path) -> None:
    *sessions, first, again = without_posix(IN_PROCESS, tmp_path)
    assert sessions == ["4 3", "4 3"]
    assert (first, again) == ("1.0 1", "1.0 3"), "the rewards, and the locks: of each run, and to remove the first"


@pytest.mark.skipif(sys.platform == "win32", reason="there the other tests show it")
def test_no_module_needs_posix_to_be_imported(tmp_path: Path) -> None:
    printed = without_posix(EVERY_MODULE, tmp_path)  # by packages of others too
    assert [line for line in printed if line.startswith("stateroom.")] == []


@pytest.fixture
def on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "IS_POSIX", False)


@pytest.mark.usefixtures("on_windows")
async def test_a_folder_as_a_store_needs_posix(tmp_path: Path) -> None:
    with raises(UnsupportedSystem):
        await opened(f"file://{tmp_path}/store")


@pytest.mark.usefixtures("on_windows")
def test_worker_processes_of_a_run_need_posix(tmp_path: Path) -> None:
    with raises(UnsupportedSystem):
        stateroom.run("counter", engine="processes", output=tmp_path / "rollouts.jsonl")


@pytest.mark.usefixtures("on_windows")
def test_several_workers_of_a_server_need_posix() -> None:
    factory = ApplicationFactory(("counter",), ApplicationOptions(("a secret",)), ({},))
    with bind("127.0.0.1", 0) as listening, raises(UnsupportedSystem):
        run(factory, listening, workers=2)

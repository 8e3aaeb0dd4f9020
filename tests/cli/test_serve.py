"""`stateroom serve`: what a user may get wrong, each told in one line. How it serves is tested in `tests/server`."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Refuses

SERVE = [sys.executable, "-m", "stateroom.cli", "serve"]


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STATEROOM_SECRET", "a secret that is only good for tests")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["no.such:Thing"],
        ["no_such.py:Thing"],
        ["counter", "counter"],
        ["counter", "--store", "rooms.db"],
        ["counter", "--store", "tape:///x"],
        ["counter", "--store", "sqlite:///no/such/rooms.db"],
        ["counter", "--store", "sqlite:///rooms.db?speed=2"],
        ["counter", "--store", "memory://me:hush@x?speed=2"],
        ["counter", "--store", "memory://?keys=env:NO_KEYS"],
        ["counter", "--store", "memory://?max_sessions=x"],
        ["counter", "--model", "nobody"],
        ["counter", "--agent", "nobody"],
        ["counter", "--model", "replay:no.jsonl"],
        ["counter", "--api-keys", "nothing"],
        ["counter", "--allow-host", "http://x"],
        ["counter", "--reload", "--workers", "2"],
        ["counter", "--host", "ü" * 70],
    ],
)
def test_what_cannot_be_served(refuses: Refuses, arguments: list[str]) -> None:
    refuses("serve", *arguments)


def test_a_file_that_is_no_store(refuses: Refuses, tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("these are notes, and not sessions; leave them alone please" * 100)
    refuses("serve", "counter", "--store", "sqlite:///notes.db")
    assert (tmp_path / "notes.db").read_text().startswith("these are notes")


def test_a_port_that_is_in_use(refuses: Refuses) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refuses("serve", "counter", "--port", taken.getsockname()[1])


def test_several_workers_need_a_store_that_they_share(refuses: Refuses) -> None:
    refuses("serve", "counter", "weather", "--workers", 2, "--store", "memory://")


@pytest.mark.parametrize("secret", ["short", "long enough to be one,short"])
def test_a_secret_that_could_be_guessed(refuses: Refuses, monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setenv("STATEROOM_SECRET", secret)
    refuses("serve", "counter")


def test_a_folder_for_the_secret_that_cannot_be_made(
    refuses: Refuses, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("STATEROOM_SECRET")
    (tmp_path / "data").write_text("in the way")
    refuses("serve", "counter")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["counter", "--port", "99999"],
        ["counter", "--workers", "0"],
        ["counter", "--ttl", "soon"],
        ["counter", "--timeout", "0"],
        ["counter", "--no-such-option"],
    ],
)
def test_options_that_make_no_sense(refuses: Refuses, arguments: list[str]) -> None:
    refuses("serve", *arguments)


@pytest.mark.parametrize("package", ["uvicorn", "httptools", "prometheus_client"])
def test_a_package_that_is_not_installed(tmp_path: Path, package: str) -> None:
    stubs = tmp_path / "stubs"
    stubs.mkdir()
    (stubs / f"{package}.py").write_text(f"raise ModuleNotFoundError('No module named {package}', name='{package}')\n")
    ended = subprocess.run(
        [*SERVE, "counter"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(stubs)},
        capture_output=True,
        text=True,
        check=False,
    )
    said = f"error: to serve needs {package}: pip install 'stateroom[server]'\n"
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", said)

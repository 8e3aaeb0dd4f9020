"""`stateroom serve`: what a user may get wrong, each told in one line. How it serves is tested in `tests/server`."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SERVE = [sys.executable, "-m", "stateroom.cli", "serve"]


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STATEROOM_SECRET", "a secret that is only good for tests")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def busy_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


def complaint(outcome: Any) -> str:
    """The one line that a command ended with; it has begun nothing."""
    assert (outcome.code, outcome.out) == (2, "")
    lines = outcome.err.splitlines()
    assert len(lines) == 1
    return str(lines[0])


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["nothing"], "error: no environment is named 'nothing'; there are: calculator, counter,"),
        (["no.such:Thing"], "error: there is no module 'no.such'"),
        (["no_such.py:Thing"], "error: there is no file no_such.py"),
        (["counter", "counter"], "error: two of the environments are named 'counter'"),
        (["counter", "--store", "rooms.db"], "error: 'rooms.db' is not a store URL; write for example sqlite:///"),
        (["counter", "--store", "tape:///x"], "error: no store serves tape://; there are: az, file, gs, memory, "),
        (["counter", "--store", "sqlite:///no/such/rooms.db"], "error: cannot open no/such/rooms.db: there is no fold"),
        (["counter", "--store", "sqlite:///rooms.db?speed=2"], "error: sqlite:///rooms.db?speed=2: this store has no"),
        (["counter", "--store", "memory://me:hush@x?speed=2"], "error: memory://me:***@x?speed=2: this store has no"),
        (["counter", "--store", "memory://?keys=env:NO_KEYS"], "error: keys=env:NO_KEYS: there is no environment var"),
        (["counter", "--store", "memory://?max_sessions=x"], "error: memory://?max_sessions=x: max_sessions must be"),
        (["counter", "--model", "nobody"], "error: no model is called 'nobody'; there are reference, noisy, "),
        (["counter", "--agent", "nobody"], "error: no model is called 'nobody'; there are reference, noisy, "),
        (["counter", "--model", "replay:no.jsonl"], "error: "),
        (["counter", "--api-keys", "nothing"], "error: cannot read API keys from nothing: No such file"),
        (["counter", "--allow-host", "http://x"], "error: 'http://x' is not the name of a host; one is rooms.example"),
        (["counter", "--reload", "--workers", "2"], "error: --reload: only with one worker"),
        (["counter", "--host", "no.such.invalid"], "error: cannot listen on no.such.invalid:8000: "),
        (["counter", "--host", "ü" * 70], f"error: cannot listen on {'ü' * 70}:8000: this is no address"),
    ],
)
def test_what_cannot_be_served(stateroom: Any, arguments: list[str], problem: str) -> None:
    assert complaint(stateroom("serve", *arguments)).startswith(problem)


def test_a_file_that_is_no_store(stateroom: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("these are notes, and not sessions; leave them alone please" * 100)
    assert "notes.db" in complaint(stateroom("serve", "counter", "--store", "sqlite:///notes.db"))
    assert (tmp_path / "notes.db").read_text().startswith("these are notes")


def test_a_port_that_is_in_use(stateroom: Any, busy_port: int) -> None:
    said = complaint(stateroom("serve", "counter", "--port", busy_port))
    assert said == f"error: cannot listen on 127.0.0.1:{busy_port}: Address already in use"


def test_several_workers_need_a_store_that_they_share(stateroom: Any) -> None:
    said = complaint(stateroom("serve", "counter", "weather", "--workers", 2, "--store", "memory://"))
    assert said.startswith("error: --store: memory:// is seen by one process only")
    assert "use sqlite:///FILE" in said


@pytest.mark.parametrize("secret", ["short", "long enough to be one,short"])
def test_a_secret_that_could_be_guessed(stateroom: Any, monkeypatch: pytest.MonkeyPatch, secret: str) -> None:
    monkeypatch.setenv("STATEROOM_SECRET", secret)
    said = complaint(stateroom("serve", "counter"))
    assert "a secret must have 16 characters or more" in said
    assert secret not in said


def test_a_folder_for_the_secret_that_cannot_be_made(
    stateroom: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("STATEROOM_SECRET")
    (tmp_path / "data").write_text("in the way")
    assert "set STATEROOM_SECRET" in complaint(stateroom("serve", "counter"))


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
def test_options_that_make_no_sense(stateroom: Any, arguments: list[str]) -> None:
    outcome = stateroom("serve", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert "error" in outcome.err.lower()
    assert "Traceback" not in outcome.err


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

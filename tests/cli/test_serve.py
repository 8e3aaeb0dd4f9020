"""`stateroom serve`, `studio` and `model serve`: what a user may get wrong. How they serve is tested elsewhere."""

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
    "command",
    [
        "serve",
        "serve nothing",
        "serve counter counter",
        "serve counter --store sqlite:///no/such/rooms.db",
        "serve counter --store memory://me:hush@x?speed=2",
        "serve counter --store memory://?keys=env:NO_KEYS",
        "serve counter --store memory://?max_sessions=x",
        "serve counter --model nobody",
        "serve counter --agent nobody",
        "serve counter --model replay:no.jsonl",
        "serve counter --api-keys nothing",
        "serve counter --allow-host http://x",
        "serve counter --reload --workers 2",
        "serve counter weather --workers 2 --store memory://",
        f"serve counter --host {'ü' * 70}",
        "serve counter --port 99999",
        "serve counter --workers 0",
        "serve counter --ttl soon",
        "serve counter --timeout 0",
        "serve counter --no-such-option",
        "serve counter --studio --host 0.0.0.0 --port 0",
        "studio --host 0.0.0.0 --port 0",
        "studio --store sqlite:///none.db",
        "studio nothing",
        "studio --runs none",
        "model serve nope:counter",
        "model serve reference",
        "model serve nope:Nope",
        "model serve reference:nope",
        "model serve replay:none.jsonl",
        "model serve replay:odd.jsonl",
        "model serve json:JSONDecoder",
        pytest.param("model serve local:none.gguf", marks=pytest.mark.more("a local model")),
    ],
)
def test_a_mistake_is_a_short_message(refuses: Refuses, tmp_path: Path, command: str) -> None:
    (tmp_path / "odd.jsonl").write_text('{"reward": 1}\n')
    refuses(*command.split())


def test_a_file_that_is_no_store(refuses: Refuses, tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("these are notes, and not sessions; leave them alone please" * 100)
    refuses("serve", "counter", "--store", "sqlite:///notes.db")
    assert (tmp_path / "notes.db").read_text().startswith("these are notes")


@pytest.mark.parametrize("command", [("serve", "counter"), ("model", "serve", "reference:counter")])
def test_a_port_that_is_in_use(refuses: Refuses, command: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        refuses(*command, "--port", taken.getsockname()[1])


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

"""The command as a process of its own: pipes, signals, and the demo."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stateroom import Sessions
from stateroom.gallery import CounterEnvironment
from stateroom.store import Store
from tests.cli.conftest import in_store

COMMAND = [sys.executable, "-m", "stateroom.cli"]
ANNOUNCES = """
import asyncio
from stateroom.gallery import CounterEnvironment
from stateroom.model import Policy


class Announces(Policy):
    '''Says on stdout when an episode has begun, and in the 30th and later ones waits for ever after its first call.'''

    begun = 0

    def __init__(self, seed):
        super().__init__(seed)
        self.reference = CounterEnvironment.policies["reference"](seed)
        Announces.begun += 1
        self.waits = Announces.begun > 30
        print("episode", flush=True)

    async def respond(self, conversation, tools):
        if self.waits and len(conversation) > 1:
            print("waiting", flush=True)
            await asyncio.Event().wait()
        return self.reference.respond(conversation, tools)
"""


def environ(columns: int = 80, **more: str) -> dict[str, str]:
    return {**os.environ, "COLUMNS": str(columns), **more}


def run(folder: Path, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    settings: dict[str, Any] = {"capture_output": True, "text": True, "encoding": "utf-8", "env": environ()}
    return subprocess.run([*COMMAND, *arguments], cwd=folder, check=False, **(settings | options))


def stop_midway(folder: Path, how: signal.Signals) -> tuple[int, str]:
    """Start a run, and stop it when 30 episodes have ended and others are under way."""
    (folder / "slow.py").write_text(ANNOUNCES)
    arguments = ["run", "counter", "--model", "slow.py:Announces", "--repeats", "50", "--output", "x.jsonl"]
    with subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ()
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        waiting = 0
        for line in process.stdout:
            waiting += line == "waiting\n"
            if waiting == 8:
                process.send_signal(how)
        return process.wait(), process.stderr.read()


def finished(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "x.jsonl").read_text(encoding="utf-8")
    assert text.endswith("\n")
    return [json.loads(line) for line in text.splitlines()]


def test_a_killed_run_loses_nothing_that_was_finished(tmp_path: Path) -> None:
    code, _ = stop_midway(tmp_path, signal.SIGKILL)
    rows = finished(tmp_path)
    assert code == -signal.SIGKILL
    assert len(rows) == 30
    assert all(row["reward"] == 1.0 for row in rows)
    inputs = (tmp_path / "x_materialized_inputs.jsonl").read_text().splitlines()
    assert len([json.loads(line) for line in inputs]) == 400

    async def look(store: Store) -> None:
        sessions = Sessions(CounterEnvironment(), store)
        for row in rows:
            session = await sessions.open(row["_stateroom_session"], include_closed=True)
            assert session.state.value == row["expected_count"]
        live = [head for head in await store.heads(limit=100) if not head.closed]
        assert len(live) == 8
        for head in live:  # cut off after their first call, and still to be used
            session = await sessions.open(head.id)
            assert (await session.call("increment_counter", {"count": 1})).ok

    in_store(look, f"sqlite:///{tmp_path / 'x_sessions.db'}")


def test_an_interrupted_run_says_what_is_kept(tmp_path: Path) -> None:
    code, told = stop_midway(tmp_path, signal.SIGINT)
    assert code == 130
    assert "interrupted; 30 finished episodes are in x.jsonl" in told
    assert "Traceback" not in told
    assert len(finished(tmp_path)) == 30


def test_a_closed_pipe_is_no_traceback(tmp_path: Path) -> None:
    command = f"{' '.join(COMMAND)} tasks counter --number 20000 | head -n 1"
    done = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["initial_count"] >= 0
    assert done.stderr == ""


def test_a_terminal_that_knows_few_letters_will_do(tmp_path: Path) -> None:
    env = environ(PYTHONIOENCODING="ascii")
    done = run(tmp_path, "run", "counter", "--limit", "1", "--json", env=env)
    store = f"sqlite:///{json.loads(done.stdout)['files']['sessions']}"
    (session,) = json.loads(run(tmp_path, "sessions", "list", "--store", store, "--json", env=env).stdout)
    log = run(tmp_path, "sessions", "log", session["id"], "--store", store, env=env, encoding="ascii")
    assert log.returncode == 0
    assert "increment_counter(count=8)" in log.stdout


LOG = re.compile(r" {2,3}\d+  | {18}")
"""The start of a line in a session's log, which may be longer than a terminal is wide."""


@pytest.mark.parametrize("called", ["by its path", pytest.param("by its name", marks=pytest.mark.more("time"))])
def test_the_demo_reads_well_and_each_command_works_as_it_is_printed(tmp_path: Path, called: str) -> None:
    own = Path(sys.executable).with_name("stateroom")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "stateroom").symlink_to(own)
    env = environ(PATH=f"{own.parent}:{os.environ['PATH']}" if called == "by its name" else "/usr/bin:/bin")
    program = "stateroom" if called == "by its name" else "bin/stateroom"
    settings: dict[str, Any] = {"cwd": tmp_path, "env": env, "capture_output": True, "text": True}
    demo = subprocess.run(["bash", "-c", f"{program} demo --output out"], check=True, **settings)
    assert "32/32" in demo.stderr
    told = demo.stdout
    for heading in ("1. Episodes", "2. History", "3. Forks", "4. Durability", "Next"):
        assert f"\n{heading}\n" in told
    wide = [line for line in told.splitlines() if len(line) > 80]
    assert all(line.startswith(("$ ", "Rollouts, ")) or LOG.match(line) for line in wide)
    assert re.search(r"\nrefund +32 +0 +0\.\d+ .*\nextraction +32 .*\ncounter +32 ", told)
    assert re.search(r"\nfork +[0-9a-f]{24} +\d+ +10 +0\n", told)
    (episode,) = re.findall(r"\nepisode +([0-9a-f]{24}) ", told)
    assert told.count(episode) == 5
    commands = [line.removeprefix("$ ") for line in told.splitlines() if line.startswith("$ ")]
    assert len(commands) == 8
    assert commands[-1] == told.splitlines()[-1].removeprefix("$ ")
    assert re.fullmatch(rf"{program} studio refund .* --store sqlite:///\S+ --runs out", commands.pop())
    for command in commands:
        assert command.startswith(f"{program} ")
        done = subprocess.run(["bash", "-c", command], check=False, **settings)
        assert (done.returncode, bool(done.stdout)) == (0, True), (command, done.stderr)
        if " log " in command or " show " in command:
            assert done.stdout in told

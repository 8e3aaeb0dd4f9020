"""NeMo Gym's own commands, as released, on the files of `stateroom run`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.more import GYM
from tests.patience import PATIENCE
from tests.rows import rows
from tests.servers.ports import free_port

pytestmark = pytest.mark.more("NeMo Gym")

ENVIRONMENTS = ("calculator", "counter", "database", "extraction", "facts", "math", "office", "refund", "weather")

VALIDATE = """
import sys
from nemo_gym.base_resources_server import BaseVerifyResponse
for path in sys.argv[1:]:
    with open(path) as file:
        print(len([BaseVerifyResponse.model_validate_json(line) for line in file]))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs of each environment by `noisy`, and one of counter by `reference`."""
    found = tmp_path_factory.mktemp("runs")
    for name, model, output in [(name, "noisy", name) for name in ENVIRONMENTS] + [("counter", "reference", "better")]:
        options = ("--model", model, "--repeats", "2", "--limit", "4", "--output", f"{output}.jsonl")
        done(found, Path(sys.executable).with_name("stateroom"), "run", name, *options)
    return found


def done(folder: Path, *command: Any, **variables: str) -> str:
    """What a command prints, which succeeds."""
    with (folder / "log").open("w+") as log:  # not a pipe, which a server that Gym leaves would keep open
        found = subprocess.run(
            command, cwd=folder, env=os.environ | variables, stdout=log, stderr=log, timeout=PATIENCE, check=False
        )
    printed = (folder / "log").read_text()
    assert found.returncode == 0, printed
    return printed


def gym(folder: Path, *command: Any, **variables: str) -> str:
    return done(folder, GYM / "bin" / "gym", "eval", *command, **variables)


def test_rollouts_validate(folder: Path) -> None:
    paths = [f"{name}.jsonl" for name in ENVIRONMENTS]
    assert done(folder, GYM / "bin" / "python", "-c", VALIDATE, *paths).split() == ["8"] * len(ENVIRONMENTS)


def test_profile(folder: Path) -> None:
    printed = gym(folder, "profile", "--inputs", "counter_materialized_inputs.jsonl", "--rollouts", "counter.jsonl")
    assert "8/8 rollout rows (100.00%)" in printed
    (own,), (theirs,) = (
        json.loads((folder / f"counter_{name}_metrics.json").read_text()) for name in ("aggregate", "agent")
    )
    repeated = {name: value for name, value in theirs.items() if name.endswith("/reward")}
    assert own["agent_metrics"].items() >= {name: pytest.approx(value) for name, value in repeated.items()}.items()


def test_health_check(folder: Path) -> None:
    printed = gym(folder, "health-check", ".", "--rollouts-file", "counter.jsonl")
    assert "8 checked" in printed
    assert "0 unhealthy" in printed


def test_compare(folder: Path) -> None:
    gym(folder, "compare", "--baseline", "counter.jsonl", "--candidates", "better.jsonl")
    (found,) = json.loads((folder / "compare_report.json").read_text())["comparisons"]
    assert (found["baseline_agent"], found["candidate_agents"]) == ("counter_agent", ["counter_agent"])
    assert (found["baseline_task_count"], found["baseline_repeat_count"]) == (4, 2)


@contextmanager
def server(folder: Path, environment: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """A config with which Gym starts `stateroom serve`, and finds the environment's agent there; variables for Ray."""
    port, place = free_port(), folder / "resources_servers" / environment
    place.mkdir(parents=True)
    (place / ".venv").symlink_to(sys.prefix)
    (place / "requirements.txt").write_text("stateroom\n")
    serve = ["stateroom.cli", "serve", environment, "--port", str(port)]
    (place / "app.py").write_text(
        "import os, sys\n"
        "open('pid', 'w').write(str(os.getpid()))\n"
        f"os.execv(sys.executable, [sys.executable, '-m', *{serve!r}])\n"
    )
    at = {"host": "127.0.0.1", "port": port}
    served = {"resources_server": {"type": "resources_servers", "name": environment}}
    agent = {"agent_server": {"type": "responses_api_agents", "name": f"{environment}_agent"}}
    config = {
        "skip_venv_if_present": True,
        "head_server": {"host": "127.0.0.1", "port": free_port()},
        environment: {"resources_servers": {environment: {**at, "entrypoint": "app.py", "domain": "agent"}}},
        f"{environment}_agent": {"responses_api_agents": {"simple_agent": {**at, **served}}},
        f"{environment}_environment": {"environment_servers": {"legacy_agent": {**at, **agent}}},
    }
    (folder / f"{environment}.yaml").write_text(json.dumps(config))
    with TemporaryDirectory(prefix="ray") as short:  # a path for sockets
        try:
            yield folder / f"{environment}.yaml", {"RAY_TMPDIR": short}
        finally:
            with suppress(ProcessLookupError, FileNotFoundError):
                os.kill(int((place / "pid").read_text()), signal.SIGTERM)  # which Gym may have left


def test_reverify(folder: Path) -> None:
    files = ("--inputs", "weather_materialized_inputs.jsonl", "--rollouts", "weather.jsonl", "--output", "again.jsonl")
    with server(folder, "weather") as (config, variables):
        gym(folder, "reverify", "--config", config, *files, **variables)
    rewards = [
        {(row["_ng_task_index"], row["_ng_rollout_index"]): row["reward"] for row in rows(folder / f"{name}.jsonl")}
        for name in ("weather", "again")
    ]
    assert rewards[0] == rewards[1]
    assert len(rewards[1]) == 8


def test_aggregate(folder: Path) -> None:
    with server(folder, "counter") as (config, variables), (folder / "start.log").open("w") as log:
        command: list[Any] = [GYM / "bin" / "gym", "env", "start", "--config", config]
        with subprocess.Popen(command, cwd=folder, env=os.environ | variables, stdout=log, stderr=log) as process:
            try:
                deadline = time.monotonic() + PATIENCE
                while "servers ready!" not in (folder / "start.log").read_text():
                    assert process.poll() is None, (folder / "start.log").read_text()
                    assert time.monotonic() < deadline, (folder / "start.log").read_text()
                    time.sleep(0.1)
                gym(folder, "aggregate", "--config", config, "--input-glob", "counter.jsonl", "--output", "all.jsonl")
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(PATIENCE)
    ours, theirs = (
        json.loads((folder / f"{name}_aggregate_metrics.json").read_text())[0] for name in ("counter", "all")
    )
    assert theirs["agent_ref"] == {"name": "counter_agent"}
    assert theirs["agent_metrics"] == pytest.approx(ours["agent_metrics"])
    assert theirs["repeat_level_metrics"] == [pytest.approx(each) for each in ours["repeat_level_metrics"]]

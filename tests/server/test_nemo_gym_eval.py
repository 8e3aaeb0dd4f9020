"""`gym eval run`, as released: it starts `stateroom serve`, its own agents and environment servers, and collects.

It runs all recorded rollouts of Gym's example servers: the model makes the recorded calls.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.more import GYM
from tests.server.nemo_gym import EXAMPLES, Row, calls_of, outputs_of, prompt_of, recorded, scripted, scripted_model

pytestmark = pytest.mark.more("NeMo Gym")

APP = """\
import os

import yaml

name = os.environ["NEMO_GYM_CONFIG_PATH"]
here = yaml.safe_load(os.environ["NEMO_GYM_CONFIG_DICT"])[name]["resources_servers"][name]
where = ["--host", here["host"], "--port", str(here["port"]), "--workers", str(here["num_workers"])]
os.execlp("stateroom", "stateroom", "serve", name, *where)
"""


@pytest.mark.parametrize("workers", [1, 2])
def test_collects_its_recorded_rollouts(workers: int, tmp_path: Path) -> None:
    with scripted_model() as model:
        configuration = _shared(model, tmp_path)
        for name in EXAMPLES:
            configuration |= _servers(name, workers, tmp_path)
        (tmp_path / "gym.yaml").write_text(json.dumps(configuration))
        words = ["eval", "run", "--config", "gym.yaml", "--split", "validation", "--output", "out.jsonl"]
        path = os.pathsep.join([str(GYM / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
        variables = {**os.environ, "PATH": path, "STATEROOM_SECRET": "a secret that is only good for tests"}
        run = subprocess.run(
            [GYM / "bin" / "gym", *words], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
        )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-5000:]
    then = {prompt_of(task): rollout for name in EXAMPLES for task, rollout in recorded(name)}
    now = {prompt_of(row): row for row in map(json.loads, (tmp_path / "out.jsonl").read_text().splitlines())}
    assert {key: _told(row) for key, row in now.items()} == {key: _told(row) for key, row in then.items()}


def _told(rollout: Row) -> tuple[list[Any], float]:
    return outputs_of(rollout), rollout["reward"]


def _shared(model: int, folder: Path) -> Row:
    """The part of the configuration that is not of an environment."""
    asked = {"openai_base_url": f"http://127.0.0.1:{model}/v1", "openai_api_key": "none", "openai_model": "scripted"}
    for place in ("responses_api_models/openai_model", "responses_api_agents/simple_agent"):
        _use_venv(folder, place)
    return {
        "skip_venv_if_present": True,
        "uv_venv_dir": str(folder / "venvs"),
        "model": {"responses_api_models": {"openai_model": {"entrypoint": "app.py", **asked}}},
    }


def _servers(name: str, workers: int, folder: Path) -> Row:
    """An environment, its agent and its environment server, with the environment's files."""
    place = folder / "resources_servers" / name
    place.mkdir(parents=True)
    (place / "app.py").write_text(APP)
    (place / "requirements.txt").write_text("pyyaml\n")
    rows = [scripted(task, calls_of(rollout)) for task, rollout in recorded(name)]
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for part in (f"resources_servers/{name}", "environment_servers/legacy_agent"):
        _use_venv(folder, part)
    agent = {
        "entrypoint": "app.py",
        "resources_server": {"type": "resources_servers", "name": name},
        "model_server": {"type": "responses_api_models", "name": "model"},
        "datasets": [
            {"name": name, "type": "validation", "license": "Apache 2.0", "jsonl_fpath": str(folder / f"{name}.jsonl")}
        ],
    }
    relay = {"entrypoint": "app.py", "agent_server": {"type": "responses_api_agents", "name": f"{name}_agent"}}
    return {
        name: {"resources_servers": {name: {"entrypoint": "app.py", "domain": "agent", "num_workers": workers}}},
        f"{name}_agent": {"responses_api_agents": {"simple_agent": agent}},
        f"{name}_environment": {"environment_servers": {"legacy_agent": relay}},
    }


def _use_venv(folder: Path, place: str) -> None:
    """Let a server of Gym's run in the virtual environment that is there."""
    link = folder / "venvs" / place / ".venv"
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.exists():
        link.symlink_to(GYM.resolve())

"""NeMo Gym's own agents and environment servers drive a Stateroom server, over HTTP, with a scripted model.

Its rollout collection drives our agent. Gym lives in a virtual environment of its own, which `make test-more` makes.
From then on these tests run with all the others; until then they are left out.
"""

import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.more import GYM
from tests.patience import PATIENCE
from tests.server.nemo_gym import (
    CLASSES,
    EXAMPLES,
    RECORDED,
    Row,
    Servers,
    calls_of,
    outputs_of,
    post,
    recorded,
    scripted,
    serving,
)

CONFORMANCE = Path(__file__).with_name("nemo_gym_conformance.py")

pytestmark = pytest.mark.more("NeMo Gym")


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with serving("counter", 1, tmp_path_factory.mktemp("counter")) as servers:
        yield servers


def _task(start: int, *additions: int) -> Row:
    """A task, which the model does as it is told."""
    asked: Row = {"input": ", then ".join(f"add {count}" for count in additions), "tools": []}
    return {"responses_create_params": asked, "initial_count": start, "expected_count": start + sum(additions)}


@pytest.mark.parametrize("name", CLASSES)
def test_earns_the_reward(counter: Servers, name: str) -> None:
    rollout = counter.run(name, _task(3, 4, 2))
    assert rollout["reward"] == 1.0
    assert outputs_of(rollout) == [{"success": True}, {"success": True}, {"count": 9}]


@pytest.mark.parametrize("name", CLASSES)
def test_no_reward_for_work_that_is_not_done(counter: Servers, name: str) -> None:
    assert counter.run(name, scripted(_task(3, 4, 2), [("increment_counter", '{"count": 4}')]))["reward"] == 0.0


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("environment", EXAMPLES)
def test_plays_its_recorded_rollouts(environment: str, workers: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(environment, workers, tmp_path_factory.mktemp(environment)) as servers:
        for name in CLASSES:
            for task, then in recorded(environment):
                now = servers.run(name, scripted(task, calls_of(then)))
                assert (outputs_of(now), now["reward"]) == (outputs_of(then), then["reward"]), (name, then)


@pytest.mark.parametrize("name", CLASSES)
def test_each_rollout_has_its_own_counter(counter: Servers, name: str) -> None:
    with ThreadPoolExecutor(16) as pool:
        rollouts = list(pool.map(lambda start: counter.run(name, _task(start, 4, 2)), range(16)))
    assert [outputs_of(rollout)[-1] for rollout in rollouts] == [{"count": start + 6} for start in range(16)]
    assert [rollout["reward"] for rollout in rollouts] == [1.0] * 16


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("no_such_tool", "{}"),
        ("increment_counter", '{"count": "many"}'),
        ("increment_counter", "{}"),
        ("increment_counter", "[1]"),
        ("increment_counter", "null"),  # Gym sends no body at all
        ("increment_counter", '{"count": '),  # Gym does not send it
        ("a/b", "{}"),
        ("", "{}"),
        ("seed_session", "{}"),
        ("seed_session", '{"initial_count": 9, "expected_count": 9}'),
        ("close_session", "{}"),
        ("reset", '{"initial_count": 9, "expected_count": 9}'),
        ("verify", "{}"),
    ],
)
def test_a_mistake_does_not_cost_the_session(counter: Servers, name: str, arguments: str) -> None:
    """Gym forgets a cookie that a reply does not repeat, so an error without one would end the episode."""
    add = ("increment_counter", '{"count": 4}')
    calls = [add, (name, arguments), add, ("get_counter_value", "{}")]
    rollout = counter.run("simple", scripted(_task(3, 4, 4), calls))
    first, _, second, count = outputs_of(rollout)
    assert (first, second, count) == ({"success": True}, {"success": True}, {"count": 11})
    assert rollout["reward"] == 1.0


def test_aggregates_through_the_agent(counter: Servers) -> None:
    rewards = [
        {"_ng_task_index": task, "_ng_rollout_index": index, "reward": float(task == index)}
        for task in range(2)
        for index in range(2)
    ]
    found = post(counter.gym["simple"], "/aggregate_metrics", {"verify_responses": rewards})
    assert found["agent_metrics"]["mean/reward"] == 0.5
    assert [group["_ng_task_index"] for group in found["group_level_metrics"]] == [0, 1]


def test_gyms_own_check_of_sessions_passes(counter: Servers) -> None:
    command = [str(GYM / "bin" / "python"), "-I", str(CONFORMANCE), f"http://127.0.0.1:{counter.environment}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr


def test_gym_collects_the_episodes_of_our_agent(counter: Servers, tmp_path: Path) -> None:
    """As docs/serving.md says: the agent and what Gym puts before it are one server of ours."""
    place = {"host": "127.0.0.1", "port": counter.environment}
    reference = {"type": "responses_api_agents", "name": "counter_agent"}
    config = {
        "head_server": place,
        "counter_agent": {"responses_api_agents": {"stateroom": place}},
        "counter": {"environment_servers": {"legacy_agent": {**place, "agent_server": reference}}},
        "agent_name": "counter_agent",
        "input_jsonl_fpath": str(RECORDED / "counter" / "example.jsonl"),
        "output_jsonl_fpath": "rollouts.jsonl",
        "num_repeats": 2,
    }
    variables = {**os.environ, "NEMO_GYM_CONFIG_DICT": json.dumps(config)}
    command = [str(GYM / "bin" / "gym"), "eval", "run", "--no-serve"]
    done = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "rollouts.jsonl").read_text().splitlines()]
    assert sorted((row["_ng_task_index"], row["_ng_rollout_index"]) for row in rows) == [
        (task, rollout) for task in range(5) for rollout in range(2)
    ]
    assert [row["reward"] for row in rows] == [1.0] * 10
    [metrics] = json.loads((tmp_path / "rollouts_aggregate_metrics.json").read_text())
    assert metrics["key_metrics"]["mean/reward"] == 1.0


def test_our_agent_s_turn_is_a_response_by_gym_s_types(counter: Servers, tmp_path: Path) -> None:
    task = _task(3, 4, 2)
    asked = urllib.request.Request(f"http://127.0.0.1:{counter.environment}/seed_session", json.dumps(task).encode())
    with urllib.request.urlopen(asked) as reply:
        cookie = reply.headers["set-cookie"].partition(";")[0]
    body = json.dumps(task["responses_create_params"]).encode()
    asked = urllib.request.Request(f"http://127.0.0.1:{counter.environment}/v1/responses", body, {"cookie": cookie})
    with urllib.request.urlopen(asked) as reply:
        (tmp_path / "response.json").write_bytes(reply.read())
    code = (
        "from nemo_gym.openai_utils import NeMoGymResponse as R; "
        "print(*(item.type for item in R.model_validate_json(open('response.json').read()).output))"
    )
    told = subprocess.run(
        [GYM / "bin" / "python", "-Ic", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == ["function_call", "function_call_output"] * 3 + ["message"]

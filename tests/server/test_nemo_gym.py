"""NeMo Gym's own agent drives a Stateroom server: its SimpleAgent, as released, over HTTP, with a scripted model.

Gym lives in a virtual environment of its own, which `make test-more` makes. From then on these tests run with all the
others; until then they are left out.
"""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.more import GYM
from tests.patience import PATIENCE
from tests.servers.ports import free_port

DRIVER = Path(__file__).with_name("nemo_gym_driver.py")
Row = dict[str, Any]

pytestmark = pytest.mark.more("NeMo Gym")


# Three servers: the environment, the model, the agent.


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of `stateroom serve counter`."""
    port = free_port()
    command = [Path(sys.executable).with_name("stateroom"), "serve", "counter", "--port", str(port)]
    secret = {"STATEROOM_SECRET": "a secret that is only good for tests"}
    with _running(command, port, "/ready", tmp_path_factory.mktemp("environment"), secret):
        yield port


@pytest.fixture(scope="module")
def model() -> Iterator[int]:
    """The port of a model that does what it is told."""
    with ThreadingHTTPServer(("127.0.0.1", 0), ScriptedModel) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def agent(environment: int, model: int, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of Gym's SimpleAgent, which knows the environment and the model by name."""

    def at(port: int, **more: Any) -> Row:
        return {"entrypoint": "app.py", "host": "127.0.0.1", "port": port, **more}

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
        references = {
            "resources_server": {"type": "resources_servers", "name": "environment"},
            "model_server": {"type": "responses_api_models", "name": "model"},
        }
        servers = {
            "head_server": {"host": "127.0.0.1", "port": port},  # nobody asks it: all is said here
            "environment": {"resources_servers": {"counter": at(environment)}},
            "model": {"responses_api_models": {"scripted": at(model)}},
            "agent": {"responses_api_agents": {"simple_agent": at(port, **references)}},
        }
        told = {"NEMO_GYM_CONFIG_DICT": json.dumps(servers), "NEMO_GYM_CONFIG_PATH": "agent"}
        command = [GYM / "bin" / "python", "-I", DRIVER, str(listening.fileno())]
        folder = tmp_path_factory.mktemp("agent")
        with _running(command, port, "/", folder, told, pass_fds=[listening.fileno()]):
            yield port


@contextmanager
def _running(
    command: list[Any], port: int, path: str, folder: Path, variables: Mapping[str, str], **options: Any
) -> Iterator[None]:
    """A server as a process of its own, from when it answers; what it says and leaves behind is in its folder."""
    log, variables = folder / "log", {**os.environ, "TMPDIR": str(folder), **variables}
    with (
        log.open("w") as said,
        subprocess.Popen(
            command, cwd=folder, env=variables, stdout=said, stderr=subprocess.STDOUT, **options
        ) as process,
    ):
        try:
            deadline = time.monotonic() + PATIENCE
            while not _answers(port, path):
                assert process.poll() is None, f"{command} ended: {log.read_text()}"
                assert time.monotonic() < deadline, f"{command} does not answer: {log.read_text()}"
                time.sleep(0.1)
            yield
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def _answers(port: int, path: str) -> bool:
    connection = HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


class ScriptedModel(BaseHTTPRequestHandler):
    """`POST /v1/responses`: the calls that its metadata list, or else those that the prompt asks for, one a turn.

    When all are made, it says what the last one gave.
    """

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        calls = _script_of(asked)
        outputs = [item["output"] for item in asked["input"] if item.get("type") == "function_call_output"]
        if len(outputs) < len(calls):
            name, arguments = calls[len(outputs)]
            item = {"type": "function_call", "call_id": f"call_{len(outputs)}", "name": name, "arguments": arguments}
        else:
            said = {"type": "output_text", "text": outputs[-1] if outputs else "", "annotations": []}
            item = {"type": "message", "id": "message", "role": "assistant", "status": "completed", "content": [said]}
        response = {
            "id": "response",
            "object": "response",
            "created_at": 0,
            "model": "scripted",
            "output": [item],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": [],
        }
        body = json.dumps(response).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def _script_of(asked: Row) -> list[tuple[str, str]]:
    if asked.get("metadata"):
        return [(name, arguments) for name, arguments in json.loads(asked["metadata"]["calls"])]
    additions = re.findall(r"add (\d+)", asked["input"][0]["content"])
    return [
        *(("increment_counter", json.dumps({"count": int(text)})) for text in additions),
        ("get_counter_value", "{}"),
    ]


# What a test does.


def _task(start: int, *additions: int, calls: list[tuple[str, str]] | None = None) -> Row:
    """A task; the model does it as it is told to, unless the calls that it makes are given."""
    asked: Row = {"input": ", then ".join(f"add {count}" for count in additions), "tools": []}
    if calls is not None:
        asked["metadata"] = {"calls": json.dumps(calls)}
    return {"responses_create_params": asked, "initial_count": start, "expected_count": start + sum(additions)}


def _post(port: int, path: str, body: Row) -> Any:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read().decode()
        assert reply.status == 200, text
        return json.loads(text)
    finally:
        connection.close()


def _outputs(rollout: Row) -> list[Any]:
    """What the calls of a rollout gave, in order."""
    items = rollout["response"]["output"]
    return [json.loads(item["output"]) for item in items if item["type"] == "function_call_output"]


def test_earns_the_reward(agent: int) -> None:
    rollout = _post(agent, "/run", _task(3, 4, 2))
    assert rollout["reward"] == 1.0
    assert _outputs(rollout) == [{"success": True}, {"success": True}, {"count": 9}]
    assert json.loads(rollout["response"]["output"][-1]["content"][0]["text"]) == {"count": 9}
    assert (rollout["initial_count"], rollout["expected_count"]) == (3, 9)


def test_no_reward_for_work_that_is_not_done(agent: int) -> None:
    rollout = _post(agent, "/run", _task(3, 4, 2, calls=[("increment_counter", '{"count": 4}')]))
    assert rollout["reward"] == 0.0


def test_runs_the_tasks_that_come_with_gym(agent: int) -> None:
    (file,) = GYM.glob("lib/python*/site-packages/resources_servers/example_session_state_mgmt/data/example.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert rows
    assert [_post(agent, "/run", row)["reward"] for row in rows] == [1.0] * len(rows)


def test_each_rollout_has_its_own_counter(agent: int) -> None:
    with ThreadPoolExecutor(16) as pool:
        rollouts = list(pool.map(lambda start: _post(agent, "/run", _task(start, 4, 2)), range(16)))
    assert [_outputs(rollout)[-1] for rollout in rollouts] == [{"count": start + 6} for start in range(16)]
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
    ],
)
def test_a_mistake_does_not_cost_the_session(agent: int, name: str, arguments: str) -> None:
    """Gym forgets a cookie that a reply does not repeat, so an error without one would end the episode."""
    add = ("increment_counter", '{"count": 4}')
    rollout = _post(agent, "/run", _task(3, 4, 4, calls=[add, (name, arguments), add, ("get_counter_value", "{}")]))
    first, _, second, count = _outputs(rollout)
    assert (first, second, count) == ({"success": True}, {"success": True}, {"count": 11})
    assert rollout["reward"] == 1.0


def test_aggregates_through_the_agent(agent: int) -> None:
    rewards = [
        {"_ng_task_index": task, "_ng_rollout_index": index, "reward": float(task == index)}
        for task in range(2)
        for index in range(2)
    ]
    found = _post(agent, "/aggregate_metrics", {"verify_responses": rewards})
    assert found["agent_metrics"]["mean/reward"] == 0.5
    assert [group["_ng_task_index"] for group in found["group_level_metrics"]] == [0, 1]

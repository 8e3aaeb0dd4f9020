"""NeMo Gym's own agents and environment servers around `stateroom serve`, with a model that does as it is told."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from tests.more import GYM
from tests.patience import PATIENCE
from tests.servers.ports import free_port

Row = dict[str, Any]

DRIVER = Path(__file__).with_name("nemo_gym_driver.py")

CLASSES = {
    "simple": "responses_api_agents.simple_agent.app:SimpleAgent",
    "gymnasium": "responses_api_agents.gymnasium_agent.app:GymnasiumAgent",
    "turn": "environment_servers.single_agent_turn.app:SingleAgentTurnEnvironmentServer",
}
"""The servers of Gym's that are started, by their names in its configuration."""

RECORDED = Path(__file__).parents[1] / "gallery" / "nemo_gym"
"""The data of Gym's example servers, by the names that their environments have here."""

EXAMPLES = ("counter", "extraction", "weather")


class Servers(NamedTuple):
    """The ports of the environment, and of Gym's servers by name."""

    environment: int
    gym: Mapping[str, int]

    def run(self, name: str, row: Row) -> Row:
        """The rollout of a row, by an agent or an environment server of Gym's."""
        if name != "turn":
            return post(self.gym[name], "/run", row)
        task = {"task_id": {"taskset": "tests", "task_id": "0"}, "task_input": row}
        reply = post(self.gym[name], "/run", {"episode_id": {"rollout_id": os.urandom(8).hex()}, "task": task})
        assert reply["failure"] is None, reply
        result: Row = reply["result"]
        return result


@contextmanager
def serving(environment: str, workers: int, folder: Path) -> Iterator[Servers]:
    """`stateroom serve` with an environment, and Gym's servers, which know it and the model by name."""
    with ExitStack() as stack:
        port, model = free_port(), stack.enter_context(scripted_model())
        command = [Path(sys.executable).with_name("stateroom"), "serve", environment, "--port", str(port)]
        command += ["--workers", str(workers), "--store", f"sqlite:///{folder}/sessions.db", "--agent", "reference"]
        secret = {"STATEROOM_SECRET": "a secret that is only good for tests"}
        stack.enter_context(running(command, {port: "/ready"}, folder, secret))
        sockets = {name: stack.enter_context(socket.create_server(("127.0.0.1", 0))) for name in CLASSES}
        ports = {name: listening.getsockname()[1] for name, listening in sockets.items()}
        descriptors = {name: listening.fileno() for name, listening in sockets.items()}
        arguments = [f"{descriptors[name]},{name},{path}" for name, path in CLASSES.items()]
        told = {"NEMO_GYM_CONFIG_DICT": json.dumps(_configuration(ports, port, model))}
        command = [GYM / "bin" / "python", "-I", DRIVER, *arguments]
        answering = {port: "/" if name != "turn" else "/openapi.json" for name, port in ports.items()}
        stack.enter_context(running(command, answering, folder, told, pass_fds=[*descriptors.values()]))
        yield Servers(port, ports)


def _configuration(ports: Mapping[str, int], environment: int, model: int) -> Row:
    """What Gym's servers are told: where they are, and whom they ask."""

    def at(port: int, **more: Any) -> Row:
        return {"entrypoint": "app.py", "host": "127.0.0.1", "port": port, **more}

    resources = {"resources_server": {"type": "resources_servers", "name": "environment"}}
    references = {**resources, "model_server": {"type": "responses_api_models", "name": "model"}}
    turn = {
        **resources,
        "agent_server": {"type": "responses_api_agents", "name": "simple"},
        "resources_tool_transports": ["direct_http"],
        "cleanup_timeout_seconds": PATIENCE,
    }
    return {
        "head_server": {"host": "127.0.0.1", "port": ports["simple"]},  # nobody asks it: all is said here
        "environment": {"resources_servers": {"environment": at(environment)}},
        "model": {"responses_api_models": {"scripted": at(model)}},
        "simple": {"responses_api_agents": {"simple_agent": at(ports["simple"], **references)}},
        "gymnasium": {"responses_api_agents": {"gymnasium_agent": at(ports["gymnasium"], **references)}},
        "turn": {"environment_servers": {"single_agent_turn": at(ports["turn"], **turn)}},
    }


@contextmanager
def running(
    command: list[Any], answering: Mapping[int, str], folder: Path, variables: Mapping[str, str], **options: Any
) -> Iterator[None]:
    """A process of servers, from when all ports answer on a path; what it says and leaves behind is in a folder."""
    log = folder / f"{Path(command[1]).name}.log"
    variables = {**os.environ, "TMPDIR": str(folder), **variables}
    with (
        log.open("w") as said,
        subprocess.Popen(
            command, cwd=folder, env=variables, stdout=said, stderr=subprocess.STDOUT, **options
        ) as process,
    ):
        try:
            deadline = time.monotonic() + PATIENCE
            while not all(_answers(port, path) for port, path in answering.items()):
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


def post(port: int, path: str, body: Row) -> Any:
    connection = HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        reply = connection.getresponse()
        text = reply.read().decode()
        assert reply.status == 200, text
        return json.loads(text)
    finally:
        connection.close()


@contextmanager
def scripted_model() -> Iterator[int]:
    """The port of a model that does what it is told."""
    with ThreadingHTTPServer(("127.0.0.1", 0), ScriptedModel) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


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
            item: dict[str, Any] = {
                "type": "function_call",
                "call_id": f"call_{len(outputs)}",
                "name": name,
                "arguments": arguments,
            }
        else:
            said: dict[str, Any] = {"type": "output_text", "text": outputs[-1] if outputs else "", "annotations": []}
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


def scripted(row: Row, calls: list[tuple[str, str]]) -> Row:
    """A task row whose model makes these calls."""
    return row | {
        "responses_create_params": row["responses_create_params"] | {"metadata": {"calls": json.dumps(calls)}}
    }


def recorded(environment: str) -> list[tuple[Row, Row]]:
    """The recorded rollouts of Gym's server for an environment, each with its task."""
    tasks, rollouts = (
        [json.loads(line) for line in (RECORDED / environment / file).read_text().splitlines()]
        for file in ("example.jsonl", "example_rollouts.jsonl")
    )
    task_of = {prompt_of(task): task for task in tasks}
    return [(task_of[prompt_of(rollout)], rollout) for rollout in rollouts]


def prompt_of(row: Row) -> str:
    return json.dumps([(item["role"], item["content"]) for item in row["responses_create_params"]["input"]])


def calls_of(rollout: Row) -> list[tuple[str, str]]:
    items = rollout["response"]["output"]
    return [(item["name"], item["arguments"]) for item in items if item["type"] == "function_call"]


def outputs_of(rollout: Row) -> list[Any]:
    """What the calls of a rollout gave, in order."""
    items = rollout["response"]["output"]
    return [json.loads(item["output"]) for item in items if item["type"] == "function_call_output"]

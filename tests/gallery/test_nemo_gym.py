"""Counter, extraction and weather do what NeMo Gym's example servers do: its data, played in ours.

`nemo_gym/README.md` says where the data comes from.
"""

import json
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stateroom.environment import find_environment
from tests.more import GYM

DATA = Path(__file__).with_name("nemo_gym")
NAMES = ("weather", "extraction", "counter")

Row = dict[str, Any]


class Episode(NamedTuple):
    """An episode as NeMo Gym has played it."""

    environment: str
    row: Row
    response: Row
    outputs: list[Any]
    """The output of each call in the response; None where the server refused it."""
    verdict: Row | None
    """What the verifier found; None if it failed."""


class Played(NamedTuple):
    outputs: list[Any]
    verdict: Row


Play = Callable[[Episode], Awaitable[Played]]


def read(path: str) -> list[Row]:
    return [json.loads(line) for line in (DATA / path).read_text(encoding="utf-8").splitlines()]


def calls_in(response: Row) -> list[Row]:
    return [item for item in response["output"] if item["type"] == "function_call"]


def prompt_of(row: Row) -> str:
    return str(row["responses_create_params"]["input"][-1]["content"])


def recorded_rollouts(name: str) -> list[Episode]:
    """The rollouts that come with a server. They lack the fields of their tasks, which are those of its examples."""
    tasks = {prompt_of(row): row for row in read(f"{name}/example.jsonl")}
    found = []
    for rollout in read(f"{name}/example_rollouts.jsonl"):
        response = rollout["response"]
        told = {item["call_id"]: item["output"] for item in response["output"] if "output" in item}
        outputs = [json.loads(told[call["call_id"]]) for call in calls_in(response)]
        verdict = {key: value for key, value in rollout.items() if not key.startswith("response")}
        found.append(Episode(name, tasks.pop(prompt_of(rollout)), response, outputs, verdict))
    assert not tasks, "an example without a rollout"
    return found


def recorded_cases() -> list[Episode]:
    """What `record.py` has recorded."""
    return [
        Episode(case["environment"], case["row"], response_with(case["calls"]), case["outputs"], case["verdict"])
        for case in read("cases.jsonl")
    ]


def response_with(calls: list[tuple[str, str]]) -> Row:
    made = [
        {"type": "function_call", "call_id": f"call_{index}", "name": name, "arguments": arguments}
        for index, (name, arguments) in enumerate(calls)
    ]
    return {"output": made}


@pytest.fixture
async def play(serve: Any) -> Play:
    """Makes the calls of an episode on a server, and verifies it there."""
    served = await serve(*(find_environment(name)() for name in NAMES))

    async def play(episode: Episode) -> Played:
        served.client.cookie_jar.clear()
        at = f"/{episode.environment}"
        assert (await served.post(f"{at}/seed_session", episode.row))[0] == 200
        outputs = []
        for call in calls_in(episode.response):
            status, reply = await served.post(f"{at}/{call['name']}", json.loads(call["arguments"]))
            assert status in (200, 422)
            outputs.append(reply if status == 200 else None)
        status, verdict = await served.post(f"{at}/verify", {**episode.row, "response": episode.response})
        assert status == 200
        return Played(outputs, verdict)

    return play


@pytest.mark.parametrize("name", NAMES)
async def test_recorded_rollouts_have_the_same_outputs_and_verdicts(play: Play, name: str) -> None:
    for episode in recorded_rollouts(name):
        played = await play(episode)
        assert played.outputs == episode.outputs
        assert episode.verdict is not None
        assert {key: played.verdict.get(key) for key in episode.verdict} == episode.verdict


async def test_recorded_cases_have_the_same_outputs_and_verdicts(play: Play) -> None:
    """Where Gym's verifier fails, for the last submission is no list of integers, ours gives no reward."""
    for episode in recorded_cases():
        played = await play(episode)
        assert played.outputs == episode.outputs
        expected = episode.verdict or {"reward": 0.0, "parsed_synonym_values": []}
        assert {key: played.verdict.get(key) for key in expected} == expected


@pytest.mark.parametrize("case", read("weather/verifier_cases.jsonl")[:2], ids=lambda case: case["name"])
async def test_weather_judges_the_cases_of_its_verifier(play: Play, case: Row) -> None:
    """The third has no response, which Gym refuses; here it is an episode in which nothing was done."""
    request = dict(case["request"])
    response = request.pop("response")
    played = await play(Episode("weather", request, response, [], None))
    assert played.verdict["reward"] == case["expected_reward"]


@pytest.mark.more("NeMo Gym")
def test_the_recorded_cases_are_what_gym_does() -> None:
    command: list[Any] = [GYM / "bin" / "python", "-I", DATA / "record.py"]
    recorded = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [json.loads(line) for line in recorded.splitlines()] == read("cases.jsonl")

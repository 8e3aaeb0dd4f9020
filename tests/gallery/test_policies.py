"""The reference policies of counter, extraction and weather: prompts of NeMo Gym, and threads that go on."""

import json
from pathlib import Path
from typing import Any

import pytest

from stateroom import Environment
from stateroom.agent import Agent, Threads
from stateroom.environment import find_environment
from stateroom.gallery import CounterEnvironment, ExtractionEnvironment, WeatherEnvironment
from stateroom.model import Item, calls_of, function_call_output, input_items, message, text_of
from tests.cli.conftest import Command

DATA = Path(__file__).with_name("nemo_gym")
WORDS = {"id": 0, "expected_synonyms": ["Warm", "Blazing"], "expected_synonym_values": [407, 711]}
WORDS |= {"minefield_label": "Hot", "minefield_label_value": 299}


def played(stateroom: Command, name: str, tasks: Path) -> Any:
    """How the reference policy does on a file of tasks."""
    return stateroom("run", name, "--input", tasks, "--model", "reference", "--json").json


@pytest.mark.parametrize("name", ["counter", "extraction", "weather"])
def test_the_examples_of_nemo_gym_are_solved(stateroom: Command, name: str) -> None:
    found = played(stateroom, name, DATA / name / "example.jsonl")
    assert (found["episodes"], found["failed"], found["metrics"]["mean/reward"]) == (5, 0, 1.0)


@pytest.mark.parametrize(
    ("name", "prompt", "fields"),
    [
        ("counter", "Increment the counter by 2, then tell me the current value.", {"expected_count": 2}),
        ("counter", "add 4 then add 3 then get the count", {"expected_count": 7}),
        (
            "extraction",
            "For the synonyms ['Warm', 'Blazing'], look up each synonym_value, then submit the list.",
            {},
        ),
        ("weather", "Tell me the weather in New York", {}),
    ],
)
def test_prompts_of_nemo_gyms_tutorials_are_solved(
    stateroom: Command, tmp_path: Path, name: str, prompt: str, fields: dict[str, Any]
) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"responses_create_params": {"input": prompt}, "initial_count": 0, **WORDS, **fields}))
    assert played(stateroom, name, tasks)["metrics"]["mean/reward"] == 1.0


async def in_a_thread(environment: Environment[Any, Any], task: dict[str, Any], *prompts: str) -> list[list[Item]]:
    """What the reference policy does about each of some messages."""
    agent = Agent(environment.policies["reference"]())
    async with Threads.open("memory://", environment) as threads:
        thread = await threads.create(task=task)
        turns = []
        for prompt in prompts:
            await threads.add(thread, prompt)
            turns.append([*(await threads.run(thread, agent)).output])
        return turns


async def test_the_counter_goes_on_in_a_thread() -> None:
    prompts = ("add 4, then add 2", "Increment the counter by 10.", "What is it now?")
    turns = await in_a_thread(CounterEnvironment(), {"initial_count": 3, "expected_count": 19}, *prompts)
    assert [text_of(turn[-1]) for turn in turns] == [f"The counter is at {value}." for value in (9, 19, 19)]
    ids = [item["call_id"] for turn in turns for item in turn if item["type"] == "function_call"]
    assert len({*ids}) == len(ids) == 6


async def test_extraction_goes_on_in_a_thread() -> None:
    prompts = ("Look up one at a time: fast, speedy. Then hand in.", "For the synonyms ['Warm'], do the same.")
    turns = await in_a_thread(ExtractionEnvironment(), WORDS, *prompts)
    submitted = [calls_of({"output": turn}, "extract_synonym_values")[-1]["arguments"] for turn in turns]
    assert [json.loads(each)["synonym_values"] for each in submitted] == [[430, 650], [407]]


def test_weather_goes_on_in_a_conversation() -> None:
    policy = find_environment("weather").policies["reference"]()
    conversation: list[Item] = []
    for city in ("Lima", "Porto"):
        conversation += input_items(f"What is the weather in {city}?")
        [call] = policy.respond(conversation, [])
        assert json.loads(call["arguments"]) == {"city": city}
        output = WeatherEnvironment().get_weather(city)
        conversation += [call, function_call_output(call["call_id"], json.dumps(output))]
        conversation += policy.respond(conversation, [])
        assert conversation[-1] == message(f"The weather in {city} is cold.")

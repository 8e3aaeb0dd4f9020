"""The three seed environments, field by field and tool by tool."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stateroom import Environment, Sessions
from stateroom.gallery import CounterEnvironment, ExtractionEnvironment, WeatherEnvironment
from stateroom.store import Store, open_store

EXTRACTION = {
    "id": 1,
    "expected_synonym_values": [30, 10, 20],
    "expected_synonyms": ["a", "b", "c"],
    "minefield_label": "x",
    "minefield_label_value": 99,
}


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    async with open_store("memory://") as opened:
        yield opened


@pytest.mark.parametrize(
    ("environment", "tools", "fields"),
    [
        (
            CounterEnvironment(),
            {"increment_counter": {"count": "integer"}, "get_counter_value": {}},
            {"initial_count", "expected_count"},
        ),
        (
            ExtractionEnvironment(),
            {"get_synonym_value": {"synonym": "string"}, "extract_synonym_values": {"synonym_values": "array"}},
            set(EXTRACTION),
        ),
        (WeatherEnvironment(), {"get_weather": {"city": "string"}}, set()),
    ],
)
def test_tools_and_task_fields(
    environment: Environment[Any, Any], tools: dict[str, dict[str, str]], fields: set[str]
) -> None:
    offered = {
        each["name"]: {name: part["type"] for name, part in each["parameters"]["properties"].items()}
        for each in environment.tool_definitions()
    }
    assert offered == tools
    assert all(each["strict"] for each in environment.tool_definitions())
    assert set(environment.task_type.model_fields) - {"responses_create_params"} == fields


async def test_counter(store: Store) -> None:
    session = await Sessions(CounterEnvironment(), store).seed({"initial_count": -2, "expected_count": 5})
    assert (await session.call("get_counter_value")).output == {"count": -2}
    assert (await (await session.fork()).verify()).reward == 0.0
    assert (await session.call("increment_counter", {"count": 9})).output == {"success": True}
    assert (await session.call("increment_counter", {"count": -2})).output == {"success": True}
    assert (await session.call("get_counter_value", {})).output == {"count": 5}
    assert (await session.verify()).reward == 1.0


async def test_weather(store: Store) -> None:
    session = await Sessions[Any](WeatherEnvironment(), store).seed({})
    told = (await session.call("get_weather", {"city": "São Paulo"})).output
    assert told == {"city": "São Paulo", "weather_description": "The weather in São Paulo is cold."}


@pytest.mark.parametrize(
    ("item", "reward"),
    [
        ({"type": "function_call", "name": "get_weather"}, 1.0),
        ({"type": "function_call", "name": "mcp__weather__get_weather"}, 1.0),
        ({"type": "function_call", "name": "mcp__other__forget_weather"}, 0.0),
        ({"type": "function_call", "name": "forget_weather"}, 0.0),
        ({"type": "message", "name": None, "content": "get_weather"}, 0.0),
        ({"type": "reasoning", "summary": []}, 0.0),
    ],
)
async def test_weather_rewards_a_call(store: Store, item: dict[str, Any], reward: float) -> None:
    session = await Sessions[Any](WeatherEnvironment(), store).seed({})
    assert (await session.verify({"output": [item]})).reward == reward


async def test_a_word_is_worth_its_code_points(store: Store) -> None:
    session = await Sessions(ExtractionEnvironment(), store).seed(EXTRACTION)
    for word, value in (("ab", 97 + 98), ("", 0), ("é", 233), ("😀", 128512)):
        assert (await session.call("get_synonym_value", {"synonym": word})).output == {"synonym_value": value}


def submission(answer: Any) -> dict[str, Any]:
    arguments = json.dumps({"synonym_values": answer})
    return {"type": "function_call", "name": "mcp__extraction__extract_synonym_values", "arguments": arguments}


@pytest.mark.parametrize(
    ("answers", "response", "parsed"),
    [
        ([], None, []),
        ([[30, 10, 20]], None, [30, 10, 20]),
        ([[30, 10, 20], "oops"], None, [30, 10, 20]),  # a refused call is not in the state
        ([[1], [30, 10, 20]], {"output": [{"type": "message", "role": "assistant", "content": []}]}, [30, 10, 20]),
        ([[30, 10, 20]], {"output": [submission([30, 10, 20]), submission([1])]}, [1]),
        ([[1]], {"output": [submission([1]), submission([30, 10, 20])]}, [30, 10, 20]),
    ],
)
async def test_the_last_answer_is_that_of_the_response_or_else_of_the_state(
    store: Store, answers: list[Any], response: Any, parsed: list[int]
) -> None:
    session = await Sessions(ExtractionEnvironment(), store).seed(EXTRACTION)
    for answer in answers:
        await session.call("extract_synonym_values", {"synonym_values": answer})
    verdict = await session.verify(response)
    assert verdict.details == {"parsed_synonym_values": parsed}
    assert verdict.reward == float(parsed == [30, 10, 20])


async def test_a_task_that_expects_nothing_can_be_judged(store: Store) -> None:
    session = await Sessions(ExtractionEnvironment(), store).seed(EXTRACTION | {"expected_synonym_values": []})
    verdict = await session.verify()
    assert (verdict.reward, verdict.metrics["set_overlap"]) == (1.0, 0.0)

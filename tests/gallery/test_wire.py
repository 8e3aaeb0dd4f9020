"""How weather and extraction judge what is in a response."""

import json
from typing import Any

import pytest

from stateroom import Sessions
from stateroom.gallery import ExtractionEnvironment, WeatherEnvironment
from stateroom.store import Store

EXTRACTION = {
    "id": 1,
    "expected_synonym_values": [30, 10, 20],
    "expected_synonyms": ["a", "b", "c"],
    "minefield_label": "x",
    "minefield_label_value": 99,
}


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

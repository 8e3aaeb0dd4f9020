"""The three seed environments, field by field and tool by tool."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from stateroom import Environment, Sessions, Verdict
from stateroom.gallery.counter import CounterEnvironment
from stateroom.gallery.extraction import ExtractionEnvironment
from stateroom.gallery.weather import WeatherEnvironment
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
    first = (await session.call("get_weather", {"city": "São Paulo"})).output
    assert set(first) == {"city", "weather_description"}
    assert first["city"] == "São Paulo"
    assert "São Paulo" in first["weather_description"]
    assert (await session.call("get_weather", {"city": "São Paulo"})).output == first


@pytest.mark.parametrize(
    ("item", "asked"),
    [
        ({"type": "function_call", "name": "get_weather"}, 1.0),
        ({"type": "function_call", "name": "mcp__weather__get_weather"}, 1.0),
        ({"type": "function_call", "name": "forget_weather"}, 0.0),
        ({"type": "message", "name": None, "content": "get_weather"}, 0.0),
        ({"type": "reasoning", "summary": []}, 0.0),
    ],
)
async def test_weather_tells_whether_it_was_asked(store: Store, item: dict[str, Any], asked: float) -> None:
    session = await Sessions[Any](WeatherEnvironment(), store).seed({})
    verdict = await session.verify({"output": [item]})
    assert (verdict.reward, verdict.metrics) == (1.0, {"asked": asked})


async def test_a_word_is_worth_its_code_points(store: Store) -> None:
    session = await Sessions(ExtractionEnvironment(), store).seed(EXTRACTION)
    for word, value in (("ab", 97 + 98), ("", 0), ("é", 233), ("😀", 128512)):
        assert (await session.call("get_synonym_value", {"synonym": word})).output == {"synonym_value": value}


async def extraction(store: Store, *answers: Any, **changes: Any) -> Verdict:
    session = await Sessions(ExtractionEnvironment(), store).seed(EXTRACTION | changes)
    for answer in answers:
        await session.call("extract_synonym_values", {"synonym_values": answer})
    return await session.verify()


@pytest.mark.parametrize(
    ("answers", "changes", "reward", "overlap", "mine", "order"),
    [
        ([[30, 10, 20]], {}, 1, 1, 0, 0),
        ([], {}, 0, 0, 0, 0),
        ([[]], {}, 0, 0, 0, 0),
        ([[10, 20, 30]], {}, 0, 1, 0, 1),
        ([[30, 10]], {}, 0, 2 / 3, 0, 0),
        ([[30, 10, 20, 7]], {}, 0, 1, 0, 0),
        ([[30, 10, 20, 20]], {}, 0, 1, 0, 1),  # compared as sets, as the name of the metric has it
        ([[30, 10, 20, 99]], {}, 0, 1, 1, 0),
        ([[99]], {}, 0, 0, 1, 0),
        ([[1], [30, 10, 20]], {}, 1, 1, 0, 0),  # the last answer counts
        ([[30, 10, 20], [1]], {}, 0, 0, 0, 0),
        ([[30, 10, 20], "oops"], {}, 1, 1, 0, 0),  # a call that failed is no answer
        ([[5, 6, 5]], {"expected_synonym_values": [5, 6, 5]}, 1, 1, 0, 0),
        ([[5, 6]], {"expected_synonym_values": [5, 6, 5]}, 0, 1, 0, 1),
        ([[5, 5, 6]], {"expected_synonym_values": [5, 6, 5]}, 0, 1, 0, 1),
        ([[10, 99]], {"expected_synonym_values": [10, 99]}, 1, 1, 0, 0),  # no mine where it is asked for
        ([[99, 10]], {"expected_synonym_values": [10, 99]}, 0, 1, 0, 1),
    ],
)
async def test_extraction_reports_what_went_wrong(
    store: Store,
    answers: list[Any],
    changes: dict[str, Any],
    reward: float,
    overlap: float,
    mine: float,
    order: float,
) -> None:
    verdict = await extraction(store, *answers, **changes)
    assert verdict.reward == reward
    assert verdict.metrics == {
        "accuracy": reward,
        "set_overlap": pytest.approx(overlap),
        "original_term_minefield_hit": mine,
        "order_instruction_following_failure": order,
    }
    given = [answer for answer in answers if isinstance(answer, list)]
    assert verdict.details == {"parsed_synonym_values": given[-1] if given else []}

"""How weather, counter and extraction judge a response, and which steps they need when they are strict."""

import json
from pathlib import Path
from typing import Any

import pytest

from stateroom import Environment, Sessions, Verdict
from stateroom.agent import Agent, run
from stateroom.gallery import CounterEnvironment, ExtractionEnvironment, WeatherEnvironment
from stateroom.model import Item, Scripted, function_call
from stateroom.rollout import example_file, plan_run, run as collect
from stateroom.store import Store, open_store
from tests.processes import ROOT
from tests.rows import rows

COUNTER = {"responses_create_params": {"input": "add 2, read, report"}, "initial_count": 3, "expected_count": 5}
ADD, READ = function_call("increment_counter", "a", count=2), function_call("get_counter_value", "r")

WORDS = {
    "id": 1,
    "expected_synonyms": ["a", "b"],
    "expected_synonym_values": [97, 98],
    "minefield_label": "c",
    "minefield_label_value": 99,
}
LOOK_UPS = [function_call("get_synonym_value", word, synonym=word) for word in "ab"]
HAND_IN = function_call("extract_synonym_values", "h", synonym_values=[97, 98])


async def verdict_of(environment: Environment[Any, Any], row: dict[str, Any], *answers: Item | str) -> Verdict:
    """The verdict on an episode in which the model gives these answers."""
    async with open_store("memory://") as store:
        session = await Sessions[Any](environment, store).seed(row)
        script = Scripted([answer if isinstance(answer, str) else [answer] for answer in answers])
        trajectory = await run(Agent(script), session)
        return await session.verify({"output": trajectory.output})


@pytest.mark.parametrize(
    ("answers", "read_back", "reported"),
    [
        ([ADD, READ, "It is 5."], 1.0, 1.0),
        ([ADD, "It is 5."], 0.0, 1.0),
        ([READ, ADD, "It is 5."], 0.0, 1.0),
        ([ADD, READ, "It is 15, or 5.5, or -5."], 1.0, 0.0),
        ([ADD, READ, "Done."], 1.0, 0.0),
    ],
)
async def test_a_strict_counter_is_read_after_the_last_addition_and_reported(
    answers: list[Any], read_back: float, reported: float
) -> None:
    loose = await verdict_of(CounterEnvironment(), COUNTER, *answers)
    strict = await verdict_of(CounterEnvironment(strict=True), COUNTER, *answers)
    assert loose.components == strict.components == {"read_back": read_back, "reported": reported}
    assert (loose.reward, strict.reward) == (1.0, read_back * reported)


@pytest.mark.parametrize("policy", ["reference", "noisy"])
async def test_the_counter_of_the_tutorial_rewards_what_the_gallerys_does(tmp_path: Path, policy: str) -> None:
    page = (ROOT / "docs" / "tutorial" / "state.md").read_text(encoding="utf-8")
    source = tmp_path / "tutorial.py"
    source.write_text(page.partition('```python title="counter.py"\n')[2].partition("```")[0])
    options: dict[str, Any] = {"input": example_file(CounterEnvironment), "repeats": 4, "store": "memory://"}
    rewards = []
    for name, environment in (("tutorial", f"{source}:CounterEnvironment"), ("gallery", "counter")):
        model = CounterEnvironment.policies[policy]
        plan = plan_run(environment, model=model, output=tmp_path / f"{name}.jsonl", **options)
        await collect(plan)
        rewards.append([row["reward"] for row in rows(tmp_path / f"{name}.jsonl")])
    assert rewards[0] == rewards[1]
    assert len(set(rewards[1])) == (1 if policy == "reference" else 2)


@pytest.mark.parametrize("looked_up", [0, 1, 2])
async def test_strict_extraction_looks_up_each_word(looked_up: int) -> None:
    answers: list[Any] = [*LOOK_UPS[:looked_up], HAND_IN, "Done."]
    loose = await verdict_of(ExtractionEnvironment(), WORDS, *answers)
    strict = await verdict_of(ExtractionEnvironment(strict=True), WORDS, *answers)
    assert loose.components == strict.components == {"looked_up": looked_up / 2}
    assert (loose.reward, strict.reward) == (1.0, float(looked_up == 2))


async def test_what_is_wrong_earns_nothing_however_it_was_done() -> None:
    verdict = await verdict_of(CounterEnvironment(strict=True), COUNTER, READ, "It is 3.")
    assert (verdict.reward, verdict.components) == (0.0, {"read_back": 1.0, "reported": 1.0})


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
        ([[97, 98]], None, [97, 98]),
        ([[97, 98], "oops"], None, [97, 98]),  # a refused call is not in the state
        ([[1], [97, 98]], {"output": [{"type": "message", "role": "assistant", "content": []}]}, [97, 98]),
        ([[97, 98]], {"output": [submission([97, 98]), submission([1])]}, [1]),
        ([[1]], {"output": [submission([1]), submission([97, 98])]}, [97, 98]),
    ],
)
async def test_the_last_answer_is_that_of_the_response_or_else_of_the_state(
    store: Store, answers: list[Any], response: Any, parsed: list[int]
) -> None:
    session = await Sessions(ExtractionEnvironment(), store).seed(WORDS)
    for answer in answers:
        await session.call("extract_synonym_values", {"synonym_values": answer})
    verdict = await session.verify(response)
    assert verdict.details == {"parsed_synonym_values": parsed}
    assert verdict.reward == float(parsed == [97, 98])


async def test_a_task_that_expects_nothing_can_be_judged(store: Store) -> None:
    session = await Sessions(ExtractionEnvironment(), store).seed(WORDS | {"expected_synonym_values": []})
    verdict = await session.verify()
    assert (verdict.reward, verdict.metrics["set_overlap"]) == (1.0, 0.0)

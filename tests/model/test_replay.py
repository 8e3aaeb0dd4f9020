"""Answers that are played again: found by their task, checked against what was said then."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from stateroom.errors import BadTask, ModelFailed, NotFound
from stateroom.model import (
    Item,
    Replayed,
    Request,
    answer_of,
    function_call,
    function_call_output,
    input_items,
    message,
)
from stateroom.rollout import plan_run, run
from tests.messages import raises
from tests.rows import rows

REASONING: Item = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Hm."}]}


def row(task: str, answer: str, *, seed: int = 0, number: int = 0, rollout: int = 0) -> dict[str, Any]:
    """An episode with two parallel calls, one more, and a word at the end."""
    output = [
        REASONING,
        function_call("add", "c1", number=1),
        function_call("add", "c2", number=2),
        function_call_output("c1", "1"),
        function_call_output("c2", "3"),
        function_call("add", "c3", number=3),
        function_call_output("c3", "6"),
        message(answer),
    ]
    return {
        "responses_create_params": {"input": task},
        "response": {"id": f"resp_{seed:016x}", "output": output},
        "_ng_task_index": number,
        "_ng_rollout_index": rollout,
    }


OUTPUT = row("one", "a")["response"]["output"]


async def played(model: Replayed, task: Any, seed: int = 0) -> list[Item]:
    """A whole episode, in which the tools say what they said in the record."""
    results = {"c1": "1", "c2": "3", "c3": "6"}
    items: list[Item] = []
    for step in range(3):
        answer = await answer_of(model, Request([*input_items(task), *items], seed=seed, step=step))
        calls = [item["call_id"] for item in answer.items if item["type"] == "function_call"]
        items += [*answer.items, *(function_call_output(call_id, results[call_id]) for call_id in calls)]
    return items


async def test_a_text_and_its_item_are_the_same_task() -> None:
    model = Replayed([row("one", "a")])
    assert (await played(model, [{"role": "user", "content": [{"type": "input_text", "text": "one"}]}]))[-1] == message(
        "a"
    )


async def test_a_seed_that_has_none_always_has_the_same() -> None:
    rows = [row("one", f"answer {rollout}", seed=rollout, rollout=rollout) for rollout in range(4)]
    found = [(await played(Replayed(rows), "one", seed))[-1]["content"][0]["text"] for seed in range(100, 140)]
    again = [(await played(Replayed(rows[::-1]), "one", seed))[-1]["content"][0]["text"] for seed in range(100, 140)]
    assert found == again
    assert set(found) == {"answer 0", "answer 1", "answer 2", "answer 3"}


async def test_a_task_that_begins_like_another_is_not_taken_for_it() -> None:
    short, long = row("one", "a"), row("one", "b", number=1)
    opening = [*input_items("one"), message("And?"), *input_items("two")]
    long["responses_create_params"]["input"] = opening
    assert (await played(Replayed([short, long]), opening))[-1] == message("b")
    assert (await played(Replayed([long, short]), "one"))[-1] == message("a")


async def test_ids_statuses_and_reasoning_do_not_matter() -> None:
    changed = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    renamed = [{**item, "status": "in_progress", "id": "other"} for item in OUTPUT[:5]]
    for shown in (renamed, OUTPUT[1:5], [changed, *OUTPUT[1:5]], [*OUTPUT[1:3], message(""), *OUTPUT[3:5]]):
        answer = await answer_of(Replayed([row("one", "a")]), Request([*input_items("one"), *shown], step=1))
        assert answer.items == [OUTPUT[5]]


@pytest.mark.parametrize(
    ("task", "shown", "step"),
    [
        ("one", [*OUTPUT[:4], function_call_output("c2", "5")], 1),
        ("one", OUTPUT[:3], 1),
        ("one", OUTPUT, 3),
        ("three", [], 0),
    ],
    ids=["another result", "another length", "no such answer", "no such task"],
)
async def test_what_is_not_on_record_is_told(task: str, shown: list[Item], step: int) -> None:
    with raises(ModelFailed):
        await answer_of(Replayed([row("one", "a")]), Request([*input_items(task), *shown], step=step))


@pytest.mark.parametrize("status", ["completed", "incomplete"])
async def test_an_episode_that_ended_without_a_word_ends_so_again(status: str) -> None:
    silent = row("one", "a")
    silent["response"] |= {"status": status, "output": silent["response"]["output"][:-1]}
    request = Request([*input_items("one"), *silent["response"]["output"]], step=2)
    if status == "completed":
        assert (await answer_of(Replayed([silent]), request)).items == []
    else:
        with raises(ModelFailed):
            await answer_of(Replayed([silent]), request)


async def test_a_word_of_the_user_parts_two_answers() -> None:
    episode = row("one", "a")
    user = input_items("And then?")
    episode["response"]["output"] = [message("a"), *user, message("b")]
    shown = [*input_items("one"), message("a"), *user]
    assert (await answer_of(Replayed([episode]), Request(shown, step=1))).items == [message("b")]


async def test_repeats_without_proper_numbers_are_played_too() -> None:
    numbered = [row("one", "a") | {"_ng_task_index": None}, row("one", "b") | {"_ng_rollout_index": "first"}]
    assert (await played(Replayed(numbered), "one"))[-1] in (message("a"), message("b"))


@pytest.mark.parametrize(
    "text",
    [
        '{"a": ',
        "[1]",
        "{}",
        '{"responses_create_params": {"input": ["x"]}, "response": {"output": []}}',
        '{"responses_create_params": {"input": [{"content": 7}]}, "response": {"output": []}}',
        '{"responses_create_params": {"input": "x"}, "response": {"output": [{"content": ["y"]}]}}',
    ],
)
def test_a_line_that_is_no_episode_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(f"{json.dumps(row('one', 'a'))}\n{text}\n")
    with raises(BadTask):
        Replayed.of_file(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with raises(NotFound):
        Replayed.of_file(tmp_path / "nowhere.jsonl")


def episodes(environment: str, model: str, output: Path) -> list[tuple[float, Any]]:
    """The rewards and the items of a run's episodes."""
    asyncio.run(run(plan_run(environment, model=model, repeats=3, store="memory://", output=output)))
    return [(row["reward"], row["response"]["output"]) for row in rows(output)]


@pytest.mark.parametrize("environment", ["counter", "extraction", "weather"])
def test_a_run_is_played_again(environment: str, tmp_path: Path) -> None:
    first = tmp_path / "first.jsonl"
    played = episodes(environment, "noisy", first)
    assert episodes(environment, f"replay:{first}", tmp_path / "again.jsonl") == played
    assert {reward for reward, _ in played} == {0.0, 1.0}

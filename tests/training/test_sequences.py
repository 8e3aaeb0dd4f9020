"""Exact tokens, from a model's server to a trainer's sequences."""

import json
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from stateroom import Sessions, open_store
from stateroom.agent import Agent, Context, DropOldest, run
from stateroom.errors import BadData, ModelFailed
from stateroom.gallery import CounterEnvironment
from stateroom.model import (
    Answer,
    Item,
    Model,
    Request,
    Segment,
    function_call,
    message,
    with_whole_prompts,
    without_tokens,
)
from stateroom.store import Store
from stateroom.training import sequences, token_advantages
from tests.examples import share
from tests.messages import raises
from tests.servers.vllm import text_of_tokens
from tests.training.collecting import collect, rows_in

TASK = {"initial_count": 0, "expected_count": 3, "responses_create_params": {"input": "Add 1, three times."}}


def tokens_of(items: Sequence[Item]) -> list[int]:
    """The tokens of a conversation in these tests: those of the answers as they were written, and one for each rest."""
    found: list[int] = []
    for item in items:
        own = item.get("generation_token_ids")
        found += own if own is not None else [1000 + sum(json.dumps(item).encode()) % 1000]
    return found


class Counting(Model):
    """Adds 1 until its `last` answer, and reports tokens: a prompt has those of all items that it is shown."""

    name = "counting"

    def __init__(self, last: int = 3, retokenises_at: int = -1) -> None:
        self.last = last
        self.retokenises_at = retokenises_at

    async def answer(self, request: Request) -> Answer:
        assert request.tokens
        step = request.step
        call = function_call("increment_counter", f"c{step}", count=1)
        item = call if step < self.last else message("Done.")
        shown = without_tokens(request.items) if step == self.retokenises_at else request.items
        own = {"generation_token_ids": [step, step + 1], "generation_log_probs": [-0.5, -step / 4]}
        return Answer([{**item, "prompt_token_ids": tokens_of(shown), **own}])


def row_of(output: list[Item]) -> dict[str, Any]:
    return {"_ng_task_index": 0, "_ng_rollout_index": 0, "response": {"output": output}}


async def output_of(session: Any) -> list[Item]:
    return list((await session.agent.response())["output"])


@pytest.mark.parametrize("env", ["counter", "extraction", "refund"])
async def test_a_run_with_tokens_gives_one_sequence_an_episode(env: str, tmp_path: Path) -> None:
    report = await collect(env, tmp_path / "r.jsonl", limit=3)
    assert report.failed == 0
    for row in rows_in(tmp_path / "r.jsonl"):
        (sequence,) = sequences(row)
        whole = [item for item in with_whole_prompts(row["response"]["output"]) if "generation_token_ids" in item]
        assert sequence.ids == [*whole[-1]["prompt_token_ids"], *whole[-1]["generation_token_ids"]]
        told = [text_of_tokens(sequence.ids[start:stop]) for _, start, stop in sequence.steps]
        assert len(told) == len(whole)
        assert "".join(told) == text_of_tokens([*compress(sequence.ids, sequence.mask)])
        assert all("tool_call_id" not in text for text in told)
        assert [bool(value) for value in sequence.log_probs] == [bool(own) for own in sequence.mask]


async def test_a_server_that_tokenises_anew_is_named_and_refused_or_split(tmp_path: Path) -> None:
    refused = await collect("counter", tmp_path / "exact.jsonl", limit=1, retokenises=True)
    assert refused.failed == 1
    assert refused.first_error is not None
    assert "chat:m@" in refused.first_error
    assert "`record_tokens`" in refused.first_error
    await collect("counter", tmp_path / "split.jsonl", limit=1, retokenises=True, record_tokens="split")
    (row,) = rows_in(tmp_path / "split.jsonl")
    segments = sequences(row)
    assert len(segments) > 1
    assert [step.answer for segment in segments for step in segment.steps] == list(range(len(segments)))


async def test_without_tokens_nothing_is_asked_for(tmp_path: Path) -> None:
    await collect("counter", tmp_path / "r.jsonl", limit=1, record_tokens=None)
    (row,) = rows_in(tmp_path / "r.jsonl")
    assert not any("generation_token_ids" in item for item in row["response"]["output"])
    with raises(BadData):
        sequences(row)


@pytest.mark.every_store
async def test_the_rule_holds_after_forks_rewinds_and_resumption(store: Store) -> None:
    session = await Sessions(CounterEnvironment(), store).seed(TASK)
    await run(Agent(Counting(), tokens="exact"), session)
    (whole,) = sequences(row_of(await output_of(session)))
    fork = await session.fork(5)  # in the middle: the seed, and two answers with their calls
    await session.rewind(3)
    again = await Sessions(CounterEnvironment(), store).open(session.id)  # as another process would
    for each in (fork, again):
        await run(Agent(Counting(), tokens="exact"), each)
        assert sequences(row_of(await output_of(each))) == [whole]
    assert len(whole.steps) == 4


async def test_a_compaction_starts_a_segment(store: Store) -> None:
    session = await Sessions(CounterEnvironment(), store).seed(TASK)
    context = Context(200, strategies=[DropOldest()])
    await run(Agent(Counting(last=20), tokens="exact", context=context), session)
    compactions = [entry async for entry in session.log(kinds=["compaction"])]
    assert compactions
    assert not any("generation_token_ids" in item for entry in compactions for item in entry.facts["items"])
    segments = sequences(row_of(await output_of(session)))
    assert len(segments) == len(compactions) + 1
    assert sum(len(segment.steps) for segment in segments) == 21


async def test_other_instructions_start_a_segment_also_after_a_resumption(store: Store) -> None:
    class Telling(CounterEnvironment):
        def instructions(self, state: Any) -> str:
            return "even" if state.value % 4 < 2 else "odd"  # another one after each second call

    session = await Sessions(Telling(), store).seed(TASK)
    await run(Agent(Counting(last=7), tokens="exact"), session)
    whole = sequences(row_of(await output_of(session)))
    assert [len(segment.steps) for segment in whole] == [2, 2, 2, 2]
    for at in range(1, session.revision, 3):
        fork = await session.fork(at)
        await run(Agent(Counting(last=7), tokens="exact"), fork)
        assert sequences(row_of(await output_of(fork))) == whole


@pytest.mark.parametrize(
    "tokens",
    [
        {},
        {"generation_token_ids": [1], "prompt_token_ids": [2]},
        {"generation_token_ids": [1], "prompt_token_ids": [2], "generation_log_probs": []},
        {"generation_token_ids": [1], "prompt_token_ids": ["2"], "generation_log_probs": [0.0]},
    ],
)
def test_an_answer_without_whole_tokens_is_refused(tokens: dict[str, Any]) -> None:
    with raises(ModelFailed):
        Segment().extend([{**message("Hi."), **tokens}], "a model", "exact")


async def test_a_hundred_turns_take_little_more_than_their_tokens() -> None:
    sizes = {}
    for wants in ("exact", None):
        async with open_store("memory://") as store:
            session = await Sessions(CounterEnvironment(), store).seed(TASK)
            await run(Agent(_Long(), tokens=wants, max_steps=200), session)
            sizes[wants] = sum([len(msgspec.msgpack.encode(entry.facts)) async for entry in session.log()])
            if wants:
                (sequence,) = sequences(row_of(await output_of(session)))
                payload = len(msgspec.msgpack.encode((sequence.ids, [p for p in sequence.log_probs if p])))
    assert sizes["exact"] - sizes[None] <= 1.2 * payload


class _Long(Counting):
    """A hundred answers of 64 tokens each, between tool results of 64."""

    async def answer(self, request: Request) -> Answer:
        step = request.step
        item = message("Done.") if step == 100 else function_call("increment_counter", f"c{step}", count=1)
        if not request.tokens:
            return Answer([item])
        spoken = [50_000 + place for place in range(64)]
        prompt = [token for past in range(step) for token in [*(3 * [49_000 + past]), *spoken]]
        own = {"generation_token_ids": spoken, "generation_log_probs": [-0.123456 - place for place in range(64)]}
        return Answer([{**item, "prompt_token_ids": [*prompt, *(3 * [49_000 + step])], **own}])


read = st.lists(st.integers(0, 99), max_size=4)
wrote = st.lists(st.integers(100, 199), min_size=1, max_size=4)


@given(st.lists(st.tuples(read, wrote, st.booleans()), min_size=1, max_size=6))
@settings(max_examples=share(2))
def test_sequences_have_what_was_read_and_written(answers: list[tuple[list[int], list[int], bool]]) -> None:
    """An answer is what was read since the last one, what was written, and whether the server then tokenises anew."""
    reported, output = Segment(), []
    wanted: list[tuple[list[int], list[int]]] = []
    for number, (read, wrote, anew) in enumerate(answers):
        if anew or not wanted:
            wanted.append(([999 + number], [0]))
        ids, mask = wanted[-1]
        tokens = {"prompt_token_ids": [*ids, *read], "generation_token_ids": wrote}
        ids += [*read, *wrote]
        mask += [0] * len(read) + [1] * len(wrote)
        item = {**message("…"), **tokens, "generation_log_probs": [-1.0] * len(wrote)}
        output += reported.extend([item], "a model", "split")
        output.append({"type": "message", "role": "user", "content": "go on"})
    for row in (row_of(output), row_of(with_whole_prompts(output))):
        made = sequences(row)
        assert [(each.ids, each.mask) for each in made] == wanted
        assert [each.log_probs for each in made] == [[-float(bit) for bit in mask] for _, mask in wanted]
        values = [float(number + 1) for number in range(len(answers))]
        assert [bool(value) for each in made for value in token_advantages(each, values)] == [
            bool(bit) for each in made for bit in each.mask
        ]

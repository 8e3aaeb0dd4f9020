"""Exports of runs: what is in them, whichever trainer reads them."""

import json
import os
from collections.abc import Iterator
from functools import reduce
from math import isfinite
from operator import getitem
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from stateroom.errors import BadData, InvalidArguments
from stateroom.gallery import CounterEnvironment
from stateroom.jsonl import line_of
from stateroom.rollout import MonteCarlo, RunFiles, StoredRun, branch, example_file, plan_branches, plan_run, run
from stateroom.training import FORMATS, To, advantages, export_rows, sequences, write_table
from tests.examples import share
from tests.messages import raises
from tests.training.collecting import collect, rows_in


async def exported(path: Path, to: To, **options: Any) -> list[dict[str, Any]]:
    return [row async for row in export_rows(StoredRun.find(path), to, **options)]


@pytest.fixture
async def group(tmp_path: Path) -> Path:
    """A run of groups by a policy that errs."""
    path = tmp_path / "group.jsonl"
    await run(plan_run("extraction", model="noisy", group=4, output=path))
    return path


@pytest.fixture
async def trees(tmp_path: Path) -> Path:
    """A run of trees by the same policy."""
    path = tmp_path / "trees.jsonl"
    await branch(plan_branches("extraction", model="noisy", output=path, rule=MonteCarlo(3)))
    return path


async def test_sft_has_the_solved_episodes_as_messages(group: Path) -> None:
    rows, episodes = await exported(group, "sft"), rows_in(group)
    assert len(rows) == sum(row["reward"] == 1 for row in episodes)
    for row in rows:
        roles = [each["role"] for each in row["messages"]]
        assert roles[:2] == ["user", "assistant"]
        assert roles[-1] == "assistant"
        calls = [call["function"] for each in row["messages"] for call in each.get("tool_calls", ())]
        assert isinstance(calls[-1]["arguments"]["synonym_values"], list)
        assert {tool["function"]["name"] for tool in json.loads(row["tools"])} >= {call["name"] for call in calls}
    assert len(await exported(group, "sft", min_reward=0)) == len(episodes)


async def test_messages_begin_with_the_instructions_that_the_environment_gave(tmp_path: Path) -> None:
    class Telling(CounterEnvironment):
        def instructions(self, state: Any) -> str:
            return f"The counter is at {state.value}."

    path = tmp_path / "told.jsonl"
    await run(plan_run(Telling, model="reference", input=example_file(CounterEnvironment), limit=1, output=path))
    (row,) = await exported(path, "sft")
    assert row["messages"][0] == {"role": "system", "content": "The counter is at 25."}  # the newest


async def test_dpo_pairs_continuations_of_one_state(group: Path, trees: Path, tmp_path: Path) -> None:
    for path in (group, trees):
        rows = await exported(path, "dpo")
        assert rows
        for row in rows:
            assert row["margin"] > 0
            assert row["prompt"][-1]["role"] in ("user", "tool")
            assert row["chosen"][0]["role"] == row["rejected"][0]["role"] == "assistant"
            assert row["chosen"] != row["rejected"]
    assert any(len(row["prompt"]) > 1 for row in rows)  # trees branch in the middle
    await run(plan_run("counter", model="noisy", repeats=2, output=tmp_path / "repeats.jsonl"))
    with raises(InvalidArguments):
        await exported(tmp_path / "repeats.jsonl", "dpo")


async def test_grpo_has_tokens_with_their_advantages(tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    await collect("counter", path, policy="noisy", group=4, limit=4)
    rows, episodes = await exported(path, "grpo"), rows_in(path)
    for row, episode, values in zip(rows, episodes, advantages(episodes, "grpo"), strict=True):
        (sequence,) = sequences(episode)
        assert row["prompt_ids"] + row["completion_ids"] == sequence.ids
        lengths = {len(row[name]) for name in ("completion_ids", "completion_mask", "logprobs", "advantages")}
        assert len(lengths) == 1
        written = [value for value, own in zip(row["advantages"], row["completion_mask"], strict=True) if own]
        assert set(written) == set(values)
        assert row["completion_mask"][0] == 1
    assert len({row["reward"] for row in rows}) > 1


async def test_trees_have_an_advantage_for_each_answer(trees: Path) -> None:
    for how in ("vine", "tree"):
        for row, episode in zip(await exported(trees, "jsonl", how=how), rows_in(trees), strict=True):
            answers = [each for each in row["messages"] if each["role"] == "assistant"]
            assert len(row["advantages"]) == len(answers)
            assert row["reward"] == episode["reward"]
    assert any(value for row in await exported(trees, "jsonl", how="gigpo") for value in row["advantages"])


async def test_what_a_run_lacks_is_said(group: Path) -> None:
    with pytest.raises(BadData):
        await exported(group, "grpo")
    with raises(InvalidArguments):
        await exported(group, "jsonl", how="vine")


@pytest.mark.parametrize("to", [*FORMATS])
async def test_parquet_has_what_jsonl_has(to: To, tmp_path: Path) -> None:
    path = tmp_path / "tokens.jsonl"
    await collect("counter", path, policy="noisy", group=4, limit=3)
    columns = FORMATS[to].columns
    rows = await exported(path, to)
    for ending in (".jsonl", ".parquet"):
        assert await write_table(tmp_path / f"out{ending}", columns, export_rows(StoredRun.find(path), to)) == len(rows)
    table = pq.read_table(tmp_path / "out.parquet")
    jsons = [name for name, kind in columns.items() if kind == "jsons"]
    read = [{**row, **{name: [json.loads(part) for part in row[name]] for name in jsons}} for row in table.to_pylist()]
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert read == lines == json.loads(json.dumps(rows))
    assert rows
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".new")]


async def test_a_file_stays_if_an_export_fails(group: Path, tmp_path: Path) -> None:
    (tmp_path / "out.jsonl").write_text("before")
    with pytest.raises(BadData):
        await write_table(tmp_path / "out.jsonl", FORMATS["grpo"].columns, export_rows(StoredRun.find(group), "grpo"))
    assert (tmp_path / "out.jsonl").read_text() == "before"
    with raises(InvalidArguments):
        await write_table(tmp_path / "out.csv", {}, export_rows(StoredRun.find(group), "sft"))


ODD: list[Any] = [None, True, -1, 3.5, float("nan"), float("-inf"), 1e308, 10**400]
ODD += ["", "x", "\ud800", [], [3], [[]], {}, {"a": 1}]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All places in JSON data; of a long list, only the first and the last."""
    keys = value if isinstance(value, dict) else {0, len(value) - 1} if isinstance(value, list) and value else ()
    for key in keys:
        yield (*path, key)
        yield from places(value[key], (*path, key))


@pytest.fixture
async def tokens(tmp_path: Path) -> Path:
    """A run of groups with tokens."""
    path = tmp_path / "tokens.jsonl"
    await collect("counter", path, policy="noisy", group=4, limit=2)
    return path


@given(data=st.data(), to=st.sampled_from([*FORMATS]), ending=st.sampled_from([".jsonl", ".parquet"]))
@settings(max_examples=share(3))
async def test_a_malformed_row_is_named_or_exported_as_numbers(
    tokens: Path, data: st.DataObject, to: To, ending: str
) -> None:
    copied = tokens.with_name("copy.jsonl")
    path, copy = ((RunFiles(each).inputs if to == "verl" else each) for each in (tokens, copied))
    RunFiles(copied).inputs.write_bytes(RunFiles(tokens).inputs.read_bytes())
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    spoilt = data.draw(st.integers(0, len(rows) - 1))
    *way, last = data.draw(st.sampled_from([*places(rows[spoilt])]))
    inner = reduce(getitem, way, rows[spoilt])
    if data.draw(st.booleans()) and isinstance(inner, dict):
        del inner[last]
    else:
        inner[last] = data.draw(st.sampled_from(ODD))
    copy.write_bytes(b"".join(map(line_of, rows)))
    output = copied.with_name(f"out{ending}")
    try:
        await write_table(output, FORMATS[to].columns, export_rows(StoredRun(RunFiles(copied)), to, min_reward=-1e9))
    except (BadData, InvalidArguments) as error:
        wrong = str(error)
    else:
        wrong = ""
        if to == "grpo" and output.suffix == ".jsonl":
            for row in map(json.loads, output.read_text().splitlines()):
                assert all(isfinite(value) for value in (*row["logprobs"], *row["advantages"], row["reward"]))
                assert min(row["prompt_ids"] + row["completion_ids"]) >= 0
    no_group = "to: dpo needs continuations"
    assert not wrong or f"{copy}, line {spoilt + 1}: " in wrong or wrong.startswith(no_group)

"""`stateroom profile`: how difficult tasks are, and which carry signal."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, Refuses
from tests.rows import rows


def tasks_of(stateroom: Command, *runs: str) -> dict[tuple[str, int], dict[str, Any]]:
    """What is told of each task."""
    told = stateroom("profile", *runs, "--json").json
    return {(each["environment"], each["task"]): each for each in told["tasks"]}


@pytest.fixture
def noisy(stateroom: Command) -> list[dict[str, Any]]:
    """The rollouts of a run in which some tasks are solved always, some never, and some at times."""
    stateroom("run", "extraction", "--model", "noisy", "--repeats", 4, "--output", "noisy.jsonl")
    return rows("noisy.jsonl")


def test_a_partial_reward_carries_signal_only_if_it_varies(stateroom: Command, noisy: list[dict[str, Any]]) -> None:
    for row in noisy:
        row["reward"] = 0.5 if row["_ng_task_index"] else 0.1 * row["_ng_rollout_index"]
    Path("noisy.jsonl").write_text("".join(json.dumps(row) + "\n" for row in noisy))
    found = tasks_of(stateroom, "noisy")
    assert [task for (_, task), each in found.items() if each["signal"]] == [0]
    assert {each["solved"] for each in found.values()} == {0.0}


def test_the_episodes_of_several_runs_are_put_together_by_the_content_of_their_tasks(stateroom: Command) -> None:
    lines = stateroom("tasks", "counter", "--number", 3).out.splitlines(keepends=True)
    Path("t.jsonl").write_text("".join(lines))
    Path("u.jsonl").write_text("".join(lines[::-1][:2]))
    for name in "tu":
        stateroom("run", "counter", "--input", f"{name}.jsonl", "--repeats", 2, "--output", f"out/{name}.jsonl")
    stateroom("run", "weather", "--limit", 1, "--output", "out/w.jsonl")
    found = tasks_of(stateroom, "out")
    episodes = {name: each["episodes"] for name, each in found.items()}
    assert episodes == {("counter", 0): 2, ("counter", 1): 4, ("counter", 2): 4, ("weather", 0): 1}


def test_a_task_file_is_of_one_environment(stateroom: Command, refuses: Refuses) -> None:
    for name in ("counter", "weather"):
        stateroom("run", name, "--limit", 1, "--output", f"out/{name}.jsonl")
    refuses("profile", "out", "--output", "train.jsonl")
    assert not Path("train.jsonl").exists()


def test_the_table_fits_a_terminal_and_says_what_it_leaves_out(stateroom: Command) -> None:
    row = {"responses_create_params": {"input": "add 1"}, "initial_count": 0, "expected_count": 1}
    Path("t.jsonl").write_text("".join(json.dumps({**row, "id": number}) + "\n" for number in range(70)))
    stateroom("run", "counter", "--input", "t.jsonl", "--output", "r.jsonl")
    told = stateroom("profile", "r")
    shown = re.findall(r"^ *counter ", told.out, re.MULTILINE)
    [left_out] = re.findall(r"and (\d+) more", told.out)
    assert (len(shown) + int(left_out), len(shown) > 10) == (70, True)
    assert "70 tasks have one episode" in told.err
    assert all(len(line) <= 80 for line in told.out.splitlines())


def test_runs_without_a_reward_have_no_profile(stateroom: Command) -> None:
    Path("empty.jsonl").write_text("")
    assert stateroom("profile", "empty").code == 2

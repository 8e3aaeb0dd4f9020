"""`stateroom branch`, `stateroom tree` and `stateroom run --group`."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Refuses
from tests.rows import rows

RULES = '''
from dataclasses import dataclass


@dataclass(frozen=True)
class Twice:
    """The better of two, or of as many as one likes."""

    n: int = 2

    async def grow(self, tree):
        await tree.branch(tree.root, self.n)
        return tree.best()


class Needs:
    def __init__(self, more):
        pass

    async def grow(self, tree):
        pass


class Odd:
    def grow(self, tree):
        pass
'''


def grown(stateroom: Any, *options: Any) -> dict[str, Any]:
    done = stateroom("branch", "extraction", "-m", "noisy", "--output", "x.jsonl", "--json", *options)
    assert done.code == 0, done.err
    found = done.json
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("options", "branches"),
    [
        ([], 4),
        (["--rule", "best-of", "--n", 3, "--at", 1], 4),
        (["--rule", "beam", "--n", 2, "--width", 1, "--continuations", 1, "--max-branches", 9], 9),
        (["--rule", "monte-carlo", "-n", 1, "--max-steps", 1], 2),
    ],
)
def test_a_rule_and_its_settings(stateroom: Any, options: list[Any], branches: int) -> None:
    found = grown(stateroom, "--limit", 2, *options)
    assert set(found) == {"tasks", "failed", "branches", "broken", "elapsed", "tool_failures", "metrics", "files"}
    assert (found["tasks"], found["failed"], found["branches"], found["broken"]) == (2, 0, 2 * branches, 0)
    assert set(found["files"]) == {"rollouts", "inputs", "metrics", "run", "sessions", "tree"}
    assert found["metrics"]["mean/tree_branches"] == branches
    assert {line["_ng_task_index"] for line in rows("x_tree.jsonl")} == {0, 1}


def test_a_rule_of_ones_own(stateroom: Any, tmp_path: Path) -> None:
    (tmp_path / "rules.py").write_text(RULES)
    assert grown(stateroom, "--rule", "rules.py:Twice", "--limit", 1)["branches"] == 2
    done = stateroom("branch", "extraction", "--rule", "rules:Twice", "-n", 5, "--limit", 1, "--json")
    assert done.json["branches"] == 5


FALLS_SOMETIMES = """
from stateroom.gallery import CounterEnvironment

class Falls(CounterEnvironment.policies["reference"]):
    def respond(self, conversation, tools):
        if self.rng.random() < 0.3:
            1 / 0
        return super().respond(conversation, tools)
"""


@pytest.mark.parametrize(
    "options",
    [
        ["--rule", "worst-of"],
        ["--rule", "best-of", "--width", "2"],
        ["--rule", "rules.py:Twice", "--at", "2"],
        ["--rule", "rules.py:Odd"],
        ["--rule", "rules.py:Needs"],
        ["--rule", "rules.py:Absent"],
        ["--server", "http://127.0.0.1:9", "--store", "memory://"],
        ["--input", "none.jsonl"],
    ],
)
def test_mistakes_are_explained(refuses: Refuses, tmp_path: Path, options: list[str]) -> None:
    (tmp_path / "rules.py").write_text(RULES)
    refuses("branch", "extraction", *options)
    assert not (tmp_path / "rollouts").exists()


def test_it_fails_when_no_task_has_an_answer(stateroom: Any, tmp_path: Path) -> None:
    falls = "from stateroom.model import Policy\nclass Falls(Policy):\n    def respond(self, c, t):\n        1 / 0\n"
    (tmp_path / "falls.py").write_text(falls)
    done = stateroom("branch", "counter", "--model", "falls.py:Falls", "--limit", 2)
    assert done.code == 1
    assert "2 without an answer, 8 branches failed" in done.out
    assert " in respond: ModelFailed: Falls raised ZeroDivisionError" in done.out


def test_failed_branches_are_counted_wherever_the_run_is_seen(stateroom: Any, tmp_path: Path) -> None:
    (tmp_path / "falls.py").write_text(FALLS_SOMETIMES)
    command = ("branch", "counter", "--model", "falls.py:Falls", "-n", 8, "--output", "x.jsonl")
    done = stateroom(*command, "--limit", 1, "--json")
    found = done.json
    assert (done.code, found["failed"]) == (1, 0)
    assert 0 < found["broken"] < 8
    [listed] = stateroom("runs", ".", "--json").json
    assert (listed["done"], listed["failed"]) == (1, found["broken"])
    exported = stateroom("export", "x.jsonl", "--to", "jsonl", "--advantages", "vine", "--json")
    assert (exported.code, exported.json["failed"]) == (0, found["broken"])
    assert "x_failures.jsonl" in exported.err


def test_what_is_too_much_is_counted(stateroom: Any) -> None:
    grown(stateroom, "--limit", 3, "--n", 20)
    done = stateroom("tree", "x_tree.jsonl", "--limit", 1, "--children", 2, "--steps", 2)
    assert "and 18 more: --children" in done.out
    assert "steps more: --steps" in done.out
    assert "and 2 trees more: --limit, or --task" in done.out
    assert len(done.out.splitlines()) == 1 + 2 * 3 + 1 + 1
    beam = stateroom("branch", "extraction", "--rule", "beam", "--limit", 1, "-o", "y.jsonl", "--json")
    assert beam.code == 0
    assert "and more below: --depth" in stateroom("tree", "y_tree.jsonl", "--depth", 1).out
    assert "and more below" not in stateroom("tree", "y_tree.jsonl", "--depth", 50).out


def test_a_long_episode_can_be_shown(stateroom: Any, tmp_path: Path) -> None:
    node = {"_ng_task_index": 0, "depth": 0, "status": "open", "reward": None, "value": None, "visits": 0, "items": []}
    with (tmp_path / "long_tree.jsonl").open("w") as file:
        for step in range(20_000):
            ids = {"id": f"0.1+{step}", "parent": f"0.1+{step - 1}" if step else None}
            file.write(json.dumps({**node, **ids}) + "\n")
    done = stateroom("tree", "long_tree.jsonl")
    assert (done.code, len(done.out.splitlines())) == (0, 1 + 8 + 1)
    assert "19,991 steps more: --steps" in done.out
    assert len(stateroom("tree", "long_tree.jsonl", "--json").json[0]["nodes"]) == 20_000


def test_json_is_all_of_it(stateroom: Any) -> None:
    grown(stateroom, "--limit", 3)
    found = stateroom("tree", "x_tree.jsonl", "--json").json
    assert [(tree["task"], tree["ends"]) for tree in found] == [(0, 4), (1, 4), (2, 4)]
    assert [node for tree in found for node in tree["nodes"]] == rows("x_tree.jsonl")
    for tree in found:
        (answer,) = [node for node in tree["nodes"] if node["chosen"]]
        assert tree["answer"] == {"id": answer["id"], "reward": answer["reward"]}
    (one,) = stateroom("tree", "x_tree.jsonl", "--task", 2, "--json").json
    assert one == found[2]


@pytest.mark.parametrize("arguments", [["none.jsonl"], ["x.jsonl"], ["x_tree.jsonl", "--task", "9"]])
def test_a_tree_that_is_not_there(stateroom: Any, refuses: Refuses, arguments: list[str]) -> None:
    grown(stateroom, "--limit", 1)
    refuses("tree", *arguments)

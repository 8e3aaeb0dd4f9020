"""Advantages of groups and trees, against numbers that were worked out by hand."""

from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from stateroom.errors import BadData, InvalidArguments
from stateroom.model import function_call, function_call_output, message
from stateroom.rollout import MonteCarlo, TreeFiles, branch, plan_branches, plan_run, read_trees, run
from stateroom.store import open_store
from stateroom.training import STATES, advantages, with_states
from tests.messages import raises
from tests.training.collecting import rows_in

Row = dict[str, Any]


def episode(task: int, reward: float, states: str = "ab") -> Row:
    """An episode with an answer for each letter, which is the state that it was given in."""
    called = [
        part
        for number in range(len(states) - 1)
        for part in (function_call("f", f"c{number}"), function_call_output(f"c{number}", "{}"))
    ]
    output = [*called, message("Done.")]
    return {"_ng_task_index": task, "reward": reward, "response": {"output": output}, STATES: [*states]}


def node(name: str, parent: str | None, reward: float | None = None, task: int = 0) -> Row:
    return {"_ng_task_index": task, "id": name, "parent": parent, "reward": reward, "value": None}


def flat(found: list[list[float]]) -> list[float]:
    return [value for each in found for value in each]


def test_grpo_takes_the_mean_and_deviation_of_a_task() -> None:
    rows = [episode(0, 1.0), episode(1, 5.0), episode(0, 0.0), episode(0, 0.0)]
    deviation = sqrt(1 / 3) + 1e-4
    high, low = (2 / 3) / deviation, (-1 / 3) / deviation
    assert flat(advantages(rows, "grpo")) == pytest.approx([high, high, 0.0, 0.0, low, low, low, low])


def test_rloo_compares_with_the_others() -> None:
    rows = [episode(0, 1.0), episode(0, 0.0), episode(0, 0.5), episode(1, 3.0, "a")]
    assert advantages(rows, "rloo") == [[0.75] * 2, [-0.75] * 2, [0.0] * 2, [0.0]]


def test_gigpo_also_compares_answers_in_equal_states() -> None:
    rows = [episode(0, 1.0, "ab"), episode(0, 0.0, "ac"), episode(1, 1.0, "a")]
    episodes = 0.5 / (sqrt(0.5) + 1e-4)
    in_a = 0.475 / (0.95 * sqrt(0.5) + 1e-4)
    found = advantages(rows, "gigpo")
    assert flat(found) == pytest.approx([episodes + in_a, episodes, -episodes - in_a, -episodes, 0.0])


TREE = [
    node("0", None),
    node("0.1", "0"),
    node("0.1+1", "0.1", 1.0),
    node("0.1.1", "0.1", 0.0),
    node("0.1.2", "0.1", 1.0),
    node("0.2", "0", 0.0),
    node("0.3", "0"),  # which failed
]


def test_vine_is_the_difference_of_values() -> None:
    root, *others = advantages(TREE, "vine")
    assert root == []
    assert flat(others) == pytest.approx([1 / 3, 1 / 3, -2 / 3, 1 / 3, -1 / 3, 0.0])


def test_tree_compares_within_a_tree_and_among_those_of_a_task() -> None:
    rewards = [1.0, 0.0, 1.0, 0.0]
    own = sqrt(sum((reward - 0.5) ** 2 for reward in rewards) / 3) + 1e-4
    single = advantages(TREE, "tree")
    assert flat(single) == pytest.approx([2 * (2 / 3 - 0.5) / own, 1 / own, -1 / own, 1 / own, -1 / own, 0.0])
    other = [node("0", None), node("0.1", "0", 1.0), node("0.2", "0", 1.0)]
    both = advantages([*TREE, *other], "tree")
    all_six = sqrt(sum((reward - 2 / 3) ** 2 for reward in [*rewards, 1.0, 1.0]) / 5) + 1e-4
    assert both[2] == pytest.approx([0.5 / own + (1 / 3) / all_six])
    assert both[-1] == pytest.approx([(1 / 3) / all_six])


@st.composite
def trees(draw: st.DrawFn) -> list[Row]:
    nodes, inner = [node("0", None)], ["0"]
    for number in range(1, draw(st.integers(1, 12))):
        parent, ends = draw(st.sampled_from(inner)), draw(st.booleans())
        nodes.append(node(str(number), parent, draw(st.floats(-2, 2)) if ends else None))
        inner += [] if ends else [str(number)]
    return nodes


@given(trees())
def test_vine_advantages_have_the_mean_zero_in_each_state(nodes: list[Row]) -> None:
    found = dict(zip([each["id"] for each in nodes], advantages(nodes, "vine"), strict=True))
    known = {each["id"] for each in nodes if each["reward"] is not None}
    for _ in nodes:  # up to the root
        known |= {each["parent"] for each in nodes if each["id"] in known}
    for each in nodes:
        below = [found[other["id"]][0] for other in nodes if other["parent"] == each["id"] and other["id"] in known]
        assert sum(below) == pytest.approx(0.0, abs=1e-9)


@given(st.lists(st.tuples(st.integers(0, 2), st.floats(-2, 2)), min_size=1, max_size=12))
def test_advantages_of_a_group_have_the_mean_zero(given: list[tuple[int, float]]) -> None:
    rows = [episode(task, reward, "a") for task, reward in given]
    for how in ("grpo", "rloo", "gigpo"):
        found = flat(advantages(rows, how))
        for task in {task for task, _ in given}:
            assert sum(v for v, (of, _) in zip(found, given, strict=True) if of == task) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("how", ["grpo", "vine", "no such"])
def test_rows_of_the_wrong_kind_are_refused(how: Any) -> None:
    with raises(InvalidArguments):
        advantages(TREE if how == "grpo" else [episode(0, 1.0)], how)


def test_rows_without_states_and_nodes_without_parents_are_refused() -> None:
    row = episode(0, 1.0)
    del row[STATES]
    with raises(InvalidArguments):
        advantages([row], "gigpo")
    with raises(BadData):
        advantages([node("0.1", "0")], "vine")


async def test_equal_states_are_found_across_the_episodes_of_a_run(tmp_path: Path) -> None:
    plan = plan_run("counter", model="noisy", repeats=6, output=tmp_path / "r.jsonl")
    await run(plan)
    async with open_store(plan.store) as store:
        rows = await with_states(rows_in(tmp_path / "r.jsonl"), store)
    found = advantages(rows, "gigpo")
    for row, values in zip(rows, found, strict=True):
        assert len(row[STATES]) == len(values)
    firsts = {(row["_ng_task_index"], row[STATES][0]) for row in rows}
    assert len(firsts) == len({task for task, _ in firsts})  # the episodes of a task start equal
    ends: dict[tuple[int, str], set[float]] = {}
    for row in rows:
        ends.setdefault((row["_ng_task_index"], row[STATES][-1]), set()).add(row["reward"])
    assert all(len(rewards) == 1 for rewards in ends.values())  # the reward of counter follows from the state
    assert any(len({digest for task, digest in ends if task == each}) > 1 for each, _ in ends)


@pytest.mark.more("time")
async def test_the_wrong_call_has_the_lowest_advantage(tmp_path: Path) -> None:
    """Where GRPO blames all answers of an episode alike, `vine` finds the one call that lost the reward."""
    found = blamed = 0
    for seed in range(3):
        output = tmp_path / f"{seed}.jsonl"
        options: dict[str, Any] = {"model": "noisy", "store": "memory://", "output": output, "seed": seed}
        await branch(plan_branches("extraction", rule=MonteCarlo(24), **options))
        for nodes in read_trees(TreeFiles(output).tree).values():
            values = advantages(nodes, "vine")
            trunk = [index for index, each in enumerate(nodes) if each["id"] in _trunk(nodes)]
            if nodes[trunk[-1]]["reward"]:
                continue
            found += 1
            worst = min(trunk[1:], key=lambda index: values[index][0])
            blamed += any(item.get("name") == "extract_synonym_values" for item in nodes[worst]["items"])
    assert found >= 8
    assert blamed >= 0.95 * found


def _trunk(nodes: list[Row]) -> set[str]:
    """The episode whose states were forked: the root's first branch."""
    return {each["id"] for each in nodes if each["id"] in ("0", "0.1") or each["id"].startswith("0.1+")} - {
        each["id"] for each in nodes if each["id"].count(".") > 1
    }

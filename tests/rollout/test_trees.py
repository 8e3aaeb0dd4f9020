"""Episodes that branch: trees, rules, budgets, and what is written of them."""

import asyncio
import json
import os
import runpy
from collections import Counter
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import pytest

from stateroom import Environment, Sessions, State, tool
from stateroom.errors import BadData, CannotWrite, NotFound
from stateroom.model import Item, ModelSource, Policy, Scripted, function_call, message, outputs_of, with_ids
from stateroom.rollout import (
    Beam,
    BestOf,
    BranchPlan,
    MonteCarlo,
    Node,
    Tree,
    TreeFiles,
    TreeReport,
    branch,
    read_trees,
)
from stateroom.store import open_store
from tests.messages import raises
from tests.plans import make_branching
from tests.rows import OWN, rows, without

STEPS = 3


class Trail(State):
    way: list[str] = []
    weather: list[float] = []


class TrailEnvironment(Environment[Trail]):
    """Walk up a hill, a step at a time; luck is the weather."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def seed(self, task: Any) -> Trail:
        if getattr(task, "closed", False):
            raise LookupError("the trail is closed")
        return Trail()

    @tool
    def go(self, state: Trail, way: str, rng: Random) -> Any:
        """Go up, or down."""
        self.calls["go"] += 1
        state.way.append(way)
        state.weather.append(rng.random())
        return {"way": state.way, "weather": state.weather}

    def verify(self, state: Trail) -> float:
        self.calls["verify"] += 1
        return state.way.count("up") / STEPS


class Wanders(Policy):
    """Goes up or down by chance, for some steps."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        if len(outputs_of(conversation)) == STEPS:
            return [message("here")]
        return [function_call("go", "c", way=self.rng.choice(["up", "down"]))]


class Rule:
    """Does what a test says."""

    def __init__(self, grow: Any) -> None:
        self.grow = grow


def plan(tmp_path: Path, rule: Any, name: str = "out", model: Any = Wanders, **changes: Any) -> BranchPlan:
    settings: dict[str, Any] = {"environment": TrailEnvironment(), "tasks": [{"name": "a"}, {"name": "b"}]}
    settings |= {"files": TreeFiles(tmp_path / f"{name}.jsonl"), "rule": rule if hasattr(rule, "grow") else Rule(rule)}
    return make_branching(model=ModelSource("wanders", model), **(settings | changes))


Grew = tuple[TreeReport, list[dict[str, Any]], dict[int, list[dict[str, Any]]]]


async def grow(given: BranchPlan) -> Grew:
    report = await branch(given)
    return report, rows(given.files.rollouts), read_trees(given.files.tree)


def ways(items: list[Item]) -> list[str]:
    found = outputs_of(items)
    return found[-1]["way"] if found else []


# A tree.


async def test_branches_share_what_came_before_and_nothing_since(tmp_path: Path) -> None:
    async def rule(tree: Tree) -> Node | None:
        (trunk,) = await tree.branch(tree.root, steps=1)
        await tree.branch(trunk, 8)
        assert {tuple(ways(end.trajectory())[:1]) for end in tree.ends()} == {tuple(ways(trunk.items))}
        return tree.best()

    given = plan(tmp_path, rule, tasks=[{}])
    _, done, _ = await grow(given)
    assert len({tuple(ways(row["response"]["output"])) for row in done}) > 1
    assert all(len(ways(row["response"]["output"])) == STEPS for row in done)
    weather = {tuple(outputs_of(row["response"]["output"])[-1]["weather"]) for row in done}
    assert len(weather) == 1  # forks are exact to their luck
    assert given.environment.calls == {"go": 1 + 8 * (STEPS - 1), "verify": 8}  # type: ignore[attr-defined]


async def test_every_node_can_be_found_in_the_store(tmp_path: Path) -> None:
    given = plan(tmp_path, MonteCarlo(2), store=f"sqlite:///{tmp_path / 'rooms.db'}")
    _, done, trees = await grow(given)
    items: dict[tuple[int, str | None], list[Item]] = {}
    async with open_store(given.store) as store:
        sessions = Sessions[Trail](given.environment, store)
        for task, nodes in trees.items():
            for node in nodes:
                items[task, node["id"]] = [*items.get((task, node["parent"]), []), *node["items"]]
                session = await sessions.open(node["session"], include_closed=True)
                assert session.closed
                way = (await session.state_at(node["revision"])).way
                assert way == ways(items[task, node["id"]])
                assert len(way) == min(node["depth"], STEPS)  # it branched off where it says
    for row in done:
        assert row["response"]["output"] == with_ids(items[row["_ng_task_index"], row["_stateroom_node"]])


async def test_the_seed_decides_the_tree(tmp_path: Path) -> None:
    found = []
    for name, more in (
        ("one", {"concurrency": 1}),
        ("many", {"concurrency": 16, "store": f"sqlite:///{tmp_path / 'rooms.db'}"}),
        ("other", {"seed": 1}),
    ):
        given = plan(tmp_path, Beam(), name, **more)
        await branch(given)
        lines = [without(line, "session", *OWN) for line in (*rows(given.files.tree), *rows(given.files.rollouts))]
        found.append(sorted(json.dumps(line, sort_keys=True) for line in lines))
    assert found[0] == found[1] != found[2]


async def test_ends_are_rollouts_as_a_run_writes_them(tmp_path: Path) -> None:
    given = plan(tmp_path, BestOf(3))
    report, done, trees = await grow(given)
    (written,) = json.loads(given.files.metrics.read_text())
    assert [row["_ng_task_index"] for row in rows(given.files.inputs)] == [0, 1]
    for task in range(2):
        mine = [row for row in done if row["_ng_task_index"] == task]
        assert [row["_ng_rollout_index"] for row in mine] == [0, 1, 2]
        assert {row["response"]["status"] for row in mine} == {"completed"}
        (chosen,) = [row for row in mine if row["_stateroom_chosen"]]
        assert chosen["reward"] == max(row["reward"] for row in mine)
        (answer,) = [node for node in trees[task] if node["chosen"]]
        assert (answer["id"], answer["reward"]) == (chosen["_stateroom_node"], chosen["reward"])
        assert {row["_stateroom_parent"]["session"] for row in mine} == {trees[task][0]["session"]}
        measured = next(row for row in report.rows if row["_ng_task_index"] == task)
        assert (measured["tree_branches"], measured["tree_steps"], measured["tree_tool_calls"]) == (3, 12, 9)
        assert measured["tree_reward"] == pytest.approx(fmean(row["reward"] for row in mine))
    chosen_rewards = [row["reward"] for row in done if row["_stateroom_chosen"]]
    assert written["agent_metrics"]["mean/reward"] == pytest.approx(fmean(chosen_rewards))
    assert (report.tasks, report.failed, report.branches, report.broken) == (2, 0, 6, 0)
    assert not given.files.failures.exists()


async def test_nothing_goes_on_from_an_end(tmp_path: Path) -> None:
    async def rule(tree: Tree) -> Node | None:
        (end,) = await tree.branch(tree.root)
        assert await tree.branch(end, 5) == []
        assert tree.branches == 1
        return end

    assert (await branch(plan(tmp_path, rule))).failed == 0


async def test_without_a_state_a_branch_has_the_conversation_alone(tmp_path: Path) -> None:
    class Guess(Environment):
        """Nothing to keep."""

        @tool
        def go(self, way: str) -> Any:
            """Go."""
            return {"way": [way]}

        def verify(self, episode: Any) -> float:
            return float(len(outputs_of(episode.response["output"])))

    report, done, trees = await grow(plan(tmp_path, BestOf(3, at=2), environment=Guess()))
    assert [row["reward"] for row in report.rows] == [STEPS, STEPS]
    assert {node["revision"] for node in trees[0]} == {None}
    starts = [[row["response"]["output"][:4] for row in done if row["_ng_task_index"] == task] for task in range(2)]
    assert all(first == second == third for first, second, third in starts)


# Rules.


@pytest.mark.parametrize("at", [STEPS + 1, 50])
async def test_best_of_a_trunk_that_ends_is_the_trunk(tmp_path: Path, at: int) -> None:
    report, done, _ = await grow(plan(tmp_path, BestOf(4, at=at)))
    assert (report.branches, len(done)) == (2, 2)


async def test_monte_carlo_values_every_state_of_an_episode(tmp_path: Path) -> None:
    given = plan(tmp_path, MonteCarlo(5), tasks=[{}])
    report, _, trees = await grow(given)
    nodes = {node["id"]: node for node in trees[0]}
    trunk = ["0.1", *(f"0.1+{step}" for step in range(1, STEPS + 1))]
    assert report.rows[0]["_stateroom_node"] == trunk[-1]
    assert nodes["0"]["visits"] == 6  # the episode itself is one more
    for node in trunk[:-1]:
        begun = {f"{node}.{order}" for order in range(1, 6)}
        branch_of = {name: name[: len(node) + 2] for name in nodes}
        rewards = [
            nodes[name]["reward"] for name in nodes if branch_of[name] in begun and nodes[name]["status"] != "open"
        ]
        assert nodes[node]["visits"] == len(rewards) == 5
        assert nodes[node]["value"] == pytest.approx(fmean(rewards))
    assert nodes[trunk[-2]]["value"] == nodes[trunk[-1]]["reward"]  # all that is left is to say so


async def test_a_beam_goes_on_with_what_is_worth_most(tmp_path: Path) -> None:
    width, n, continuations = 2, 3, 4
    report, _, trees = await grow(plan(tmp_path, Beam(n, width, continuations), tasks=[{}]))
    by_depth: dict[int, list[dict[str, Any]]] = {}
    for node in trees[0]:
        if "+" not in node["id"] and (node["value"] is not None or node["chosen"]):
            by_depth.setdefault(node["depth"], []).append(node)
    for depth in range(1, STEPS + 1):
        valued = [node for node in by_depth[depth] if node["visits"] == continuations]
        assert len(valued) == n * (1 if depth == 1 else width)
        grew = {node["parent"] for node in by_depth[depth + 1] if node["visits"] == continuations or depth == STEPS}
        worst = min(node["value"] for node in valued if node["id"] in grew)
        assert worst >= max((node["value"] for node in valued if node["id"] not in grew), default=0.0)
    assert report.rows[0]["_stateroom_node"].count(".") == STEPS + 1  # grown step by step


# Limits.


async def test_no_branch_begins_when_there_are_nodes_enough(tmp_path: Path) -> None:
    async def rule(tree: Tree) -> Node | None:
        for _ in range(5):
            await tree.branch(tree.root)
        return tree.best()

    report, _, trees = await grow(plan(tmp_path, rule, max_nodes=10))
    assert [len(nodes) for nodes in trees.values()] == [1 + 3 * (STEPS + 1)] * 2
    assert report.branches == 6


async def test_max_steps_counts_from_the_root(tmp_path: Path) -> None:
    given = plan(tmp_path, BestOf(2, at=1), max_steps=2)
    report, done, trees = await grow(given)
    assert report.failed == 0
    assert {row["truncated"] for row in done} == {1}
    assert {row["response"]["status"] for row in done} == {"incomplete"}
    assert {node["depth"] for node in trees[0] if node["reward"] is not None} == {2}
    assert {node["status"] for node in trees[0]} == {"open", "incomplete"}


async def test_a_deadline_ends_a_branch_where_it_is(tmp_path: Path) -> None:
    class Hesitates(Wanders):
        async def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
            if outputs_of(conversation):
                await asyncio.Event().wait()
            return [function_call("go", "c", way="up")]

    given = plan(tmp_path, BestOf(2), model=Hesitates, deadline=1, tasks=[{}])
    report, done, trees = await grow(given)
    assert (report.broken, [row["reward"] for row in done]) == (0, [1 / STEPS] * 2)
    assert [node["status"] for node in trees[0]] == ["open", "incomplete", "incomplete"]


# What breaks down.


class Stumbles(Wanders):
    """Falls, in some branches, at the second step."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.falls = seed % 2

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        if self.falls and outputs_of(conversation):
            raise RuntimeError("ouch")
        return super().respond(conversation, tools)


async def test_a_branch_that_breaks_down_is_told_of_and_left_out(tmp_path: Path) -> None:
    given = plan(tmp_path, BestOf(12), model=Stumbles, store=f"sqlite:///{tmp_path / 'rooms.db'}")
    report, done, trees = await grow(given)
    failed = rows(given.files.failures)
    assert 0 < report.broken == len(failed) < 24
    assert (report.failed, len(done)) == (0, 24 - len(failed))
    for row in failed:
        assert (row["_ng_failure_class"], row["error"]) == ("model", "ModelFailed: Stumbles raised RuntimeError: ouch")
        assert report.first_error == f"{row['cause']['place']}: {row['error']}"
        (node,) = [node for node in trees[row["_ng_task_index"]] if node["id"] == row["_stateroom_node"]]
        assert (node["status"], node["depth"], node["error"]) == ("failed", 2, row["error"])
        assert node["session"] == row["_stateroom_session"]
        async with open_store(given.store) as store:
            assert (await store.head(node["session"])).closed  # so it keeps nothing outside
    assert {node["visits"] for nodes in trees.values() for node in nodes if node["depth"] == 0} == {
        sum(row["_ng_task_index"] == task for row in done) for task in trees
    }


@pytest.mark.parametrize("rule", [BestOf(3), BestOf(3, at=2), Beam(), MonteCarlo(2)])
async def test_a_task_in_which_all_breaks_down_has_failed(tmp_path: Path, rule: Any) -> None:
    report = await branch(plan(tmp_path, rule, model=lambda seed: Scripted([RuntimeError("ouch")])))
    assert (report.tasks, report.failed, report.rows) == (2, 2, [])
    assert report.first_error == "ModelFailed: scripted raised RuntimeError: ouch"


async def test_a_seed_that_raises_fails_its_task(tmp_path: Path) -> None:
    given = plan(tmp_path, BestOf(2), tasks=[{"closed": True}, {}])
    report, done, trees = await grow(given)
    assert (report.failed, len(done), list(trees)) == (1, 2, [1])
    (failed,) = rows(given.files.failures)
    assert (failed["_ng_task_index"], failed["error"]) == (0, "LookupError: the trail is closed")


@pytest.mark.parametrize(
    ("does", "complaint"),
    [
        ("raises", "the rule Rule raised ZeroDivisionError: oops"),
        ("fewer than none", "the rule Rule raised ValueError: the number of branches must be at least 0"),
        ("no step", "the rule Rule raised ValueError: the number of steps must be at least 1"),
        ("no answer", "the rule Rule found no answer among the 2 ends of 2 branches"),
        ("no end", "the rule Rule must return an end of its tree or None, not <Node 0, open"),
    ],
)
async def test_a_rule_that_fails_loses_no_episode(tmp_path: Path, does: str, complaint: str) -> None:
    async def rule(tree: Tree) -> Node | None:
        await tree.branch(tree.root, 2)
        match does:
            case "raises":
                raise ZeroDivisionError("oops")
            case "fewer than none":
                await tree.branch(tree.root, -2)
            case "no step":
                await tree.branch(tree.root, steps=0)
        return tree.root if does == "no end" else None

    given = plan(tmp_path, rule)
    report, done, trees = await grow(given)
    assert (report.failed, len(done), len(trees)) == (2, 4, 2)
    assert f"ModelFailed: {complaint}" in str(report.first_error)
    assert {row["_ng_failure_class"] for row in rows(given.files.failures)} == {"model"}


@pytest.mark.parametrize("does", ["branch", "choose"])
async def test_a_node_of_another_tree_is_refused(tmp_path: Path, does: str) -> None:
    others: list[Node] = []

    async def rule(tree: Tree) -> Node | None:
        (end,) = await tree.branch(tree.root)
        others.append(tree.root if does == "branch" else end)
        if others[0] not in tree and does == "branch":
            await tree.branch(others[0])
        return others[0] if does == "choose" else end

    report, done, _ = await grow(plan(tmp_path, rule, concurrency=1))
    assert (report.failed, len(done)) == (1, 2)
    complaint = {"branch": "> is not a node of this tree", "choose": "must return an end of its tree or None, not"}
    assert complaint[does] in str(report.first_error)


async def test_what_has_grown_is_written_when_all_is_stopped(tmp_path: Path) -> None:
    grown = asyncio.Event()

    async def rule(tree: Tree) -> Node | None:
        await tree.branch(tree.root, 2)
        grown.set()
        await asyncio.Event().wait()
        return None

    given = plan(tmp_path, rule, tasks=[{}])
    running = asyncio.create_task(branch(given))
    await grown.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(rows(given.files.rollouts)) == 2
    assert len(read_trees(given.files.tree)[0]) == 1 + 2 * (STEPS + 1)


# Files.


async def test_an_earlier_tree_is_not_written_over(tmp_path: Path) -> None:
    given = plan(tmp_path, BestOf(1))
    given.files.tree.write_text("mine")
    with raises(CannotWrite):
        await branch(given)
    assert os.listdir(tmp_path) == [given.files.tree.name]


NODE = {"_ng_task_index": 0, "id": "0", "parent": None, "depth": 0, "status": "open"}
NODE |= {"reward": None, "value": None, "visits": 0, "items": []}

DAMAGES: list[dict[str, Any]] = [
    {"_ng_task_index": "0"},
    {"id": ["0"]},
    {"parent": {}},
    {"reward": "much"},
    {"value": float("nan")},
    {"visits": None},
    {"items": None},
    {"items": ["said"]},
    {"items": [{"role": "user"}]},
    {"items": [{"type": "function_call", "name": "go"}]},
    {"items": [{"type": "function_call_output", "call_id": []}]},
    {"items": [{"type": "message", "content": ["x"]}]},
]


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"id": "0"',
        '{"reward": 1}',
        "[1]",
        *(json.dumps(NODE | damage) for damage in DAMAGES),
        json.dumps(NODE) + "\n\n" + json.dumps(NODE | {"parent": "0"}),
        json.dumps(NODE) + "\n" + json.dumps(NODE | {"id": "1"}),
        json.dumps(NODE) + "\n" + json.dumps(NODE | {"id": "1", "parent": "9"}),
    ],
)
def test_a_file_that_is_no_tree_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    with raises(BadData):
        read_trees(tmp_path / "x")
    with raises(NotFound):
        read_trees(tmp_path / "y")


# The example.


@pytest.mark.more("time")
async def test_the_example_beats_the_plain_policy_by_branching() -> None:
    example = Path(__file__).parents[2] / "examples" / "branching.py"
    plain, best, best_from_the_middle, beam = (await runpy.run_path(str(example))["compare"]()).values()
    assert 0.5 < plain.reward < 0.7
    assert min(best.reward, best_from_the_middle.reward, beam.reward) > 0.9
    assert best.tool_calls == pytest.approx(plain.tool_calls)  # at the same price
    assert best_from_the_middle.tool_calls < 0.7 * plain.tool_calls  # and at a lower one

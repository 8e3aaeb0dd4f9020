"""The runner that branches: grows a tree in each task, and writes its nodes and its episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from stateroom.errors import ModelFailed
from stateroom.rollout.branching.files import TreeFiles
from stateroom.rollout.branching.node import Node, node_row
from stateroom.rollout.branching.rules import BestOf, Rule
from stateroom.rollout.branching.tree import Budget, Tree
from stateroom.rollout.files import Appender
from stateroom.rollout.plan import EPOCH, Plan
from stateroom.rollout.runner import failure_fields, place_of, write_metrics
from stateroom.rollout.workers import share_out
from stateroom.rollout.world import Row, World
from stateroom.session.containment import contained


@dataclass(frozen=True)
class Branching(Plan):
    """What is to be grown: a tree in each task. The deadline is each branch's own, and so is the policy."""

    files: TreeFiles
    rule: Rule = field(default_factory=BestOf)
    budget: Budget = field(default_factory=Budget)


@dataclass
class Grown:
    """What came of it."""

    tasks: int
    failed: int = 0
    """Tasks without an answer."""
    branches: int = 0
    broken: int = 0
    """Branches that broke down."""
    rows: list[Row] = field(default_factory=list)
    """The answers: what was measured in each, and in its tree."""
    first_error: str | None = None
    """What the first branch, or task, that broke down died of."""
    metrics: dict[str, Any] = field(default_factory=dict)


async def branch(
    plan: Branching,
    on_branch: Callable[[Node], None] = lambda node: None,
    on_tree: Callable[[Tree], None] = lambda tree: None,
) -> Grown:
    """Grow a tree in each task, so many branches at a time; `on_branch` and `on_tree` are told of each that is done."""
    inputs = plan.inputs_for(1)
    plan.files.prepare()
    async with plan.model, plan.world(forking=True) as world:
        plan.files.begin(inputs)
        with _Notes(plan, Grown(len(inputs))) as notes:
            grove = _Grove(plan, world, notes, on_branch, on_tree)
            await share_out(inputs, min(plan.concurrency, len(inputs)), grove.grow)
    notes.report.metrics = write_metrics(plan, notes.report.rows)
    return notes.report


class _Grove:
    """Grows the trees."""

    def __init__(
        self,
        plan: Branching,
        world: World,
        notes: _Notes,
        on_branch: Callable[[Node], None],
        on_tree: Callable[[Tree], None],
    ) -> None:
        self._plan = plan
        self._world = world
        self._notes = notes
        self._on_branch = on_branch
        self._on_tree = on_tree
        self._turns = asyncio.Semaphore(plan.concurrency)

    async def grow(self, row: Row) -> None:
        """Grow the tree of a task; what there is of it is written, whatever happens."""
        try:
            with contained:
                root = await self._root(row)
        except Exception as error:  # noqa: BLE001 - whatever an author's own code raises
            self._notes.failure({**row, **failure_fields(self._plan, error)})
            self._notes.report.failed += 1
            return
        tree = Tree(self._plan, row, root, self._plan.budget, self._turns, self._on_branch)
        answer: Node | None = None
        failure: ModelFailed | None = None
        try:
            answer = await self._answer(tree)
        except ModelFailed as error:
            failure = error
        finally:
            self._notes.tree(tree, answer)
        if failure is not None:
            self._notes.failure({**row, **failure_fields(self._plan, failure)})
        self._on_tree(tree)

    async def _root(self, row: Row) -> Node:
        async with self._turns:
            seat = await self._world.seed(row, seed=self._plan.seed_of(row["_ng_task_index"], 0), began=EPOCH)
            root = Node("0", None, seat, await seat.revision())
            await seat.close()  # it can be forked, but is nobody's to act in
            return root

    async def _answer(self, tree: Tree) -> Node:
        name = type(self._plan.rule).__name__
        try:
            with contained:
                answer = await self._plan.rule.grow(tree)
        except Exception as error:
            raise ModelFailed(f"the rule {name} raised {type(error).__name__}: {error}") from error
        if answer is None:
            raise ModelFailed(
                f"the rule {name} found no answer among the {len(tree.ends())} ends of {tree.branches} branches"
            )
        if not isinstance(answer, Node) or answer.reward is None or answer not in tree:
            raise ModelFailed(f"the rule {name} must give an end of its tree, or None, and not {answer!r:.100}")
        return answer


class _Notes:
    """Writes down what has grown."""

    def __init__(self, plan: Branching, report: Grown) -> None:
        self.report = report
        self._rollouts = Appender(plan.files.rollouts)
        self._failures = Appender(plan.files.failures)
        self._nodes = Appender(plan.files.tree)
        self._files = ExitStack()

    def __enter__(self) -> _Notes:
        for appender in (self._rollouts, self._failures, self._nodes):
            self._files.enter_context(appender)
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close()

    def failure(self, row: Row) -> None:
        self._failures.append(row)
        self.report.first_error = self.report.first_error or row["error"]

    def tree(self, tree: Tree, answer: Node | None) -> None:
        """Write a tree and its episodes."""
        rollouts = 0
        for node in tree.root.below():
            self._nodes.append({"_ng_task_index": tree.row["_ng_task_index"], **node_row(node, chosen=node is answer)})
            place = {"_stateroom_node": node.id, **place_of(node.seat)}
            if node.failure is not None:
                self.failure({**tree.row, **node.failure, **place})
                self.report.broken += 1
            if node.outcome is not None:
                chosen = {"_ng_rollout_index": rollouts, "_stateroom_chosen": node is answer}
                self._rollouts.append({**tree.row, **node.outcome, **chosen, **place})
                rollouts += 1
        self.report.branches += tree.branches
        if answer is None:
            self.report.failed += 1
        else:
            self.report.rows.append(_measured(tree, answer))


def _measured(tree: Tree, answer: Node) -> Row:
    """What was measured in an answer, and what its tree took."""
    outcome = answer.outcome or {}
    calls = [item for node in tree.root.below() for item in node.items if item["type"] == "function_call"]
    return {
        **{name: value for name, value in outcome.items() if name != "response"},
        "tree_branches": tree.branches,
        "tree_steps": tree.size - 1,
        "tree_tool_calls": len(calls),
        "tree_reward": fmean(worth for node in tree.ends() if (worth := node.reward) is not None),
        "_stateroom_node": answer.id,
    }

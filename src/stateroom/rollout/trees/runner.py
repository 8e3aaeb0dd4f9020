"""The runner for branching: grows a tree for each task, and writes its nodes and episodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean
from time import perf_counter
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from stateroom.errors import InvalidOption, ModelFailed
from stateroom.jsonl import Appender
from stateroom.options import Option, Unchecked, options, takes
from stateroom.rollout.description import described
from stateroom.rollout.episode import session_fields
from stateroom.rollout.failures import ToolFailures, cause_line
from stateroom.rollout.files import TreeFiles
from stateroom.rollout.metrics import aggregate_lazily
from stateroom.rollout.options import CollectOptions
from stateroom.rollout.plan import EPOCH, Plan, make_plan
from stateroom.rollout.rows import CHOSEN, NODE, Row, failure_fields
from stateroom.rollout.runner import run_all
from stateroom.rollout.trees.rules import Rule, find_rule
from stateroom.rollout.trees.tree import Budget, Node, Tree, TreeContext
from stateroom.session import contained


@options
class BranchOptions(CollectOptions):
    """The options of a branching run."""

    rule: Annotated[
        str | Rule,
        Unchecked,
        Field(description="The rule: best-of, beam, monte-carlo, or your own as module:Class or path.py:Class."),
        Option("-R"),
    ] = "best-of"
    n: Annotated[
        int | None,
        Field(ge=1, description="Branches per node; by default 4 for best-of, 2 for beam, 4 for monte-carlo."),
        Option("-n"),
    ] = None
    at: Annotated[
        int | None, Field(ge=0, description="best-of: the number of answers that all branches share; by default 0.")
    ] = None
    width: Annotated[int | None, Field(ge=1, description="beam: nodes that continue at each step; by default 2.")] = (
        None
    )
    continuations: Annotated[
        int | None, Field(ge=0, description="beam: continuations to estimate the value of a node; by default 2.")
    ] = None
    max_branches: Annotated[int | None, Field(ge=1, description="The maximum number of branches per task.")] = None
    max_nodes: Annotated[
        int | None, Field(ge=1, description="The number of nodes per task after which no branch starts.")
    ] = None


@dataclass(frozen=True)
class BranchPlan(Plan):
    """A run that grows a tree for each task. Each branch has its own policy and deadline."""

    options: BranchOptions
    files: TreeFiles
    rule: Rule

    @classmethod
    def of(cls, options: BranchOptions) -> BranchPlan:
        """Create the plan for options."""
        if options.server is not None and options.store is not None:
            raise InvalidOption("store", "cannot be combined with a server, which has its own store")
        given = {"n": options.n, "at": options.at, "width": options.width, "continuations": options.continuations}
        settings = {name: value for name, value in given.items() if value is not None}
        rule = find_rule(options.rule, settings) if isinstance(options.rule, str) else options.rule
        return make_plan(cls, options, TreeFiles, rule=rule)


@takes(BranchOptions)
def plan_branches(options: BranchOptions) -> BranchPlan:
    """Plan a branching run."""
    return BranchPlan.of(options)


@dataclass
class TreeReport:
    """The results of a branching run."""

    tasks: int
    tool_failures: ToolFailures
    """Tool calls that failed because of errors in the environment."""
    failed: int = 0
    """Tasks without an answer."""
    branches: int = 0
    broken: int = 0
    """Failed branches."""
    rows: list[Row] = field(default_factory=list)
    """The measurements of the answers and their trees."""
    first_error: str | None = None
    """The error of the first failed branch or task, with its place in user code if known."""
    metrics: dict[str, Any] = field(default_factory=dict)
    elapsed: float = 0.0
    """The time taken, in seconds."""


class GrownTree(NamedTuple):
    """The written rows of a tree; empty if its task could not be seeded."""

    task: int
    nodes: list[Row]
    """The nodes, each after its parent."""
    episodes: list[Row]
    """The episodes with a reward, by rollout index."""


async def branch(
    plan: BranchPlan,
    on_branch: Callable[[Node], None] = lambda node: None,
    on_tree: Callable[[GrownTree], None] = lambda tree: None,
) -> TreeReport:
    """Grow a tree for each task, `concurrency` branches at a time.

    `on_branch` is called with each finished branch, and `on_tree` with each tree, even an incomplete one.
    """
    plan.check_model()
    inputs = [*plan.inputs_for(1)]
    plan.files.prepare(force=plan.options.force)
    async with plan.model, plan.backend(forks=True) as backend:
        started = perf_counter()
        plan.files.begin(inputs)
        settings = getattr(plan.rule, "__dict__", {})
        plain = {name: value for name, value in settings.items() if isinstance(value, int | float | str)}
        rule = {**plain, "rule": type(plan.rule).__name__}
        with (
            described(plan, len(inputs), len(inputs), **rule),
            Appender(plan.files.rollouts) as rollouts,
            Appender(plan.files.failures) as failures,
            Appender(plan.files.tree) as nodes,
            ToolFailures(plan.files.tool_failures) as tool_failures,
        ):
            budget = Budget(plan.options.max_branches, plan.options.max_nodes)
            slots = asyncio.Semaphore(plan.options.concurrency)
            context = TreeContext(plan, backend, budget, tool_failures, slots, on_branch)
            writer = _Writer(TreeReport(len(inputs), tool_failures), rollouts, failures, nodes)
            runner = _Runner(plan.rule, context, writer, on_tree)
            await run_all(inputs, min(plan.options.concurrency, len(inputs)), runner.grow)
            report = writer.report
            report.metrics = aggregate_lazily(report.rows, plan.options.solved_threshold) | tool_failures.metrics()
            plan.files.write_metrics(plan.agent_ref, report.metrics)
            report.elapsed = perf_counter() - started
    return report


class _Runner:
    """Grows the trees of a plan."""

    def __init__(self, rule: Rule, context: TreeContext, writer: _Writer, on_tree: Callable[[GrownTree], None]) -> None:
        self._rule = rule
        self._context = context
        self._writer = writer
        self._on_tree = on_tree

    async def grow(self, row: Row) -> None:
        """Grow the tree of a task, and write it even if the rule fails."""
        try:
            with contained:
                root = await self._root(row)
        except Exception as error:  # noqa: BLE001 - the author's code may raise anything
            self._writer.failure({**row, **failure_fields(error)})
            self._writer.report.failed += 1
            self._on_tree(GrownTree(row["_ng_task_index"], [], []))
            return
        tree = Tree(self._context, row, root)
        answer: Node | None = None
        failure: ModelFailed | None = None
        try:
            answer = await self._answer(tree)
        except ModelFailed as error:
            failure = error
        finally:
            grown = self._writer.tree(tree, answer)
        if failure is not None:
            self._writer.failure({**row, **failure_fields(failure)})
        self._on_tree(grown)

    async def _root(self, row: Row) -> Node:
        plan, backend = self._context.plan, self._context.backend
        async with self._context.slots:
            session = await backend.seed(row, seed=plan.seed_of(row["_ng_task_index"], 0), began=EPOCH)
            root = Node("0", None, session, await backend.revision(session))
            await session.close()  # a closed session can be forked, but not changed
            return root

    async def _answer(self, tree: Tree) -> Node:
        name = type(self._rule).__name__
        try:
            with contained:
                answer = await self._rule.grow(tree)
        except Exception as error:
            raise ModelFailed(f"the rule {name} raised {type(error).__name__}: {error}") from error
        if answer is None:
            raise ModelFailed(
                f"the rule {name} found no answer among the {len(tree.ends())} ends of {tree.branches} branches"
            )
        if not isinstance(answer, Node) or answer.reward is None or answer not in tree:
            raise ModelFailed(f"the rule {name} must return an end of its tree or None, not {answer!r:.100}")
        return answer


class _Writer:
    """Writes trees and their episodes, and adds them to the report."""

    def __init__(self, report: TreeReport, rollouts: Appender, failures: Appender, nodes: Appender) -> None:
        self.report = report
        self._rollouts = rollouts
        self._failures = failures
        self._nodes = nodes

    def failure(self, row: Row) -> None:
        self._failures.append(row)
        self.report.first_error = self.report.first_error or cause_line(row)

    def tree(self, tree: Tree, answer: Node | None) -> GrownTree:
        grown = GrownTree(tree.row["_ng_task_index"], [], [])
        for node in tree.root.below():
            grown.nodes.append({"_ng_task_index": grown.task, **node.row(chosen=node is answer)})
            self._nodes.append(grown.nodes[-1])
            place = {NODE: node.id, **session_fields(node.session)}
            if node.failure is not None:
                self.failure({**tree.row, **node.failure, **place})
                self.report.broken += 1
            if node.outcome is not None:
                chosen = {"_ng_rollout_index": len(grown.episodes), CHOSEN: node is answer}
                grown.episodes.append({**tree.row, **node.outcome, **chosen, **place})
                self._rollouts.append(grown.episodes[-1])
        self.report.branches += tree.branches
        if answer is None:
            self.report.failed += 1
        else:
            self.report.rows.append(_measured(tree, answer))
        return grown


def _measured(tree: Tree, answer: Node) -> Row:
    """The measurements of an answer and of its tree."""
    outcome = answer.outcome or {}
    calls = [item for node in tree.root.below() for item in node.items if item["type"] == "function_call"]
    return {
        **{name: value for name, value in outcome.items() if name != "response"},
        "tree_branches": tree.branches,
        "tree_steps": tree.size - 1,
        "tree_tool_calls": len(calls),
        "tree_reward": fmean(reward for node in tree.ends() if (reward := node.reward) is not None),
        NODE: answer.id,
    }

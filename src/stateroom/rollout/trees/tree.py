"""Trees: the branching episodes of a task, and the file of their nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any, Literal

import msgspec

from stateroom.agent import AgentLog, Times, Trajectory, act, recall, task_items
from stateroom.errors import BadData, ModelFailed, NotFound
from stateroom.jsonl import parse_object, read_lines
from stateroom.model import Item
from stateroom.rollout.backend import Backend, EpisodeSession
from stateroom.rollout.episode import close_quietly, measured_fields, session_fields, time_fields
from stateroom.rollout.failures import ToolFailures
from stateroom.rollout.plan import Plan
from stateroom.rollout.rows import Finite, Row, failure_fields
from stateroom.session import AgentInMemory, contained

Status = Literal["open", "completed", "incomplete", "failed"]
"""Whether an episode can continue from a node, or how it ended there: normally, at a limit, or with an error."""


@dataclass(eq=False)
class Node:
    """A session at a revision, and the policy's answer that led to it, with its results or the user's reply."""

    id: str
    """`0` is the root, `0.2` the first step of its second branch, and `0.2+1` the next step of the same branch."""
    parent: Node | None
    session: EpisodeSession
    revision: int | None
    """None without a state."""
    items: list[Item] = field(default_factory=list)
    """The items since the parent."""
    agent: AgentInMemory | None = None
    """The agent at this node, if its conversation is not in the session's log."""
    order: int = 0
    """The position among the parent's children: first the next step of the same branch, then the new branches."""
    status: Status = "open"
    outcome: Row | None = None
    """The measurements of an episode that ended here, with its reward."""
    failure: Row | None = None
    """Why a branch failed here."""
    children: list[Node] = field(default_factory=list)
    begun: int = 0
    """The number of branches that began here."""
    ends: list[float] = field(default_factory=list)
    """The rewards of the branches that began here and were played to the end."""

    def __post_init__(self) -> None:
        self.depth: int = 0 if self.parent is None else self.parent.depth + 1
        """The number of policy answers from the root to here."""

    def __repr__(self) -> str:
        return f"<Node {self.id}, {self.status}, value {self.value}>"

    @property
    def ended(self) -> bool:
        """Whether the episode ended here, so it cannot branch."""
        return self.status != "open"

    @property
    def reward(self) -> float | None:
        """The reward of the episode that ended here."""
        return None if self.outcome is None else self.outcome["reward"]

    @property
    def value(self) -> float | None:
        """The mean reward of the branches that began here and were played to the end, or the reward of an end."""
        return fmean(self.ends) if self.ends else self.reward

    @property
    def visits(self) -> int:
        """The number of rewards in the value."""
        return len(self.ends) or int(self.reward is not None)

    def path(self) -> list[Node]:
        """The nodes from the root to this one."""
        path = [self]
        while path[-1].parent is not None:
            path.append(path[-1].parent)
        return path[::-1]

    def trajectory(self) -> list[Item]:
        """All items from the root to here."""
        return [item for node in self.path() for item in node.items]

    def below(self) -> Iterator[Node]:
        """This node and its descendants, each before its children."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += sorted(node.children, key=lambda child: -child.order)

    def row(self, *, chosen: bool) -> Row:
        """The node as a row of the tree file."""
        return {
            "id": self.id,
            "parent": None if self.parent is None else self.parent.id,
            "session": self.session.id,
            "revision": self.revision,
            "depth": self.depth,
            "status": self.status,
            "reward": self.reward,
            "value": self.value,
            "visits": self.visits,
            "chosen": chosen,
            "items": self.items,
            **({"error": self.failure["error"]} if self.failure is not None else {}),
        }


@dataclass(frozen=True)
class Budget:
    """The limits of a task's tree. At a limit, no further branch starts."""

    branches: int | None = None
    nodes: int | None = None
    """Branches that have begun still finish, so a tree may get a few more nodes."""

    def left(self, tree: Tree, wanted: int) -> int:
        """How many of the requested branches may start."""
        if self.nodes is not None and tree.size >= self.nodes:
            return 0
        return wanted if self.branches is None else min(wanted, self.branches - tree.branches)


@dataclass(frozen=True)
class TreeContext:
    """The shared context of the trees of a run."""

    plan: Plan
    backend: Backend
    budget: Budget
    tool_failures: ToolFailures
    slots: asyncio.Semaphore
    """Limits the concurrent branches over all trees."""
    on_branch: Callable[[Node], None]


class Tree:
    """The episodes of one task: each starts at the root, or branches off another episode at a node.

    A branch is a fork of the session at its node, with the same conversation, random state and clock, and its own
    policy. The seed of that policy is derived from the position of the branch, so a tree is reproducible.
    """

    def __init__(self, context: TreeContext, row: Row, root: Node) -> None:
        self.row = row
        self.root = root
        self.branches = 0
        """The number of branches that have begun."""
        self.size = 1
        """The root and the nodes of all finished branches."""
        self._context = context

    def __contains__(self, node: Node) -> bool:
        return node.path()[0] is self.root

    def ends(self) -> list[Node]:
        """The nodes where episodes ended with a reward."""
        return [node for node in self.root.below() if node.reward is not None]

    def best(self, nodes: Iterable[Node] | None = None) -> Node | None:
        """The node with the highest value, by default among all ends. Ties go to the first; None without values."""
        valued = [node for node in (self.ends() if nodes is None else nodes) if node.value is not None]
        return max(valued, key=worth, default=None)

    async def branch(self, node: Node, n: int = 1, *, steps: int | None = None) -> list[Node]:
        """Continue from a node `n` times, each in its own fork, for `steps` answers or to the end.

        Returns the last nodes of the branches, without those that failed or that the budget does not allow. The result
        is empty if the episode has ended at the node.
        """
        if node not in self:
            raise ValueError(f"{node!r} is not a node of this tree")
        if n < 0:
            raise ValueError(f"the number of branches must be at least 0, not {n}")
        if steps is not None and steps < 1:
            raise ValueError(f"the number of steps must be at least 1, or None for all, not {steps}")
        n = 0 if node.ended else self._context.budget.left(self, n)
        orders = range(node.begun + 1, node.begun + n + 1)
        node.begun += n
        self.branches += n
        tips = await asyncio.gather(*(self._grow(node, order, steps) for order in orders))
        if steps is None:
            node.ends += [tip.reward for tip in tips if tip.reward is not None]
        return [tip for tip in tips if tip.status != "failed"]

    async def _grow(self, node: Node, order: int, steps: int | None) -> Node:
        branch = _Branch(self._context, self.row, node, order)
        async with self._context.slots:
            try:
                with contained:
                    await branch.grow(steps)
            except Exception as error:  # noqa: BLE001 - the author's code may raise anything
                await branch.fail(error)
        self.size += branch.length
        self._context.on_branch(branch.tip)
        return branch.tip


def worth(node: Node) -> float:
    """The sort key for the value of a node; nodes without a value are last."""
    return -inf if node.value is None else node.value


class _Branch:
    """Continues from a node in a fork of its session, and adds a node for each answer of the policy."""

    def __init__(self, context: TreeContext, row: Row, start: Node, order: int) -> None:
        self.start = start
        self.tip = start
        """The last node."""
        self.length = 0
        """The nodes added by this branch."""
        self._context = context
        self._row = row
        self._order = order
        self._name = f"{start.id}.{order}"
        self._session = start.session
        self._agent: AgentLog | None = None

    async def grow(self, steps: int | None) -> None:
        """Continue for a number of answers, or to the end, where the episode is verified."""
        context, row, start = self._context, self._row, self.start
        plan = context.plan
        (self._session,) = await context.backend.fork(start.session, 1, start.revision)
        self._agent = log = self._session.agent if start.agent is None else start.agent.copy()
        seed, tools = plan.seed_of(row["_ng_task_index"], self._name), plan.tools_for(row)
        limit = plan.options.max_steps if steps is None else min(start.depth + steps, plan.options.max_steps)
        began = perf_counter()
        before, agent = await recall(log), plan.new_agent(row, seed, limit)
        workspace = context.tool_failures.watch(self._session, {**row, **session_fields(self._session)})
        trajectory = await act(workspace, log, agent, tools, task_items(row), on_step=self._on_step)
        if trajectory.status == "waiting":
            raise ModelFailed(
                f"the agent asks a question, which cannot be answered in a tree of episodes: {trajectory.question}"
            )
        if self.tip is start:  # the deadline has passed before the first answer
            await self._on_step([])
        if trajectory.reason != "max_steps" or limit == plan.options.max_steps:
            spent = partial(time_fields, began, before=before.times)
            await self._verify(trajectory.following(before), tools, seed, spent)
        await self._session.close()  # a closed session can be forked

    async def _verify(
        self, trajectory: Trajectory, tools: list[Item], seed: int, spent: Callable[[Times], Row]
    ) -> None:
        plan = self._context.plan
        response = plan.response(trajectory, tools, seed)
        verdict = await self._session.verify(response)
        measured = measured_fields(self._row, self._session, verdict, response)
        measured |= plan.cost_of(response) | spent(trajectory.times)
        self.tip.outcome = {**measured, "response": response}
        self.tip.status = "completed" if trajectory.status == "completed" else "incomplete"

    async def fail(self, error: BaseException) -> None:
        """Add a node with the error, and end the branch."""
        self._add([], self.tip.revision)
        self.tip.status, self.tip.failure = "failed", failure_fields(error)
        if self._session is not self.start.session:  # that one belongs to another branch
            await close_quietly(self._session)

    async def _on_step(self, items: list[Item]) -> None:
        self._add(items, await self._context.backend.revision(self._session))

    def _add(self, items: list[Item], revision: int | None) -> None:
        first = self.length == 0
        added = Node(
            id=self._name if first else f"{self._name}+{self.length}",
            parent=self.tip,
            session=self._session,
            revision=revision,
            items=items,
            agent=self._agent.copy() if isinstance(self._agent, AgentInMemory) else None,
            order=self._order if first else 0,
        )
        self.tip.children.append(added)
        self.tip = added
        self.length += 1


# The file of all nodes.


class _Part(msgspec.Struct):
    text: str | None = None


class _Item(msgspec.Struct):
    type: str
    name: str | None = None
    call_id: str | None = None
    arguments: Any = msgspec.UNSET
    content: str | list[_Part] | None = None

    def __post_init__(self) -> None:
        is_whole = None not in (self.name, self.call_id) and self.arguments is not msgspec.UNSET
        if self.type == "function_call" and not is_whole:
            raise ValueError("function_call without name, call_id or arguments")


class _NodeRow(msgspec.Struct):
    """The required fields of a row."""

    task: int = msgspec.field(name="_ng_task_index")
    id: str
    parent: str | None
    depth: int
    status: str
    reward: Finite | None
    value: Finite | None
    visits: int
    items: list[_Item]


def read_trees(path: Path) -> dict[int, list[Row]]:
    """The nodes in a file, in order, by task index."""
    if not path.exists():
        raise NotFound(f"the file {path} does not exist")
    trees: dict[int, list[Row]] = {}
    known: set[tuple[int, str | None]] = set()
    for number, line in read_lines(path):
        where = f"{path}, line {number}"
        row, node = _read(where, line)
        if (node.task, node.id) in known:
            raise BadData(f"{where}: duplicate node {node.id} of task {node.task}")
        if node.parent is None and node.task in trees:
            raise BadData(f"{where}: task {node.task} has a second root, node {node.id}")
        if node.parent is not None and (node.task, node.parent) not in known:
            raise BadData(f"{where}: node {node.id} does not follow its parent {node.parent}")
        known.add((node.task, node.id))
        trees.setdefault(node.task, []).append(row)
    if not trees:
        raise BadData(f"{path} has no nodes")
    return trees


def _read(where: str, line: bytes) -> tuple[Row, _NodeRow]:
    try:
        row = parse_object(line)
    except ValueError as error:
        raise BadData(f"{where}: {error}") from None
    try:
        return row, msgspec.convert(row, _NodeRow)
    except msgspec.ValidationError as error:
        wrong = f"not a node of a tree file as written by `stateroom branch` ({error})"
        raise BadData(f"{where}: {wrong}") from None

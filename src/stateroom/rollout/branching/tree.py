"""A tree: all that was tried in one task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

from stateroom.rollout.branching.branch import Branch
from stateroom.rollout.branching.node import Node
from stateroom.rollout.plan import Plan
from stateroom.rollout.world import Row
from stateroom.session.containment import contained


@dataclass(frozen=True)
class Budget:
    """How large the tree of a task may grow: when it is, no further branch begins."""

    branches: int | None = None
    nodes: int | None = None
    """What has begun is finished, so that there may be some more of these in the end."""

    def left(self, tree: Tree, wanted: int) -> int:
        """How many of the wanted branches may begin."""
        if self.nodes is not None and tree.size >= self.nodes:
            return 0
        return wanted if self.branches is None else min(wanted, self.branches - tree.branches)


class Tree:
    """The episodes of one task, from one seed: each starts at the root, or branches off another at a node.

    A branch is a fork of its node's session, exact to its luck and time, in which a policy of its own goes on. That
    policy's seed follows from where the branch is, so that the same tree grows again.
    """

    def __init__(
        self,
        plan: Plan,
        row: Row,
        root: Node,
        budget: Budget,
        turns: asyncio.Semaphore,
        on_branch: Callable[[Node], None],
    ) -> None:
        self.row = row
        self.root = root
        self.branches = 0
        """How many have begun."""
        self.size = 1
        """The nodes of the root and of all branches that have come to an end."""
        self._plan = plan
        self._budget = budget
        self._turns = turns
        """Lets so many branches of all trees act at a time."""
        self._on_branch = on_branch

    def __contains__(self, node: Node) -> bool:
        return node.path()[0] is self.root

    def ends(self) -> list[Node]:
        """Where episodes ended, and were judged."""
        return [node for node in self.root.below() if node.reward is not None]

    def best(self, nodes: Iterable[Node] | None = None) -> Node | None:
        """The node of the highest value, and of several the first; by default of all ends. None if none has a value."""
        valued = [node for node in (self.ends() if nodes is None else nodes) if node.value is not None]
        return max(valued, key=worth, default=None)

    async def branch(self, node: Node, n: int = 1, *, steps: int | None = None) -> list[Node]:
        """Go on from a node `n` times, each time in a fork of its own; `steps` answers far, or by default to the end.

        Gives the nodes that they came to. Missing among these are branches that broke down, and those for which there
        was no room in the budget; nothing goes on from where an episode has ended.
        """
        if node not in self:
            raise ValueError(f"{node!r} is not a node of this tree")
        if n < 0:
            raise ValueError(f"{n} branches cannot begin at a node: 0 or more can")
        if steps is not None and steps < 1:
            raise ValueError(f"a branch cannot go on for {steps} steps: 1 or more, or None for all")
        n = 0 if node.ended else self._budget.left(self, n)
        orders = range(node.begun + 1, node.begun + n + 1)
        node.begun += n
        self.branches += n
        tips = await asyncio.gather(*(self._grow(Branch(self._plan, self.row, node, order), steps) for order in orders))
        if steps is None:
            node.ends += [tip.reward for tip in tips if tip.reward is not None]
        return [tip for tip in tips if tip.status != "failed"]

    async def _grow(self, branch: Branch, steps: int | None) -> Node:
        async with self._turns:
            try:
                with contained:
                    await branch.grow(steps)
            except Exception as error:  # noqa: BLE001 - whatever an author's own code raises
                await branch.fail(error)
        self.size += branch.length
        self._on_branch(branch.tip)
        return branch.tip


def worth(node: Node) -> float:
    """The value of a node, to sort by; one without a value is worth least."""
    return -inf if node.value is None else node.value

"""Rules: where a tree branches, and which of its ends is the answer."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from stateroom.rollout.branching.node import Node
from stateroom.rollout.branching.tree import Tree, worth


class Rule(Protocol):
    """Grows a tree with `tree.branch`, and chooses."""

    async def grow(self, tree: Tree) -> Node | None:
        """Grow the tree of a task; gives the end of the episode that is the answer, or None if there is none."""


@dataclass(frozen=True)
class BestOf:
    """The best of several branches at one step.

    It chooses by the true rewards, and so tells what a perfect judge of finished episodes would gain.
    """

    n: int = 4
    """Branches, each played to its end."""
    at: int = 0
    """The answers of the policy's that come before them, and are shared."""

    async def grow(self, tree: Tree) -> Node | None:
        trunk = await tree.branch(tree.root, steps=self.at) if self.at else [tree.root]
        for node in trunk:
            await tree.branch(node, self.n)
        return tree.best()


@dataclass(frozen=True)
class Beam:
    """Step by step, the best nodes branch, and the best of what they came to go on.

    A node is worth the mean reward of some continuations, which are played to their ends for that alone; the answer is
    one of the episodes that were grown step by step.
    """

    n: int = 2
    """Branches of each node at each step."""
    width: int = 2
    """Nodes that go on."""
    continuations: int = 2
    """Of each node that may go on."""

    async def grow(self, tree: Tree) -> Node | None:
        beam = [tree.root]
        while not all(node.ended for node in beam):
            grown = await asyncio.gather(*(tree.branch(node, self.n, steps=1) for node in beam))
            nodes = [node for node in beam if node.ended and node.reward is not None]
            nodes += [child for children in grown for child in children]
            await asyncio.gather(*(tree.branch(node, self.continuations) for node in nodes))
            beam = sorted(nodes, key=worth, reverse=True)[: self.width]
        return tree.best(beam) or tree.best()


@dataclass(frozen=True)
class MonteCarlo:
    """An episode as the policy plays it, and how good each of its states is: the mean reward of continuations."""

    n: int = 4
    """Continuations of each state."""

    async def grow(self, tree: Tree) -> Node | None:
        episode = tree.best(await tree.branch(tree.root))
        if episode is not None:
            await asyncio.gather(*(tree.branch(node, self.n) for node in episode.path()))
        return episode

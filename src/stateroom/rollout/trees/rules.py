"""Rules: where a tree branches, and which end is its answer."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass
from typing import Any, Protocol

from stateroom.environment import load_class
from stateroom.errors import InvalidOption, StateroomError
from stateroom.rollout.trees.tree import Node, Tree, worth
from stateroom.session import contained


class Rule(Protocol):
    """Grows a tree with `tree.branch` and chooses the answer."""

    async def grow(self, tree: Tree) -> Node | None:
        """Grow the tree of a task; returns the end that is the answer, if any."""


@dataclass(frozen=True)
class BestOf:
    """The best of several branches at one step.

    It chooses by true rewards, and so shows the gain of a perfect judge of finished episodes.
    """

    n: int = 4
    """Branches, each played to the end."""
    at: int = 0
    """The number of policy answers that all branches share."""

    async def grow(self, tree: Tree) -> Node | None:
        trunk = await tree.branch(tree.root, steps=self.at) if self.at else [tree.root]
        for node in trunk:
            await tree.branch(node, self.n)
        return tree.best()


@dataclass(frozen=True)
class Beam:
    """At each step, the best nodes branch, and the best new nodes continue.

    The value of a node is the mean reward of continuations that are played to the end only for this estimate. The
    answer is one of the episodes that were grown step by step.
    """

    n: int = 2
    """Branches of each node at each step."""
    width: int = 2
    """Nodes that continue at each step."""
    continuations: int = 2
    """Continuations of each new node, to estimate its value."""

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
    """One episode of the policy, with the value of each state: the mean reward of continuations."""

    n: int = 4
    """Continuations of each state."""

    async def grow(self, tree: Tree) -> Node | None:
        episode = tree.best(await tree.branch(tree.root))
        if episode is not None:
            await asyncio.gather(*(tree.branch(node, self.n) for node in episode.path()))
        return episode


RULES: dict[str, type[Rule]] = {"best-of": BestOf, "beam": Beam, "monte-carlo": MonteCarlo}


def find_rule(name: str, settings: dict[str, int]) -> Rule:
    """Create the rule with a name, or `module:Class`, and its settings."""
    kind: Any = RULES.get(name)
    if kind is None:
        if ":" not in name:
            known = ", ".join(RULES)
            raise InvalidOption("rule", f"unknown rule {name!r}; choose {known}, or module:Class for your own")
        kind = load_class(name)
    if not (isinstance(kind, type) and inspect.iscoroutinefunction(getattr(kind, "grow", None))):
        raise InvalidOption("rule", f"{name} is not a rule, which needs a method `async def grow(self, tree)`")
    taken = inspect.signature(kind).parameters
    for setting in settings:
        if setting not in taken:
            raise InvalidOption(setting, f"{name} has no such setting; available: {', '.join(taken) or 'none'}")
    try:
        with contained:
            made: Rule = kind(**settings)
    except StateroomError:
        raise
    except Exception as error:
        raise InvalidOption("rule", f"cannot create {name}: {type(error).__name__}: {error}") from error
    return made

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
    """Grows a tree with `tree.branch`, and chooses the answer."""

    async def grow(self, tree: Tree) -> Node | None:
        """Grow the tree of a task; gives the end that is the answer, or None if there is none."""


@dataclass(frozen=True)
class BestOf:
    """The best of several branches at one step.

    It chooses by the true rewards, and so shows what a perfect judge of finished episodes would gain.
    """

    n: int = 4
    """Branches, each played to the end."""
    at: int = 0
    """Answers of the policy before the branches, which share them."""

    async def grow(self, tree: Tree) -> Node | None:
        trunk = await tree.branch(tree.root, steps=self.at) if self.at else [tree.root]
        for node in trunk:
            await tree.branch(node, self.n)
        return tree.best()


@dataclass(frozen=True)
class Beam:
    """At each step, the best nodes branch, and the best of the new nodes continue.

    The value of a node is the mean reward of continuations, which are played to the end only for that; the answer is
    one of the episodes that were grown step by step.
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
    """One episode of the policy, with the value of each of its states: the mean reward of continuations."""

    n: int = 4
    """Continuations of each state."""

    async def grow(self, tree: Tree) -> Node | None:
        episode = tree.best(await tree.branch(tree.root))
        if episode is not None:
            await asyncio.gather(*(tree.branch(node, self.n) for node in episode.path()))
        return episode


RULES: dict[str, type[Rule]] = {"best-of": BestOf, "beam": Beam, "monte-carlo": MonteCarlo}


def find_rule(name: str, settings: dict[str, int]) -> Rule:
    """The rule of a name, or of `module:Class`, with its settings."""
    kind: Any = RULES.get(name)
    if kind is None:
        if ":" not in name:
            known = ", ".join(RULES)
            raise InvalidOption("rule", f"there is no {name!r}; there are {known}. One of your own is module:Class")
        kind = load_class(name)
    if not (isinstance(kind, type) and inspect.iscoroutinefunction(getattr(kind, "grow", None))):
        raise InvalidOption("rule", f"{name} is not one: a class with a method `async def grow(self, tree)`")
    taken = inspect.signature(kind).parameters
    for setting in settings:
        if setting not in taken:
            raise InvalidOption(setting, f"{name} has no such setting; it has {', '.join(taken) or 'none'}")
    try:
        with contained:
            made: Rule = kind(**settings)
    except StateroomError:
        raise
    except Exception as error:
        raise InvalidOption("rule", f"{name} cannot be made: {type(error).__name__}: {error}") from error
    return made

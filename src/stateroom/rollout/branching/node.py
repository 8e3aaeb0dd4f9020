"""Nodes: the points of episodes that branch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from stateroom.model import Item
from stateroom.rollout.world import Row, Seat

Status = Literal["open", "completed", "incomplete", "failed"]
"""Whether an episode can go on from a node, or how it ended there: by itself, by a limit, or by breaking down."""


@dataclass(eq=False)
class Node:
    """A session at a revision, and the answer of the policy's, with what its calls came to, that led there."""

    id: str
    """`0` is the root, `0.2` what its second branch did first, and `0.2+1` what the same branch did next."""
    parent: Node | None
    seat: Seat
    revision: int | None
    """None without a state."""
    items: list[Item] = field(default_factory=list)
    """What happened since the parent."""
    order: int = 0
    """Where it stands among its parent's children: first what the same branch did next, then those that began there."""
    status: Status = "open"
    outcome: Row | None = None
    """What was measured where an episode ended, the reward above all."""
    failure: Row | None = None
    """What is known of a branch that broke down."""
    children: list[Node] = field(default_factory=list)
    begun: int = 0
    """Branches that began here."""
    ends: list[float] = field(default_factory=list)
    """The rewards of the branches that began here and were played to their ends."""

    def __post_init__(self) -> None:
        self.depth: int = 0 if self.parent is None else self.parent.depth + 1
        """Answers of policies from the root to here."""

    def __repr__(self) -> str:
        return f"<Node {self.id}, {self.status}, value {self.value}>"

    @property
    def ended(self) -> bool:
        """True when nothing can branch off here."""
        return self.status != "open"

    @property
    def reward(self) -> float | None:
        """The verdict on the episode that ended here."""
        return None if self.outcome is None else self.outcome["reward"]

    @property
    def value(self) -> float | None:
        """The mean reward of the branches that began here and were played to their ends; of an end, its reward."""
        return fmean(self.ends) if self.ends else self.reward

    @property
    def visits(self) -> int:
        """How many rewards the value is the mean of."""
        return len(self.ends) or int(self.reward is not None)

    def path(self) -> list[Node]:
        """The nodes from the root to this one."""
        found = [self]
        while found[-1].parent is not None:
            found.append(found[-1].parent)
        return found[::-1]

    def trajectory(self) -> list[Item]:
        """Everything that the policies and the tools did from the root to here."""
        return [item for node in self.path() for item in node.items]

    def below(self) -> Iterator[Node]:
        """This node and all below it, each before its children."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += sorted(node.children, key=lambda child: -child.order)


def node_row(node: Node, *, chosen: bool) -> Row:
    """A node as a line of a tree's file."""
    return {
        "id": node.id,
        "parent": None if node.parent is None else node.parent.id,
        "session": node.seat.id,
        "revision": node.revision,
        "depth": node.depth,
        "status": node.status,
        "reward": node.reward,
        "value": node.value,
        "visits": node.visits,
        "chosen": chosen,
        "items": node.items,
        **({"error": node.failure["error"]} if node.failure is not None else {}),
    }

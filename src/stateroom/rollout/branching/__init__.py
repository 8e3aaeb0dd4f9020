"""Episodes that branch: trees over an environment, grown by a policy and a rule."""

from stateroom.rollout.branching.files import TreeFiles, read_trees
from stateroom.rollout.branching.rules import Beam, BestOf, MonteCarlo, Rule
from stateroom.rollout.branching.runner import Branching, Grown, branch
from stateroom.rollout.branching.tree import Budget, Node, Tree

__all__ = [
    "Beam",
    "BestOf",
    "Branching",
    "Budget",
    "Grown",
    "MonteCarlo",
    "Node",
    "Rule",
    "Tree",
    "TreeFiles",
    "branch",
    "read_trees",
]

"""Branching episodes: trees over an environment, grown by a policy and a rule."""

from stateroom.rollout.trees.rules import Beam, BestOf, MonteCarlo, Rule
from stateroom.rollout.trees.runner import BranchOptions, BranchPlan, GrownTree, TreeReport, branch, plan_branches
from stateroom.rollout.trees.tree import Budget, Node, Tree, read_trees

__all__ = [
    "Beam",
    "BestOf",
    "BranchOptions",
    "BranchPlan",
    "Budget",
    "GrownTree",
    "MonteCarlo",
    "Node",
    "Rule",
    "Tree",
    "TreeReport",
    "branch",
    "plan_branches",
    "read_trees",
]

"""Advantages: how much better than expected each answer of a model was.

| how | rows | advantage of an answer |
|---|---|---|
| `grpo` | rollouts | reward minus the mean over the task's episodes, divided by their standard deviation |
| `rloo` | rollouts | reward minus the mean over the task's other episodes |
| `gigpo` | rollouts with states | that of `grpo`, plus the same among all answers given in an equal state |
| `vine` | nodes of trees | value of the state after it minus the value of the state before it |
| `tree` | nodes of trees | mean reward of the ends below it, normalised within its tree, plus within its task |

The value of a state is the mean value of the states after each answer given there, or the reward where an episode
ended. So the `vine` advantages of all answers in one state have the mean zero. `stateroom branch --rule monte-carlo`
grows suitable trees: it forks each state of an episode.

References: GRPO (arXiv 2402.03300), RLOO (2402.14740), GiGPO (2505.10978), VinePPO (2410.01679), SPO (2505.23564),
Tree-GRPO (2509.21240).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from statistics import fmean, stdev
from typing import Any, Literal

from stateroom.errors import BadData, InvalidArguments
from stateroom.model import answers_in
from stateroom.rollout import SESSION
from stateroom.session import History
from stateroom.store import Store

Row = Mapping[str, Any]

AdvantageMethod = Literal["grpo", "rloo", "gigpo", "vine", "tree"]

STATES = "_stateroom_states"
"""The field with the digests of the states in which the answers of an episode were given."""

LEAST_DEVIATION = 1e-4
"""Added to a standard deviation as in TRL, so a group of equal rewards has no advantages."""

DISCOUNT = 0.95
"""The discount of the reward per answer, among answers in one state, as in GiGPO."""


def advantages(rows: Iterable[Row], how: AdvantageMethod) -> list[list[float]]:
    """The advantages of the answers in rows: for each row a list with a number per answer.

    The rows are from a rollouts file, with all rows of a task together in any order, or, for `vine` and `tree`, nodes
    of trees from `read_trees`, each after its parent. A node has one answer, a root none. Several trees of one task may
    follow one another. `gigpo` needs rows from `with_states`.
    """
    given = [*rows]
    method = _METHODS.get(how)
    if method is None:
        raise InvalidArguments(f"how: unknown method {how!r}; choose one of {', '.join(_METHODS)}")
    needs = "value" if how in ("vine", "tree") else "response"
    for row in given:
        if needs not in row:
            what = "nodes of trees, from `stateroom branch`" if needs == "value" else "rows of a rollouts file"
            raise InvalidArguments(f"how: {how} needs {what}")
    return method(given)


async def with_states(rows: Iterable[Row], store: Store) -> list[dict[str, Any]]:
    """Rows of a rollouts file with the states in which their answers were given, from the sessions in a store."""
    return [{**row, STATES: await _states(row, store)} for row in rows]


async def _states(row: Row, store: Store) -> list[str]:
    if row.get(SESSION) is None:
        raise BadData("gigpo needs episodes with a state, but this one has no session")
    digests = await History(store).digests(row[SESSION], ("message",))
    return [digest for entry, digest in digests if entry.facts["by"] == "model"]


# Groups of episodes.


def _grpo(rows: list[Row]) -> list[list[float]]:
    return _for_each_answer(rows, _normalised([(row["_ng_task_index"], float(row["reward"])) for row in rows]))


def _rloo(rows: list[Row]) -> list[list[float]]:
    def left_out(rewards: list[float]) -> Callable[[float], float]:
        others = max(len(rewards) - 1, 1)
        return lambda reward: (len(rewards) * reward - sum(rewards)) / others

    return _for_each_answer(rows, _by_group([(row["_ng_task_index"], float(row["reward"])) for row in rows], left_out))


def _gigpo(rows: list[Row]) -> list[list[float]]:
    steps: list[tuple[Hashable, float]] = []
    episodes = _grpo(rows)
    for row, answers in zip(rows, episodes, strict=True):
        states = row.get(STATES)
        if states is None or len(states) != len(answers):
            raise InvalidArguments("how: gigpo needs rows from `await with_states(rows, store)`")
        for number, state in enumerate(states):
            later = len(states) - 1 - number
            steps.append(((row["_ng_task_index"], state), DISCOUNT**later * float(row["reward"])))
    among_equals = iter(_normalised(steps))
    return [[episode + next(among_equals) for episode in answers] for answers in episodes]


def _for_each_answer(rows: list[Row], values: list[float]) -> list[list[float]]:
    """The same value for each answer of an episode."""
    lengths = (len(answers_in((row["response"] or {}).get("output") or [])) for row in rows)
    return [[value] * length for value, length in zip(values, lengths, strict=True)]


def _normalised(values: list[tuple[Hashable, float]]) -> list[float]:
    return _by_group(values, _normal)


def _normal(group: list[float]) -> Callable[[float], float]:
    """A function that normalises a value by the mean and the standard deviation of a group."""
    mean, deviation = fmean(group), stdev(group) if len(group) > 1 else 0.0
    return lambda value: (value - mean) / (deviation + LEAST_DEVIATION)


def _by_group(
    values: list[tuple[Hashable, float]], rule: Callable[[list[float]], Callable[[float], float]]
) -> list[float]:
    """Apply a function of each group to its values."""
    groups: defaultdict[Hashable, list[float]] = defaultdict(list)
    for group, value in values:
        groups[group].append(value)
    rules = {group: rule(members) for group, members in groups.items()}
    return [rules[group](value) for group, value in values]


# Trees.


class _Node:
    """A node with its position in its tree."""

    def __init__(self, row: Row, parent: _Node | None, tree: int) -> None:
        self.task: int = row["_ng_task_index"]
        self.tree = tree
        self.parent = parent
        self.reward: float | None = row["reward"]
        self.children: list[_Node] = []
        if parent is not None:
            parent.children.append(self)


def _nodes(rows: list[Row]) -> list[_Node]:
    known: dict[tuple[int, str], _Node] = {}
    nodes: list[_Node] = []
    trees = 0
    for row in rows:
        task, parent = row["_ng_task_index"], row["parent"]
        trees += parent is None
        if parent is not None and (task, parent) not in known:
            raise BadData(f"node {row['id']} of task {task} does not follow its parent {parent}")
        node = _Node(row, None if parent is None else known[task, parent], trees)
        known[task, row["id"]] = node
        nodes.append(node)
    return nodes


def _vine(rows: list[Row]) -> list[list[float]]:
    nodes = _nodes(rows)
    values: dict[_Node | None, float | None] = {}
    for node in reversed(nodes):  # children before their parents
        below = [value for child in node.children if (value := values[child]) is not None]
        values[node] = node.reward if node.reward is not None else fmean(below) if below else None
    return [_one(node, _difference(values[node], values.get(node.parent))) for node in nodes]


def _difference(after: float | None, before: float | None) -> float:
    """The difference of two values; 0 if no episode ended after the answer."""
    return 0.0 if after is None or before is None else after - before


def _tree(rows: list[Row]) -> list[list[float]]:
    nodes = _nodes(rows)
    ends: dict[_Node, list[float]] = {}
    for node in reversed(nodes):
        own = [] if node.reward is None else [node.reward]
        ends[node] = [*own, *(reward for child in node.children for reward in ends[child])]
    below = {node: fmean(rewards) for node, rewards in ends.items() if rewards}
    of_task: defaultdict[int, list[float]] = defaultdict(list)
    in_tree: dict[int, Callable[[float], float]] = {}
    for root in (node for node in nodes if node.parent is None and node in below):
        of_task[root.task] += ends[root]
        in_tree[root.tree] = _normal(ends[root])
    in_task = {task: _normal(rewards) for task, rewards in of_task.items()}

    def advantage(node: _Node) -> float:
        return in_tree[node.tree](below[node]) + in_task[node.task](below[node]) if node in below else 0.0

    return [_one(node, advantage(node)) for node in nodes]


def _one(node: _Node, advantage: float) -> list[float]:
    """The advantage of a node's only answer; empty for a root."""
    return [] if node.parent is None else [advantage]


_METHODS: dict[str, Callable[[list[Row]], list[list[float]]]] = {
    "grpo": _grpo,
    "rloo": _rloo,
    "gigpo": _gigpo,
    "vine": _vine,
    "tree": _tree,
}

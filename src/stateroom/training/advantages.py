"""Advantages: how much better than expected each answer of a model was.

| how | of | an answer's advantage |
|---|---|---|
| `grpo` | rollouts | its episode's reward, less the mean of its task's episodes, by their standard deviation |
| `rloo` | rollouts | its episode's reward, less the mean of the task's other episodes |
| `gigpo` | rollouts with states | that of `grpo`, plus the same among all answers that were given in an equal state |
| `vine` | nodes of trees | the value of the state after it, less the value of the state before it |
| `tree` | nodes of trees | the mean reward of the ends below it, normalised by its tree, plus by all of its task |

The value of a state is estimated by what followed from it: it is the mean value of the states after each answer that
was given there; where an episode ended, it is the reward. So the `vine` advantages of all answers in one state have the
mean zero. `stateroom branch --rule monte-carlo` grows trees for this: it forks each state of an episode.

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
"""The field with the digest of the state that each answer of an episode was given in."""

LEAST_DEVIATION = 1e-4
"""Added to a standard deviation, as TRL does: a group of equal rewards has no advantages."""

DISCOUNT = 0.95
"""By how much the reward of an episode counts less one answer earlier, among answers in one state; as in GiGPO."""


def advantages(rows: Iterable[Row], how: AdvantageMethod) -> list[list[float]]:
    """The advantages of the answers in some rows: for each row a list, with a number for each answer.

    The rows are those of a rollouts file, all of a task together in any order; or, for `vine` and `tree`, nodes of
    trees as `read_trees` gives them, each after its parent. A node has one answer, and a root none. Several trees of
    one task may follow one another. `gigpo` needs rows from `with_states`.
    """
    given = [*rows]
    method = _METHODS.get(how)
    if method is None:
        raise InvalidArguments(f"how: there is no {how!r}; there are {', '.join(_METHODS)}")
    needs = "value" if how in ("vine", "tree") else "response"
    for row in given:
        if needs not in row:
            what = "nodes of trees, from `stateroom branch`" if needs == "value" else "rows of a rollouts file"
            raise InvalidArguments(f"how: {how} needs {what}")
    return method(given)


async def with_states(rows: Iterable[Row], store: Store) -> list[dict[str, Any]]:
    """Rows of a rollouts file with the states that their answers were given in, by the sessions in a store."""
    return [{**row, STATES: await _states(row, store)} for row in rows]


async def _states(row: Row, store: Store) -> list[str]:
    if row.get(SESSION) is None:
        raise BadData("gigpo needs episodes with a state: this one has no session")
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
    """A value less a group's mean, by its standard deviation."""
    mean, deviation = fmean(group), stdev(group) if len(group) > 1 else 0.0
    return lambda value: (value - mean) / (deviation + LEAST_DEVIATION)


def _by_group(
    values: list[tuple[Hashable, float]], rule: Callable[[list[float]], Callable[[float], float]]
) -> list[float]:
    """What a rule that knows all values of a group makes of each of them."""
    groups: defaultdict[Hashable, list[float]] = defaultdict(list)
    for group, value in values:
        groups[group].append(value)
    rules = {group: rule(members) for group, members in groups.items()}
    return [rules[group](value) for group, value in values]


# Trees.


class _Node:
    """A node with its place in its tree."""

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
            raise BadData(f"node {row['id']} of task {task} comes before its parent {parent}, or without it")
        node = _Node(row, None if parent is None else known[task, parent], trees)
        known[task, row["id"]] = node
        nodes.append(node)
    return nodes


def _vine(rows: list[Row]) -> list[list[float]]:
    nodes = _nodes(rows)
    values: dict[_Node | None, float | None] = {}
    for node in reversed(nodes):  # children come before their parents
        below = [value for child in node.children if (value := values[child]) is not None]
        values[node] = node.reward if node.reward is not None else fmean(below) if below else None
    return [_one(node, _difference(values[node], values.get(node.parent))) for node in nodes]


def _difference(after: float | None, before: float | None) -> float:
    """Nothing is known of an answer after which no episode has ended."""
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
    """The advantage of a node's one answer; a root has none."""
    return [] if node.parent is None else [advantage]


_METHODS: dict[str, Callable[[list[Row]], list[list[float]]]] = {
    "grpo": _grpo,
    "rloo": _rloo,
    "gigpo": _gigpo,
    "vine": _vine,
    "tree": _tree,
}

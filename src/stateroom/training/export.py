"""Export the episodes of a run in the formats of trainers.

| format | row | for |
|---|---|---|
| `sft` | a solved episode: `messages`, `tools` | TRL's SFTTrainer, and others that read chat messages |
| `dpo` | two continuations of one state: `prompt`, `chosen`, `rejected`, `tools` | TRL's DPOTrainer |
| `grpo` | tokens: `prompt_ids`, `completion_ids`, `completion_mask`, `logprobs`, `advantages` | trainers on tokens |
| `verl` | a task: `prompt`, and the whole row in `extra_info` | verl's RLHFDataset, and the loop in `adapters.verl` |
| `jsonl` | an episode: its messages, token sequences and advantages | your own trainer |

Pairs for `dpo` are continuations of the same state: branches of one node of a tree, or the episodes of a run with
`--group`. The best is paired with the worst, the second best with the second worst, and so on.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, NamedTuple, TypeVar

import msgspec

from stateroom.agent import task_items
from stateroom.errors import BadData, InvalidOption, ModelFailed, NotFound
from stateroom.model import Item, Message, chat_tools, template_messages
from stateroom.rollout import NODE, PARENT, SESSION, Key, Row, StoredEpisode, StoredRun, TreeFiles, key_of, read_trees
from stateroom.store import open_store
from stateroom.training.advantages import AdvantageMethod, advantages, with_states
from stateroom.training.token_sequences import sequences, token_advantages

T = TypeVar("T")

To = Literal["sft", "dpo", "grpo", "verl", "jsonl"]

Advantages = Mapping[Key, list[float]]


class Format(NamedTuple):
    """A format: the kind of value in each column, and a function that creates rows from a run."""

    columns: Mapping[str, str]
    rows: Callable[[StoredRun, Advantages, float], Iterator[Row]]
    has_advantages: bool = False


async def export_rows(
    run: StoredRun, to: To, *, how: AdvantageMethod = "grpo", min_reward: float | None = None
) -> AsyncIterator[Row]:
    """The rows of a run in a format.

    `how` is the advantage estimator, and `min_reward` the lowest reward of an episode for `sft`, by default the solved
    threshold of the run. Raises `InvalidOption` or `BadData` if the run lacks data that the format needs.
    """
    form = FORMATS[to]
    values = await advantages_of(run, how) if form.has_advantages else {}
    for row in form.rows(run, values, run.solved_threshold if min_reward is None else min_reward):
        yield row


async def advantages_of(run: StoredRun, how: AdvantageMethod) -> dict[Key, list[float]]:
    """The advantages of all answers in a run, by episode."""
    if how in ("vine", "tree"):
        if not run.branches:
            raise InvalidOption("how", f"{how} needs trees; grow them with `stateroom branch`")
        return _advantages_in_trees(run, how)
    return await advantages_in_groups([_outline(episode.row) for episode in run.finished()], how, run.store)


async def advantages_in_groups(rows: Sequence[Row], how: AdvantageMethod, store: str | None) -> dict[Key, list[float]]:
    """The advantages of all answers in the rows of a run, by episode, with its sessions in the store at a URL."""
    if how == "gigpo":
        if store is None:
            raise NotFound("gigpo needs the sessions of the run, but their store is unknown")
        async with open_store(store) as opened:
            rows = await with_states(rows, opened)
    return dict(zip(map(key_of, rows), advantages(rows, how), strict=True))


def _advantages_in_trees(run: StoredRun, how: AdvantageMethod) -> dict[Key, list[float]]:
    paths = {task: along_paths(nodes, advantages(nodes, how)) for task, nodes in trees_of(run).items()}
    by_episode: dict[Key, list[float]] = {}
    for episode in run.finished():
        node = episode.row.get(NODE)
        if node not in paths.get(episode.task, ()):
            raise BadData(f"{episode.where}: {NODE}: the tree of task {episode.task} does not have this node")
        by_episode[episode.key] = paths[episode.task][node]
    return by_episode


def along_paths(nodes: Iterable[Row], values: Iterable[list[T]]) -> dict[str | None, list[T]]:
    """The values of all nodes on the path to each node of a tree, by its id; None stands before the root."""
    paths: dict[str | None, list[T]] = {None: []}
    for node, own in zip(nodes, values, strict=True):
        paths[node["id"]] = [*paths[node["parent"]], *own]
    return paths


# Episodes.


def _outline(row: Row) -> Row:
    """The part of a row that advantages need, since all rows of a run are held in memory for them."""
    output = [{name: item[name] for name in ("type", "role") if name in item} for item in _output(row)]
    kept = ("_ng_task_index", "_ng_rollout_index", "reward", SESSION)
    return {**{name: row[name] for name in kept if name in row}, "response": {"output": output}}


def _output(row: Row) -> list[Item]:
    return row["response"].get("output") or []


def _about(row: Row) -> Row:
    """The common columns of all episode formats."""
    return {"task": row["_ng_task_index"], "rollout": row["_ng_rollout_index"], "reward": float(row["reward"])}


ABOUT = {"task": "int", "rollout": "int", "reward": "float"}


def _opening(row: Row) -> list[Item]:
    """The first items of an episode's conversation."""
    asked, answered = row.get("responses_create_params") or {}, row.get("response") or {}
    instructions = answered.get("instructions") or asked.get("instructions")
    system: list[Item] = [{"type": "message", "role": "system", "content": instructions}] if instructions else []
    return [*system, *task_items(row)]


def _messages(row: Row) -> list[Message]:
    """The whole conversation of an episode."""
    return template_messages([*_opening(row), *_output(row)])


def _tools(row: Row) -> str:
    return json.dumps(chat_tools(row["response"].get("tools") or []), ensure_ascii=False)


@contextmanager
def _named(where: str) -> Iterator[None]:
    """Add the line of the file to errors."""
    try:
        yield
    except (BadData, ModelFailed) as error:
        raise BadData(f"{where}: {error}") from None


def _sft(run: StoredRun, _: Advantages, min_reward: float) -> Iterator[Row]:
    for episode in run.finished():
        row = episode.row
        if row["reward"] >= min_reward:
            with _named(episode.where):
                made = {"messages": _messages(row), "tools": _tools(row), **_about(row)}
            yield made


def _grpo(run: StoredRun, values: Advantages, _: float) -> Iterator[Row]:
    for episode in run.finished():
        with _named(episode.where):
            segments = sequences(episode.row)
        for number, sequence in enumerate(segments):
            completion = sequence.completion
            yield {
                **_about(episode.row),
                "segment": number,
                "prompt_ids": sequence.prompt,
                "completion_ids": sequence.ids[completion],
                "completion_mask": sequence.mask[completion],
                "logprobs": sequence.log_probs[completion],
                "advantages": token_advantages(sequence, values[episode.key])[completion],
            }


def _jsonl(run: StoredRun, values: Advantages, _: float) -> Iterator[Row]:
    for episode in run.finished():
        row = episode.row
        with _named(episode.where):
            has_tokens = any("generation_token_ids" in item for item in _output(row))
            made = {
                **_about(row),
                "session": row.get(SESSION),
                "messages": _messages(row),
                "tools": _tools(row),
                "advantages": values[episode.key],
                "sequences": [msgspec.to_builtins(each) for each in sequences(row)] if has_tokens else [],
            }
        yield made


def _verl(run: StoredRun, _: Advantages, __: float) -> Iterator[Row]:
    name = "stateroom" if run.description is None else run.description.environment
    for where, row in run.tasks():
        with _named(where):
            prompt = [_turn(each) for each in template_messages(_opening(row))]
        yield {
            "data_source": name,
            "prompt": prompt,
            "ability": "agent",
            "reward_model": {"style": "rule", "ground_truth": ""},
            "extra_info": {"index": row["_ng_task_index"], "row": json.dumps(_given(row), ensure_ascii=False)},
            "agent_name": "stateroom",
        }


def _turn(message: Message) -> Message:
    if not isinstance(message["content"], str):
        raise BadData("responses_create_params.input: verl accepts only text messages")
    return {"role": message["role"], "content": message["content"]}


def _given(row: Row) -> Row:
    """The original task, without the indices and the session of an episode."""
    return {name: value for name, value in row.items() if not name.startswith(("_ng_", "_stateroom_"))}


# Continuations of one state.


class Continuation(NamedTuple):
    """The items after a state, and the reward at the end."""

    items: list[Item]
    reward: float
    where: str


def _dpo(run: StoredRun, _: Advantages, __: float) -> Iterator[Row]:
    return _pairs_in_trees(run) if run.branches else _pairs_in_groups(run)


def _pairs_in_groups(run: StoredRun) -> Iterator[Row]:
    groups: defaultdict[int, list[StoredEpisode]] = defaultdict(list)
    for episode in run.finished():
        if PARENT not in episode.row:
            raise InvalidOption(
                "to", "dpo needs continuations of one state; use `group` in the run, or `stateroom branch`"
            )
        groups[episode.task].append(episode)
    for task, episodes in sorted(groups.items()):
        continuations = [Continuation(_output(each.row), float(each.row["reward"]), each.where) for each in episodes]
        yield from _pairs(task, "", *_offered(episodes[0]), continuations)


def _pairs_in_trees(run: StoredRun) -> Iterator[Row]:
    tools = {episode.task: _offered(episode) for episode in run.finished()}
    for task, nodes in trees_of(run).items():
        children: defaultdict[str | None, list[Row]] = defaultdict(list)
        before: dict[str | None, list[Item]] = {None: []}
        for node in nodes:
            children[node["parent"]].append(node)
            before[node["id"]] = [*before[node["parent"]], *node["items"]]
        for node in nodes:
            branches = (_continuation(child, children) for child in children[node["id"]])
            continuations = [branch for branch in branches if branch is not None]
            if len(continuations) > 1:
                if task not in tools:
                    raise BadData(f"{run.files.rollouts} has no episode of task {task}, but a tree")
                opening, offered = tools[task]
                yield from _pairs(task, node["id"], [*opening, *before[node["id"]]], offered, continuations)


def trees_of(run: StoredRun) -> dict[int, list[Row]]:
    """The nodes of a run's trees, each after its parent, by task index."""
    return read_trees(TreeFiles(run.files.rollouts).tree)


def _continuation(node: Row, children: Mapping[str | None, list[Row]]) -> Continuation | None:
    """A branch from a node to its end, if it has one."""
    items = [*node["items"]]
    while node["reward"] is None:
        following = children.get(node["id"])
        if not following:
            return None
        node = following[0]
        items += node["items"]
    return Continuation(items, float(node["reward"]), f"node {node['id']} of the tree")


def _offered(episode: StoredEpisode) -> tuple[list[Item], str]:
    """The first items and the tools of an episode."""
    with _named(episode.where):
        return _opening(episode.row), _tools(episode.row)


def _pairs(task: int, node: str, prefix: list[Item], tools: str, found: list[Continuation]) -> Iterator[Row]:
    ranked = sorted(found, key=lambda each: -each.reward)
    for best, worst in zip(ranked, reversed(ranked), strict=True):
        if best.reward <= worst.reward:
            return
        with _named(best.where):
            prompt, chosen = template_messages(prefix), template_messages(best.items)
        with _named(worst.where):
            rejected = template_messages(worst.items)
        yield {
            "prompt": prompt,
            "chosen": chosen,
            "rejected": rejected,
            "tools": tools,
            "task": task,
            "node": node,
            "margin": best.reward - worst.reward,
        }


FORMATS: dict[To, Format] = {
    "sft": Format({"messages": "jsons", "tools": "text", **ABOUT}, _sft),
    "dpo": Format(
        {
            **{"prompt": "jsons", "chosen": "jsons", "rejected": "jsons", "tools": "text"},
            **{"task": "int", "node": "text", "margin": "float"},
        },
        _dpo,
    ),
    "grpo": Format(
        {
            **ABOUT,
            **{"segment": "int", "prompt_ids": "ints", "completion_ids": "ints", "completion_mask": "ints"},
            **{"logprobs": "floats", "advantages": "floats"},
        },
        _grpo,
        has_advantages=True,
    ),
    "verl": Format(
        {
            **{"data_source": "text", "prompt": "turns", "ability": "text", "reward_model": "reward_model"},
            **{"extra_info": "extra_info", "agent_name": "text"},
        },
        _verl,
    ),
    "jsonl": Format(
        {
            **ABOUT,
            **{"session": "text", "messages": "jsons", "tools": "text", "advantages": "floats", "sequences": "jsons"},
        },
        _jsonl,
        has_advantages=True,
    ),
}

"""Credit: whether advantages find the one call that lost the reward."""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.timing import Figure
from stateroom.gallery import ExtractionEnvironment
from stateroom.model import answers_in
from stateroom.rollout import NODE, MonteCarlo, StoredRun, TreeFiles, branch, generate_tasks, plan_branches
from stateroom.training import advantages_of

TASKS = 100
CONTINUATIONS = 32
"""Of each state of an episode."""
WRONG = "extract_synonym_values"
"""The call in which the noisy policy errs."""
TRUNK = re.compile(r"0\.1(\+\d+)?")
"""The nodes of the episode whose states were forked."""


class Lost(NamedTuple):
    """An episode without a reward, because of one wrong call."""

    wrong: int
    """The number of the answer with that call."""
    vine: list[float]
    """The advantage of each answer."""
    grpo: list[float]


async def credit() -> list[Figure]:
    """How often the wrong call has the lowest advantage, in episodes that one wrong call lost.

    The advantages are those of `vine`, with 32 continuations from each state. `python -m benchmarks.credit FILE` draws
    the episodes.
    """
    episodes = await lost_episodes()
    found = sum(min(episode.vine) == episode.vine[episode.wrong] for episode in episodes)
    what = f"wrong calls with the lowest advantage, by vine with {CONTINUATIONS} continuations"
    return [Figure(what, found / len(episodes), 0.95, "at least", f"{found} of {len(episodes)} episodes")]


async def lost_episodes() -> list[Lost]:
    """The episodes of a noisy policy without a reward."""
    with tempfile.TemporaryDirectory() as folder:
        output, tasks = Path(folder) / "run.jsonl", generate_tasks(ExtractionEnvironment, TASKS, seed=1)
        rule = MonteCarlo(CONTINUATIONS)
        await branch(plan_branches("extraction", input=tasks, model="noisy", output=output, rule=rule))
        run = StoredRun(TreeFiles(output))
        vine, grpo = await advantages_of(run, "vine"), await advantages_of(run, "grpo")
        lost = [each for each in run.episodes() if TRUNK.fullmatch(each.row[NODE]) and not each.reward]
        keys = [(each.task, each.rollout) for each in lost]
        return [Lost(_wrong(each.row), vine[key], grpo[key]) for each, key in zip(lost, keys, strict=True)]


def _wrong(row: dict[str, Any]) -> int:
    output = row["response"]["output"]
    calls = [{output[place].get("name") for place in places} for places in answers_in(output)]
    return next(number for number, names in enumerate(calls) if WRONG in names)


def draw(episodes: list[Lost], path: str) -> None:
    """Draw the advantages of the answers before, at and after the wrong call."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - for this alone

    figure, axes = plt.subplots(figsize=(7, 3.4), layout="constrained")
    for how, colour, aside in (("grpo", "C7", -0.12), ("vine", "C3", 0.12)):
        by_place: defaultdict[int, list[float]] = defaultdict(list)
        for episode in episodes:
            for place, value in enumerate(getattr(episode, how)):
                by_place[place - episode.wrong].append(value)
        places = sorted(by_place)
        for place in places:
            axes.plot([place + aside] * len(by_place[place]), by_place[place], ".", color=colour, alpha=0.25)
        means = [fmean(by_place[place]) for place in places]
        axes.plot([place + aside for place in places], means, "_", markersize=22, color=colour, label=how)
    axes.axhline(0, color="black", linewidth=0.5)
    axes.set(xlabel="answers from the wrong call on", ylabel="advantage", xticks=places)
    axes.legend(loc="upper right", frameon=False)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    draw(asyncio.run(lost_episodes()), sys.argv[1])

"""A real model on one GPU: `python -m benchmarks.train_gpu MODEL.gguf FOLDER`, with SmolLM2-135M-Instruct in mind.

For each environment: the reward of the model as it is on held-out tasks; if too few of its answers are tool calls, a
supervised phase, with its own measurement; then reinforcement by `grpo`, `tree` and `vine`, several seeds each, until
each has generated the same number of tokens. `FOLDER/report.json` has all figures with confidence intervals. A second
call continues where the first was interrupted. `--quick` is the same in small, for a CPU.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from time import perf_counter
from typing import Any

from stateroom.model import answers_in
from stateroom.rollout import StoredRun
from stateroom.training import AdvantageMethod, Trainer, TrainOptions, read_curve

ALGORITHMS: tuple[AdvantageMethod, ...] = ("grpo", "tree", "vine")
FEW = 0.1
"""The share of answers that must be tool calls; below, there is a supervised phase."""

NEVER = 1_000_000


@dataclass(frozen=True)
class Size:
    """How much is trained and measured."""

    tokens: int = 300_000
    """Tokens that each training generates."""
    supervised: int = 60
    held_out: int = 200
    seeds: int = 3
    tasks_per_step: int = 16
    group: int = 8
    max_tokens: int = 128


QUICK = Size(tokens=300, supervised=3, held_out=4, seeds=1, tasks_per_step=2, group=4, max_tokens=8)


class Report:
    """The figures so far, in a file: what is there is not measured again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._figures: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}

    def __contains__(self, name: str) -> bool:
        return name in self._figures

    def __getitem__(self, name: str) -> Any:
        return self._figures[name]

    def add(self, name: str, figures: dict[str, Any]) -> None:
        self._figures[name] = figures
        self._path.write_text(json.dumps(self._figures, indent=2))
        print(name, json.dumps(figures), flush=True)


def interval(rewards: list[float]) -> list[float]:
    """The mean, and the half width of its 95 % confidence interval."""
    return [fmean(rewards), 1.96 * stdev(rewards) / sqrt(len(rewards)) if len(rewards) > 1 else 0.0]


def held_out_rewards(folder: Path, step: int) -> list[float]:
    """The rewards of the held-out tasks before a step."""
    run = StoredRun.find(folder / "rollouts" / f"held-out-{step:05}.jsonl")
    return [float(episode.row["reward"]) for episode in run.answers()]


def share_of_calls(folder: Path) -> float:
    """The share of first answers that are tool calls, before the first step."""
    rows = [each.row for each in StoredRun.find(folder / "rollouts" / "held-out-00000.jsonl").answers()]
    outputs = [row["response"]["output"] for row in rows]
    firsts = [[output[place] for place in answers_in(output)[0]] for output in outputs if output]
    return sum(any(item["type"] == "function_call" for item in first) for first in firsts) / len(rows)


def training_of(environment: str, model: Path, output: Path, size: Size, **options: Any) -> TrainOptions:
    """A training that measures the model on held-out tasks at its beginning and end, and continues where it was."""
    return TrainOptions(
        environment,
        model=model,
        output=output,
        lora=32,
        max_steps=12,
        max_tokens=size.max_tokens,
        held_out=size.held_out,
        held_out_every=NEVER,
        resume=True,
        **options,
    )


def start_of(environment: str, model: Path, folder: Path, size: Size, report: Report) -> Path:
    """The model that reinforcement starts from: as it is, or after a supervised phase."""
    training = training_of(
        environment,
        model,
        folder / "supervised",
        size,
        steps=0,
        supervised=size.supervised,
        tasks_per_step=size.tasks_per_step,
        supervised_rate=2e-4,
    )
    if f"{environment}/baseline" not in report:
        baseline = folder / "baseline"
        Trainer(replace(training, output=baseline, supervised=0)).run()
        shown = {"calls": share_of_calls(baseline), "reward": interval(held_out_rewards(baseline, 0))}
        report.add(f"{environment}/baseline", shown)
    if report[f"{environment}/baseline"]["calls"] >= FEW:
        return model
    if f"{environment}/supervised" not in report:
        trainer = Trainer(training)
        trainer.run()
        rewards = held_out_rewards(folder / "supervised", size.supervised)
        shown = {"steps": size.supervised, "model": str(trainer.checkpoint), "reward": interval(rewards)}
        report.add(f"{environment}/supervised", shown)
    return Path(report[f"{environment}/supervised"]["model"])


def reinforced(
    environment: str, how: AdvantageMethod, seed: int, start: Path, folder: Path, size: Size
) -> dict[str, Any]:
    """The figures of a training that ends when enough tokens are generated."""
    began = perf_counter()
    shares = 4 if how == "vine" else 1  # its continuations take tokens too
    training = training_of(
        environment,
        start,
        folder / f"{how}-{seed}",
        size,
        algorithm=how,
        tasks_per_step=size.tasks_per_step // shares or 1,
        group=size.group,
        steps=1000,
        token_budget=size.tokens,
        learning_rate=1e-4,
        micro_batch=16,
        checkpoint_every=5,
        seed=seed,
    )
    curve = Trainer(training).run()
    steps = int(curve.steps[-1]["step"])
    told = {"steps": steps, "tokens": sum(curve.column("tokens")), "seconds": perf_counter() - began}
    return {**told, "reward": interval(held_out_rewards(folder / f"{how}-{seed}", steps))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--environments", nargs="+", default=["counter", "extraction"])
    given = parser.parse_args()
    size = QUICK if given.quick else Size()
    given.folder.mkdir(parents=True, exist_ok=True)
    report = Report(given.folder / "report.json")
    for environment in given.environments:
        folder = given.folder / environment
        start = start_of(environment, given.model, folder, size, report)
        for seed in range(size.seeds):
            for how in ALGORITHMS:
                name = f"{environment}/{how}/{seed}"
                if name not in report:
                    report.add(name, reinforced(environment, how, seed, start, folder, size))
        curves = {how: read_curve(folder / f"{how}-0" / "curve.jsonl") for how in ALGORITHMS}
        (folder / "curves.json").write_text(json.dumps(curves))


if __name__ == "__main__":
    main()

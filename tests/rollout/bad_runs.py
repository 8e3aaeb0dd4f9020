"""Runs whose files are not as a run writes them."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stateroom.rollout import RunFiles
from tests.rows import write_rows

ROW = {"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1.0, "response": {"output": []}}
ABOUT = {"environment": "e", "model": "m", "episodes": 1, "started": "2026-01-01T00:00:00+00:00"}
HALF = "\ud800"


def described(text: str | bytes) -> Callable[[RunFiles], Any]:
    return lambda files: files.description.write_bytes(text if isinstance(text, bytes) else text.encode())


def about(**fields: Any) -> Callable[[RunFiles], Any]:
    return described(json.dumps({**ABOUT, **fields}))


def rows(*changed: dict[str, Any]) -> Callable[[RunFiles], None]:
    given = [{**ROW, **fields, "_ng_task_index": task} for task, fields in enumerate(changed, 1)]
    return lambda files: write_rows(files.rollouts, given)


def pipe(name: str) -> Callable[[RunFiles], None]:
    def make(files: RunFiles) -> None:
        getattr(files, name).unlink(missing_ok=True)
        os.mkfifo(getattr(files, name))

    return make


BAD_RUNS: dict[str, Callable[[RunFiles], Any]] = {
    "not a date": about(started="soon"),
    "no offset": about(started="2026-01-01T00:00:00"),
    "fewer than none": about(episodes=-1),
    "too many": about(episodes=10**30),
    "half a pair": about(environment=HALF),
    "not UTF-8": described(b'{"environment": "\xff"}'),
    "empty": described(""),
    # So deep that 3.14, whose limit is the stack's, refuses it too.
    "nested settings": described('{"environment": "e", "settings": ' + '{"a": ' * 1_000_000 + "1" + "}" * 1_000_001),
    "NaN": rows({"reward": float("nan")}, {"reward": 2.0}),
    "infinite": rows({"reward": float("inf")}, {"reward": float("-inf")}),
    "too large for a sum": rows({"reward": 1.7e308}, {"reward": -1.7e308}),
    "no number": rows({"reward": "much"}, {"reward": None}),
    "rescored": rows({"_stateroom_reverified": 3}, {"_stateroom_reverified": {"fields": [[]]}}),
    "a pipe as description": pipe("description"),
    "a pipe as inputs": pipe("inputs"),
    "a pipe as failures": pipe("failures"),
    "a folder as failures": lambda files: files.failures.mkdir(),
}
"""Each makes a good run a bad one, of which there is something to warn."""

ODD_RUNS: dict[str, Callable[[RunFiles], Any]] = {
    "half a pair in names": rows({HALF: 3.0, "reward_components": {HALF: 1.0}, "_stateroom_session": HALF}),
    "half a pair as model": rows({"response": {"model": HALF, "output": []}}),
    "NaN as a metric": rows({"depth": float("nan")}, {"depth": 3}),
}
"""The same, but there is nothing to warn of."""


def make_run(folder: Path) -> RunFiles:
    """A good run."""
    files = RunFiles(folder / "x.jsonl")
    folder.mkdir(parents=True)
    write_rows(files.rollouts, [ROW])
    files.description.write_text(json.dumps(ABOUT))
    return files


def make_runs(folder: Path) -> None:
    """A good run, and all others."""
    make_run(folder / "good")
    for name, spoil in (BAD_RUNS | ODD_RUNS).items():
        spoil(make_run(folder / name))

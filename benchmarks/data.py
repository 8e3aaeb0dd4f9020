"""The memory that `stateroom data check` takes for a large task file."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from benchmarks.process import python
from benchmarks.timing import Figure
from stateroom.jsonl import line_of

SIZE = 10**9
PROMPT = "Use the tools to change the counter: add 1. " * 50
MOST = 150
"""Megabytes of memory that the command may take."""

CHECK = """
import sys
from stateroom.cli import main

sys.argv = ["stateroom", "data", "check", "counter", {path!r}]
try:
    main()
except SystemExit as ended:
    assert not ended.code
with open("/proc/self/status") as file:
    print(next(line.split()[1] for line in file if line.startswith("VmHWM:")))
"""


async def check() -> list[Figure]:
    """The peak of resident memory while `stateroom data check` reads 1 GB of tasks, in a process of its own.

    The limit is 150 MB: rows are read one at a time, so memory does not grow with the file.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tasks.jsonl"
        rows = write_tasks(path)
        start = time.perf_counter()
        peak = int(python(CHECK.format(path=str(path))).split()[-1]) / 1000
        seconds = time.perf_counter() - start
    told = f"{rows:,} rows, {SIZE / 1e9:g} GB, in {seconds:.0f} s: {peak:.0f} MB / {MOST} MB"
    return [Figure("memory of data check", peak / MOST, 1, "at most", told)]


def write_tasks(path: Path) -> int:
    """Write tasks of the counter until the file is large; gives their number."""
    line = line_of({"responses_create_params": {"input": PROMPT}, "initial_count": 0, "expected_count": 1})
    rows = SIZE // len(line)
    with path.open("wb") as file:
        for _ in range(rows):
            file.write(line)
    return rows

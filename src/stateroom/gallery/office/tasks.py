"""Writes the example tasks anew: `python -m stateroom.gallery.office.tasks`."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

from stateroom.gallery.office.environment import OfficeEnvironment
from stateroom.gallery.office.generating import make_task
from stateroom.gallery.office.kinds import KINDS

EACH = 10
"""So many tasks there are of each kind, and half as many more of those in which the manager has a say."""


def example_tasks() -> list[dict[str, Any]]:
    """The example tasks, the easy ones first."""
    rng, tools = Random("tasks"), OfficeEnvironment().tools
    rows = [make_task(kind, rng, tools) for kind in KINDS for _ in range(EACH)]
    managed = [kind for kind in KINDS if any(row["manager"] for row in rows if row["kind"] == kind.name)]
    rows += [make_task(kind, rng, tools) for kind in managed for _ in range(EACH // 2)]
    return sorted(rows, key=lambda row: row["difficulty"])


def main() -> None:
    """Write the file."""
    lines = [json.dumps(row, ensure_ascii=False) for row in example_tasks()]
    (Path(__file__).parent / "tasks.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

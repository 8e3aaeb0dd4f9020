"""What was measured in the episodes of a run, read from its rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateroom.rollout.rows import USUAL, Key, key_of
from stateroom.rollout.world import Row

TOKENS = ("input_tokens", "output_tokens")

ALWAYS = USUAL | {"tool_calls", "truncated", *TOKENS}
"""Fields that are measured, and not a task's, in any episode."""


class Measured:
    """What was measured in episodes, told from the numbers that their tasks came with."""

    def __init__(self, inputs: Mapping[Key, Row]) -> None:
        self.agent: Any = None
        """Who acted in them."""
        self._inputs = inputs
        self._names = set(ALWAYS)
        self._rows: list[Row] = []

    def note(self, row: Row) -> Row:
        """Take a row into account; gives the numbers in it."""
        given = self._inputs.get(key_of(row))
        if given is not None:
            self._names |= added(given, row)
        self.agent = self.agent or row.get("agent_ref")
        self._rows.append({name: row[name] for name in row if isinstance(row[name], int | float) or name in ALWAYS})
        return {**self._rows[-1], "_before": None}

    def rows(self) -> list[Row]:
        """The rows with nothing in them but what was measured, and which episode it is."""
        names = {*self._names, "_ng_task_index", "_ng_rollout_index"}
        return [{name: row[name] for name in row if name in names} for row in self._rows]


def added(given: Row, row: Row) -> frozenset[str]:
    """The fields of a row that are not as the task has given them."""
    return frozenset(name for name in row if name not in given or row[name] != given[name])

"""Tool failures: calls that failed because of errors in the environment, counted by tool and written to a file.

An episode with tool failures continues and gets a reward, since the model only reads that the call failed. This file
has the details for the author of the environment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from stateroom.agent import Outcome, Workspace, WrappedWorkspace
from stateroom.jsonl import Appender, read_lines, repair
from stateroom.rollout.rows import INDICES, SESSION, Key, Row, key_of, parse_row
from stateroom.session import Result

FAILED = frozenset({"tool_failed", "timeout"})
"""The codes of calls that failed because of errors in the environment."""


class ToolFailures:
    """The tool failures of a run. Each is written when it happens, so a resumed run keeps earlier ones."""

    def __init__(self, path: Path) -> None:
        self.counts: Counter[str] = Counter()
        """The number of failures of each tool."""
        self.first: str | None = None
        """The first failure as a line: its place, if known, and its error."""
        self._episodes: set[str | Key] = set()
        self._file = Appender(path)
        if path.exists():
            repair(path)
            for number, line in read_lines(path):
                self._count(parse_row(line, number))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.__exit__(None, None, None)

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __str__(self) -> str:
        """For example `7 tool failures in 5 episodes, the first: airline.py:88 in cancel: ValueError: no such seat`."""
        number, episodes = self.counts.total(), len(self._episodes)
        what = (
            f"{number:,} tool failure{'s' if number > 1 else ''} in {episodes:,} episode{'s' if episodes > 1 else ''}"
        )
        return f"{what}, the first: {self.first}" if number > 1 else f"{what}: {self.first}"

    def metrics(self) -> dict[str, Any]:
        """The metrics with the counts; empty without failures."""
        return {"tool_failures": dict(self.counts)} if self.counts else {}

    def watch(self, session: Workspace, row: Row) -> WatchedSession:
        """Wrap the session of a row's episode, to add its tool failures here."""
        return WatchedSession(session, row, self.add)

    def add(self, failure: Row) -> None:
        """Count and write a failure."""
        self._file.append(failure)
        self._count(failure)

    def _count(self, failure: Row) -> None:
        self.counts[failure["tool"]] += 1
        self._episodes.add(failure.get(SESSION) or key_of(failure))  # the branches of a tree share one row
        if self.first is None:
            self.first = cause_line(failure)


class WatchedSession(WrappedWorkspace):
    """The session of a row's episode that calls `note` with each tool failure."""

    def __init__(self, session: Workspace, row: Row, note: Callable[[Row], None]) -> None:
        super().__init__(session)
        self._place = {name: row[name] for name in (*INDICES, SESSION) if name in row}
        self._note = note

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Outcome:
        outcome = await super().call(name, arguments, call_id=call_id)
        result = outcome if isinstance(outcome, Result) else None  # a server's reply is only for the model
        cause = None if result is None else result.cause
        if outcome.code in FAILED or cause is not None:
            error = (None if result is None else result.error) or f"{name}: {outcome.code}"
            plain_cause = None if cause is None else cause.plain()
            self._note({**self._place, "tool": name, "code": outcome.code or "", "error": error, "cause": plain_cause})
        return outcome


def cause_line(failure: Row) -> str:
    """A failure as a line: the place in the environment's code, if known, and the error."""
    error: str = failure["error"]
    cause = failure.get("cause")
    if cause and cause["place"]:
        words = error if cause["error"] in error else cause["error"]  # the model's message may lack the cause
        error = f"{cause['place']}: {words}"
    return error.partition("\n")[0]

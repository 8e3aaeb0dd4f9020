"""Runs on disk, readable even while they grow or after a crash."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from stateroom.agent import task_items, transcript
from stateroom.errors import BadData, BadTask, NotFound, StateroomError
from stateroom.jsonl import parse_object, read_lines
from stateroom.model import Item, text_of
from stateroom.rollout.description import RunDescription
from stateroom.rollout.files import RunFiles
from stateroom.rollout.index import RunIndex
from stateroom.rollout.metrics import SOLVED, agent_metrics, key_metrics
from stateroom.rollout.rows import CHOSEN, COST, NODE, SESSION, TIMES, Key, Row, check_episode, check_given, key_of
from stateroom.rollout.search import Search
from stateroom.session import LogEntry, LogReader, RecordedCall, recorded_calls
from stateroom.state import lines
from stateroom.store import Store

Said = list[tuple[Item, list[str]]]
"""A conversation: each item with its changes to the state."""


class StoredEpisode:
    """An episode in the files of a run."""

    def __init__(self, row: Row, where: str) -> None:
        self.row = row
        self.where = where
        """The file and line of the row."""
        self.key = self.task, self.rollout = key_of(row)
        self.session: str | None = row.get(SESSION)
        self.failed = "_ng_failure_class" in row
        """Whether the episode failed and has no reward; `row["error"]` has the reason."""
        self.reward: float | None = row.get("reward") if not self.failed else None

    @property
    def items(self) -> list[Item]:
        """The conversation from the task's input on, as far as the row has it."""
        output = (self.row.get("response") or {}).get("output") or []
        return [*task_items(self.row), *output]

    async def said(self, store: Store | None) -> Said:
        """The conversation with the state changes from the session's log, if a store is given.

        If the row has no response, as for a failed episode, the conversation comes from the log.
        """
        if store is None or self.session is None:
            return [(item, []) for item in self.items]
        steps = [(entry, lines(changes)) async for entry, changes in LogReader(store, self.session).read()]
        items = self.items
        if not self.row.get("response"):
            items = [item for each in await transcript(store, self.session) for item in each.items]
        return with_changes(items, steps)

    def data(self, said: Said) -> Row:
        """The episode as JSON data."""
        names = ("reward", "reward_components", "reason", "error", COST, TIMES)
        return {
            "task": self.task,
            "rollout": self.rollout,
            "session": self.session,
            "failed": self.failed,
            **{name.removeprefix("_stateroom_"): self.row[name] for name in names if name in self.row},
            "items": [{**item, **({"changes": changes} if changes else {})} for item, changes in said],
        }


def with_changes(items: list[Item], steps: list[tuple[LogEntry, list[str]]]) -> Said:
    """The items of a conversation, each with the changes of the logged calls since the previous item."""
    waiting = [(entry, changes) for entry, changes in steps if entry.kind in ("call", "failed")]
    calls = recorded_calls({"output": items}, {str(entry.name) for entry, _ in waiting})
    conversation: Said = []
    for item in items:
        call = next(calls, None) if item.get("type") == "function_call_output" else None
        place_of_call = next((place for place, (entry, _) in enumerate(waiting) if _is_of(item, call, entry)), -1)
        conversation.append((item, [line for _, changes in waiting[: place_of_call + 1] for line in changes]))
        del waiting[: place_of_call + 1]
    if conversation and waiting:  # the user had no further message
        conversation[-1][1].extend(line for _, changes in waiting for line in changes)
    return conversation


def _is_of(item: Item, call: RecordedCall | None, entry: LogEntry) -> bool:
    """Whether an item is the result of the call in a log entry, or the user's reply in it."""
    if call is not None:
        return call.is_in(entry)
    return entry.name == "reply" and item.get("role") == "user" and entry.output == text_of(item)


UNREADABLE = (StateroomError, OSError, sqlite3.Error)
"""Errors for unreadable files of a run."""


class RunSummary(NamedTuple):
    """A summary of a run."""

    name: str
    environment: str | None
    model: str | None
    done: int
    """Episodes with a reward or, in a run that branches, tasks with an answer."""
    episodes: int
    failed: int
    """Failed episodes or, in a run that branches, failed branches."""
    metrics: dict[str, float]
    """The key metrics so far."""
    started: datetime
    finished: bool
    warnings: list[str]
    """Problems with the files."""

    def data(self) -> Row:
        """The summary as JSON data."""
        return {**self._asdict(), "started": self.started.isoformat(timespec="seconds")}


@dataclass(frozen=True)
class StoredRun:
    """A run on disk. Incomplete lines are skipped, because the run may be writing or was killed."""

    files: RunFiles

    @classmethod
    def find(cls, path: Path) -> StoredRun:
        """Find a run by its rollouts file, by that name without the suffix, or as the only one in a folder."""
        for each in (path, path.with_name(path.name + ".jsonl")):
            if each.is_file():
                return cls(RunFiles(each))
        if not path.is_dir():
            raise NotFound(f"the run {path} does not exist; list runs with `stateroom runs`")
        runs = [run for run in find_runs(path) if run.files.rollouts.parent == path]
        if len(runs) != 1:
            names = ", ".join(str(run.files.rollouts) for run in runs[:5]) or "none"
            raise NotFound(f"{path} has {len(runs)} runs; name one of their rollouts files: {names}")
        return runs[0]

    @classmethod
    def named(cls, folder: Path, name: str) -> StoredRun:
        """The run in a folder, by its path without the suffix, as `find_runs` lists it."""
        with suppress(OSError, ValueError):  # not a file name
            run = _run_of(folder / name) if name and not {"..", ""} & {*name.split("/")} else None
            if run is not None and (run.files.description.exists() or run.files.inputs.exists()):
                return run
        raise NotFound(f"the folder {folder} has no run {name!r}")

    @cached_property
    def _described(self) -> tuple[RunDescription | None, list[str]]:
        try:
            return RunDescription.read(self.files), []
        except BadData as error:
            return None, [str(error)]

    @property
    def description(self) -> RunDescription | None:
        """The description of the run, if it can be read."""
        return self._described[0]

    @property
    def store(self) -> str | None:
        """The URL of the session store, if known."""
        if self.files.sessions.exists():
            return f"sqlite:///{quote(str(self.files.sessions))}"
        url = None if self.description is None else self.description.store
        return None if url is None or url.startswith("memory:") else url

    @cached_property
    def inputs(self) -> Mapping[Key, Row]:
        """The rows without a verdict; empty if the inputs file is missing."""
        return RunIndex.of(self.files, "inputs").inputs

    def episodes(self, keys: Container[Key] | None = None) -> Iterator[StoredEpisode]:
        """All episodes, or those with the given keys: first the finished ones in order, then the failed ones."""
        seen: set[Key] = set()
        for path in (self.files.rollouts, self.files.failures):
            for where, row in _rows(path, check_episode):
                episode = StoredEpisode(row, where)
                if (keys is None or episode.key in keys) and (episode.key not in seen or NODE in row):
                    seen.add(episode.key)
                    yield episode

    def tasks(self) -> Iterator[tuple[str, Row]]:
        """The original tasks, from the inputs of their first episodes, each with its file and line."""
        return ((where, row) for where, row in _rows(self.files.inputs, check_given) if key_of(row)[1] == 0)

    def finished(self) -> Iterator[StoredEpisode]:
        """The episodes with a reward, in order of completion."""
        return (episode for episode in self.episodes() if not episode.failed)

    def answers(self) -> Iterator[StoredEpisode]:
        """The episodes that count; for a tree, only its answer."""
        return (episode for episode in self.finished() if episode.row.get(CHOSEN, True))

    @property
    def branches(self) -> bool:
        """Whether the run has trees of episodes."""
        return self.description is not None and "rule" in self.description.options

    @property
    def solved_threshold(self) -> float:
        """The lowest reward that counts as solved."""
        return SOLVED if self.description is None else self.description.solved_threshold

    def summary(self, within: Path, search: Search) -> RunSummary:
        """A summary of the indexed part of the run, named by its path in a folder."""
        known = self.description
        rewards = search.rewards()
        failed = search.failed()
        started = known.started if known is not None else None
        return RunSummary(
            name=self._name(within),
            environment=None if known is None else known.environment,
            model=(None if known is None else known.model) or search.model(),
            done=len(rewards),
            episodes=known.episodes if known is not None else search.inputs() or len(rewards) + failed,
            failed=failed,
            metrics=key_metrics(agent_metrics(rewards, self.solved_threshold)),
            started=datetime.fromisoformat(started) if started else _modified(self.files.rollouts),
            finished=known is not None and known.finished is not None,
            warnings=[*self._described[1], *search.index.warnings()],
        )

    def unreadable(self, within: Path, error: Exception) -> RunSummary:
        """The summary of a run with unreadable files."""
        started = datetime.fromtimestamp(0, UTC)
        return RunSummary(self._name(within), None, None, 0, 0, 0, {}, started, finished=False, warnings=[str(error)])

    def _name(self, within: Path) -> str:
        """The path of the run in a folder, with undecodable characters replaced."""
        return os.fsencode(self.files.rollouts.relative_to(within).with_suffix("")).decode(errors="replace")

    def metrics(self, search: Search) -> dict[str, float]:
        """The metrics over all indexed rows: the `agent_metrics` that the run writes at its end.

        The tree metrics of a run that branches are only in the file.
        """
        return agent_metrics(search.measured(by_task=self.branches), self.solved_threshold)


def find_runs(folder: Path) -> list[StoredRun]:
    """The runs in a folder and its subfolders, sorted by name."""
    if not folder.is_dir():
        raise NotFound(f"the folder {folder} does not exist")
    stems = {
        path.with_name(path.name.removesuffix(ending))
        for ending in ("_run.json", "_materialized_inputs.jsonl")
        for path in folder.rglob(f"*{ending}")
    }
    return [run for stem in sorted(stems) if (run := _run_of(stem)) is not None]


def _run_of(stem: Path) -> StoredRun | None:
    """The run whose file names start with a stem."""
    paths = (stem.with_name(stem.name + suffix) for suffix in (".jsonl", ".json", ""))
    return next((StoredRun(RunFiles(path)) for path in paths if path.is_file()), None)


def _rows(path: Path, check: Callable[[Row, int], None]) -> Iterator[tuple[str, Row]]:
    """The rows of a file, each with its place.

    Raises `BadData` for a malformed row. An incomplete last line is skipped.
    """
    cut_short: BadData | None = None
    for number, line in read_lines(path) if path.exists() else ():
        if cut_short is not None:
            raise cut_short
        try:
            row = parse_object(line)
        except ValueError as error:
            cut_short = BadData(f"{path}, line {number}: {error}")
            continue
        try:
            check(row, number)
        except BadTask as error:
            raise BadData(f"{path}, {error}") from None
        yield f"{path}, line {number}", row


def _modified(path: Path) -> datetime:
    return datetime.fromtimestamp(path.stat().st_mtime, UTC)

"""Search the index of a run: pages of episodes, counts, rewards and metrics, without reading its files."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from stateroom.rollout.index import RunIndex
from stateroom.rollout.lazy import LazySequence
from stateroom.rollout.metrics import ALWAYS
from stateroom.rollout.rows import INDICES, SESSION, Row
from stateroom.rollout.scalars import unpack

COLUMNS = (
    *("file", "line", "task", "rollout", "reward", "failure", "session", "tool_calls", "turns", "tokens", "seconds"),
    *("cost", "chosen", "node"),
)
"""The columns of an episode on a page, which are all sortable."""

EPISODES = """rows AS e WHERE file IN ('rollouts', 'failures') AND NOT again AND (
    file = 'rollouts' OR node IS NOT NULL
    OR NOT EXISTS (SELECT 1 FROM rows WHERE file = 'rollouts' AND task = e.task AND rollout = e.rollout)
)"""
"""The episodes: the first row of each, failures only without a reward, and all ends of a tree."""

ANSWERS = "rows WHERE file = 'rollouts' AND NOT again AND chosen AND failure IS NULL"
"""The episodes that count; for a tree, only its answer."""

MEASURED = "task, rollout, session, rescored, numbers"

MAX_BARS = 20
"""The number of bars in a histogram."""


class EpisodeFilter(BaseModel):
    """Filters for episodes; None disables a filter."""

    task: Annotated[int, Field(ge=-(2**53), le=2**53)] | None = None
    low: float | None = None
    """The lowest reward."""
    high: float | None = None
    """The highest reward."""
    below: float | None = None
    """An exclusive upper bound of the reward."""
    failure: str | None = None
    """The failure class."""
    failed: bool | None = None
    tool: str | None = None
    """A tool that failed in the episode."""
    session: bool | None = None
    """Whether the row names a session."""
    chosen: bool | None = None
    """For a tree, whether it is the answer."""

    def conditions(self) -> Iterator[tuple[str, tuple[Any, ...]]]:
        """The conditions in SQL, with their parameters."""
        failures = "SELECT {} FROM rows WHERE file = 'tool_failures' AND tool = ?"
        by_session = f"session IN ({failures.format('session')} AND session IS NOT NULL)"
        by_key = f"(task, rollout) IN ({failures.format('task, rollout')} AND session IS NULL)"
        for condition, value, times in (
            ("task = ?", self.task, 1),
            ("reward >= ?", self.low, 1),
            ("reward <= ?", self.high, 1),
            ("reward < ?", self.below, 1),
            ("failure = ?", self.failure, 1),
            ("(failure IS NOT NULL) = ?", self.failed, 1),
            (f"({by_session} OR {by_key})", self.tool, 2),
            ("(session IS NOT NULL) = ?", self.session, 1),
            ("chosen = ?", self.chosen, 1),
        ):
            if value is not None:
                yield condition, (value,) * times


class Search:
    """Searches in an index."""

    def __init__(self, index: RunIndex) -> None:
        self.index = index
        self._select = index.select
        self._last: tuple[Any, array[int]] = (None, array("q"))

    # Episodes.

    def page(
        self,
        wanted: EpisodeFilter,
        sort: str = "line",
        order: Literal["ascending", "descending"] = "ascending",
        offset: int = 0,
        limit: int = 100,
    ) -> tuple[list[Row], int]:
        """A page of matching episodes, and their total number. Episodes without a value come last."""
        ids = self._order(wanted, sort, order)
        page = ids[offset : offset + limit]
        rows = self._select(f"SELECT id, {', '.join(COLUMNS)} FROM rows WHERE id IN ({', '.join(map(str, page))})")
        episodes = {row[0]: _data(row[1:]) for row in rows}
        return [episodes[id] for id in page if id in episodes], len(ids)

    def _order(self, wanted: EpisodeFilter, sort: str, order: str) -> array[int]:
        """The ids of the matching episodes; the last result is cached for the next pages."""
        conditions = [*wanted.conditions()]
        asked = self.index.version, conditions, sort, order
        known, ids = self._last
        if known == asked:
            return ids
        where = " AND ".join([EPISODES, *(condition for condition, _ in conditions)])
        given = tuple(value for _, values in conditions for value in values)
        column = "id" if sort == "line" else COLUMNS[COLUMNS.index(sort)]
        by = f"{column} {'DESC' if order == 'descending' else 'ASC'} NULLS LAST, id"
        ids = array("q", (id for (id,) in self._select(f"SELECT id FROM {where} ORDER BY {by}", given)))
        self._last = asked, ids
        return ids

    def matrix(self, offset: int, limit: int) -> tuple[list[tuple[int, list[Row]]], int]:
        """A page of tasks, each with its episodes by rollout, and the number of all tasks, even without episodes."""
        every = "FROM rows WHERE file IN ('rollouts', 'failures', 'inputs')"
        tasks = self._select(f"SELECT DISTINCT task {every} ORDER BY task LIMIT ? OFFSET ?", (limit, offset))
        [(total,)] = self._select(f"SELECT count(DISTINCT task) {every}")
        cells: dict[int, list[Row]] = {task: [] for (task,) in tasks}
        if cells:
            between = f"SELECT {', '.join(COLUMNS)} FROM {EPISODES} AND task BETWEEN ? AND ? ORDER BY rollout, id"
            for row in self._select(between, (min(cells), max(cells))):
                cells[row[COLUMNS.index("task")]].append(_data(row))
        return [*cells.items()], total

    # Counts.

    def inputs(self) -> int:
        """The number of episodes in the run."""
        return len(self.index.inputs)

    def failed(self) -> int:
        """The number of failed episodes; for trees, of failed branches, and of tasks without any branch."""
        branches = "SELECT task FROM rows WHERE file = 'failures' AND node IS NOT NULL"
        counted = f"failure IS NOT NULL AND (node IS NOT NULL OR task NOT IN ({branches}))"
        [(count,)] = self._select(f"SELECT count(*) FROM {EPISODES} AND {counted}")
        return count  # type: ignore[no-any-return]

    def failures(self) -> dict[str, int]:
        """The number of failed episodes by failure class."""
        return dict(self._select(f"SELECT failure, count(*) FROM {EPISODES} AND failure IS NOT NULL GROUP BY 1"))

    def tool_failures(self) -> dict[str, int]:
        """The number of failed calls by tool."""
        failures = "FROM rows WHERE file = 'tool_failures' AND tool IS NOT NULL"
        return dict(self._select(f"SELECT tool, count(*) {failures} GROUP BY tool ORDER BY min(id)"))

    def model(self) -> str | None:
        """The model named in the first response."""
        models = self._select(f"SELECT model FROM {EPISODES} AND model IS NOT NULL ORDER BY id LIMIT 1")
        return models[0][0] if models else None

    # Measurements.

    def rewards(self) -> list[Row]:
        """The task and the reward of each episode that counts."""
        rows = self._select(f"SELECT task, reward FROM {ANSWERS} ORDER BY id")
        return [{"_ng_task_index": task, "reward": reward} for task, reward in rows]

    def histogram(self) -> list[Row]:
        """The number of episodes by reward: from `low` to below `high`, and in the last bar to `high`."""
        rewards = self._select(f"SELECT reward, count(*) FROM {ANSWERS} AND abs(reward) < 1e300 GROUP BY 1 ORDER BY 1")
        if not rewards:
            return []
        low, high = rewards[0][0], rewards[-1][0]
        inner = sorted({low + (high - low) * place / MAX_BARS for place in range(1, MAX_BARS)} - {low, high})
        counts = Counter[int]()
        for reward, count in rewards:
            counts[bisect_right(inner, reward)] += count
        edges = [low, *inner, high]
        return [{"low": edges[bar], "high": edges[bar + 1], "count": counts[bar]} for bar in range(len(edges) - 1)]

    def measured(self, *, by_task: bool = False) -> MeasuredRows:
        """The measurements of the episodes that count; with `by_task`, the answer of each task's tree."""
        return MeasuredRows(self.index, by_task=by_task)


class MeasuredRows(LazySequence[Row]):
    """The measurements of the episodes that count: their numbers, without those that only repeat the task's.

    Uses 8 bytes of memory per episode. A number that differs from its task's in one row is measured in all.
    """

    def __init__(self, index: RunIndex, *, by_task: bool) -> None:
        self._index = index
        self._by_task = by_task
        self._names = {*ALWAYS}
        self._ids = array("q")
        rollout = "0" if by_task else "e.rollout"
        given = f"rows AS i ON i.file = 'inputs' AND NOT i.again AND i.task = e.task AND i.rollout = {rollout}"
        numbers = f"SELECT e.id, e.rescored, e.numbers, i.numbers FROM (SELECT * FROM {ANSWERS}) AS e LEFT JOIN {given}"
        for identity, rescored, measured, known in index.stream(f"{numbers} ORDER BY e.id"):
            self._ids.append(identity)
            if known is not None and not rescored:
                task = unpack(known)
                self._names |= {name for name, value in unpack(measured).items() if task.get(name) != value}

    def __len__(self) -> int:
        return len(self._ids)

    def _item(self, index: int) -> Row:
        [row] = self._index.select(f"SELECT {MEASURED} FROM rows WHERE id = ?", (self._ids[index],))
        return self._row(row)

    def __iter__(self) -> Iterator[Row]:
        return map(self._row, self._index.stream(f"SELECT {MEASURED} FROM {ANSWERS} ORDER BY id"))

    def _row(self, row: tuple[Any, ...]) -> Row:
        task, rollout, session, rescored, numbers = row
        named = {name: value for name, value in unpack(numbers).items() if rescored or name in self._names}
        known = {} if session is None else {SESSION: session}
        return {**dict(zip(INDICES, (task, 0 if self._by_task else rollout), strict=True)), **known, **named}


def _data(row: tuple[Any, ...]) -> Row:
    data = dict(zip(COLUMNS, row, strict=True))
    return {**data, "chosen": bool(data["chosen"])}

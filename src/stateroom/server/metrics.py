"""The server's metrics, for Prometheus.

Every call is counted, so counting is a few additions in one flat row of numbers. Its layout is fixed when the server
starts; names and labels are added when the metrics are read. Each worker process has its own row in a shared folder,
and the worker that is asked adds the rows up.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from itertools import accumulate, count
from mmap import mmap
from pathlib import Path
from time import perf_counter
from typing import Any, ParamSpec, TypeAlias, TypeVar, get_args

from prometheus_client import CollectorRegistry, Metric, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector

from stateroom.agent import TurnStatus
from stateroom.errors import Conflict, SessionError
from stateroom.locks import try_lock
from stateroom.session import Code
from stateroom.store import OPERATIONS, Store, Work, WrappedStore

P = ParamSpec("P")
T = TypeVar("T")

OUTCOMES: tuple[str, ...] = ("ok", "error", *get_args(Code))
"""Outcomes of a tool call: `error` when the request reached no tool, or its session could not be used."""

STORE_OUTCOMES = ("ok", "conflict", "refused", "error")
"""Outcomes of a store's operation: `refused` when it reports a problem of the session, which is not a fault."""

RUN_OUTCOMES: tuple[str, ...] = (*get_args(TurnStatus), "error")
"""Outcomes of the run of a thread."""

VERDICT_OUTCOMES = ("ok", "error")
"""Outcomes of a verification: whether there is a verdict."""

UNKNOWN_TOOL = "(unknown)"
"""The label for all unknown tools: a model can make up any number of names."""

TOKEN_KINDS = ("input", "output")
"""The tokens of models that are counted."""

ROUTES = (
    *("/", "/TOOL", "/seed_session", "/verify", "/close_session", "/reply", "/instructions", "/run", "/v1/responses"),
    *("/reset", "/step", "/close", "/aggregate_metrics", "/reverify_mode", "/mcp", "/threads", "/admin", "/studio"),
    *("/health", "/ready", "/metrics", "/docs", "/openapi.json", "other"),
)
"""Routes of requests, without the names of environments, tools and sessions."""

STATUSES = (
    *(*range(200, 205), 303, 304, 307),
    *(*range(400, 406), 408, 409, 410, 411, 413, 415, 421, 422, 429, 431),
    *range(500, 505),
)
"""Statuses of responses that are counted separately."""


BOUNDS = (5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets of a histogram, in seconds; one more bucket holds the rest."""

BUCKETS = [*map(str, BOUNDS), "+Inf"]

PLAIN = b"text/plain; version=0.0.4; charset=utf-8"

Row: TypeAlias = "list[float] | memoryview[float]"


class Meter:
    """Counts the outcomes and the durations of one kind of work."""

    __slots__ = ("_cells", "_row", "_seconds", "_times")

    def __init__(self, row: Row, start: int, outcomes: Sequence[str]) -> None:
        self._row = row
        self._cells = {outcome: start + place for place, outcome in enumerate(outcomes)}
        self._seconds = start + len(outcomes)
        self._times = self._seconds + 1

    def count(self, outcome: str, seconds: float) -> None:
        """Count one outcome and its duration."""
        row = self._row
        row[self._cells[outcome]] += 1.0
        row[self._seconds] += seconds
        row[self._times + bisect_left(BOUNDS, seconds)] += 1.0

    @staticmethod
    def size(outcomes: Sequence[str]) -> int:
        """Number of cells of a row that a meter needs."""
        return len(outcomes) + 1 + len(BUCKETS)

    def outcomes(self, row: Sequence[float]) -> dict[str, float]:
        """The counts by outcome in a row of the same layout."""
        return {outcome: row[cell] for outcome, cell in self._cells.items()}

    def histogram(self, row: Sequence[float]) -> tuple[list[tuple[str, float]], float]:
        """The cumulative counts by bucket, and the sum of all seconds."""
        times = row[self._times : self._times + len(BUCKETS)]
        return list(zip(BUCKETS, accumulate(times), strict=True)), row[self._seconds]


class Metrics:
    """All metrics of a server with these tools, by environment.

    Worker processes share one `folder`, and each uses a file in it. A process that replaces one that died continues its
    file, so that no count ever falls.
    """

    def __init__(self, tools: Mapping[str, Iterable[str]], folder: Path | None = None) -> None:
        tools = {environment: tuple(names) for environment, names in tools.items()}
        size = 0

        def take(cells: int) -> int:
            nonlocal size
            size += cells
            return size - cells

        self._process = take(1)
        """The id of the process that the row is of."""
        self._expired = take(1)
        self._created = {environment: take(1) for environment in tools}
        of_tools = {
            (environment, tool): take(Meter.size(OUTCOMES))
            for environment, names in tools.items()
            for tool in (*names, UNKNOWN_TOOL)
        }
        of_verdicts = {(environment,): take(Meter.size(VERDICT_OUTCOMES)) for environment in tools}
        self._tokens = {(environment, kind): take(1) for environment in tools for kind in TOKEN_KINDS}
        self._requests = {route: take(len(STATUSES) + 1) for route in ROUTES}
        of_runs = {(environment,): take(Meter.size(RUN_OUTCOMES)) for environment in tools}
        of_store = {(operation,): take(Meter.size(STORE_OUTCOMES)) for operation in OPERATIONS}

        layout = repr((tools, OUTCOMES, RUN_OUTCOMES, OPERATIONS, BOUNDS, ROUTES, STATUSES))
        self._files = None if folder is None else _Files(folder, layout, size)
        self._row: Row = [0.0] * size if self._files is None else self._files.claim()
        self._row[self._process] = os.getpid()
        self._status_places = {status: place for place, status in enumerate(STATUSES)}
        self._tools = {labels: Meter(self._row, start, OUTCOMES) for labels, start in of_tools.items()}
        self._verdicts = {labels: Meter(self._row, start, VERDICT_OUTCOMES) for labels, start in of_verdicts.items()}
        self._runs = {labels: Meter(self._row, start, RUN_OUTCOMES) for labels, start in of_runs.items()}
        self._store = {labels: Meter(self._row, start, STORE_OUTCOMES) for labels, start in of_store.items()}

    def tool(self, environment: str, tool: str) -> Meter:
        """The meter of a tool's calls; those of tools that the environment does not have share one."""
        return self._tools.get((environment, tool)) or self._tools[environment, UNKNOWN_TOOL]

    def verdicts(self, environment: str) -> Meter:
        """The meter of an environment's verifications."""
        return self._verdicts[environment,]

    def tokens(self, environment: str, usage: Mapping[str, Any]) -> None:
        """Count the tokens of a model that acted in an environment, by the `usage` of its answers."""
        for kind in TOKEN_KINDS:
            self._row[self._tokens[environment, kind]] += usage.get(f"{kind}_tokens") or 0

    def requests(
        self, posted: Mapping[str, str], route_of: Callable[[str, str], str]
    ) -> Callable[[str, str, int], None]:
        """The function that counts requests by method, path and status; every call passes it.

        `posted` has the routes of some paths that are posted to; `route_of` gives those of all others.
        """
        row, places, starts = self._row, self._status_places, self._requests
        known = {path: starts[route] for path, route in posted.items()}

        def count(method: str, path: str, status: int) -> None:
            start = known.get(path) if method == "POST" else None
            if start is None:
                start = starts.get(route_of(method, path), starts["other"])
            row[start + places.get(status, len(STATUSES))] += 1.0

        return count

    def runs(self, environment: str) -> Meter:
        """The meter of the runs of an environment's threads."""
        return self._runs[environment,]

    def store(self, operation: str) -> Meter:
        """The meter of a store's operation."""
        return self._store[operation,]

    def created(self, environment: str, sessions: int = 1) -> None:
        """Count new sessions."""
        self._row[self._created[environment]] += sessions

    def expired(self, sessions: int) -> None:
        """Count sessions that a sweep removed."""
        self._row[self._expired] += sessions

    def exposition(self, accept: bytes, live: int) -> tuple[bytes, bytes]:
        """The metrics of all workers as text in the accepted format, and its content type."""
        registry = CollectorRegistry()
        registry.register(_Collected(list(self._metrics(live))))
        registry.register(_Collected(list(self._processes())))
        if b"application/openmetrics-text" in accept:
            text: bytes = openmetrics.generate_latest(registry)  # type: ignore[no-untyped-call]
            return text, openmetrics.CONTENT_TYPE_LATEST.encode()
        return generate_latest(registry), PLAIN

    def _metrics(self, live: int) -> Iterator[Metric]:
        row = self._row if self._files is None else self._files.total()
        yield GaugeMetricFamily("stateroom_sessions_live", "Sessions in the store that have not expired", live)
        seeded = CounterMetricFamily("stateroom_sessions_seeded", "Sessions seeded", labels=["environment"])
        for environment, cell in self._created.items():
            seeded.add_metric([environment], row[cell])
        yield seeded
        expired = row[self._expired]
        yield CounterMetricFamily("stateroom_sessions_expired", "Sessions that expired and were removed", expired)
        requests = CounterMetricFamily("stateroom_requests", "Requests that got a response", labels=["route", "status"])
        for route, start in self._requests.items():
            for place, status in enumerate((*STATUSES, "other")):
                if row[start + place]:
                    requests.add_metric([route, str(status)], row[start + place])
        yield requests
        tokens = CounterMetricFamily(
            "stateroom_model_tokens", "Tokens of the server's models", labels=["environment", "kind"]
        )
        for labels, cell in self._tokens.items():
            tokens.add_metric(labels, row[cell])
        yield tokens
        yield from _metered("stateroom_verdict", "verdicts", ("environment",), self._verdicts, row)
        yield from _metered("stateroom_call", "tool calls", ("environment", "tool"), self._tools, row)
        yield from _metered("stateroom_thread_run", "thread runs", ("environment",), self._runs, row)
        yield from _metered("stateroom_store_operation", "store operations", ("operation",), self._store, row)
        conflicts = sum(meter.outcomes(row)["conflict"] for meter in self._store.values())
        yield CounterMetricFamily("stateroom_conflicts", "Commits refused because another was first", conflicts)

    def _processes(self) -> Iterator[Metric]:
        """The system's metrics of each worker's process, by the number of the worker."""
        rows = [self._row] if self._files is None else self._files.rows()
        metrics: dict[str, Metric] = {}
        for worker, row in enumerate(rows):
            labels = {} if self._files is None else {"worker": str(worker)}
            for family in ProcessCollector(pid=partial(int, row[self._process]), registry=None).collect():
                known = metrics.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    known.add_sample(sample.name, labels, sample.value)
        yield from metrics.values()


def _metered(
    name: str, what: str, labels: Sequence[str], meters: Mapping[Any, Meter], row: Sequence[float]
) -> Iterator[Metric]:
    """The metrics of some meters, by the values of their labels."""
    outcomes = CounterMetricFamily(f"{name}s", f"Number of {what}", labels=[*labels, "outcome"])
    seconds = HistogramMetricFamily(f"{name}_duration_seconds", f"Duration of {what} in seconds", labels=labels)
    for values, meter in meters.items():
        for outcome, times in meter.outcomes(row).items():
            outcomes.add_metric([*values, outcome], times)
        seconds.add_metric(values, *meter.histogram(row))
    yield outcomes
    yield seconds


class _Collected(Collector):
    """Metrics as the library takes them."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


class _Files:
    """Rows of numbers, one file each, that processes map into memory and share.

    The name of a file is a hash of its layout: workers that start after the tools were changed do not mix their counts
    with older ones.
    """

    def __init__(self, folder: Path, meaning: str, size: int) -> None:
        self.folder = folder
        self.size = size
        self.name = blake2b(meaning.encode(), digest_size=8).hexdigest()

    def claim(self) -> memoryview[float]:
        """The first row that no living process uses; the lock ends with the process."""
        for number in count():
            with (self.folder / f"{self.name}.{number}").open("a+b") as file:
                if not try_lock(file):
                    continue
                file.write(bytes(8 * self.size - os.fstat(file.fileno()).st_size))  # all of a new file
                file.flush()
                return memoryview(mmap(file.fileno(), 8 * self.size)).cast("d")  # the lock stays with the map
        raise AssertionError

    def rows(self) -> list[array[float]]:
        """All rows, in the order of their files, including those of processes that died."""
        paths = sorted(self.folder.glob(f"{self.name}.*"), key=lambda path: int(path.suffix[1:]))
        contents = [path.read_bytes() for path in paths]
        return [array("d", content) for content in contents if len(content) == 8 * self.size]  # else it is being made

    def total(self) -> list[float]:
        """The sum of all rows."""
        return [sum(cells) for cells in zip(*self.rows(), strict=True)]


class MeasuredStore(WrappedStore):
    """A store whose operations are counted and timed."""

    def __init__(self, store: Store, metrics: Metrics) -> None:
        super().__init__(store)
        self._meters = {operation: metrics.store(operation) for operation in OPERATIONS}

    async def around(
        self, operation: str, session: str | None, work: Callable[P, Work[T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        outcome, start = "ok", perf_counter()
        try:
            return await work(*args, **kwargs)
        except BaseException as error:
            outcome = _outcome(error)
            raise
        finally:
            self._meters[operation].count(outcome, perf_counter() - start)


def _outcome(error: BaseException) -> str:
    if isinstance(error, Conflict):
        return "conflict"
    return "refused" if isinstance(error, SessionError) else "error"

"""Studio's API on runs: all runs below a folder, their rollouts and sessions, and what is measured in them.

Files are indexed on a thread, and rows are read by their place: no file is ever in memory. A response has what is
indexed so far, with the progress. A client that follows a run sends the `version` it has as `since`, and gets 304
until there is another one. The sessions of a run are in a store beside its files, which is opened when somebody looks
into it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field
from starlette.responses import Response
from starlette.routing import Router
from starlette.types import ASGIApp, Receive, Scope, Send

from stateroom.errors import Forbidden, NotFound
from stateroom.lru import LRU
from stateroom.model import ModelSource
from stateroom.rollout import (
    UNREADABLE,
    EpisodeFilter,
    RunFiles,
    RunIndex,
    Search,
    StoredRun,
    find_runs,
)
from stateroom.server import Amount, Operation, Parameters, Services, get, routes_of
from stateroom.store import without_secrets
from stateroom.studio.sessions import session_operations

INDEX_SECONDS = 0.2
"""Seconds that a request waits for what is new to be indexed; then the response has a part of it."""

GROWING_SECONDS = 60.0
"""Seconds after its last row for which an unfinished run counts as growing."""

MAX_OPEN_RUNS = 1000
"""Runs whose indexes are kept open."""

MAX_OPEN_STORES = 32
"""Stores of runs that are kept open, besides those in use."""

MAX_CELLS = 64
"""Episodes of a task that the matrix has at most; the others are among the rollouts."""

Data = dict[str, Any]


class Since(Parameters):
    since: str | None = None


class Page(Since):
    offset: Annotated[int, Field(ge=0, le=2**53)] = 0
    limit: Amount = 100


class Rollouts(EpisodeFilter, Page):
    sort: Literal[
        "line", "task", "rollout", "reward", "failure", "session", "tool_calls", "turns", "tokens", "seconds", "cost"
    ] = "line"
    order: Literal["ascending", "descending"] = "ascending"


class File(Parameters):
    file: Literal["rollouts", "failures"] = "rollouts"


class RunList(msgspec.Struct, frozen=True):
    version: str
    runs: list[Data]


class Indexed(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a run that is indexed so far."""

    version: str
    progress: dict[str, int]
    """The bytes that are `indexed`, and the `size` of the files."""


class RolloutPage(Indexed, frozen=True, kw_only=True):
    rollouts: list[Data]
    total: int


class MatrixTask(msgspec.Struct, frozen=True):
    task: int
    rollouts: list[Data]
    episodes: int
    """The total number, of which the first are in `rollouts`."""


class Matrix(Indexed, frozen=True, kw_only=True):
    tasks: list[MatrixTask]
    total: int


class _IndexedRun:
    """A run whose files are indexed in the background."""

    def __init__(self, files: RunFiles, worker: Executor) -> None:
        self._files = files
        self._worker = worker
        self._opening = asyncio.Lock()
        self._search: Search | None = None
        self._work: asyncio.Task[None] | None = None
        self._summary: tuple[str, Data] = ("", {})
        self._details: tuple[str, Data] = ("", {})

    async def newest(self) -> Search:
        """The index, with all that can be indexed soon; the rest follows in the background."""
        async with self._opening:
            if self._search is None:
                self._search = Search(await asyncio.to_thread(RunIndex, self._files))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._advance(self._search.index))
            await asyncio.wait([self._work], timeout=INDEX_SECONDS)
        if self._work.done():
            self._work.result()
        return self._search

    async def _advance(self, index: RunIndex) -> None:
        # A batch at a time: runs take turns on the thread, and the one with little to index is soon done.
        while await asyncio.get_running_loop().run_in_executor(self._worker, index.advance):
            pass

    def summary(self, search: Search, folder: Path) -> Data:
        """The run in a list."""
        state = _state(search.index)
        if self._summary[0] != state["version"]:
            self._summary = state["version"], StoredRun(self._files).summary(folder, search).data()
        data = self._summary[1]
        return {**data, "growing": not data["finished"] and _is_recent(self._files), **state}

    def details(self, search: Search, folder: Path) -> Data:
        """The run alone: also all its metrics, the rewards, the failures and what is wrong with its files."""
        summary = self.summary(search, folder)
        if self._details[0] != summary["version"]:
            run = StoredRun(self._files)
            metrics = run.metrics(search)
            data = {
                "metrics": metrics,
                "pass": _passes(metrics),
                "histogram": search.histogram(),
                "failures": {"class": search.failures(), "tool": search.tool_failures()},
                "solved_threshold": run.solved_threshold,
                "store": run.store,
            }
            self._details = summary["version"], data
        return {**summary, **self._details[1]}


class RunsAPI:
    """The endpoints on the runs below a folder. Links are refused, and so is everything that is not a run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self._worker = ThreadPoolExecutor(1, "runs")
        self._runs: LRU[Path, _IndexedRun] = LRU(MAX_OPEN_RUNS)

    def operations(self) -> list[Operation]:
        """The endpoints."""
        run = "/runs/{run:id}"
        return [
            get("/runs", self.runs),
            get(run, self.show, name="run"),
            get(f"{run}/rollouts", self.rollouts),
            get(f"{run}/rollouts/{{line:int}}", self.rollout),
            get(f"{run}/matrix", self.matrix),
        ]

    async def runs(self, query: Since) -> RunList | Response:
        """List all runs, newest first."""
        all_files = await asyncio.to_thread(self._find)
        runs = await asyncio.gather(*(self._summary(files) for files in all_files))
        runs.sort(key=lambda run: (run["started"], run["name"]), reverse=True)
        versions = "\n".join(f"{run['name']} {run['version']} {run['growing']}" for run in runs)
        version = blake2b(versions.encode(errors="replace"), digest_size=16).hexdigest()
        return Response(status_code=304) if query.since == version else RunList(version, runs)

    async def show(self, run: str, query: Since) -> Data | Response:
        """Read a run. Its `pass` has pass@k by k; a bar of its `histogram` ends below `high`, the last one at it."""
        indexed = await self._run(run)
        search = await indexed.newest()
        if query.since == await asyncio.to_thread(_version, search.index):
            return Response(status_code=304)
        return await asyncio.to_thread(indexed.details, search, self.folder)

    async def rollouts(self, run: str, query: Rollouts) -> RolloutPage | Response:
        """List episodes, without their conversations."""
        search = await (await self._run(run)).newest()
        state = await asyncio.to_thread(_state, search.index)
        if query.since == state["version"]:
            return Response(status_code=304)
        rollouts, total = await asyncio.to_thread(
            search.page, query, query.sort, query.order, query.offset, query.limit
        )
        return RolloutPage(rollouts=rollouts, total=total, **state)

    async def rollout(self, run: str, line: int, query: File) -> Data:
        """Read a whole row of the rollouts or of the failures."""
        search = await (await self._run(run)).newest()
        return await asyncio.to_thread(search.index.row, query.file, line)

    async def matrix(self, run: str, query: Page) -> Matrix | Response:
        """List tasks with their first episodes, by rollout. Tasks that have not run yet have none."""
        search = await (await self._run(run)).newest()
        state = await asyncio.to_thread(_state, search.index)
        if query.since == state["version"]:
            return Response(status_code=304)
        cells, total = await asyncio.to_thread(search.matrix, query.offset, query.limit)
        tasks = [MatrixTask(task, rollouts[:MAX_CELLS], len(rollouts)) for task, rollouts in cells]
        return Matrix(tasks=tasks, total=total, **state)

    async def _summary(self, files: RunFiles) -> Data:
        """A run in the list; one that cannot be read is there with the reason."""
        run = self._indexed(files)
        try:
            return await asyncio.to_thread(run.summary, await run.newest(), self.folder)
        except UNREADABLE as error:
            self._runs.pop(files.rollouts, None)  # so that it is opened anew
            summary = StoredRun(files).unreadable(self.folder, error).data()
            return {**summary, "growing": False, "version": str(error), "progress": {"indexed": 0, "size": 0}}

    # The folder.

    async def find(self, name: str) -> StoredRun:
        """The run of this name."""
        run = await asyncio.to_thread(StoredRun.named, self.folder, name)
        link = next(self._links(run.files), None)
        if link is not None:
            raise Forbidden(f"{link.relative_to(self.folder)} is a link, and links are not followed; copy the run here")
        return run

    async def _run(self, name: str) -> _IndexedRun:
        return self._indexed((await self.find(name)).files)

    def _indexed(self, files: RunFiles) -> _IndexedRun:
        run = self._runs.get(files.rollouts) or _IndexedRun(files, self._worker)
        return self._runs.keep(files.rollouts, run)

    def _find(self) -> list[RunFiles]:
        return [run.files for run in find_runs(self.folder) if not any(self._links(run.files))]

    def _links(self, files: RunFiles) -> Iterator[Path]:
        """The links among the files of a run and the folders on the way to it."""
        folders = (folder for folder in files.rollouts.parents if folder.is_relative_to(self.folder))
        return (path for path in (*files.all, *folders) if path.is_symlink() and path != self.folder)


def _version(index: RunIndex) -> str:
    """Another one after each change that a client can see."""
    path = index.files.description
    return f"{index.version}-{path.stat().st_mtime_ns if path.exists() else 0}"


def _state(index: RunIndex) -> Data:
    """The state of the index for a response. It is read before the rows, so it never promises more than they have."""
    indexed, size = index.progress
    return {"version": _version(index), "progress": {"indexed": indexed, "size": size}}


def _is_recent(files: RunFiles) -> bool:
    times = [path.stat().st_mtime for path in (files.rollouts, files.failures) if path.exists()]
    return max(times, default=0.0) > time.time() - GROWING_SECONDS


def _passes(metrics: dict[str, float]) -> dict[int, float]:
    """pass@k by k."""
    passes = ((name.removeprefix("pass@"), value) for name, value in metrics.items() if name.startswith("pass@"))
    return {int(k): value for k, value in passes if k.isdecimal()}


# Sessions.


class _OpenStore:
    """A store, and the API on its sessions."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.resources = AsyncExitStack()
        self.app: ASGIApp | None = None
        self.used = 0
        """Requests that are under way."""


class RunStores:
    """The API on the sessions of runs, below the path of each run."""

    def __init__(
        self, services: Services, models: Mapping[str, ModelSource], runs: RunsAPI, operations: list[Operation]
    ) -> None:
        """`operations` are the endpoints on the sessions of Studio's own store, in which runs may have kept theirs."""
        self._services = services
        self._models = models
        self._runs = runs
        self._stores: dict[str, _OpenStore] = {}
        self.operations = operations
        self.routes = routes_of(operations)  # by which all routes of a server can be listed
        services.resources.push_async_callback(self.close)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        url = self._url(await self._runs.find(scope["path_params"]["run"]))
        kept = self._stores.pop(url) if url in self._stores else _OpenStore()
        self._stores[url] = kept  # the most recent comes last
        kept.used += 1
        try:
            async with kept.lock:
                if kept.app is None:
                    kept.app = await self._open(url, kept.resources)
            await kept.app(scope, receive, send)
        finally:
            kept.used -= 1
            await self._close_idle()

    def _url(self, run: StoredRun) -> str:
        """The store beside the run, or Studio's own. No other is opened: a file could name any server."""
        path, own = run.files.sessions, self._services.options.store
        if path.is_file() and not path.is_symlink():
            assert run.store is not None
            return run.store
        if run.store is None:
            raise NotFound(f"run {run.files.rollouts.name} did not keep its sessions")
        if run.store != without_secrets(own):
            raise NotFound(f"the sessions of this run are in {run.store}; open Studio on that store to see them")
        return own

    async def _open(self, url: str, resources: AsyncExitStack) -> ASGIApp:
        known, operations = self._services, self.operations
        if url != known.options.store:
            options = replace(known.options, store=url, for_operator=True, keys=(), shared_folder=None)
            services = Services(known.served, options, known.now, known.stopping)
            await services.start(resources, None)
            operations = session_operations(services, self._models)
        return Router(routes_of(operations), redirect_slashes=False)

    async def _close_idle(self) -> None:
        idle = [url for url, kept in self._stores.items() if not kept.used]
        for url in idle[: max(0, len(self._stores) - MAX_OPEN_STORES)]:
            await self._stores.pop(url).resources.aclose()

    async def close(self) -> None:
        """Close all stores."""
        while self._stores:
            _, kept = self._stores.popitem()
            await kept.resources.aclose()

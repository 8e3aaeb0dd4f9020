"""Studio's API on runs."""

import asyncio
import json
import os
import shutil
import sqlite3
import threading
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import pytest_asyncio
from yarl import URL

from stateroom.rollout import RunFiles, RunIndex, Search, index as index_module
from stateroom.studio import Studio
from tests.patience import PATIENCE
from tests.rollout.bad_runs import BAD_RUNS, ODD_RUNS, make_run, make_runs
from tests.rows import write_rows
from tests.server.conftest import Served
from tests.studio.conftest import OpenStudio, stateroom

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROWS = [
    {
        "_ng_task_index": task,
        "_ng_rollout_index": rollout,
        "_stateroom_session": f"s{task}{rollout}",
        "reward": (task + rollout) / 4,
        "tool_calls": task,
        "response": {"model": "m", "output": [{"type": "message", "role": "assistant", "content": "x" * 200}]},
    }
    for task in range(3)
    for rollout in range(2)
]


class Client:
    """A client of Studio's API."""

    def __init__(self, served: Served) -> None:
        self.served = served

    async def ask(self, path: str, **query: Any) -> tuple[int, Any]:
        url = URL(f"{self.served.url}/studio/api{path}", encoded=True)
        async with self.served.client.get(url, params=query) as reply:
            return reply.status, await reply.json() if reply.status != 304 else None

    async def get(self, path: str, **query: Any) -> Any:
        status, found = await self.ask(path, **query)
        assert status == 200, found
        return found

    async def status(self, path: str, **query: Any) -> int:
        return (await self.ask(path, **query))[0]

    async def whole(self, path: str, **query: Any) -> Any:
        """The reply when all is indexed."""
        while True:
            found = await self.get(path, **query)
            if found["progress"]["indexed"] == found["progress"]["size"]:
                return found


@pytest_asyncio.fixture(loop_scope="session")
async def client(open_studio: OpenStudio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client that waits for small files to be indexed, however busy the machine is."""
    monkeypatch.setattr("stateroom.studio.runs.INDEX_SECONDS", PATIENCE)
    (tmp_path / "runs").mkdir()
    return Client(await open_studio(studio=Studio(runs=tmp_path / "runs")))


@pytest.fixture
def files(tmp_path: Path) -> RunFiles:
    """The files of a run that is under way."""
    files = RunFiles(tmp_path / "runs" / "a" / "x.jsonl")
    files.rollouts.parent.mkdir(parents=True)
    write_rows(files.rollouts, ROWS)
    write_rows(files.inputs, [{name: row[name] for name in ("_ng_task_index", "_ng_rollout_index")} for row in ROWS])
    return files


X = f"/runs/{quote('a/x', safe='')}"


async def test_numbers_are_those_of_the_aggregate_metrics_file(client: Client, tmp_path: Path) -> None:
    path = tmp_path / "runs" / "counter.jsonl"
    command = ("run", "counter", "--model", "noisy", "--repeats", "4", "--output", str(path))
    await asyncio.to_thread(stateroom, *command)
    [told] = json.loads(RunFiles(path).metrics.read_bytes())
    found = await client.whole("/runs/counter")
    assert found["metrics"].keys() == told["agent_metrics"].keys()
    assert found["metrics"] == pytest.approx(told["agent_metrics"], rel=1e-12, abs=1e-12)
    assert found["pass"] == {k: told["agent_metrics"][f"pass@{k}"] for k in ("1", "2", "4")}
    assert (found["done"], found["failed"], found["finished"], found["growing"]) == (32, 0, True, False)
    assert (found["environment"], found["model"], found["warnings"]) == ("counter", "noisy", [])
    assert sum(bar["count"] for bar in found["histogram"]) == 32
    [listed] = (await client.get("/runs"))["runs"]
    assert listed["metrics"].items() <= told["key_metrics"].items()


async def test_runs_are_listed_with_what_is_known_of_them(client: Client, files: RunFiles) -> None:
    write_rows(files.failures, [{**ROWS[0], "_ng_failure_class": "model"}])
    found = await client.get("/runs")
    [run] = found["runs"]
    assert (run["name"], run["model"], run["done"], run["episodes"]) == ("a/x", "m", 6, 6)
    assert (run["finished"], run["growing"], run["metrics"]["mean/reward"]) == (False, True, 0.375)
    assert await client.status("/runs", since=found["version"]) == 304
    write_rows(files.rollouts, [{**ROWS[0], "_ng_task_index": 9}])
    again = await client.get("/runs", since=found["version"])
    assert again["runs"][0]["done"] == 7


async def test_a_bad_run_is_listed_with_what_is_wrong_and_hides_no_other(client: Client, tmp_path: Path) -> None:
    make_runs(tmp_path / "runs")
    shutil.copytree(tmp_path / "runs" / "good", tmp_path / "runs" / os.fsdecode(b"\xff"))
    found = {run["name"].removesuffix("/x"): run for run in (await client.get("/runs"))["runs"]}
    assert found.keys() == {"good", "\ufffd", *BAD_RUNS, *ODD_RUNS}
    assert {name for name, run in found.items() if run["warnings"]} == {*BAD_RUNS}
    assert (found["good"]["metrics"]["mean/reward"], found["good"]["done"]) == (1.0, 1)
    for name in (*BAD_RUNS, *ODD_RUNS):
        path = f"/runs/{quote(f'{name}/x', safe='')}"
        assert (await client.whole(path))["warnings"] == found[name]["warnings"]
        for rest in ("/rollouts", "/rollouts/1", "/matrix"):
            assert await client.status(path + rest) == 200


async def test_a_run_that_cannot_be_read_hides_no_other(client: Client, files: RunFiles, tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "good")
    await client.whole(X)

    def fail(*_: Any) -> None:
        raise sqlite3.DatabaseError("database disk image is malformed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Search, "rewards", lambda self: fail() if self.index.files == files else [])
        write_rows(files.rollouts, [{**ROWS[0], "_ng_task_index": 9}])
        found = {run["name"]: run for run in (await client.get("/runs"))["runs"]}
    assert found["a/x"]["warnings"] == ["database disk image is malformed"]
    assert found["good/x"]["warnings"] == []
    assert (await client.whole(X))["done"] == 7


async def test_failures_are_counted_by_class_and_by_tool_and_lead_to_their_episodes(
    client: Client, files: RunFiles
) -> None:
    failed = [{"_ng_task_index": task, "_ng_rollout_index": 0, "_ng_failure_class": "model"} for task in (7, 8)]
    write_rows(files.failures, failed)
    broken = {"tool": "boil", "code": "tool_failed", "error": "hot"}
    indices = {"_ng_task_index": 1, "_ng_rollout_index": 1}
    write_rows(files.tool_failures, [{**indices, "_stateroom_session": "s11", **broken}] * 2)
    found = await client.whole(X)
    assert found["failures"] == {"class": {"model": 2}, "tool": {"boil": 2}}
    page = await client.get(f"{X}/rollouts", failure="model")
    assert [(row["file"], row["line"], row["task"]) for row in page["rollouts"]] == [
        ("failures", 1, 7),
        ("failures", 2, 8),
    ]
    [row] = (await client.get(f"{X}/rollouts", tool="boil"))["rollouts"]
    assert (row["task"], row["rollout"], row["session"]) == (1, 1, "s11")
    assert await client.get(f"{X}/rollouts/2", file="failures") == failed[1]


async def test_rollouts_are_paged_filtered_and_sorted(client: Client, files: RunFiles) -> None:
    page = await client.whole(f"{X}/rollouts", sort="reward", order="descending", limit=2, offset=1, low=0.25)
    assert [row["reward"] for row in page["rollouts"]] == [0.5, 0.5]
    assert (page["total"], page["rollouts"][0]["turns"]) == (5, 1)
    assert "response" not in page["rollouts"][0]
    assert await client.status(f"{X}/rollouts", sort="nonsense") in (400, 422)
    assert await client.status(f"{X}/rollouts", nonsense=1) in (400, 422)


async def test_a_rollout_is_read_whole_by_its_line(client: Client, files: RunFiles) -> None:
    assert await client.get(f"{X}/rollouts/4") == ROWS[3]
    assert await client.status(f"{X}/rollouts/7") == 404


async def test_the_matrix_is_paged_by_tasks(client: Client, files: RunFiles) -> None:
    page = await client.whole(f"{X}/matrix", offset=1, limit=1)
    [task] = page["tasks"]
    cells = [(cell["rollout"], cell["line"], cell["reward"]) for cell in task["rollouts"]]
    assert (task["task"], cells, page["total"]) == (1, [(0, 3, 0.25), (1, 4, 0.5)], 3)


async def test_a_task_with_many_episodes_has_its_first_ones_in_the_matrix(client: Client, files: RunFiles) -> None:
    write_rows(files.rollouts, [{**ROWS[0], "_ng_rollout_index": rollout} for rollout in range(2, 100)])
    [task, *_] = (await client.whole(f"{X}/matrix"))["tasks"]
    assert ([cell["rollout"] for cell in task["rollouts"]], task["episodes"]) == ([*range(64)], 100)


async def test_a_growing_run_is_followed_by_its_version(client: Client, files: RunFiles) -> None:
    version = (await client.whole(X))["version"]
    for rest in ("", "/rollouts", "/matrix"):
        assert await client.status(X + rest, since=version) == 304
    for number in range(10, 15):
        write_rows(files.rollouts, [{**ROWS[0], "_ng_task_index": number}])
        found = await client.get(X, since=version)
        assert (found["version"] != version, found["done"]) == (True, number - 3)
        version = found["version"]
    files.description.write_text('{"environment": "e", "finished": "2026-01-01T00:00:00+00:00"}')
    found = await client.get(X, since=version)
    assert (found["finished"], found["growing"], found["environment"]) == (True, False, "e")


async def test_there_are_rows_before_the_index_is_complete(
    client: Client, files: RunFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "FIRST_BATCH_BYTES", 1000)
    monkeypatch.setattr("stateroom.studio.runs.INDEX_SECONDS", 0)
    seen, advance = threading.Event(), RunIndex.advance
    batches = count()

    def wait(index: RunIndex) -> bool:
        """Index no second batch before the first was seen."""
        return (next(batches) == 0 or seen.wait()) and advance(index)

    monkeypatch.setattr(RunIndex, "advance", wait)
    try:
        while not (page := await client.get(f"{X}/rollouts"))["total"]:
            pass
        assert page["total"] == len(page["rollouts"]) < 6
        assert page["progress"]["indexed"] < page["progress"]["size"]
    finally:
        seen.set()
    assert (await client.whole(f"{X}/rollouts"))["total"] == 6


@pytest.mark.parametrize("name", ["..", "../runs/a/x", "/etc/passwd", "a/../a/x", "", "a", "a/y", "\0", "y" * 999])
async def test_only_runs_below_the_folder_are_there(client: Client, files: RunFiles, name: str) -> None:
    (files.rollouts.parent / "y.jsonl").write_text("{}\n")  # no run: nothing describes it
    assert await client.status(f"/runs/{quote(name, safe='').replace('.', '%2E')}/rollouts") == 404


@pytest.mark.parametrize("linked", ["rollouts", "failures", "inputs", "folder"])
async def test_links_are_refused(client: Client, files: RunFiles, tmp_path: Path, linked: str) -> None:
    assert len((await client.get("/runs"))["runs"]) == 1
    path = files.rollouts.parent if linked == "folder" else getattr(files, linked)
    outside = tmp_path / "outside"
    if path.exists():
        path.rename(outside)
    else:
        shutil.copy(files.rollouts, outside)
    path.symlink_to(outside)
    assert (await client.get("/runs"))["runs"] == []
    for rest in ("", "/rollouts", "/rollouts/1", "/matrix"):
        assert await client.status(X + rest) == 403

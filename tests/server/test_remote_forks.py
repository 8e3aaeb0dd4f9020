"""Sessions that a server forks for our runner: groups and trees come out as in process."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from stateroom import Environment
from stateroom.errors import NotFound, Unauthorized
from stateroom.gallery import CounterEnvironment, ExtractionEnvironment, WeatherEnvironment
from stateroom.model import ModelSource
from stateroom.rollout import (
    Beam,
    BestOf,
    MonteCarlo,
    RemoteEnvironment,
    RunFiles,
    TreeFiles,
    branch,
    generate_tasks,
    run,
)
from tests.messages import raises
from tests.plans import make_branching, make_run
from tests.rows import rows, without
from tests.server.here_and_there import run_in_both

NAMES = ("session", "revision", "_stateroom_session", "_stateroom_parent", "_stateroom_times")


def settings(folder: Path, name: str, kind: type[Environment[Any, Any]], **more: Any) -> dict[str, Any]:
    return {
        "environment": kind(),
        "model": ModelSource("noisy", kind.policies["noisy"]),
        "tasks": generate_tasks(kind, 3, seed=1),
        "files": TreeFiles(folder / f"{name}.jsonl"),
        **more,
    }


def lines(path: Path) -> list[str]:
    """The lines of a file in a fixed order, but for the names of the sessions."""
    return sorted(json.dumps(without(row, *NAMES), sort_keys=True) for row in rows(path))


@pytest.mark.parametrize("kind", [CounterEnvironment, ExtractionEnvironment, WeatherEnvironment])
async def test_groups_are_the_same_here_and_there(
    serve: Any, tmp_path: Path, shared_url: str, kind: type[Environment[Any, Any]]
) -> None:
    served = await serve(kind(), store=shared_url)
    given: dict[str, Any] = {"tasks": generate_tasks(kind, 3, seed=1), "repeats": 1, "group": 4}
    _, there = await run_in_both(tmp_path, served.url, kind(), kind.policies["noisy"], **given)
    parents = [row.get("_stateroom_parent") for row in rows(there.files.rollouts)]
    if kind is WeatherEnvironment:
        assert set(parents) == {None}
        return
    forks = [parent for parent in parents if parent is not None]
    assert len(forks) == len(parents)
    assert {parent["revision"] for parent in forks} == {1}
    assert len({parent["session"] for parent in forks}) == 3
    heads = {head.id: head for head in await served.services.store.heads(limit=100)}
    assert len(heads) == 15
    assert all(head.closed for head in heads.values())
    for row in rows(there.files.rollouts):
        head = heads[row["_stateroom_session"]]
        assert {"session": head.parent, "revision": head.parent_revision} == row["_stateroom_parent"]


@pytest.mark.parametrize("rule", [BestOf(3, at=1), Beam(), MonteCarlo(2)], ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("kind", [ExtractionEnvironment, WeatherEnvironment])
async def test_trees_are_the_same_here_and_there(
    serve: Any, tmp_path: Path, shared_url: str, kind: type[Environment[Any, Any]], rule: Any
) -> None:
    served = await serve(kind(), store=shared_url)
    here = make_branching(**settings(tmp_path, "here", kind, rule=rule))
    there = make_branching(**settings(tmp_path, "there", kind, rule=rule, server=served.url))
    reports = [await branch(here), await branch(there)]
    assert [report.first_error for report in reports] == [None, None]
    assert lines(there.files.tree) == lines(here.files.tree)
    assert lines(there.files.rollouts) == lines(here.files.rollouts)
    assert there.files.metrics.read_bytes() == here.files.metrics.read_bytes()


async def test_an_environment_that_only_the_server_knows(served: Any, tmp_path: Path) -> None:
    tasks = generate_tasks(CounterEnvironment, 2, seed=1)
    for task in tasks:
        task["responses_create_params"]["tools"] = CounterEnvironment().tool_definitions()
    given = settings(tmp_path, "there", CounterEnvironment, tasks=tasks, server=served.url, group=3)
    planned = make_run(**(given | {"environment": RemoteEnvironment()}))
    report = await run(planned)
    assert (report.episodes, report.failed) == (6, 0)
    assert {row["_stateroom_parent"]["revision"] for row in rows(planned.files.rollouts)} == {1}


async def test_the_admin_token_is_asked_for_before_anything_runs(serve: Any, tmp_path: Path) -> None:
    served = await serve(admin_token="open sesame")
    given = settings(tmp_path, "x", CounterEnvironment, server=served.url, group=2)
    for token in (None, "wrong"):
        with raises(Unauthorized):
            await run(make_run(**given, admin_token=token))
    assert os.listdir(tmp_path) == []
    assert await served.services.store.heads(limit=1) == []
    report = await run(make_run(**given, admin_token="open sesame"))
    assert (report.episodes, report.failed) == (6, 0)


async def test_a_server_that_cannot_fork_is_told_apart(tmp_path: Path) -> None:
    async def root(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application()
    app.router.add_get("/", root)
    async with TestServer(app) as server:
        given = settings(tmp_path, "x", CounterEnvironment, server=str(server.make_url("/")))
        with raises(NotFound):
            await branch(make_branching(**given, rule=BestOf()))
        with raises(NotFound):
            await run(make_run(**given, group=2))
    assert os.listdir(tmp_path) == []


async def test_without_groups_no_admin_api_is_needed(serve: Any, tmp_path: Path) -> None:
    served = await serve(admin_token="open sesame")
    given = settings(tmp_path, "x", CounterEnvironment, server=served.url, repeats=2)
    assert (await run(make_run(**(given | {"files": RunFiles(tmp_path / "x.jsonl")})))).failed == 0

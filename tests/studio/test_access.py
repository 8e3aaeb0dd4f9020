"""Who may use Studio's API, and for what."""

import re
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from starlette.routing import Mount, Route

from stateroom.errors import DefinitionError
from stateroom.studio import Studio
from tests.messages import raises
from tests.server.conftest import Served
from tests.studio.conftest import OpenStudio

TOKEN = "a token that is only good for tests"
TASK = {"initial_count": 3, "expected_count": 5}

pytestmark = pytest.mark.asyncio(loop_scope="session")


OWN = {"/about", "/inbox", "/store"}
"""The paths that are neither of sessions nor of runs."""

RUN = quote("a/first", safe="")

READING = ("GET", "HEAD")

OPEN = {"/", "/health", "/ready", "/studio", "/studio/{path:path}"}
"""Probes, and the page, which asks for the token."""


def endpoints(served: Served) -> list[tuple[str, str]]:
    """The method and the path of everything that a server answers, from its own routes."""
    router: Any = served.app.router
    found = [("POST", path) for path in served.app.endpoints]
    waiting = [("", route) for route in router.app.routes]
    while waiting:
        start, route = waiting.pop()
        path = start + route.path
        if isinstance(route, Mount):
            assert route.routes, f"{path} does not say what is below it"
            waiting += [(path, each) for each in route.routes]
        else:
            assert isinstance(route, Route)
            found += [(method, path) for method in sorted(route.methods or ())]
    return found


def changing(served: Served, session: str, of_run: str | None = None) -> list[tuple[str, str]]:
    """The endpoints that change something, on a session and, where there are runs, on one of a run."""
    return [
        (method, path.replace("{run:id}", RUN).replace("{session:id}", of_run or "" if "{run:id}" in path else session))
        for method, path in endpoints(served)
        if method not in READING
    ]


async def session_of(served: Served) -> str:
    """A session of the run."""
    [session, *_] = (await ask(served, "GET", f"/studio/api/runs/{RUN}/sessions"))[1]["sessions"]
    return str(session["id"])


async def seeded(served: Served) -> str:
    session = await served.services.environments["counter"].sessions.seed(TASK)
    return session.id


async def ask(served: Served, method: str, path: str, **options: Any) -> tuple[int, Any]:
    async with served.client.request(method, f"{served.url}{path}", **options) as reply:
        return reply.status, await reply.json()


async def test_reading_changes_nothing(open_studio: OpenStudio, runs: Path) -> None:
    served = await open_studio(studio=Studio("read", runs=runs), for_operator=True)
    session, of_run = await seeded(served), await session_of(served)
    before = (await ask(served, "GET", f"/studio/api/runs/{RUN}/sessions"))[1]
    changes = changing(served, session, of_run)
    assert len(changes) >= 28
    for method, path in changes:
        status, body = await ask(served, method, path, json={"by": "ada"})
        assert (status, body["error"]["code"]) == (403, "forbidden"), path
        assert "mode full" in body["error"]["message"]
    assert (await ask(served, "GET", f"/studio/api/sessions/{session}"))[1]["revision"] == 1
    assert (await ask(served, "GET", f"/studio/api/runs/{RUN}/sessions"))[1] == before


async def test_the_same_endpoints_exist_when_all_is_allowed(open_studio: OpenStudio, runs: Path) -> None:
    """Else the test before would prove nothing."""
    studio = await open_studio(studio=Studio(runs=runs), model="reference", for_operator=True)
    for method, path in changing(studio, await seeded(studio), await session_of(studio)):
        assert (await ask(studio, method, path, json={"by": "ada"}))[0] not in (403, 404, 405), path


async def test_a_change_without_its_person_is_refused(open_studio: OpenStudio) -> None:
    studio = await open_studio(for_operator=True)
    session = await seeded(studio)
    for method, path in changing(studio, session):
        for body in ({}, {"by": ""}):
            status, told = await ask(studio, method, path, json=body)
            assert (status, [*told["error"]["fields"]]) == (422, ["by"]), path
    assert (await ask(studio, "GET", f"/studio/api/sessions/{session}"))[1]["revision"] == 1


async def test_a_fork_comes_without_a_token(studio: Served) -> None:
    session = await seeded(studio)
    _, body = await ask(studio, "POST", f"/studio/api/sessions/{session}/fork", json={"by": "ada"})
    [fork] = body["sessions"]
    assert [*fork] == ["id"]
    _, body = await ask(studio, "POST", f"/admin/sessions/{session}/fork", json={})
    assert [*body["sessions"][0]] == ["id", "token"]


async def test_it_says_what_it_is_open_on(open_studio: OpenStudio, tmp_path: Path) -> None:
    served = await open_studio(studio=Studio("read", runs=tmp_path), store="memory://me:hush@here")
    _, body = await ask(served, "GET", "/studio/api/about")
    version = body.pop("version")
    assert version
    assert body == {
        "mode": "read",
        "store": "memory://me:***@here",
        "environments": ["counter"],
        "runs": str(tmp_path),
    }


async def test_a_token_guards_everything_on_the_port(open_studio: OpenStudio, tmp_path: Path) -> None:
    served = await open_studio(studio=Studio(token=TOKEN, runs=tmp_path), for_operator=True)
    session = await seeded(served)
    guarded = {(method, path) for method, path in endpoints(served) if path not in OPEN}
    assert {path for _, path in guarded} >= {"/metrics", "/openapi.json", "/docs", "/studio/api/about"}
    for method, path in guarded:
        place = path.replace("{session:id}", session)
        for headers in ({}, {"authorization": "Bearer another"}):
            async with served.client.request(method, f"{served.url}{place}", headers=headers) as reply:
                assert reply.status == 401, (method, path)
    headers = {"authorization": f"Bearer {TOKEN}"}
    for path in ("/metrics", "/openapi.json", "/docs"):
        async with served.client.get(f"{served.url}{path}", headers=headers) as reply:
            assert reply.status == 200, path
    assert (await ask(served, "GET", "/admin/sessions"))[0] == 404


@pytest.mark.parametrize("studio", [Studio("read"), Studio(token=TOKEN)])
async def test_no_admin_api_goes_past_studio(open_studio: OpenStudio, studio: Studio) -> None:
    """Without a token of its own it would allow programs on this machine what Studio refuses them."""
    served = await open_studio(studio=studio)
    session = await seeded(served)
    admin = [(method, path) for method, path in endpoints(served) if path.startswith("/admin/")]
    assert len(admin) >= 20
    for method, path in [*admin, ("GET", "/threads")]:
        headers = {"authorization": f"Bearer {TOKEN}"}
        for sent in ({}, headers):
            place = f"{served.url}{path.replace('{session:id}', session)}"
            async with served.client.request(method, place, headers=sent) as reply:
                assert reply.status == 403, (method, path)
    opened = await open_studio(studio=studio, admin_token="another")
    assert (await ask(opened, "GET", "/admin/sessions"))[0] == 401
    headers = {"authorization": "Bearer another"}
    assert (await ask(opened, "GET", "/admin/sessions", headers=headers))[0] == 200


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_another_web_page_gets_nothing(open_studio: OpenStudio, site: str, token: str | None) -> None:
    served = await open_studio(studio=Studio(token=token))
    headers = {"sec-fetch-site": site} | ({"authorization": f"Bearer {token}"} if token else {})
    assert (await ask(served, "GET", "/studio/api/sessions", headers=headers))[0] == 403
    headers["sec-fetch-site"] = "same-origin"
    assert (await ask(served, "GET", "/studio/api/sessions", headers=headers))[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "rooms.example"},
        {"origin": "http://rooms.example"},
        {"origin": "null"},
        {"x-forwarded-for": "10.0.0.1"},
        {"authorization": "Bearer something"},
        {"cookie": "stateroom_counter=x"},
    ],
)
async def test_without_a_token_it_is_for_this_machine(studio: Served, headers: dict[str, str]) -> None:
    assert (await ask(studio, "GET", "/studio/api/sessions"))[0] == 200
    assert (await ask(studio, "GET", "/studio/api/sessions", headers=headers))[0] == 403


async def test_other_addresses_need_a_token() -> None:
    with raises(DefinitionError):
        Studio().check_address("0.0.0.0")
    Studio().check_address("127.0.0.1")
    Studio().check_address("::1")
    Studio(token=TOKEN).check_address("0.0.0.0")


async def test_the_token_is_in_the_fragment_and_in_no_representation() -> None:
    said: list[str] = []
    Studio(token="a b&c").announce("http://127.0.0.1:8008", said.append)
    assert said == ["studio: http://127.0.0.1:8008/studio/#token=a%20b%26c"]
    assert "a b&c" not in repr(Studio(token="a b&c"))


async def test_an_unknown_endpoint_is_told(studio: Served) -> None:
    status, body = await ask(studio, "GET", "/studio/api/nothing")
    assert (status, body["error"]["code"]) == (404, "not_found")


async def test_its_endpoints_are_described_with_their_parameters_and_bodies(
    open_studio: OpenStudio, tmp_path: Path
) -> None:
    served = await open_studio(studio=Studio(runs=tmp_path))
    _, document = await ask(served, "GET", "/openapi.json")
    paths: dict[str, Any] = document["paths"]
    admin = {path.removeprefix("/admin") for path in paths if path.startswith("/admin/")}
    described = {path.removeprefix("/studio/api"): each for path, each in paths.items() if path.startswith("/studio/")}
    sessions = admin | {"/sessions/{session}/continue", "/sessions/{session}/stop"}
    runs = {"/runs", "/runs/{run}", "/runs/{run}/rollouts", "/runs/{run}/rollouts/{line}", "/runs/{run}/matrix"}
    assert described.keys() == sessions | {f"/runs/{{run}}{path}" for path in sessions} | runs | OWN
    assert document["components"]["securitySchemes"]["studio"] == {"type": "http", "scheme": "bearer"}
    ids = [one["operationId"] for path in paths.values() for one in path.values()]
    assert len(ids) == len({*ids})
    schemas = document["components"]["schemas"]

    def body(about: Any) -> list[Any]:
        parts = about["requestBody"]["content"]["application/json"]["schema"]["allOf"]
        return [schemas[part["$ref"].rpartition("/")[2]] for part in parts]

    def parameters(path: str) -> set[str]:
        return {each["name"] for each in described[path]["get"]["parameters"]}

    assert {"run", "sort", "order", "low", "failure", "offset", "since"} <= parameters("/runs/{run}/rollouts")
    assert parameters("/runs/{run}/rollouts/{line}") == {"run", "line", "file"}
    assert {"run", "session", "after", "kinds"} <= parameters("/runs/{run}/sessions/{session}/log")
    for path, endpoints in described.items():
        for method, about in endpoints.items():
            named = {each["name"] for each in about["parameters"] if each["in"] == "path"}
            assert named == {*re.findall(r"\{(\w+)\}", path)}, path
            if method != "get":
                assert body(about)[-1]["required"] == ["by"], path
    assert "message" in body(described["/sessions/{session}/continue"]["post"])[0]["properties"]

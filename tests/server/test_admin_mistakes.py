"""What the admin API says to requests that it cannot answer."""

import re
from typing import Any

from tests.server.test_admin import ACTIONS, ask, refusal, seed

QUERIES = {
    "sessions": f"limit=0 limit=1001 limit=few limit={'9' * 5000} status=sleepy order=best min_reward=much "
    "enviroment=counter cursor= cursor=abc cursor=%FF%FE cursor=WzEsMl0= cursor=WzFlOTk5LCJhIl0= "
    "order=reward&cursor=WzEuMCwiYSJd",
    "sessions/ID": "at=1",
    "sessions/ID/log": "after=-1 after=1.5 limit=0 before=0 kinds= text=",
    "sessions/ID/log/kinds": "after=1",
    "sessions/ID/log/stream": "after=x limit=1",
    "sessions/ID/lineage": "limit=1",
    "sessions/ID/state": f"at=0 at={2**64}",
    "sessions/ID/diff": "from=x from=1&to=0",
}
"""Paths, and what their last parameter must not be."""

FORKS: list[Any] = [{"n": 0}, {"n": 1001}, {"n": True}, {"at": ""}, {"at": 1.5}, {"at": 2**64}, {"pending": "drop"}]
FORKS += [{"revision": 1}, {"edit": {"changes": []}}]
"""Bodies whose only field is wrong."""

MISTAKES: list[tuple[str, str, Any, str]] = [
    *(
        ("GET", f"{path}?{query}", None, re.findall(r"(?:^|&)(\w+)=", query)[-1])
        for path, queries in QUERIES.items()
        for query in queries.split()
    ),
    ("GET", "stream", None, "sessions"),
    ("GET", "sessions/ID/diff", None, "from"),
    *(("POST", "sessions/ID/fork", body, next(iter(body))) for body in FORKS),
    ("POST", "sessions", {"environment": "counter"}, "row"),
    ("POST", "sessions", {"environment": "nothing", "row": {}}, "environment"),
    ("POST", "sessions/ID/call", {"name": "increment_counter", "arguments": [1]}, "arguments"),
    ("POST", "sessions/ID/call", {"arguments": {}}, "name"),
    ("POST", "sessions/ID/reply", {"message": "hi"}, "call_id"),
    ("POST", "sessions/ID/verify", {"response": "done"}, "response"),
    ("POST", "sessions/ID/edit", {"changes": []}, "by"),
    ("POST", "sessions/ID/edit", {"changes": [{"place": ["value"]}], "by": "ada"}, "changes"),
    ("POST", "sessions/ID/edit", {"changes": [{"place": ["value"], "value": "x"}], "by": "ada"}, "value"),
    ("POST", "sessions/ID/rewind", {}, "to"),
    ("POST", "sessions/ID/rewind", {"to": None}, "to"),
    ("POST", "sessions/ID/undo", {"steps": 0}, "steps"),
    ("POST", "sessions/ID/redo", {"to": 1}, "to"),
    ("POST", "sessions/ID/checkpoint", {}, "name"),
    ("POST", "sessions/ID/checkpoint", {"name": ""}, "name"),
    ("POST", "sessions/ID/checkpoint", {"name": "x" * 201}, "name"),
    ("POST", "sessions/ID/close", {"now": True}, "now"),
    ("DELETE", "sessions/ID?force=1", None, "force"),
]
"""A method, a path, a body, and the field that is wrong."""


async def test_a_parameter_that_makes_no_sense_is_named(served: Any) -> None:
    session = await seed(served)
    for method, path, body, field in MISTAKES:
        status, refused = await ask(served, method, f"/{path.replace('ID', session.id)}", body)
        assert (status, refused["error"]["code"]) == (422, "invalid_arguments"), (path, body)
        assert list(refused["error"]["fields"]) == [field], (path, body)
        assert refused["error"]["message"].startswith(f"{field}: "), (path, body)
    assert (await served.services.store.head(session.id)).revision == 1
    assert len(await served.services.store.heads()) == 1


async def test_an_unknown_session_is_an_error_everywhere(served: Any) -> None:
    for method, path, body in (
        *(("GET", path, None) for path in ("", "/log", "/log/kinds", "/log/stream", "/lineage")),
        *(("GET", path, None) for path in ("/state", "/state?at=1", "/diff?from=1")),
        *(("POST", f"/{action}", body) for action, body in ACTIONS.items()),
        ("POST", "/call", {"name": "increment_counter"}),
        ("POST", "/reply", {"message": "hi", "call_id": "1"}),
        ("POST", "/verify", {}),
        ("POST", "/edit", {"changes": [], "by": "ada"}),
        ("DELETE", "", None),
    ):
        assert await refusal(served, method, f"/sessions/nobody{path}", body) == (410, "unknown_session")


async def test_a_path_with_nothing_at_it(served: Any) -> None:
    for path in ("", "/", "//", "/session", "/sessions/", "/sessions/ID/", "/sessions/ID/logs", "/sessions/ID/log/x/y"):
        status, refused = await ask(served, "GET", path)
        assert (status, refused["error"]["code"]) == (404, "not_found"), path
        assert "sessions are at /admin/sessions" in refused["error"]["message"]


async def test_a_method_that_does_not_go_there(served: Any) -> None:
    for method, path, allowed in (
        ("PUT", "/sessions", "GET, POST"),
        ("DELETE", "/sessions", "GET, POST"),
        ("PUT", "/sessions/ID", "DELETE, GET"),
        ("POST", "/sessions/ID/log", "GET"),
        ("GET", "/sessions/ID/fork", "POST"),
        ("OPTIONS", "/sessions/ID/fork", "POST"),
    ):
        async with served.client.request(method, f"{served.url}/admin{path}") as reply:
            assert (reply.status, reply.headers["allow"]) == (405, allowed), (method, path)
            assert (await reply.json())["error"]["code"] == "method_not_allowed"

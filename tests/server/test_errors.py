"""Whatever goes wrong is told in JSON, with the cookie, in words that say what to do."""

import asyncio
import json
import re
from typing import Any

import pytest

from stateroom import Environment, Episode, State, Task, ToolError, tool
from stateroom.gallery import CounterEnvironment, FactsEnvironment

ROW = {"initial_count": 3, "expected_count": 9}

UNFIT = re.compile(r"Traceback|<[\w.]+ object|<class|0x[0-9a-f]{4}|\w+Error\(|\.py\b|pydantic|msgspec|stateroom\.")
"""What a message must not have in it: a repr, the name of a class or of a file."""


class Replies:
    """Posts with the cookie of one session, and looks at what every error has in common."""

    def __init__(self, served: Any) -> None:
        self.served = served

    async def seed(self, row: Any = ROW) -> None:
        self.served.client.cookie_jar.clear()
        assert (await self.served.post("/seed_session", row))[0] == 200
        [cookie] = self.served.client.cookie_jar
        self.token = f"{cookie.key}={cookie.value}"

    async def error(self, path: str, method: str = "POST", **sent: Any) -> tuple[int, dict[str, Any]]:
        async with self.served.client.request(method, f"{self.served.url}{path}", **sent) as reply:
            text = await reply.text()
            assert reply.status >= 400, (path, sent, text)
            assert reply.content_type == "application/json"
            assert reply.headers["Set-Cookie"].startswith(self.token)
            found = json.loads(text)
            assert found.keys() == {"error"}
            assert found["error"].keys() - {"fields"} == {"code", "message"}
            assert not UNFIT.search(text), text
            return reply.status, found["error"]


@pytest.fixture
async def replies(serve: Any) -> Replies:
    made = Replies(await serve())
    await made.seed()
    return made


def nested(levels: int) -> bytes:
    return b'{"count":' + b"[" * levels + b"]" * levels + b"}"


ODD: list[tuple[bytes, int, str]] = [
    (b"{", 400, "the body is not JSON: Expecting property name"),
    (b"{} {}", 400, "the body is not JSON: Extra data"),
    (b"  ", 400, "the body is not JSON: Expecting value"),
    (b'{"count": 1,}', 400, "the body is not JSON: "),
    (b'{"count": "\x00"}', 400, "the body is not JSON: Invalid control character"),
    (b'{"count": "\xff"}', 400, "the body is not JSON: invalid UTF-8 at byte 11"),
    (b"count=1", 400, "the body is not JSON: Expecting value"),
    (nested(100_000), 400, "nested too deeply"),
    (nested(500), 422, "must be JSON"),
    (nested(100), 422, "count: Input should be a valid integer"),
    (b'{"count": ' + b"9" * 5000 + b"}", 400, "a number with too many digits"),
    (b'{"count": NaN}', 422, "count: Input should be a finite number"),
    (b'{"count": 1e400}', 422, "count: Input should be a finite number"),
    (b'{"count": 1.5}', 422, "count: Input should be a valid integer"),
    (b'{"count": "\\ud800"}', 422, "count: Input should be a valid"),
    (b'{"\\ud800": 1}', 422, "must be JSON"),
    (b"[]", 422, "the body must be a JSON object"),
    (b"null", 422, "the body must be a JSON object"),
    (b'"count"', 422, "the body must be a JSON object"),
    (b"6", 422, "the body must be a JSON object"),
]


async def test_odd_bodies_of_calls(replies: Replies) -> None:
    for body, status, message in ODD:
        found, error = await replies.error("/increment_counter", data=body)
        assert (found, error["code"]) == (status, "invalid_json" if status == 400 else "invalid_arguments"), error
        assert message in error["message"], error
    assert await replies.served.post("/get_counter_value") == (200, {"count": 3})


async def test_odd_bodies_elsewhere(replies: Replies) -> None:
    for path in ("seed_session", "reset", "verify", "step", "close_session", "aggregate_metrics"):
        for body, status, message in ODD:
            if status == 400 or message == "the body must be a JSON object":
                found, error = await replies.error(f"/{path}", data=body)
                assert (found, message in error["message"]) == (status, True), (path, error)
    assert await replies.served.post("/get_counter_value") == (200, {"count": 3})


async def test_a_row_without_the_fields_that_its_task_compares_is_refused(serve: Any) -> None:
    served = await serve(FactsEnvironment())
    status, refused = await served.post("/seed_session", {"ranking": []})
    assert (status, refused["error"]["code"]) == (422, "invalid_task")
    assert "archive: Field required" in refused["error"]["message"]


async def test_numbers_of_any_size_are_kept_exactly(replies: Replies) -> None:
    large = 10**4000 + 7
    body = b'{"count": %s}' % str(large).encode()
    async with replies.served.client.post(f"{replies.served.url}/increment_counter", data=body) as reply:
        assert reply.status == 200
    async with replies.served.client.post(f"{replies.served.url}/get_counter_value") as reply:  # it needs no body
        assert await reply.text() == f'{{"count":{large + 3}}}'


async def test_rows_that_cannot_be_seeded(served: Any) -> None:
    for row, message in [
        ({}, "initial_count: Field required; expected_count: Field required"),
        ({"expected_count": 5}, "initial_count: Field required"),
        ({**ROW, "initial_count": "x"}, "initial_count: Input should be a valid integer"),
        ({**ROW, "responses_create_params": []}, "responses_create_params: Input should be a valid dictionary"),
        ({**ROW, "deep": json.loads(nested(300))}, "the task is not JSON"),
        ({**ROW, "odd": {"\ud800": 1}}, "the task is not JSON: a key in it is not valid Unicode"),
    ]:
        for path in ("seed_session", "reset"):
            status, refused = await served.post(f"/{path}", row)
            assert (status, refused["error"]["code"]) == (422, "invalid_task")
            assert message in refused["error"]["message"]
            assert not UNFIT.search(refused["error"]["message"])
    assert (len(served.client.cookie_jar), await served.services.store.heads()) == (0, [])


def output(*items: Any) -> dict[str, Any]:
    return {"response": {"output": [*items]}}


async def test_responses_that_cannot_be_read(replies: Replies) -> None:
    nothing: list[Any] = []
    odd: list[tuple[dict[str, Any], str]] = [
        (ROW, "response"),
        *(({"response": response}, "response") for response in (None, nothing, "done")),
        ({"response": {"output": "done"}}, "response.output"),
        (output("done"), "response.output"),
        (output({"type": "reasoning", "content": [1.5]}), "response.output"),
        *((output({"type": "message", "content": [part]}), "response.output") for part in (1.5, None, {"text": 5})),
        (output({"type": "message", "content": {"a": 1}}), "response.output"),
        (output({"type": "function_call"}), "response.output"),
        (output({"type": "function_call", "call_id": 1, "name": "x"}), "response.output"),
        (output({"type": "function_call", "call_id": "x", "name": 1}), "response.output"),
        (output({"type": "function_call", "call_id": "x", "name": "x", "arguments": {}}), "response.output"),
    ]
    for path in ("/verify", "/step"):
        for body, field in odd:
            status, error = await replies.error(path, json=body)
            assert (status, error["code"], [*error["fields"]]) == (422, "invalid_arguments", [field]), body
    status, error = await replies.error("/verify", json={"response": {}, "extra": json.loads(nested(256))})
    assert (status, [*error["fields"]]) == (422, ["extra"])
    assert await replies.served.post("/increment_counter", {"count": 1}) == (200, {"success": True})
    assert (await replies.served.post("/verify", {"response": {"usage": {"type": [1]}}}))[0] == 200


async def test_rows_that_cannot_be_aggregated(replies: Replies) -> None:
    odd: tuple[Any, ...] = (
        None,
        {},
        [1],
        [{}],
        [{"_ng_task_index": "1"}],
        [{"_ng_task_index": True}],
        [{"_ng_task_index": 1 << 63}],
        [{"_ng_task_index": 0, "_ng_rollout_index": None}],
        [{"_ng_task_index": 0, "reward": 10**400}],
        [{"_ng_task_index": 0, "reward": 1e308}, {"_ng_task_index": 0, "reward": 1e308}],
    )
    for rows in odd:
        status, error = await replies.error("/aggregate_metrics", json={"verify_responses": rows})
        assert (status, list(error["fields"])) == (422, ["verify_responses"])
    assert (await replies.served.post("/aggregate_metrics", {"verify_responses": []}))[0] == 200


async def test_methods_that_a_path_does_not_have(replies: Replies) -> None:
    for path, allowed in [
        ("/increment_counter", "POST"),
        ("/seed_session", "POST"),
        ("/verify", "POST"),
        ("/step", "POST"),
        ("/ng-rollout/a/verify", "POST"),
        ("/reverify_mode", "GET"),
        ("/", "GET"),
        ("/health", "GET"),
    ]:
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} - {allowed}:
            status, error = await replies.error(path, method)
            assert (status, error["code"]) == (405, "method_not_allowed")
            async with replies.served.client.request(method, f"{replies.served.url}{path}") as reply:
                assert reply.headers["Allow"] == allowed
                assert allowed in (await reply.json())["error"]["message"]


async def test_head_is_get_without_a_body(replies: Replies) -> None:
    for path, status in [("/", 200), ("/health", 200), ("/reverify_mode", 200), ("/verify", 405), ("/nothing", 404)]:
        async with replies.served.client.head(f"{replies.served.url}{path}") as reply:
            assert (reply.status, await reply.read()) == (status, b"")
            assert int(reply.headers["Content-Length"]) > 0


async def test_paths_that_are_not_there(replies: Replies) -> None:
    for path in ("/nothing", "/nothing/at/all", "/increment_counter/", "//", "/%00", "/%ff", "/a%0Ab"):
        for method in ("GET", "POST", "DELETE"):
            status, error = await replies.error(path, method)
            assert (status, error["code"]) == (404, "unknown_tool")
            assert "the tools are: get_counter_value, increment_counter" in error["message"]
    _, error = await replies.error(f"/{'x' * 5000}")
    assert len(error["message"]) < 400


class Broken(State):
    value: int = 0


class BrokenTask(Task):
    how: str = ""


class OwnError(BaseException):
    """An author's own, past all that catches an `Exception`."""


WRONG: dict[str, BaseException | type[BaseException]] = {
    "raise": KeyError("a detail that is nobody's business"),
    "exit": SystemExit(3),
    "cancel": asyncio.CancelledError,
    "interrupt": KeyboardInterrupt,
    "close": GeneratorExit,
    "own": OwnError,
}


def go_wrong(how: str) -> Any:
    if how == "say":
        raise ToolError("not on a Sunday")
    if how in WRONG:
        raise WRONG[how]
    return object()


class BrokenEnvironment(Environment[Broken, BrokenTask]):
    """Goes wrong in every way."""

    def seed(self, task: BrokenTask) -> Any:
        return Broken() if task.how in ("", "verify") else go_wrong(task.how)

    @tool
    def fail(self, state: Broken, how: str) -> Any:
        """Go wrong."""
        state.value += 1
        return go_wrong(how)

    @tool
    def spoil(self, state: Broken) -> None:
        """Leave what is no number."""
        state.value = "x"  # type: ignore[assignment]

    @tool(effect="read")
    def peek(self, state: Broken) -> int:
        """The value."""
        return state.value

    def verify(self, state: Broken, episode: Episode) -> Any:
        return go_wrong(episode.response["how"]) if episode.response else 1.0


async def test_a_tool_that_fails_changes_nothing_and_says_little(serve: Any) -> None:
    replies = Replies(await serve(BrokenEnvironment()))
    await replies.seed({})
    kinds = ("KeyError", "SystemExit", "CancelledError", "KeyboardInterrupt", "GeneratorExit", "OwnError")
    for how, status, code, message in [
        *((how, 500, "tool_failed", f"fail failed: unexpected {kind}") for how, kind in zip(WRONG, kinds, strict=True)),
        ("say", 400, "tool_error", "not on a Sunday"),
        ("other", 500, "tool_failed", "fail failed: its output cannot be written as JSON"),
    ]:
        assert await replies.error("/fail", json={"how": how}) == (status, {"code": code, "message": message})
    status, error = await replies.error("/spoil")
    assert (status, error["code"]) == (500, "tool_failed")
    assert await replies.served.post("/peek") == (200, 0)


async def test_a_verifier_that_fails_gives_no_verdict(serve: Any) -> None:
    replies = Replies(await serve(BrokenEnvironment()))
    await replies.seed({})
    for how in WRONG:
        status, error = await replies.error("/verify", json={"response": {"how": how}})
        assert (status, error["code"]) == (500, "environment_error")
        assert re.fullmatch(r"verify failed: unexpected \w+", error["message"])
    body = {"a": 1, "response": {}}
    assert await replies.served.post("/verify", body) == (200, {"response": {}, "reward": 1.0})


async def test_a_seed_that_fails_makes_no_session(serve: Any) -> None:
    served = await serve(BrokenEnvironment())
    for how in (*WRONG, "other"):
        status, refused = await served.post("/seed_session", {"how": how})
        assert (status, refused["error"]["code"]) == (500, "environment_error")
        assert not UNFIT.search(refused["error"]["message"])
        assert "nobody's business" not in str(refused)
    assert (len(served.client.cookie_jar), await served.services.store.heads()) == (0, [])
    assert served.services.count.live == 0


async def test_sessions_that_are_gone(serve: Any) -> None:
    now = 1_000_000.0
    replies = Replies(await serve(CounterEnvironment(), ttl=60, now=lambda: now))
    served = replies.served
    paths = [("/increment_counter", {"count": 1}), ("/get_counter_value", {}), ("/verify", {"response": {}})]

    async def codes() -> set[tuple[int, str]]:
        errors = [await replies.error(path, json=body) for path, body in paths]
        return {(status, error["code"]) for status, error in errors}

    await replies.seed()
    [head] = await served.services.store.heads()
    await served.post("/close_session", {"resources_session_id": head.id})
    assert await codes() == {(410, "session_closed")}
    await replies.seed()
    now += 61
    assert await codes() == {(410, "session_expired")}
    await served.services.environments["counter"].sessions.sweep()
    assert await codes() == {(410, "unknown_session")}


async def test_a_server_error_of_our_own_is_told_and_logged(
    replies: Replies, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: Any) -> Any:
        raise RuntimeError("a detail")

    monkeypatch.setattr(replies.served.services.environments["counter"].sessions, "loaded", broken)
    status, error = await replies.error("/get_counter_value")
    message = "POST /get_counter_value failed: unexpected RuntimeError; the server's log has more"
    assert (status, error) == (500, {"code": "internal_error", "message": message})
    assert "RuntimeError: a detail" in caplog.text


class Profile(State):
    visits: int = 0


class VisitTask(Task):
    user: str


class VisitEnvironment(Environment[Profile, VisitTask]):
    """Count the visits of a user."""

    @tool
    def visit(self, user: Profile) -> int:
        """Count one more."""
        user.visits += 1
        return user.visits

    def verify(self, state: Profile) -> float:
        return 1.0


async def test_a_user_whose_name_no_store_can_have_is_refused_at_the_seed(serve: Any) -> None:
    served = await serve(VisitEnvironment())
    status, body = await served.post("/seed_session", {"user": "half \ud800"})
    assert (status, [*body["error"]["fields"]]) == (422, ["user"])

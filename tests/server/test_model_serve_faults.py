"""What a served model says when something is wrong, in the shape that OpenAI's clients know."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from stateroom.errors import ModelFailed, ModelUnavailable
from stateroom.model import Answer, Item, Model, ModelSource, Policy, Request, message
from stateroom.server import Limits, ModelApplication
from tests.messages import says
from tests.server.conftest import running


class Telling(Model):
    """Says what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Request] = []

    async def answer(self, request: Request) -> Answer:
        self.asked.append(request)
        return Answer([message("yes")])


class Raising(Policy):
    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        raise KeyError("synonym")


class Failing(Model):
    def __init__(self, error: Exception) -> None:
        self.error = error

    async def answer(self, request: Request) -> Answer:
        raise self.error


class Fixed(Model):
    def __init__(self, *items: Any, truncated: bool = False) -> None:
        self.given = Answer(list(items), truncated=truncated)

    async def answer(self, request: Request) -> Answer:
        return self.given


Post = Callable[..., Any]


@asynccontextmanager
async def posting(model: Model, **limits: int) -> AsyncIterator[Post]:
    """Serves a model by the name of `m`; what is given sends a body to a path."""
    app = ModelApplication(ModelSource("m", lambda seed: model), Limits(max_body=10_000, **limits))
    async with running(app) as served:

        async def post(path: str, body: Any, method: str = "POST") -> tuple[int, Any, Any]:
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
            async with served.client.request(method, served.url + path, data=data) as reply:
                is_stream = reply.content_type == "text/event-stream"
                return reply.status, await reply.text() if is_stream else await reply.json(), reply.headers

        yield post


class Waiting(Model):
    """Answers how many items it was shown, when it is let go."""

    def __init__(self) -> None:
        self.asked, self.release = asyncio.Event(), asyncio.Event()

    async def answer(self, request: Request) -> Answer:
        self.asked.set()
        await self.release.wait()
        return Answer([message(str(len(request.items)))])


async def test_so_many_requests_may_be_in_flight_and_no_more() -> None:
    model, body = Waiting(), {"model": "m", "input": "?"}
    async with posting(model, max_calls=1) as post:
        waiting = asyncio.create_task(post("/v1/responses", body))
        await model.asked.wait()
        status, said, headers = await post("/v1/responses", body)
        assert (status, said["error"]["code"], headers["Retry-After"]) == (503, "busy", "1")
        assert (await post("/health", b"", "GET"))[0] == 200
        model.release.set()
        assert (await waiting)[0] == 200


async def test_a_head_may_be_so_large_and_no_larger(post: Post) -> None:
    status, said, _ = await post(f"/v1/models/{'x' * 50_000}", b"", "GET")
    assert (status, said["error"]["code"]) == (431, "head_too_large")


@pytest.fixture
def telling() -> Telling:
    return Telling()


@pytest.fixture
async def post(telling: Telling) -> AsyncIterator[Post]:
    async with posting(telling) as made:
        yield made


CHAT: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
RESPONSES: Any = {"model": "m", "input": "hi"}

ITEMS: list[Any] = [
    "hello",
    {"role": "user", "content": 3},
    {"role": "user", "content": ["a"]},
    {"role": "user", "content": [{"text": 7}]},
    {"content": "hello"},
    {"type": ["message"], "content": "hi"},
    {"type": "function_call", "name": "f"},
    {"type": "function_call", "call_id": "a"},
    {"type": "function_call_output", "call_id": "a"},
    {"type": "item_reference", "id": "a"},
]
"""What is no item of an input."""

MESSAGES: list[Any] = [
    {"role": "robot"},
    {"role": "user", "content": 3},
    {"role": "user", "content": [{"type": "image_url", "image_url": 7}]},
    {"role": "user", "content": [{"type": "file", "file": 7}]},
]
"""What is no message of a chat."""


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/responses", {}, "model"),
        ("/v1/responses", {"model": 3}, "model"),
        ("/v1/responses", {"model": "m"}, "input"),
        ("/v1/responses", {**RESPONSES, "input": []}, "input"),
        *(("/v1/responses", {**RESPONSES, "input": [item]}, "input[0]") for item in ITEMS),
        ("/v1/responses", {**RESPONSES, "tools": {}}, "tools"),
        ("/v1/responses", {**RESPONSES, "tools": [{"type": "web_search"}]}, "tools"),
        ("/v1/responses", {**RESPONSES, "stream": "yes"}, "stream"),
        ("/v1/responses", {**RESPONSES, "previous_response_id": "r"}, "previous_response_id"),
        ("/v1/responses", {**RESPONSES, "store": True}, "store"),
        ("/v1/responses", {**RESPONSES, "metadata": {"seed": "lucky"}}, "metadata.seed"),
        ("/v1/chat/completions", {"model": "m"}, "messages"),
        ("/v1/chat/completions", {**CHAT, "messages": "hi"}, "messages"),
        *(("/v1/chat/completions", {**CHAT, "messages": [message]}, "messages") for message in MESSAGES),
        ("/v1/chat/completions", {**CHAT, "n": 2}, "n"),
        ("/v1/chat/completions", {**CHAT, "tools": [{}]}, "tools"),
        ("/v1/chat/completions", {**CHAT, "seed": "x"}, "seed"),
        ("/v1/chat/completions", b'{"model": "m", "messages": [{"role": "user"}], "seed": 1e999}', "seed"),
    ],
)
async def test_a_field_that_is_wrong_is_named(post: Post, telling: Telling, path: str, body: Any, field: str) -> None:
    status, said, _ = await post(path, body)
    assert (status, said["error"]["type"], said["error"]["param"]) == (400, "invalid_request_error", field)
    says(said["error"]["message"])
    assert telling.asked == []


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/chat/completions"])
async def test_an_unknown_model_is_not_found(post: Post, path: str) -> None:
    status, said, _ = await post(path, {"model": "gpt"})
    assert (status, said["error"]["code"], said["error"]["param"]) == (404, "model_not_found", "model")
    says(said["error"]["message"])


@pytest.mark.parametrize(
    ("path", "method", "body", "status"),
    [
        ("/v1/responses", "GET", b"", 405),
        ("/v1/models", "POST", b"{}", 405),
        ("/v1/embeddings", "POST", b"{}", 404),
        ("/v1/responses", "POST", b"{", 400),
        ("/v1/responses", "POST", b"[]", 400),
        ("/v1/responses", "POST", b'"' + b"x" * 10_000 + b'"', 413),
        ("/health", "GET", b"", 200),
    ],
)
async def test_requests_that_are_none(post: Post, path: str, method: str, body: bytes, status: int) -> None:
    found, said, _ = await post(path, body, method)
    assert found == status
    assert said == {"status": "ok"} if status == 200 else said["error"]["message"]


@pytest.mark.parametrize(
    ("model", "status", "code"),
    [
        (Raising(), 500, "model_failed"),
        (Failing(ModelFailed("the conversation is too long")), 500, "model_failed"),
        (Failing(ModelUnavailable("it sleeps")), 503, "model_unavailable"),
        (Failing(RuntimeError("oops")), 500, "model_failed"),
        (Fixed({"type": "function_call", "name": "f"}), 500, "model_failed"),
    ],
)
async def test_a_model_that_fails(model: Model, status: int, code: str) -> None:
    async with posting(model) as post:
        found, body, headers = await post("/v1/responses", RESPONSES)
    assert (found, body["error"]["type"], body["error"]["code"]) == (status, "server_error", code)
    says(body["error"]["message"])
    assert headers.get("x-should-retry") == ("false" if status == 500 else None)


async def test_a_message_of_no_words_says_nothing() -> None:
    async with posting(Fixed({"type": "message", "content": None})) as post:
        _, response, _ = await post("/v1/responses", RESPONSES)
    assert [part["text"] for part in response["output"][0]["content"]] == [""]


async def test_what_is_no_text_is_streamed_whole() -> None:
    sound = {"type": "output_audio", "data": "AAAA"}
    async with posting(Fixed({"type": "message", "content": [sound]})) as post:
        _, text, _ = await post("/v1/responses", {**RESPONSES, "stream": True})
    told = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert [each["part"] for each in told if "part" in each] == [sound, sound]


async def test_an_answer_that_was_cut_off_is_incomplete() -> None:
    async with posting(Fixed(message("and so"), truncated=True)) as post:
        _, response, _ = await post("/v1/responses", RESPONSES)
        _, completion, _ = await post("/v1/chat/completions", CHAT)
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert completion["choices"][0]["finish_reason"] == "length"


async def test_what_a_policy_leaves_out_is_filled_in() -> None:
    loose = [
        {"type": "message", "content": "plain"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": {"x": 1}},
    ]
    async with posting(Fixed(*loose)) as post:
        _, response, _ = await post("/v1/responses", RESPONSES)
    said, call = response["output"]
    assert said["content"] == [{"type": "output_text", "text": "plain", "annotations": []}]
    assert (said["role"], said["status"]) == ("assistant", "completed")
    assert json.loads(call["arguments"]) == {"x": 1}
    assert said["id"] != call["id"]


async def test_the_luck_of_an_episode_is_the_clients_or_that_of_its_opening(post: Post, telling: Telling) -> None:
    await post("/v1/chat/completions", {**CHAT, "seed": 7})
    await post("/v1/chat/completions", {**CHAT, "metadata": {"seed": "8"}})
    await post("/v1/responses", {**RESPONSES, "metadata": {"seed": "9"}})
    assert [request.seed for request in telling.asked] == [7, 8, 9]
    telling.asked.clear()
    later = [
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"role": "assistant", "content": "ho"},
    ]
    await post("/v1/chat/completions", CHAT)
    await post("/v1/responses", RESPONSES)
    await post("/v1/responses", {**RESPONSES, "input": [*later, {"role": "user", "content": "go on"}]})
    await post("/v1/responses", {**RESPONSES, "input": "ho"})
    first, *same, other = [request.seed for request in telling.asked]
    assert set(same) == {first}
    assert other != first


async def test_the_answers_in_a_conversation_are_counted(post: Post, telling: Telling) -> None:
    call = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
    result = {"type": "function_call_output", "call_id": "a", "output": "1"}
    reasoning = {"type": "reasoning", "summary": []}
    question = {"role": "user", "content": "hi"}
    for items in (
        [question],
        [question, reasoning, call, result],
        [question, call, {**call, "call_id": "b"}, result, {**result, "call_id": "b"}],
        [question, call, result, {"role": "assistant", "content": "ho"}, question],
    ):
        await post("/v1/responses", {**RESPONSES, "input": items})
    assert [request.step for request in telling.asked] == [0, 1, 1, 2]


async def test_the_model_is_told_the_rest_in_the_words_of_responses(post: Post, telling: Telling) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    await post("/v1/chat/completions", {**CHAT, "tools": [tool], "max_tokens": 5, "temperature": 0.1, "seed": 1})
    flat = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    await post("/v1/responses", {**RESPONSES, "tools": [flat], "max_output_tokens": 5, "instructions": "Be kind."})
    by_chat, by_responses = telling.asked
    assert by_chat.settings == {"max_output_tokens": 5, "temperature": 0.1}
    assert by_responses.settings == {"max_output_tokens": 5, "instructions": "Be kind."}
    assert list(by_chat.tools) == list(by_responses.tools) == [flat]
    assert list(by_chat.items) == list(by_responses.items) == [{"type": "message", "role": "user", "content": "hi"}]

"""Endpoints over a real connection: what is asked again, what is not, and what a user is told."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from stateroom.errors import ModelFailed
from stateroom.model import ModelLimits, Request, answer_of, input_items, text_of
from tests.messages import raises
from tests.model.endpoints import HELLO, FakeTime, Hang, Reply, Server, answered, asking, says


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 529])
async def test_what_may_pass_is_asked_again(server: Server, kind: str, status: int) -> None:
    server.replies = [Reply({"error": {"message": "later"}}, status), Reply("", status), says(kind, "Hi.")]
    answer = await answered(kind, server)
    assert [text_of(item) for item in answer.items] == ["Hi."]
    assert len(server.asked) == 3


@pytest.mark.parametrize(
    ("status", "headers"),
    [*((status, {}) for status in (400, 401, 403, 404, 413, 422)), (500, {"x-should-retry": "false"})],
)
async def test_what_the_server_refuses_is_asked_once(
    server: Server, kind: str, status: int, headers: dict[str, str]
) -> None:
    server.replies = [Reply({"error": {"message": "there are no such tokens"}}, status, headers)]
    with raises(ModelFailed):
        await answered(kind, server)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    ("headers", "pause"),
    [
        ({"retry-after": "7"}, 7.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.75),
        ({"retry-after": "Sun, 09 Sep 2001 01:47:00 GMT"}, 20.5),
        ({"retry-after": "Sun, 09 Sep 2001 01:40:00 GMT"}, 0.5),
        ({"retry-after": "soon"}, 0.5),
        ({"retry-after": "-5"}, 0.5),
        ({"retry-after": "nan"}, 0.5),
    ],
)
async def test_a_server_says_when_it_wants_to_be_asked_again(
    server: Server, kind: str, headers: dict[str, str], pause: float
) -> None:
    server.replies = [Reply({}, 429, headers), says(kind, "Hi.")]
    clock = FakeTime()
    await answered(kind, server, clock=clock)
    assert clock.pauses == [pause]


async def test_a_server_that_hangs_is_left_and_asked_again(server: Server, kind: str) -> None:
    server.replies = [Hang(), says(kind, "Hi.")]
    answer = await answered(kind, server, limits=ModelLimits(timeout=1))
    assert text_of(answer.items[0]) == "Hi."


async def test_who_waits_for_an_answer_can_be_cancelled(server: Server, kind: str) -> None:
    server.replies = [Hang()]
    async with asking(kind, server.url) as model:
        waiting = asyncio.create_task(answer_of(model, HELLO))
        await asyncio.to_thread(server.heard.wait)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        server.replies = [says(kind, "Hi.")]
        assert (await answer_of(model, HELLO)).items


@pytest.mark.parametrize(
    "start", [b"", b"HTTP/1.1 200 OK\r\n", b'HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{"id": "x", "outp']
)
async def test_a_connection_that_is_cut_is_made_again(kind: str, start: bytes) -> None:
    whole = json.dumps(says(kind, "Hi.").body).encode()
    reply = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(whole), whole)
    async with cutting([start, start, reply]) as url, asking(kind, url) as model:
        answer = await answer_of(model, HELLO)
    assert text_of(answer.items[0]) == "Hi."


@asynccontextmanager
async def cutting(replies: list[bytes]) -> AsyncIterator[str]:
    """A server that sends some bytes, and hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
        await reader.readexactly(int(length.partition(b":")[2]))
        writer.write(replies.pop(0))
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/v1"


@pytest.mark.parametrize(
    "body", ["", "<html>busy</html>", '{"choices": [', "[]", "null", "7", '"text"', "[" * 100_000, "{}"]
)
async def test_rubbish_is_a_failure_and_not_a_crash(server: Server, kind: str, body: str) -> None:
    server.replies = [Reply(body)]
    with raises(ModelFailed):
        await answered(kind, server)
    assert len(server.asked) == 1


@pytest.mark.parametrize("written", ["\\ud83d", "\\uD83D"])
async def test_half_of_a_character_does_no_harm(server: Server, kind: str, written: str) -> None:
    server.replies = [Reply(json.dumps(says(kind, "a\ud83d").body).replace("\\ud83d", written))]
    answer = await answered(kind, server)
    assert text_of(answer.items[0]) == "a?"


async def test_a_request_that_is_no_json_is_a_failure(server: Server, kind: str) -> None:
    server.replies = [says(kind, "Hi.")]
    with raises(ModelFailed):
        await answered(kind, server, Request(items=input_items("Hello."), settings={"temperature": object()}))
    assert server.asked == []


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "no such model"}},
        {"error": "no such model"},
        {"object": "error", "message": "no such model"},
        {"detail": [{"msg": "too long"}]},
        "nginx says no",
        "",
    ],
)
async def test_an_error_is_told_in_the_words_of_the_server(server: Server, kind: str, body: object) -> None:
    server.replies = [Reply(body, 400)]
    with raises(ModelFailed):
        await answered(kind, server)

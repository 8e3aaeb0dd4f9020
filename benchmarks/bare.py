"""The references for the server: ASGI apps with nothing between them and uvicorn.

Run one with `uvicorn benchmarks.bare:echo --loop uvloop --http httptools --lifespan off --no-access-log`.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]

DONE = b'{"success":true}'
values: dict[bytes, int] = {}


class Row(msgspec.Struct):
    initial_count: int


class Increment(msgspec.Struct):
    count: int


_row = msgspec.json.Decoder(Row)
_increment = msgspec.json.Decoder(Increment)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_number = msgspec.json.Decoder(int)
_encode = msgspec.json.Encoder().encode


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """The bytes of a reply to `increment_counter`, whatever was asked."""
    await _body(receive)
    await _reply(send, DONE)


async def counters(scope: Scope, receive: Receive, send: Send) -> None:
    """The counter environment by hand: a dict, and no types, log, locks or expiry. Sends its cookie only once."""
    body = await _body(receive)
    match scope["path"]:
        case "/seed_session":
            cookie = b"session=" + secrets.token_urlsafe(16).encode()
            values[cookie] = _row.decode(body).initial_count
            await _reply(send, b"{}", (b"set-cookie", cookie + b"; Path=/; HttpOnly; SameSite=lax"))
        case "/increment_counter":
            values[_cookie(scope)] += _increment.decode(body).count
            await _reply(send, DONE)
        case "/get_counter_value":
            await _reply(send, _encode({"count": values[_cookie(scope)]}))
        case "/verify":
            row: dict[str, Any] = _fields.decode(body)  # what is only passed on stays as it came
            row["reward"] = float(values[_cookie(scope)] == _number.decode(row["expected_count"]))
            await _reply(send, _encode(row))
        case _:
            await _reply(send, b"{}", status=404)


def _cookie(scope: Scope) -> bytes:
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    return next(value for name, value in headers if name == b"cookie")


async def _body(receive: Receive) -> bytes:
    message = await receive()
    body: bytes = message["body"]
    while message["more_body"]:
        message = await receive()
        body += message["body"]
    return body


async def _reply(send: Send, body: bytes, *more: tuple[bytes, bytes], status: int = 200) -> None:
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body)), *more]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

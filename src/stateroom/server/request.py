"""One HTTP request, directly on ASGI, and what the wire protocol reads from it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar

import msgspec

from stateroom.errors import BadTask, InvalidArguments, TooLarge
from stateroom.model import is_content, text_of

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Scope, Receive, Send], Awaitable[None]]
T = TypeVar("T")

WATCHED = "stateroom.watched"
"""The key of a scope whose request is for nothing once its client has closed its side of the connection."""

LATEST_START = 2.0**40
"""Largest time, in seconds since 1970, at which a session's clock may start."""

LONGEST_NAME = 200
"""Characters of a client's own name for a session, and of an unknown tool's name in an error message."""

NOT_OF_TASK = frozenset({"response", "responses_create_params", "agent_ref", "reward", "resources_session_id"})
"""Fields of a request that verifies which are not compared with the row of the seed."""

_decode = msgspec.json.Decoder().decode


class Disconnected(Exception):
    """The client disconnected before it had a response."""


class BadJSON(InvalidArguments, status=400, code="invalid_json"):
    """The body is not JSON."""


class HTTPRequest:
    """A request as the wire protocol's endpoints see it.

    An endpoint sets `set_cookie`, which goes back with every response, also with an error.
    """

    __slots__ = ("body", "call_id", "cookies", "headers", "key", "max_body", "receive", "scope", "secure", "set_cookie")

    def __init__(self, scope: Scope, receive: Receive, max_body: int) -> None:
        self.scope = scope
        self.receive = receive
        self.max_body = max_body
        self.body = b""
        """The whole body, after `read`."""
        headers = dict(scope["headers"])
        if len(headers) < len(scope["headers"]):
            headers = _joined(scope["headers"])
        self.headers: dict[bytes, bytes] = headers
        """Headers by name in lower case."""
        self.cookies: bytes = headers.get(b"cookie", b"")
        call_id = headers.get(b"idempotency-key")
        self.call_id: str | None = call_id.decode("latin-1") if call_id else None
        """The client's id of the call: a call with an id that was committed runs nothing."""
        proto = headers.get(b"x-forwarded-proto")  # the client's own value comes first
        self.secure = scope["scheme"] == "https" if proto is None else proto.split(b",")[0].strip().lower() == b"https"
        """Whether the client uses TLS, to this server or to a proxy in front of it."""
        self.set_cookie: bytes | None = None
        """The `Set-Cookie` of the response."""
        self.key = ""
        """The name of the API key that the request counts for, if the server has keys."""

    async def read(self) -> None:
        """Receive the whole body. A body that is announced as too large is refused at once."""
        if int(self.headers.get(b"content-length", 0)) > self.max_body:
            raise self._too_large()
        message = await self.receive()
        self.body = message.get("body", b"")
        if message["type"] == "http.disconnect":
            raise Disconnected
        if message.get("more_body") or len(self.body) > self.max_body:
            await self._read_rest()

    async def _read_rest(self) -> None:
        parts, size, more = [self.body], len(self.body), True
        while more:
            if size > self.max_body:
                raise self._too_large()
            message = await self.receive()
            if message["type"] == "http.disconnect":
                raise Disconnected
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            more = message.get("more_body", False)
        if size > self.max_body:
            raise self._too_large()
        self.body = b"".join(parts)

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """Await some work, which is cancelled when the client disconnects: `Disconnected`. The body has been read."""
        self.scope[WATCHED] = True
        task, gone = asyncio.create_task(work), asyncio.create_task(self._disconnection())
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise Disconnected
            return task.result()
        finally:
            task.cancel()
            gone.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    async def _disconnection(self) -> None:
        while (await self.receive())["type"] != "http.disconnect":
            pass  # the body, again

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body is larger than the {self.max_body:,} bytes that this server takes")

    def replayed(self) -> Receive:
        """A `receive` for an application that reads the body itself, after it was read here."""
        unread: list[Message] = [{"type": "http.request", "body": self.body, "more_body": False}]

        async def receive() -> Message:
            return unread.pop() if unread else await self.receive()

        return receive

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; an empty body is an empty object."""
        try:
            value = _decode(self.body)
        except (msgspec.DecodeError, ValueError, RecursionError):
            value = _decode_odd(self.body) if self.body else {}
        if type(value) is not dict:
            raise InvalidArguments("the body must be a JSON object")
        return value


def _joined(headers: Sequence[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name, where some names occur more than once."""
    joined: dict[bytes, bytes] = {}
    for name, value in headers:
        joined[name] = joined[name] + (b"; " if name == b"cookie" else b", ") + value if name in joined else value
    return joined


def _decode_odd(body: bytes) -> Any:
    """Decode what only Python takes for JSON: a large int, half of a surrogate pair."""
    try:
        return json.loads(body)
    except RecursionError:
        raise BadJSON("the body is not JSON that can be read: it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise BadJSON(f"the body is not JSON: it is not UTF-8 from byte {error.start} on") from None
    except json.JSONDecodeError as error:
        raise BadJSON(f"the body is not JSON: {error}") from None
    except ValueError:
        raise BadJSON("the body is not JSON that can be read: it has a number with too many digits") from None


def bearer_token(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The token in `Authorization: Bearer TOKEN`, if there is one."""
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    return token.strip() or None if scheme.lower() == b"bearer" else None


def wrong_field(field: str, message: str) -> InvalidArguments:
    """The error about one field of a request."""
    return InvalidArguments(f"{field}: {message}", {field: message})


# What a request that seeds a session holds besides the task.


def name_and_row(request: HTTPRequest, body: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The client's own name for the session that it seeds, if it gives one, and the task row.

    Our own runner gives the name in a header, which other servers ignore.
    """
    header = request.headers.get(b"stateroom-session")
    name = body.get("resources_session_id") if header is None else header.decode("latin-1")
    if name is None and "resources_session_id" not in body:
        return None, body
    name = checked_session_name(name)
    row = body.get("task_data", {key: value for key, value in body.items() if key != "resources_session_id"})
    if not isinstance(row, dict):
        raise wrong_field("task_data", "should be the task row, an object")
    if is_typed_seed(body):
        row = {**row, **{f"_ng_{field}": body[field] for field in ("episode_id", "task_id") if field in body}}
    return name, row


def checked_session_name(name: Any) -> str:
    """A client's own name for a session, or the id that the session was given."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        raise wrong_field("resources_session_id", f"should be a text of 1 to {LONGEST_NAME} characters")
    return name


def is_typed_seed(body: dict[str, Any]) -> bool:
    """Whether a request seeds as the environment servers of NeMo Gym do, which bind the session to an episode."""
    return "episode_id" in body and "task_data" in body


def seed_and_start(request: HTTPRequest) -> tuple[int | None, float | None]:
    """The session's random seed and the time at which its clock starts, as our own runner sets them in headers."""
    seed, start = request.headers.get(b"stateroom-seed"), request.headers.get(b"stateroom-began")
    if seed is not None and (not seed.isdigit() or len(seed) > 20):
        raise BadTask("the header Stateroom-Seed: should be a whole number")
    try:
        began = None if start is None else float(start)
    except ValueError:
        began = -1.0
    if began is not None and not 0 <= began <= LATEST_START:
        raise BadTask("the header Stateroom-Began: should be seconds since 1970")
    return None if seed is None else int(seed), began


def task_fields(body: dict[str, Any]) -> dict[str, Any]:
    """The task's own fields in the body of a request that verifies: neither the response nor what runners add."""
    return {name: value for name, value in body.items() if name not in NOT_OF_TASK and not name.startswith("_ng_")}


# The Responses object in a request, checked before an author's verifier sees it.


CONTENT = "the content of a message should be a text, or a list of parts with a text each"


def checked_response(body: dict[str, Any]) -> dict[str, Any]:
    """The `response` of a body."""
    response = body.get("response")
    if not isinstance(response, dict):
        raise wrong_field("response", "should be a Responses object")
    output = response.get("output", [])
    if not isinstance(output, list):
        raise wrong_field("response.output", "should be a list of items")
    for item in output:
        if not isinstance(item, dict):
            raise wrong_field("response.output", "should be a list of items")
        if item.get("type") == "function_call":
            _check_call(item)
        elif not is_content(item.get("content")):
            raise wrong_field("response.output", CONTENT)
    return response


def _check_call(call: dict[str, Any]) -> None:
    if not isinstance(call.get("call_id"), str) or not isinstance(call.get("name"), str):
        raise wrong_field("response.output", "a function_call should have a call_id and a name")
    arguments = call.get("arguments")
    if arguments is not None and not isinstance(arguments, str):
        raise wrong_field("response.output", "the arguments of a function_call should be JSON as a text")


def calls_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    """The tool calls in a response."""
    return [item for item in response.get("output", ()) if item.get("type") == "function_call"]


def message_text(response: dict[str, Any]) -> str:
    """The text of the messages in a response."""
    return "".join(text_of(item) for item in response.get("output", ()) if item.get("type") == "message")

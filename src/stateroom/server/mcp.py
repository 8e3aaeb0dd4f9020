"""An environment's tools for MCP clients, by the official SDK. To import this module loads the SDK.

Over HTTP a client has a session's token, or starts a session with the tool `start_session`. That session belongs to
the connection, and its handle reaches it from a client whose requests have nothing in common. Over standard input and
output a connection is one session.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from secrets import token_hex
from time import perf_counter
from typing import Any

import msgspec
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_REQUEST,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool as ListedTool,
    ToolAnnotations,
)

from stateroom.environment import Environment, Tool
from stateroom.errors import Contradiction, InvalidArguments, NotFound, Unauthorized
from stateroom.rollout import example_file, read_tasks
from stateroom.server.asgi import REQUEST
from stateroom.server.environment import ServedEnvironment
from stateroom.server.http import HTTPRequest, Message, Receive, Scope, Send, response_to
from stateroom.server.tokens import COOKIE, INSECURE, SECURE, TOKEN_HEADER
from stateroom.session import Effect, Result, Session
from stateroom.state import to_json
from stateroom.version import __version__

CALL_ID = "stateroom/call-id"
"""The key in a call's `_meta` with the client's id of the call."""

HANDLE = "stateroom/session"
"""The key in a call's `_meta` with the handle of the session."""

SESSION = "session"
"""The argument with that handle, and the field of `start_session`'s result.

A tool that has a parameter of that name takes the handle in `_meta` alone.
"""

ANNOTATIONS: dict[Effect, ToolAnnotations] = {
    "read": ToolAnnotations(read_only_hint=True, open_world_hint=False),
    "write": ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False),
    "external": ToolAnnotations(
        read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True
    ),
}
"""The annotations of a tool by its effect. A tool that changes something may also delete something."""

REFUSED = "stateroom.refused"
"""The key of a scope that is set when a call had a token that is not valid."""

CONNECTION = b"mcp-session-id"
"""The header with the name of a connection, which the reply to `initialize` gives and the client sends from then on.

Newer versions of the protocol have neither; there the name is in a cookie, which the reply to `start_session` gives.
"""

START = "start_session"

NO_SESSION = (
    f"this call has no session: call {START} first and pass the {SESSION} that it returns to each call, or seed a "
    "session over HTTP and send its token in a header"
)

SESSION_PARAMETER = {"type": "string", "description": f"The `{SESSION}` that {START} returned."}


class StartArguments(msgspec.Struct, forbid_unknown_fields=True):
    """The arguments of `start_session` where clients choose their task."""

    task: int = 0
    row: dict[str, Any] | None = None


CHOICE = {
    "task": {"type": "integer", "minimum": 0, "default": 0, "description": "Index of an example task."},
    "row": {"type": "object", "description": "Your own task as a row of data, instead of an example."},
}
"""The parameters of `start_session` where clients choose their task."""


class _Message(msgspec.Struct):
    """The part of a message that is read before the SDK reads it."""

    method: str = ""


class ToolServer:
    """An environment as a server of the SDK; it answers while it is `running`."""

    def __init__(self, served: ServedEnvironment, max_body: int, *, choose_task: bool) -> None:
        self.served = served
        self.choose_task = choose_task
        """Whether a client that starts a session chooses its task."""
        tools = served.environment.tools
        self._cookie = COOKIE + f"mcp.{served.name}".encode()  # no environment's name has a dot
        self._start_tool = _start_tool(CHOICE if choose_task else {})
        self._listed = [_listed(tool) for tool in tools.values()]
        self._own_session = {listed.name for listed in self._listed if SESSION in listed.input_schema["properties"]}
        self._with_handle = [
            listed if listed.name in self._own_session else _with_handle(listed) for listed in self._listed
        ]
        schemas = {listed.name: listed.input_schema for listed in (self._start_tool, *self._listed)}
        server = Server[Any](
            served.name, version=__version__, on_list_tools=self._list_tools, on_call_tool=self._call_tool
        )
        server.get_tool_input_schema = schemas.get  # else newer versions list all tools at each call
        self._manager = StreamableHTTPSessionManager(
            server, json_response=True, stateless=True, max_request_body_size=max_body
        )

    def running(self) -> AbstractAsyncContextManager[None]:
        """The context in which it answers."""
        return self._manager.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; one with a token that is not valid gets status 401."""
        connection = token_hex(16).encode() if self._may_start(scope[REQUEST]) and _begins(scope[REQUEST]) else None

        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                if REFUSED in scope:
                    message["status"] = 401
                if connection is not None:
                    message["headers"] = [*message.get("headers", ()), (CONNECTION, connection)]
            await send(message)

        await self._manager.handle_request(scope, receive, send_more)

    async def _list_tools(
        self, context: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        assert context.request is not None  # over HTTP there is always one
        request: HTTPRequest = context.request.scope[REQUEST]
        if not self._may_start(request):
            return ListToolsResult(tools=self._listed)
        # With a cookie the handle stays: the list must be the same before and after a session starts.
        listed = self._listed if CONNECTION in request.headers else self._with_handle
        return ListToolsResult(tools=[self._start_tool, *listed])

    async def _call_tool(self, context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        start = perf_counter()
        outcome = "error"
        assert context.request is not None
        scope: Scope = context.request.scope
        request: HTTPRequest = scope[REQUEST]
        try:
            arguments = dict(params.arguments or {})
            if not self._may_start(request):
                token = request.headers.get(TOKEN_HEADER)
                session = await self.served.session(None if token is None else self.served.signer.read(token)[0])
            elif params.name == START:
                return await self._start_session(request, arguments)
            else:
                given = None if params.name in self._own_session else arguments.pop(SESSION, None)
                handle = given or _meta(params).get(HANDLE)
                session = await self._started_session(request, handle)
            call_id = _meta(params).get(CALL_ID) or request.call_id
            known = self.served.known_arguments(params.name, arguments)
            result = await session.call(params.name, known, call_id=call_id)
            outcome = "ok" if result.ok else str(result.code)
            return _call_result(result)
        except Unauthorized as error:
            scope[REFUSED] = True
            raise MCPError(INVALID_REQUEST, str(error), {"code": "unauthorized"}) from error
        except Exception as error:  # noqa: BLE001 - the model gets the error
            return _failure(response_to(error, params.name).body)
        finally:
            if params.name != START:
                self.served.metrics.tool(self.served.name, params.name).count(outcome, perf_counter() - start)

    async def _started_session(self, request: HTTPRequest, handle: Any) -> Session[Any]:
        """The session that a handle gives access to, or else the one that the request's connection has started."""
        if handle is not None:
            try:
                return await self.served.session(self.served.signer.read_handle(str(handle)))
            except Unauthorized as error:  # a model wrote the handle, so the model gets the error, not its client
                raise NotFound(f"unknown {SESSION}: pass the one that {START} returned") from error
        session = await self.served.first_session(self._ids_of(self._connection_of(request)))
        if session is None:
            raise NotFound(NO_SESSION)
        return session

    def _may_start(self, request: HTTPRequest) -> bool:
        """Whether a client may start a session: one with a token has a session, and never gets another.

        A request with a session's cookie may come from the model of a client that does not speak MCP.
        """
        has_token = TOKEN_HEADER in request.headers or self.served.cookies.read(request) is not None
        return not self.served.stateless and not has_token

    def _connection_of(self, request: HTTPRequest) -> bytes | None:
        """The name of a request's connection, if it has one."""
        cookies = (cookie.strip().partition(b"=") for cookie in request.cookies.split(b";"))
        return request.headers.get(CONNECTION) or next((name for key, _, name in cookies if key == self._cookie), None)

    def _ids_of(self, connection: bytes | None) -> list[str]:
        """The ids that the session of a connection can have. They follow from its name, so any worker knows them."""
        return [] if connection is None else self.served.signer.session_ids(f"mcp {connection.decode('latin-1')}")

    async def _start_session(self, request: HTTPRequest, arguments: Mapping[str, Any]) -> CallToolResult:
        """Seed a session for the connection."""
        row = self._row(arguments)
        connection = self._connection_of(request) or token_hex(16).encode()
        ids = self._ids_of(connection)
        if await self.served.first_session(ids) is not None:
            raise Contradiction("this connection already has a session; open another connection for another session")
        session, _ = await self.served.new_session(request, row, session_id=ids[0])
        request.set_cookie = self._cookie + b"=" + connection + (SECURE if request.secure else INSECURE)
        asked = row.get("responses_create_params", {})
        result = {
            "session_id": session.id,
            SESSION: self.served.signer.handle(session.id),
            **{name: asked[name] for name in ("instructions", "input") if name in asked},
        }
        return CallToolResult(content=[TextContent(text=to_json(result).decode())], structured_content=result)

    def _row(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The row of the task that a client chooses, or else of the first example."""
        environment = self.served.environment
        if arguments and not self.choose_task:
            raise InvalidArguments(
                f"{START} takes no arguments, because the server chooses the task (its option `choose_task` is off)"
            )
        try:
            choice = msgspec.convert(arguments, StartArguments)
        except msgspec.ValidationError as error:
            raise InvalidArguments(f"{START}: {error}") from None
        if choice.row is not None:
            return choice.row
        examples = example_file(type(environment))
        rows = [{}] if examples is None else read_tasks(examples, environment)
        if not 0 <= choice.task < len(rows):
            raise NotFound(f"task {choice.task} does not exist; the example tasks are 0 to {len(rows) - 1}")
        return rows[choice.task]


async def serve_stdio(environment: Environment[Any, Any], session: Session[Any], instructions: str) -> None:
    """Let the client at standard input and output use the tools of a session, until it disconnects."""
    listed = ListToolsResult(tools=[_listed(tool) for tool in environment.tools.values()])

    async def list_tools(context: ServerRequestContext[Any], params: PaginatedRequestParams | None) -> ListToolsResult:
        return listed

    async def call_tool(context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        try:
            return _call_result(await session.call(params.name, params.arguments, call_id=_meta(params).get(CALL_ID)))
        except Exception as error:  # noqa: BLE001 - the model gets the error
            return _failure(response_to(error, params.name).body)

    server = Server[Any](
        environment.name,
        version=__version__,
        instructions=instructions or None,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )
    async with stdio_server() as (received, sent):
        await server.run(received, sent, server.create_initialization_options())


def _begins(request: HTTPRequest) -> bool:
    """Whether a request is the first of a connection."""
    try:
        return msgspec.json.decode(request.body, type=_Message).method == "initialize"
    except msgspec.DecodeError:
        return False


def _start_tool(parameters: dict[str, Any]) -> ListedTool:
    return ListedTool(
        name=START,
        description="Start a session for the other tools. The result has the task, and the "
        f"{SESSION} to pass to the other tools if they take one.",
        input_schema={"type": "object", "properties": parameters, "additionalProperties": False},
        annotations=ToolAnnotations(
            read_only_hint=False, destructive_hint=False, idempotent_hint=False, open_world_hint=False
        ),
    )


def _with_handle(listed: ListedTool) -> ListedTool:
    """A tool as it is listed for clients that must name the session of each call."""
    schema = listed.input_schema
    properties = {SESSION: SESSION_PARAMETER, **schema["properties"]}
    with_handle = {**schema, "properties": properties, "required": [SESSION, *schema.get("required", ())]}
    return listed.model_copy(update={"input_schema": with_handle})


def _listed(tool: Tool) -> ListedTool:
    return ListedTool(
        name=tool.name,
        description=tool.definition["description"],
        input_schema=tool.parameters,
        output_schema=tool.returns,
        annotations=ANNOTATIONS[tool.effect],
    )


def _meta(params: CallToolRequestParams) -> Mapping[str, Any]:
    """The client's metadata of a call; the session validates the call's id."""
    return {**params.meta} if params.meta else {}


def _call_result(result: Result) -> CallToolResult:
    """A result as text, as the tool's own endpoint returns it, and as data if it is an object."""
    text = to_json(result.content)
    if not result.ok:
        return _failure(text)
    data = result.output if isinstance(result.output, dict) else None
    if b"\\ud" in text:  # half of a surrogate pair is escaped in the text; the SDK cannot send it as data
        data = json.loads(
            json.dumps(data, ensure_ascii=False).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        )
    return CallToolResult(content=[TextContent(text=text.decode())], structured_content=data)


def _failure(text: bytes) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text.decode())], is_error=True)

"""What an MCP client may ask of an environment: what its tools are, and to call one in a session."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from importlib.metadata import version
from time import perf_counter
from typing import Any

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_REQUEST,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    ToolAnnotations,
)
from mcp_types import Tool as ListedTool

from stateroom.environment import Tool
from stateroom.errors import Unauthorized
from stateroom.server.faults import fault
from stateroom.server.hosted import TOKEN_HEADER, Hosted
from stateroom.server.http import JSON, Message, Reply, Request
from stateroom.session import Result, Session
from stateroom.session.program import Effect
from stateroom.state import to_json

CALL_ID = "stateroom/call-id"
"""The key in a call's `_meta` with the id that the client gives it."""

ANNOTATIONS: dict[Effect, ToolAnnotations] = {
    "read": ToolAnnotations(read_only_hint=True, open_world_hint=False),
    "write": ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False),
    "external": ToolAnnotations(
        read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True
    ),
}
"""What a tool's effect tells a client. Whatever may change something may also take something away."""

_EXCHANGE = "stateroom.exchange"
"""Where a request's scope holds its exchange."""


@dataclass
class _Exchange:
    """A request on its way through the SDK, and whether it has been refused for want of a good token."""

    request: Request
    refused: bool = False


class ToolServer:
    """The environment as a server of the SDK's; it answers while it is `running`."""

    def __init__(self, hosted: Hosted, max_body: int) -> None:
        self.hosted = hosted
        tools = hosted.environment.tools
        self._listed = ListToolsResult(tools=[_listed(tool) for tool in tools.values()])
        self._figures = {name: hosted.figures.of_tool(hosted.environment.name, name) for name in tools}
        schemas = {name: tool.definition["parameters"] for name, tool in tools.items()}
        server = Server[Any](
            hosted.environment.name,
            version=version("stateroom"),
            get_tool_input_schema=schemas.get,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        self._manager = StreamableHTTPSessionManager(
            server, json_response=True, stateless=True, max_request_body_size=max_body
        )

    def running(self) -> AbstractAsyncContextManager[None]:
        """The time in which it answers."""
        return self._manager.run()

    async def answer(self, request: Request) -> Reply:
        """The reply to a request; to one without a good token, with the status that says so."""
        exchange = _Exchange(request)
        await request.body()
        said: list[Message] = []

        async def collect(message: Message) -> None:
            said.append(message)

        await self._manager.handle_request({**request.scope, _EXCHANGE: exchange}, request.replayed(), collect)
        return _whole(said, 401 if exchange.refused else said[0]["status"])

    async def _list_tools(
        self, context: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return self._listed

    async def _call_tool(self, context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        start = perf_counter()
        outcome = "error"
        assert context.request is not None  # over HTTP there is always one
        exchange: _Exchange = context.request.scope[_EXCHANGE]
        try:
            session = await self._session_of(exchange.request)
            result = await session.call(params.name, params.arguments, call_id=_call_id(exchange.request, params))
            outcome = "ok" if result.ok else str(result.code)
            return _reply(result)
        except Unauthorized as error:
            exchange.refused = True
            raise MCPError(INVALID_REQUEST, str(error), {"code": "unauthorized"}) from error
        except Exception as error:  # noqa: BLE001 - whatever it is, the model is told
            return _failure(fault(error, params.name).body)
        finally:
            if params.name in self._figures:
                self._figures[params.name].called(outcome, perf_counter() - start)

    async def _session_of(self, request: Request) -> Session[Any]:
        """The session that the request's token gives access to."""
        token = request.header(TOKEN_HEADER)
        return await self.hosted.session(None if token is None else self.hosted.signer.read(token)[0])


def _whole(said: list[Message], status: int) -> Reply:
    """A reply of the SDK's in one piece; it never streams, since no call has anything to tell before it is done."""
    headers = dict(said[0]["headers"])
    content_type = headers.pop(b"content-type", JSON)
    headers.pop(b"content-length", None)
    return Reply(status, b"".join(message["body"] for message in said[1:]), content_type, tuple(headers.items()))


def _listed(tool: Tool) -> ListedTool:
    return ListedTool(
        name=tool.name,
        description=tool.definition["description"],
        input_schema=tool.definition["parameters"],
        annotations=ANNOTATIONS[tool.effect],
    )


def _call_id(request: Request, params: CallToolRequestParams) -> Any:
    """The id that the client gave the call, in the message or else in a header; the session looks what it is."""
    meta: Mapping[str, Any] = {**params.meta} if params.meta else {}
    return meta.get(CALL_ID) or request.call_id


def _reply(result: Result) -> CallToolResult:
    """A result as text, the same that the tool's own endpoint gives, and as data if it is an object."""
    text = to_json(result.content)
    if not result.ok:
        return _failure(text)
    # Half a surrogate pair is escaped in the text; the SDK cannot send it as data.
    sendable = isinstance(result.output, dict) and b"\\ud" not in text
    return CallToolResult(
        content=[TextContent(text=text.decode())], structured_content=result.output if sendable else None
    )


def _failure(text: bytes) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text.decode())], is_error=True)

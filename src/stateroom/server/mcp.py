"""An environment's tools for MCP clients, by the official SDK. To import this module loads the SDK."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
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
    Tool as ListedTool,
    ToolAnnotations,
)

from stateroom.environment import Tool
from stateroom.errors import Unauthorized
from stateroom.server.asgi import REQUEST
from stateroom.server.environment import ServedEnvironment
from stateroom.server.request import HTTPRequest, Message, Receive, Scope, Send
from stateroom.server.response import response_to
from stateroom.server.tokens import TOKEN_HEADER
from stateroom.session import Effect, Result, Session
from stateroom.state import to_json

CALL_ID = "stateroom/call-id"
"""The key in a call's `_meta` with the client's id of the call."""

ANNOTATIONS: dict[Effect, ToolAnnotations] = {
    "read": ToolAnnotations(read_only_hint=True, open_world_hint=False),
    "write": ToolAnnotations(read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=False),
    "external": ToolAnnotations(
        read_only_hint=False, destructive_hint=True, idempotent_hint=False, open_world_hint=True
    ),
}
"""The annotations of a tool by its effect. A tool that changes something may also delete something."""

REFUSED = "stateroom.refused"
"""The key of a scope that is set when a call had no valid token."""


class ToolServer:
    """An environment as a server of the SDK; it answers while it is `running`."""

    def __init__(self, served: ServedEnvironment, max_body: int) -> None:
        self.served = served
        tools = served.environment.tools
        self._listed = ListToolsResult(tools=[_listed(tool) for tool in tools.values()])
        self._meters = {name: served.metrics.tool(served.name, name) for name in tools}
        schemas = {name: tool.definition["parameters"] for name, tool in tools.items()}
        server = Server[Any](
            served.name,
            version=version("stateroom"),
            get_tool_input_schema=schemas.get,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        self._manager = StreamableHTTPSessionManager(
            server, json_response=True, stateless=True, max_request_body_size=max_body
        )

    def running(self) -> AbstractAsyncContextManager[None]:
        """The context in which it answers."""
        return self._manager.run()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; one without a valid token gets status 401."""

        async def send_status(message: Message) -> None:
            if message["type"] == "http.response.start" and REFUSED in scope:
                message["status"] = 401
            await send(message)

        await self._manager.handle_request(scope, receive, send_status)

    async def _list_tools(
        self, context: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return self._listed

    async def _call_tool(self, context: ServerRequestContext[Any], params: CallToolRequestParams) -> CallToolResult:
        start = perf_counter()
        outcome = "error"
        assert context.request is not None  # over HTTP there is always one
        scope: Scope = context.request.scope
        request: HTTPRequest = scope[REQUEST]
        try:
            session = await self._session_of(request)
            result = await session.call(params.name, params.arguments, call_id=_call_id(request, params))
            outcome = "ok" if result.ok else str(result.code)
            return _call_result(result)
        except Unauthorized as error:
            scope[REFUSED] = True
            raise MCPError(INVALID_REQUEST, str(error), {"code": "unauthorized"}) from error
        except Exception as error:  # noqa: BLE001 - the model is told
            return _failure(response_to(error, params.name).body)
        finally:
            if params.name in self._meters:
                self._meters[params.name].count(outcome, perf_counter() - start)

    async def _session_of(self, request: HTTPRequest) -> Session[Any]:
        """The session that the request's token gives access to."""
        token = request.headers.get(TOKEN_HEADER)
        return await self.served.session(None if token is None else self.served.signer.read(token)[0])


def _listed(tool: Tool) -> ListedTool:
    return ListedTool(
        name=tool.name,
        description=tool.definition["description"],
        input_schema=tool.definition["parameters"],
        annotations=ANNOTATIONS[tool.effect],
    )


def _call_id(request: HTTPRequest, params: CallToolRequestParams) -> Any:
    """The client's id of the call, from the message or else from a header; the session validates it."""
    meta: Mapping[str, Any] = {**params.meta} if params.meta else {}
    return meta.get(CALL_ID) or request.call_id


def _call_result(result: Result) -> CallToolResult:
    """A result as text, as the tool's own endpoint returns it, and as data if it is an object."""
    text = to_json(result.content)
    if not result.ok:
        return _failure(text)
    # Half of a surrogate pair is escaped in the text; the SDK cannot send it as data.
    sendable = isinstance(result.output, dict) and b"\\ud" not in text
    return CallToolResult(
        content=[TextContent(text=text.decode())], structured_content=result.output if sendable else None
    )


def _failure(text: bytes) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text.decode())], is_error=True)

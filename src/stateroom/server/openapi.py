"""The OpenAPI document of a server, made of the declarations of its endpoints, and its page at `/docs`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from importlib.util import find_spec
from inspect import cleandoc
from operator import or_
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from stateroom.errors import ERRORS, NotFound, StateroomError
from stateroom.server.environment import ServedEnvironment
from stateroom.server.http import STATUS_OF_RESULT, BadJSON, ErrorBody, HTTPRequest, error_response, starlette_response
from stateroom.server.operation import Operation
from stateroom.server.schemas import PLACE, Schema, Schemas, UntitledFields, parts_of
from stateroom.version import __version__

ABOUT = """
### The session
Seeding returns a cookie, and every reply repeats it, errors included. Send it with every later request. With the
`seed_key` from the reply to seeding, a client can seed the session again: keep it from the model.

### Retries
Give each tool call an id in the header `Idempotency-Key`. Within a session, sending the same id again returns the
recorded result, and nothing runs twice.

### MCP
The tools are also served over MCP (streamable HTTP), at `mcp` beside them. The reply to seeding has the URL, and the
header (`X-NeMo-Gym-Session-Token`) with which a client reaches its session.

### Threads
A thread is a conversation that the server stores: add a message, and let the server's model answer. `POST /threads`
returns a `token`; send it as `Authorization: Bearer TOKEN`. `GET /threads/ID` returns a fresh one.

### Errors
An error is `{"error": {"code": …, "message": …}}`, with a matching status. If single fields are invalid, `fields` has
the problem of each. The errors of tool calls are safe to show to a model.

### Other
A path may begin with `/ng-rollout/<id>`, which identifies a client's rollout in logs. The operator of the server
finds its sessions, with their logs and states, under `/admin`.
"""

STATUSES = {
    400: "The body is not valid JSON, or the tool refused the call and says why.",
    401: "The session token is missing, invalid or expired. "
    "Seed a session and send its cookie, or create a thread and send its token.",
    403: "Only the operator of the server may do this.",
    404: "The tool or revision does not exist, or the server has no model for threads.",
    409: "The session has its verdict, the client already has a session, another client wrote first, or the agent "
    "of a thread is in another phase.",
    410: "The session was closed, has expired, or is not in the store. Seed another one.",
    413: "The body or the state exceeds its limit.",
    422: "The arguments or the task are invalid; `fields` has the problem of each.",
    429: "The API key has reached its limit of sessions or calls in this minute. "
    "Try again after `Retry-After` seconds.",
    500: "The environment or the server failed unexpectedly. The server's log has the details.",
    502: "A model (the user, the agent, or the one for threads) gave an unusable answer.",
    503: "The server is at capacity, or the store does not answer. Try again after `Retry-After` seconds.",
    504: "The operation exceeded its timeout.",
}
"""The meaning of each status."""

UNEXPECTED = ("environment_error", "internal_error")
"""The codes of unexpected errors of the server or the environment."""

RETRY_AFTER: Schema = {"Retry-After": {"description": "Seconds.", "schema": {"type": "integer"}}}

COOKIE: Schema = {
    "description": "The session, for all requests that follow.",
    "required": True,
    "schema": {"type": "string"},
}


def document(operations: Sequence[Operation], environments: Sequence[ServedEnvironment]) -> Schema:
    """The document of a server with these endpoints, for these environments."""
    made = _Document(operations)
    groups = {each.group for each in operations}
    cookies = {f"{one.name}.session": one.cookies.name for one in environments}
    schemes = {name for each in operations for need in each.security for name in need}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": ", ".join(one.name for one in environments),
            "version": __version__,
            "description": f"{_introduction(environments)}\n\n{ABOUT.strip()}",
        },
        "tags": [{"name": one.name, "description": _about(one)} for one in environments if one.name in groups],
        "paths": made.paths(),
        "components": {
            "schemas": made.schemas.definitions,
            "responses": {f"error_{status}": made.error(status) for status in STATUSES},
            "securitySchemes": {
                name: {"type": "apiKey", "in": "cookie", "name": cookies[name]}
                if name in cookies
                else {"type": "http", "scheme": "bearer"}
                for name in sorted(schemes)
            },
        },
    }


def _introduction(environments: Sequence[ServedEnvironment]) -> str:
    if len(environments) == 1:
        return _about(environments[0])
    return "\n".join(f"- **{one.name}**: {_about(one).partition(chr(10))[0]}" for one in environments)


def _about(served: ServedEnvironment) -> str:
    return cleandoc(type(served.environment).__doc__ or "")


class _Document:
    def __init__(self, operations: Sequence[Operation]) -> None:
        self.operations = operations
        self.bodies = [each.described_body() for each in operations]
        replies = [part for each in operations for part in _data_of(each)]
        self.schemas = Schemas([body for body in self.bodies if body is not None], [*replies, ErrorBody])

    def paths(self) -> Schema:
        paths: Schema = {}
        for each, body in zip(self.operations, self.bodies, strict=True):
            paths.setdefault(each.template, {})[each.method.lower()] = self._operation(each, body)
        return paths

    def _operation(self, operation: Operation, body: Any) -> Schema:
        summary, _, description = operation.about.partition("\n")
        parameters = [_in_path(*parameter) for parameter in operation.parameters]
        parameters += _parameters(operation.query, "query") + _parameters(operation.headers, "header")
        errors = {str(status): {"$ref": f"#/components/responses/error_{status}"} for status in operation.statuses}
        optional = {
            "tags": [operation.group] if operation.group else None,
            "description": description.strip(),
            "requestBody": None if body is None else self._body(body),
            "security": operation.security,
            "x-stateroom-effect": operation.effect,
        }
        return {
            "operationId": ".".join(filter(None, (operation.group, operation.name))),
            "summary": summary,
            "parameters": parameters,
            **{name: value for name, value in optional.items() if value},
            "responses": {"200": self._reply(operation), **dict(sorted(errors.items()))},
        }

    def _body(self, kind: Any) -> Schema:
        schema = self.schemas.of(kind, "validation")
        return {"content": _json(schema), "required": self._needs_fields(schema)}

    def _needs_fields(self, schema: Schema) -> bool:
        """Whether an empty object does not fit a schema."""
        schema = self.schemas.definitions[schema["$ref"].removeprefix(PLACE)] if "$ref" in schema else schema
        return (
            bool(schema.get("required"))
            or any(map(self._needs_fields, schema.get("allOf", ())))
            or ("anyOf" in schema and all(map(self._needs_fields, schema["anyOf"])))
        )

    def _reply(self, operation: Operation) -> Schema:
        data = _data_of(operation)
        others = [kind.media_type for kind in parts_of(operation.reply) if _is_response(kind) and kind.media_type]
        content = _json(self.schemas.of(reduce(or_, data), "serialization")) if data else {}
        content |= {media_type: {"schema": {"type": "string"}} for media_type in others}
        reply: Schema = {"description": "Success.", "content": content}
        return {**reply, "headers": {"Set-Cookie": COOKIE}} if operation.gives_cookie else reply

    def error(self, status: int) -> Schema:
        """The response with an error status."""
        kinds: tuple[type[StateroomError], ...] = (BadJSON, *ERRORS)
        codes = {kind.code for kind in kinds if kind.status == status and kind.code is not None}
        codes |= {code for code, known in STATUS_OF_RESULT.items() if code is not None and known == status}
        codes |= {*UNEXPECTED} if status == 500 else set()
        named = ", ".join(f"`{code}`" for code in sorted(codes))
        return {
            "description": f"{STATUSES[status]}\n\nCodes: {named}.",
            "content": _json(self.schemas.of(ErrorBody, "serialization")),
            "x-stateroom-codes": sorted(codes),
            **({"headers": RETRY_AFTER} if status in (429, 503) else {}),
        }


def _is_response(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Response)


def _data_of(operation: Operation) -> list[Any]:
    """The types of the data in replies; other replies are whole responses."""
    return [kind for kind in parts_of(operation.reply) if not _is_response(kind)]


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _in_path(name: str, convertor: str) -> Schema:
    kind = "integer" if convertor == "int" else "string"
    return {"name": name, "in": "path", "required": True, "schema": {"type": kind}}


def _parameters(kind: type[BaseModel] | None, place: str) -> list[Schema]:
    """The parameters in a query or in headers."""
    whole = {} if kind is None else kind.model_json_schema(schema_generator=UntitledFields)
    return [
        {
            "name": name,
            "in": place,
            "required": name in whole.get("required", ()),
            "schema": schema.get("anyOf", [schema])[0],
            **({"description": schema["description"]} if "description" in schema else {}),
        }
        for name, schema in whole.get("properties", {}).items()
    ]


# The page is Swagger UI. Its files come from a package, and nothing from elsewhere.

SWAGGER_PACKAGE = "fastapi_swagger"
"""Has the files. It is not imported: with it would come FastAPI."""

PAGE_FILES = frozenset({"swagger-ui.css", "swagger-ui-bundle.js"})

SCRIPT_NAME = "start.js"

SCRIPT = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#docs",
  deepLinking: true,
  filter: true,
  showExtensions: true,
  defaultModelsExpandDepth: 0,
  validatorUrl: null,
});
"""

PAGE = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Stateroom</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="docs"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/{SCRIPT_NAME}"></script>
</body>
</html>
"""

PAGE_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}


class Docs:
    """The page and the files that it loads."""

    def __init__(self) -> None:
        package = find_spec(SWAGGER_PACKAGE)
        folder = Path(package.origin).parent / "resources" if package and package.origin else Path()
        there = all((folder / name).is_file() for name in PAGE_FILES)
        self._files = StaticFiles(directory=folder) if there else None

    async def page(self, request: HTTPRequest) -> Response:
        """Show this document as a page."""
        if self._files is None:
            message = "the documentation page needs Swagger UI: pip install 'stateroom[server]'"
            return starlette_response(error_response(501, "not_installed", message))
        return HTMLResponse(PAGE, headers=PAGE_HEADERS)

    async def file(self, request: HTTPRequest, name: str) -> Response:
        """A file of the page."""
        if name == SCRIPT_NAME:
            return Response(SCRIPT, headers=PAGE_HEADERS, media_type="text/javascript")
        if self._files is None or name not in PAGE_FILES:
            raise NotFound(f"unknown path /docs/{name}; the documentation is at /docs")
        response = await self._files.get_response(name, request.scope)
        response.headers.update(PAGE_HEADERS)
        return response

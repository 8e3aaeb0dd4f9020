"""`/docs`: Swagger UI on the server's OpenAPI document. Its files come from a package, and nothing from elsewhere."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from starlette.responses import HTMLResponse, Response
from starlette.staticfiles import StaticFiles

from stateroom.errors import NotFound
from stateroom.server.operation import starlette_response
from stateroom.server.request import HTTPRequest
from stateroom.server.response import error_response

PACKAGE = "fastapi_swagger"
"""Has the files. It is not imported: with it would come FastAPI."""

FILES = frozenset({"swagger-ui.css", "swagger-ui-bundle.js"})

START = "start.js"

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
<link rel="stylesheet" href="docs/swagger-ui.css">
</head>
<body>
<div id="docs"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/{START}"></script>
</body>
</html>
"""

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
}


class Docs:
    """The page and the files that it loads."""

    def __init__(self) -> None:
        found = find_spec(PACKAGE)
        folder = Path(found.origin).parent / "resources" if found and found.origin else Path()
        there = all((folder / name).is_file() for name in FILES)
        self._files = StaticFiles(directory=folder) if there else None

    async def page(self, request: HTTPRequest) -> Response:
        """This document for people, to read and to try."""
        if self._files is None:
            message = "this server has no page of its endpoints without Swagger UI: pip install 'stateroom[server]'"
            return starlette_response(error_response(501, "not_installed", message))
        return HTMLResponse(PAGE, headers=HEADERS)

    async def file(self, request: HTTPRequest, name: str) -> Response:
        """A file of the page."""
        if name == START:
            return Response(SCRIPT, headers=HEADERS, media_type="text/javascript")
        if self._files is None or name not in FILES:
            raise NotFound(f"there is nothing at /docs/{name}; the documentation is at /docs")
        response = await self._files.get_response(name, request.scope)
        response.headers.update(HEADERS)
        return response

"""Who may use Studio's API, and for what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.routing import Router
from starlette.types import Receive, Scope, Send

from stateroom.errors import Forbidden, InvalidArguments
from stateroom.server import HTTPRequest, http_request

Mode = Literal["read", "full"]
"""What Studio allows: to look at sessions, or also to change them."""

READING = frozenset({"GET", "HEAD"})
"""The methods of endpoints that change nothing."""

OWN_SITES = (None, "same-origin", "none")
"""Values of `Sec-Fetch-Site` of our own page, of a person who opens a URL, and of programs that are no browsers."""


class Person(BaseModel):
    """What the body of every change has, besides what it is about."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    by: Annotated[str, Field(min_length=1)]
    """The person who makes this change."""


class Gate:
    """Lets a request pass that comes from Studio's page or its operator and that the mode allows."""

    def __init__(self, app: Router, check_operator: Callable[[HTTPRequest], None], mode: Mode) -> None:
        self._app = app
        self._check_operator = check_operator
        self._mode = mode
        self.routes = app.routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        self._check_operator(http_request(request))
        site = request.headers.get("sec-fetch-site")
        if site not in OWN_SITES:
            raise Forbidden(f"this request is of another web page ({site}), and only Studio's own page may use its API")
        if request.method not in READING:
            self._check_change(http_request(request))
        await self._app(scope, receive, send)

    def _check_change(self, request: HTTPRequest) -> None:
        if self._mode == "read":
            raise Forbidden("Studio is open for reading only; start it in the mode full to change something")
        if not request.json().get("by"):
            message = "should name the person who makes this change, for the log"
            raise InvalidArguments(f"by: {message}", {"by": message})

"""What the server says of itself: an OpenAPI document and a page to read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

from stateroom.server.description.openapi import document
from stateroom.server.description.schemas import Schema
from stateroom.server.hosted import Endpoint, Hosted
from stateroom.server.http import Reply, Request
from stateroom.state import to_json

BASE = "http://base-of-this-server"
"""Stands for the server's URL in the page as it is kept."""

HTML = b"text/html; charset=utf-8"

_HOST = re.compile(rb"[A-Za-z0-9._-]+(:[0-9]+)?|\[[0-9A-Fa-f:.]+\](:[0-9]+)?")


class Description:
    """The description of some environments; made when somebody first asks for it."""

    def __init__(self, hosted: Sequence[Hosted]) -> None:
        self.hosted = hosted

    def routes(self) -> dict[tuple[str, str], Endpoint]:
        """The endpoints by method and path."""
        return {("GET", "/openapi.json"): self.openapi, ("GET", "/docs"): self.docs}

    async def openapi(self, request: Request) -> Reply:
        """The OpenAPI document."""
        return Reply(200, self._bytes)

    async def docs(self, request: Request) -> Reply:
        """The page, with the server's URL as the client knows it in the examples."""
        body, headers = self._page
        return Reply(200, body.replace(BASE.encode(), _base(request)), HTML, headers)

    @cached_property
    def _document(self) -> Schema:
        return document(self.hosted)

    @cached_property
    def _bytes(self) -> bytes:
        return to_json(self._document)

    @cached_property
    def _page(self) -> tuple[bytes, tuple[tuple[bytes, bytes], ...]]:
        from stateroom.server.description.page import page, policy  # noqa: PLC0415 - few ask for it, and it takes a while

        headers = ((b"content-security-policy", policy().encode()), (b"x-content-type-options", b"nosniff"))
        return page(self._document, BASE).encode(), headers


def _base(request: Request) -> bytes:
    """The URL of the server as the client knows it."""
    host = request.header(b"host") or b""
    return (b"https://" if request.secure else b"http://") + (host if _HOST.fullmatch(host) else b"localhost")

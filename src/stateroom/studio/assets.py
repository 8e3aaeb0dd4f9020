"""Studio's page and the files that it loads, read once and compressed once.

A file's path has a digest over all files, so a browser never has to ask again for one that it has.
"""

from __future__ import annotations

import gzip
import json
import re
from hashlib import sha256
from pathlib import Path, PurePosixPath

from starlette.requests import Request
from starlette.responses import Response

from stateroom.errors import NotFound
from stateroom.session import KINDS

STATIC = Path(__file__).parent / "static"

INDEX = "index.html"
"""The template of the page: `{{base}}` is the URL of the files, `{{preload}}` links to the modules, and
`{{kinds}}` how kinds of log entries look.
"""

CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
}
"""By ending. Other files, such as licences, are text."""

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "font-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ]
)
"""The page loads nothing from elsewhere, and runs nothing that is not in a file of its own."""

SECURITY = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
"""Headers of every response of Studio."""

ISOLATION = {"cross-origin-opener-policy": "same-origin"}
"""A header that browsers accept only over TLS or from this machine."""

FOREVER = {"cache-control": "public, max-age=31536000, immutable"}
PAGE = {"cache-control": "no-cache", "content-security-policy": POLICY}

_DIGEST = re.compile(r"[0-9a-f]{16}")
_DOCUMENTATION = re.compile(rb"/\*\*.*?\*/ ?", re.DOTALL)
_INDENTATION = re.compile(rb"^ +", re.MULTILINE)


class Asset:
    """A file, also compressed if that makes it smaller."""

    def __init__(self, name: str, body: bytes, headers: dict[str, str]) -> None:
        self._headers = {**headers, "content-type": CONTENT_TYPES.get(PurePosixPath(name).suffix, "text/plain")}
        self._body = body
        compressed = gzip.compress(body, mtime=0)
        self._compressed = compressed if len(compressed) < len(body) else None

    def response(self, request: Request) -> Response:
        if self._compressed is None:
            return Response(self._body, headers=self._headers)
        headers = {**self._headers, "vary": "accept-encoding"}
        if not _takes_gzip(request.headers.get("accept-encoding", "")):
            return Response(self._body, headers=headers)
        return Response(self._compressed, headers={**headers, "content-encoding": "gzip"})


def _takes_gzip(accepted: str) -> bool:
    """Whether a client names gzip, and not with a weight of zero."""
    return re.search(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", accepted, re.IGNORECASE) is not None


def without_documentation(body: bytes) -> bytes:
    """A module without its JSDoc, which is a quarter of it, and indentation; every line keeps its number."""
    return _INDENTATION.sub(b"", _DOCUMENTATION.sub(lambda found: b"\n" * found[0].count(b"\n"), body))


class Assets:
    """The files of a folder, below a path; every other place below it is the page, which finds the view in its URL."""

    def __init__(self, path: str, folder: Path = STATIC) -> None:
        bodies = {
            each.relative_to(folder).as_posix(): each.read_bytes()
            for each in sorted(folder.rglob("*"))
            if each.is_file()
        }
        template = bodies.pop(INDEX).decode()
        bodies |= {name: without_documentation(body) for name, body in bodies.items() if name.endswith(".js")}
        digest = sha256()
        for name, body in bodies.items():
            digest.update(b"%d %d %s" % (len(name), len(body), name.encode()) + body)
        self.folder = digest.hexdigest()[:16]
        base = f"{path}/{self.folder}"
        links = [f'<link rel="modulepreload" href="{base}/{name}">' for name in bodies if name.endswith(".js")]
        kinds = {name: {"letter": one.letter, "tone": one.tone, "spoken": one.spoken} for name, one in KINDS.items()}
        filled = {"base": base, "preload": "\n    ".join(links), "kinds": json.dumps(kinds)}
        page = re.sub(r"\{\{(\w+)\}\}", lambda match: filled[match[1]], template)
        self._page = Asset(INDEX, page.encode(), PAGE)
        self._files = {name: Asset(name, body, FOREVER) for name, body in bodies.items()}

    async def respond(self, request: Request) -> Response:
        """A file, or the page."""
        folder, _, name = request.path_params["path"].partition("/")
        if not _DIGEST.fullmatch(folder):
            return self._page.response(request)
        if folder != self.folder or name not in self._files:
            raise NotFound(f"Studio has no file {request.url.path}; load its page again")
        return self._files[name].response(request)

"""Server-sent events: what all replies that go on have in common."""

from __future__ import annotations

HEARTBEAT = 15.0
"""Seconds of silence after which a client is sent a comment, so that nothing in between takes it for dead."""

STILL_HERE = b": still here\n\n"
"""That comment."""

HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),  # nginx would keep events back until there are many
]


def event(kind: str, data: bytes, number: int | None = None) -> bytes:
    """An event; its data is JSON, which has no line breaks."""
    named = b"" if number is None else b"id: %d\n" % number
    return b"event: %b\n%bdata: %b\n\n" % (kind.encode(), named, data)

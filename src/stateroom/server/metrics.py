"""What the server counts."""

from __future__ import annotations


class ToolFigures:
    """The figures of one tool."""

    def called(self, outcome: str, seconds: float) -> None:
        """Count a call."""


class Figures:
    """All figures of a server."""

    def of_tool(self, environment: str, tool: str) -> ToolFigures:
        return ToolFigures()

    def created(self, environment: str) -> None:
        """Count a session."""

    def exposition(self, accept: bytes, live: int) -> tuple[bytes, bytes]:
        """The figures as text, and its content type."""
        return b"", b"text/plain"

"""The result of a call: an output, or why it failed, in words for the model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from stateroom.errors import InvalidArguments
from stateroom.session.containment import Cause, cause_of
from stateroom.session.log import LogEntry

Code = Literal[
    "unknown_tool",
    "invalid_arguments",
    "tool_error",
    "tool_failed",
    "timeout",
    "too_large",
    "needs_input",
    "unknown_outcome",
    "shared_conflict",
]
"""Why a call failed.

`needs_input`: the tool asked a question; call it again with the same id when it is answered. `shared_conflict`: another
session changed a shared state first, and its type rejects such conflicts. `tool_error`: the tool raised a `ToolError`.
`tool_failed`: it failed unexpectedly.
"""


class Result(msgspec.Struct, frozen=True, gc=False):  # noqa: PLW1641 - outputs have no hash
    """The result of a call: an output, or an error for the model to read."""

    ok: bool
    output: Any = None
    error: str | None = None
    code: Code | None = None
    fields: dict[str, str] | None = None
    """For invalid arguments: the problem with each."""
    cause: Cause | None = None
    """The unexpected error of the author's code, for the author; not part of `content`."""

    def __eq__(self, other: object) -> bool:
        """Results are equal if a model reads the same in them."""
        return isinstance(other, Result) and (self.ok, self.content) == (other.ok, other.content)

    @property
    def content(self) -> Any:
        """The content for the model."""
        if self.ok:
            return self.output
        error = {"code": self.code, "message": self.error}
        return {"error": {**error, "fields": self.fields} if self.fields else error}


class Failed(Exception):
    """A call failed; the message is for the model."""

    tampered = False
    """True when the tool may have changed committed state in memory."""

    def __init__(self, message: str, code: Code = "tool_failed", cause: Cause | None = None) -> None:
        super().__init__(message)
        self.code: Code = code
        self.cause = cause


def result_of_failure(failure: Failed | InvalidArguments) -> Result:
    """The result of a call that failed."""
    if isinstance(failure, InvalidArguments):
        raised = failure.__cause__  # a validator of the author's may raise what it was not meant to
        cause = None if raised is None else cause_of(raised)
        return Result(False, None, str(failure), "invalid_arguments", failure.fields, cause)
    return Result(False, None, str(failure), failure.code, cause=failure.cause)


def result_of_entry(entry: LogEntry | None) -> Result:
    """The result of a call that is in the log."""
    assert entry is not None
    if entry.kind == "failed":
        return Result(False, None, entry.facts["error"], entry.facts.get("code", "tool_failed"))
    return Result(True, entry.output)


def unknown_tool(name: str, tools: Iterable[str]) -> Failed:
    """The failure of a call to an unknown tool."""
    return Failed(f"unknown tool {name!r}; the tools are: {', '.join(sorted(tools)) or 'none'}", "unknown_tool")

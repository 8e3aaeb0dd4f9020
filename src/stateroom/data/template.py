"""Templates: rows of raw data made into task rows, by sandboxed Jinja. Needs the extra `data`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from jinja2 import StrictUndefined, TemplateSyntaxError, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from stateroom.errors import BadTask, InvalidArguments

Row = dict[str, Any]

NO_FIELDS: Mapping[str, str] = {}


class TaskTemplate:
    """Makes task rows: a prompt, perhaps a system message, and fields.

    `prompt` and `system` are Jinja templates, and `fields` Jinja expressions by name. They see the fields of the raw
    row by name, and the whole row as `row`. Without `fields`, a task has those of the raw row. Raises
    `InvalidArguments` if one of them cannot be read.
    """

    def __init__(self, prompt: str, system: str | None = None, fields: Mapping[str, str] = NO_FIELDS) -> None:
        jinja = ImmutableSandboxedEnvironment(undefined=StrictUndefined)
        self._parts: dict[str, Callable[[Row], Any]] = {}
        for name, text in {"prompt": prompt, "system": system}.items():
            if text is not None:
                with _readable(name):
                    self._parts[name] = jinja.from_string(text).render
        self._fields: dict[str, Callable[[Row], Any]] = {}
        for name, text in fields.items():
            with _readable(name):
                self._fields[name] = jinja.compile_expression(text, undefined_to_none=False)

    def row(self, raw: Row) -> Row:
        """The task row of a raw one; `BadTask` says which part cannot be made, and why."""
        seen = {"row": raw, **raw}
        said = {name: _filled(name, part, seen) for name, part in self._parts.items()}
        fields = {name: _filled(name, field, seen) for name, field in self._fields.items()}
        asked = said["prompt"]
        if "system" in said:
            asked = [{"role": "system", "content": said["system"]}, {"role": "user", "content": asked}]
        given = raw.get("responses_create_params")
        request = {**(given if isinstance(given, dict) else {}), "input": asked}
        return {**(fields or raw), "responses_create_params": request}


@contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except TemplateSyntaxError as error:
        raise InvalidArguments(f"{name}, line {error.lineno}: {error.message}") from None


def _filled(name: str, part: Callable[[Row], Any], seen: Row) -> Any:
    try:
        found = part(seen)
        if isinstance(found, Undefined):
            str(found)  # which raises
    except Exception as error:  # an expression may raise anything
        raise BadTask(f"{name}: {error}") from error
    return found

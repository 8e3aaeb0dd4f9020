"""Templates: rows of raw data made into task rows, by sandboxed Jinja. Needs the extra `data`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any, Self

from jinja2 import StrictUndefined, TemplateSyntaxError, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment

from stateroom.errors import BadTask, InvalidArguments, TimedOut
from stateroom.jsonl import line_of
from stateroom.rollout import Row

MAX_SECONDS = 10.0
"""Seconds that a template may take for a row."""

MAX_SECONDS_TO_START = 60.0
"""Seconds that it may take to be compiled, which evaluates what is constant, in a new process."""

MAX_MEMORY = 4 << 30
"""Bytes of memory that its process may have, where the system limits it."""

MAX_BYTES = 32 << 20
"""Bytes of a task."""

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
        texts = {name: _filled(name, part, seen) for name, part in self._parts.items()}
        fields = {name: _filled(name, field, seen) for name, field in self._fields.items()}
        prompt = texts["prompt"]
        if "system" in texts:
            prompt = [{"role": "system", "content": texts["system"]}, {"role": "user", "content": prompt}]
        given = raw.get("responses_create_params")
        request = {**(given if isinstance(given, dict) else {}), "input": prompt}
        return {**(fields or raw), "responses_create_params": request}


class TemplateProcess:
    """A template in a process of its own, whose time and memory are bounded: one that loops for ever is ended.

    Raises `InvalidArguments` if a part cannot be read, and `TimedOut` if one takes too long.
    """

    def __init__(self, prompt: str, system: str | None = None, fields: Mapping[str, str] = NO_FIELDS) -> None:
        context = get_context("spawn")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, prompt, system, fields), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        try:
            self._answer(MAX_SECONDS_TO_START)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def line(self, raw: Row) -> bytes:
        """The task row of a raw one, as a line of a file; `BadTask` says which part cannot be made, and why."""
        self._pipe.send(raw)
        return self._answer(MAX_SECONDS)

    def _answer(self, seconds: float) -> bytes:
        if not self._pipe.poll(seconds):
            raise TimedOut(f"a template takes longer than {seconds:g} seconds for one row: does it loop?")
        try:
            answer = self._pipe.recv()
        except EOFError:
            raise TimedOut(f"a template was ended: one row needs more than {MAX_MEMORY >> 20:,} MiB") from None
        if isinstance(answer, Exception):
            raise answer
        return bytes(answer)


def _serve(pipe: Connection, prompt: str, system: str | None, fields: Mapping[str, str]) -> None:
    """Answer raw rows with lines, or with what is wrong, until the parent ends."""
    _limit_memory()
    try:
        template = TaskTemplate(prompt, system, fields)
        pipe.send(b"")
        while True:
            raw = pipe.recv()
            try:
                line = line_of(template.row(raw))
                if len(line) > MAX_BYTES:
                    raise BadTask(f"the task has more than {MAX_BYTES:,} bytes")
                pipe.send(line)
            except (BadTask, TypeError) as error:  # a TypeError: a field is not JSON
                pipe.send(BadTask(str(error)))
    except InvalidArguments as error:
        pipe.send(error)
    except EOFError:
        pass


def _limit_memory() -> None:
    """Bound this process's memory where the system can: Windows has no such limit, and macOS may refuse it."""
    with suppress(ImportError, ValueError, OSError):
        from resource import RLIMIT_AS, setrlimit  # noqa: PLC0415 - Windows has none

        setrlimit(RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))


@contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except TemplateSyntaxError as error:
        raise InvalidArguments(f"{name}, line {error.lineno}: {error.message}") from None


def _filled(name: str, part: Callable[[Row], Any], seen: Row) -> Any:
    try:
        value = part(seen)
        if isinstance(value, Undefined):
            str(value)  # which raises
    except Exception as error:  # an expression may raise anything
        raise BadTask(f"{name}: {error or type(error).__name__}") from error
    return value

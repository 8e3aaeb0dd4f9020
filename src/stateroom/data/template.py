"""Create task rows from raw rows with sandboxed Jinja templates. Needs the extra `data`."""

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
"""The time limit of a template for one row, in seconds."""

MAX_SECONDS_TO_START = 60.0
"""The time limit to compile a template in a new process, in seconds; compiling evaluates constants."""

MAX_MEMORY = 4 << 30
"""The memory limit of its process, in bytes, where the system has one."""

MAX_BYTES = 32 << 20
"""The largest task, in bytes."""

NO_FIELDS: Mapping[str, str] = {}


class TaskTemplate:
    """Creates task rows with a prompt, an optional system message, and fields.

    `prompt` and `system` are Jinja templates, and `fields` maps names to Jinja expressions. All of them can use the
    fields of the raw row by name, and the whole row as `row`. Without `fields`, a task gets the fields of the raw row.
    Raises `InvalidArguments` if a template is invalid.
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
        """The task row for a raw row. Raises `BadTask` if a part cannot be rendered."""
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
    """A template in a separate process with time and memory limits.

    Raises `InvalidArguments` if a template is invalid, and `TimedOut` if it exceeds a limit.
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
        """The task row for a raw row, as a line of a file. Raises `BadTask` if a part cannot be rendered."""
        self._pipe.send(raw)
        return self._answer(MAX_SECONDS)

    def _answer(self, seconds: float) -> bytes:
        if not self._pipe.poll(seconds):
            raise TimedOut(f"a template takes longer than {seconds:g} seconds for one row; is there an endless loop?")
        try:
            answer = self._pipe.recv()
        except EOFError:
            raise TimedOut(f"a template needs more than {MAX_MEMORY >> 20:,} MiB of memory for one row") from None
        if isinstance(answer, Exception):
            raise answer
        return bytes(answer)


def _serve(pipe: Connection, prompt: str, system: str | None, fields: Mapping[str, str]) -> None:
    """Answer raw rows with lines or errors until the parent exits."""
    _limit_memory()
    try:
        template = TaskTemplate(prompt, system, fields)
        pipe.send(b"")
        while True:
            raw = pipe.recv()
            try:
                line = line_of(template.row(raw))
                if len(line) > MAX_BYTES:
                    raise BadTask(f"the task is larger than {MAX_BYTES:,} bytes")
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
            str(value)  # raises
    except Exception as error:  # an expression may raise anything
        raise BadTask(f"{name}: {error or type(error).__name__}") from error
    return value

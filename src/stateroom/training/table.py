"""Write the rows of an export to a JSONL or Parquet file, in batches."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from stateroom.errors import CannotWrite, InvalidOption, needs
from stateroom.jsonl import line_of
from stateroom.rollout import Row

ROWS_PER_BATCH = 1000
"""Rows per batch of a Parquet file."""


async def write_table(
    path: Path, columns: Mapping[str, str], rows: AsyncIterator[Row], on_row: Callable[[], None] = lambda: None
) -> int:
    """Write rows to a file with the suffix .jsonl or .parquet; returns their number.

    An existing file is replaced after all rows are written. Without rows, no file is written.
    """
    writer = _WRITERS.get(path.suffix)
    if writer is None:
        raise InvalidOption("output", f"{path} must end with .jsonl or .parquet")
    new = path.with_name(path.name + ".new")
    written = 0
    try:
        with writer(new, columns) as write:
            async for row in rows:
                write(row)
                written += 1
                on_row()
        if written:
            new.replace(path)
    except OSError as error:
        raise CannotWrite(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)
    return written


@contextmanager
def _jsonl(path: Path, columns: Mapping[str, str]) -> Iterator[Callable[[Row], None]]:
    with path.open("wb") as file:

        def write(row: Row) -> None:
            file.write(line_of(row))

        yield write


@contextmanager
def _parquet(path: Path, columns: Mapping[str, str]) -> Iterator[Callable[[Row], None]]:
    with needs("a Parquet file", "data"):
        import pyarrow as pa  # noqa: PLC0415 - an extra
        from pyarrow import parquet  # noqa: PLC0415
    text = pa.string()
    kinds = {
        "text": text,
        "int": pa.int64(),
        "float": pa.float64(),
        "ints": pa.list_(pa.int64()),
        "floats": pa.list_(pa.float64()),
        "jsons": pa.list_(pa.json_()),
        "turns": pa.list_(pa.struct({"role": text, "content": text})),
        "reward_model": pa.struct({"style": text, "ground_truth": text}),
        "extra_info": pa.struct({"index": pa.int64(), "row": text}),
    }
    schema = pa.schema({name: kinds[kind] for name, kind in columns.items()})
    waiting: list[Row] = []

    def column(name: str, kind: str) -> Any:
        values = [row[name] for row in waiting]
        if kind != "jsons":
            return pa.array(_encodable(values), kinds[kind])
        jsons = [[json.dumps(part, ensure_ascii=False) for part in parts] for parts in values]
        texts = pa.array(_encodable(jsons), pa.list_(text))
        parts = pa.ExtensionArray.from_storage(pa.json_(), texts.values)
        return pa.ListArray.from_arrays(texts.offsets, parts)

    with parquet.ParquetWriter(path, schema) as file:

        def flush() -> None:
            file.write_table(pa.table([column(name, kind) for name, kind in columns.items()], schema=schema))
            waiting.clear()

        def write(row: Row) -> None:
            waiting.append(row)
            if len(waiting) == ROWS_PER_BATCH:
                flush()

        yield write
        if waiting:
            flush()


def _encodable(value: Any) -> Any:
    """A value with encodable texts: half of a surrogate pair becomes an escape, as in a JSONL file."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {name: _encodable(part) for name, part in value.items()}
    return [*map(_encodable, value)] if isinstance(value, list) else value


_WRITERS: dict[str, Callable[[Path, Mapping[str, str]], AbstractContextManager[Callable[[Row], None]]]] = {
    ".jsonl": _jsonl,
    ".parquet": _parquet,
}

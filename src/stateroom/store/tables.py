"""Shared parts of stores on SQL tables: columns named after the fields of a record, rows as records, lists as SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from stateroom.errors import BadData
from stateroom.store.head_filter import EQUAL, HeadFilter, Order
from stateroom.store.records import DAMAGE, Entry, Head, damaged

T = TypeVar("T")

PARTS = ("entries", "snapshots", "blobs")
"""The tables whose rows belong to a session; the table of heads is `sessions`."""

HEAD_COLUMNS = ", ".join(Head.__struct_fields__)
ENTRY_COLUMNS = ", ".join(Entry.__struct_fields__)
"""The columns of an entry, beside its session."""

_STATUSES = {"live": "NOT closed AND expires > ?", "expired": "NOT closed AND expires <= ?", "closed": "closed"}


class RowReader:
    """Makes records of rows, in which texts are bytes, so that a damaged one can be found."""

    def __init__(self, to_text: Callable[[bytes], str]) -> None:
        self.to_text = to_text

    def head(self, row: Sequence[Any]) -> Head:
        """A head from a row of `HEAD_COLUMNS`; `BadData` if it is damaged."""
        try:
            values = [self.to_text(value) if isinstance(value, bytes) else value for value in row]
            fields = dict(zip(Head.__struct_fields__, values, strict=True))
            return msgspec.convert({**fields, "closed": bool(fields["closed"])}, Head)
        except DAMAGE as error:
            raise damaged(shown(row[0]), error) from error

    def heads(self, rows: Iterable[Sequence[Any]]) -> Iterator[Head]:
        """The heads that are not damaged."""
        for row in rows:
            with suppress(BadData):
                yield self.head(row)

    def damages(self, rows: Iterable[Sequence[Any]]) -> Iterator[str]:
        """The errors of the heads that are."""
        for row in rows:
            try:
                self.head(row)
            except BadData as error:
                yield str(error)

    def entry(self, session: str, row: Sequence[Any]) -> Entry:
        """An entry from a row of `ENTRY_COLUMNS`; `BadData` if it is damaged."""
        revision, kind, at, body, call_id = row
        try:
            name = None if call_id is None else self.to_text(call_id)
            content = body if isinstance(body, bytes) else bytes(memoryview(body))
            return Entry(int(revision), self.to_text(kind), float(at), content, name)
        except DAMAGE as error:
            raise damaged(session, error) from error


def shown(text: bytes) -> str:
    """A text that may be damaged, for a message."""
    return text.decode("utf-8", "backslashreplace")


def select_heads(
    wanted: HeadFilter, order: Order, last: Sequence[T], value: Callable[[str | float], T], beyond: str
) -> tuple[str, list[T]]:
    """The clauses `WHERE … ORDER BY …` of a list, and the values for the `?` in them.

    `last` are the values of the place that it goes on after, if any. `value` is how a text or a number is given to the
    database, and `beyond` a literal that comes after every character.
    """
    conditions: list[str] = ["reward IS NOT NULL"] if order == "reward" else []
    values: list[T] = []
    bounds = [("reward >= ?", wanted.min_reward), ("reward <= ?", wanted.max_reward)]
    for condition, given in [*((f"{name} = ?", getattr(wanted, name)) for name in EQUAL), *bounds]:
        if given is not None:
            conditions.append(condition)
            values.append(value(given))
    if wanted.status is not None:
        conditions.append(_STATUSES[wanted.status])
        values += [value(wanted.at)] * (wanted.status != "closed")
    if wanted.prefix:
        conditions.append(f"id >= ? AND id < (? || {beyond})")
        values += [value(wanted.prefix)] * 2
    columns = ["reward", "created", "id"] if order == "reward" else ["created", "id"]
    if last:
        marks = ", ".join("?" * len(columns))
        conditions.append(f"({', '.join(columns)}) {'>' if order == 'oldest' else '<'} ({marks})")
        values += last
    direction = "ASC" if order == "oldest" else "DESC"
    ordered = ", ".join(f"{column} {direction}" for column in columns)
    return f"WHERE {' AND '.join(conditions) or 'TRUE'} ORDER BY {ordered}", values

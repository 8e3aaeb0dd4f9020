"""Helpers of the tools: new records, words to search for, and pages of results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from stateroom import ToolError
from stateroom.gallery.office.state import R, Record

PAGE = 20
"""Results per page."""

RESERVED = 100
"""Ids reserved for the records that a task adds."""


def new_id(prefix: str, table: Mapping[str, Record], reserved: int = 0) -> str:
    """The id of a new record: the next number after reserved ids, because records are never removed."""
    return f"{prefix}-{len(table) + reserved + 1:04}"


def add(table: dict[str, R], record: R) -> str:
    """Add a record, and return its id."""
    table[record.id] = record
    return record.id


def filled(name: str, text: str) -> str:
    """A stripped text, which must not be empty."""
    if not text.strip():
        raise ToolError(f"{name}: must not be empty")
    return text.strip()


def words(query: str) -> list[str]:
    """The words of a query."""
    return query.lower().split()


def has_words(wanted: list[str], *texts: str) -> bool:
    """Whether the texts contain all words."""
    if not wanted:
        return True
    text = "\n".join(texts).lower()
    for word in wanted:  # a loop: this runs for each of thousands of records  # noqa: SIM110
        if word not in text:
            return False
    return True


def page_of(found: Iterable[R], page: int, brief: Callable[[R], dict[str, Any]]) -> dict[str, Any]:
    """A page of results, and their total number."""
    results = list(found)
    pages = max(1, -(-len(results) // PAGE))
    if not 1 <= page <= pages:
        raise ToolError(f"page: choose 1 to {pages}")
    shown = results[(page - 1) * PAGE : page * PAGE]
    return {"found": len(results), "page": page, "pages": pages, "results": [brief(record) for record in shown]}


def clock_time(moment: datetime) -> datetime:
    """A time without time zone and seconds, because the office has one clock."""
    return moment.replace(tzinfo=None, second=0, microsecond=0)

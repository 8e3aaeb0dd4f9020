"""What tools share: finding records, and telling of many a page at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from stateroom import ToolError
from stateroom.gallery.office.state import Record

R = TypeVar("R", bound=Record)

PAGE = 20
"""So many results are on a page."""

RESERVED = 100
"""So many ids are left to the records that a task brings with it."""


def new_id(prefix: str, table: Mapping[str, Record], reserved: int = 0) -> str:
    """The id of the next new record. None is ever removed, so their number tells; some ids may be reserved."""
    return f"{prefix}-{len(table) + reserved + 1:04}"


def find(table: Mapping[str, R], record_id: str, kind: str, search: str) -> R:
    """A record by its id; the model is told which tool finds ids."""
    found = table.get(record_id.strip())
    if found is None:
        raise ToolError(f"there is no {kind} {record_id!r}; {search} finds their ids")
    return found


def id_of(table: Mapping[str, Record], record_id: str, kind: str, search: str) -> str:
    """The id by which to search, or none; one that there is not is refused, or the model would wonder why."""
    return find(table, record_id, kind, search).id if record_id.strip() else ""


def replace(table: dict[str, R], record: R, **changes: Any) -> R:
    """Put a changed copy of a record in its place."""
    changed = record.model_copy(update=changes)
    table[record.id] = changed
    return changed


def words(query: str) -> list[str]:
    """What to look for."""
    return query.lower().split()


def has_words(wanted: list[str], *texts: str) -> bool:
    """Whether each word is in the texts."""
    if not wanted:
        return True
    text = "\n".join(texts).lower()
    for word in wanted:  # a loop: this runs for each of thousands of records  # noqa: SIM110
        if word not in text:
            return False
    return True


def page_of(found: Iterable[R], page: int, brief: Callable[[R], dict[str, Any]]) -> dict[str, Any]:
    """A page of results, and how many there are in all."""
    results = list(found)
    pages = max(1, -(-len(results) // PAGE))
    if not 1 <= page <= pages:
        raise ToolError(f"page: there are {pages}, so it should be from 1 to {pages}")
    shown = results[(page - 1) * PAGE : page * PAGE]
    return {"found": len(results), "page": page, "pages": pages, "results": [brief(record) for record in shown]}


def clock_time(moment: datetime) -> datetime:
    """The time on the clock of the office, which is the only one here."""
    return moment.replace(tzinfo=None, second=0, microsecond=0)

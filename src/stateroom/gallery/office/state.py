"""The state of the office: small records by id, and how tools find and replace them.

Records are frozen: a tool replaces a record, so a search reads all of them without making drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from stateroom import State, ToolError

PAGE = 20
"""Results per page."""

RESERVED = 100
"""Ids for the records that a task adds."""

Priority = Literal["low", "normal", "high", "urgent"]
Progress = Literal["open", "in_progress", "closed"]
Category = Literal["meals", "travel", "hotel", "software", "equipment", "training"]
Settlement = Literal["filed", "approved", "paid", "rejected"]
Level = Literal["public", "internal", "confidential"]


class Record(BaseModel):
    """A record of the office, with its id."""

    model_config = ConfigDict(frozen=True)

    id: str


class Contact(Record):
    """A person of the house or of another company."""

    name: str
    email: str
    company: str
    title: str
    phone: str
    deputy: str | None = None
    """The id of their deputy while they are away."""
    away_until: date | None = None
    merged_into: str | None = None
    """The id of the entry that replaces this one."""


class Mail(Record):
    """A received mail."""

    sender: str
    to: tuple[str, ...]
    subject: str
    body: str
    sent_at: datetime
    labels: tuple[str, ...] = ()
    archived: bool = False


class Letter(Record):
    """A mail of the office: a draft, or a sent one."""

    to: tuple[str, ...]
    subject: str
    body: str
    in_reply_to: str | None = None
    attachments: tuple[str, ...] = ()


class Event(Record):
    """A meeting."""

    title: str
    organizer: str
    attendees: tuple[str, ...]
    start: datetime
    minutes: int
    room: str
    cancelled: bool = False


class Project(Record):
    name: str
    client: str
    lead: str
    members: tuple[str, ...]


class Ticket(Record):
    """A ticket of a project."""

    project: str
    title: str
    description: str
    reporter: str
    assignee: str
    due: date
    status: Progress = "open"
    priority: Priority = "normal"
    comments: tuple[str, ...] = ()


class Expense(Record):
    """Money that an employee spent and wants back."""

    employee: str
    vendor: str
    category: Category
    amount: float
    receipt: str
    spent_on: date
    purpose: str = ""
    status: Settlement = "filed"
    note: str = ""


class Payment(Record):
    expense: str
    amount: float


class File(Record):
    name: str
    folder: str
    owner: str
    level: Level
    text: str
    shared_with: tuple[str, ...] = ()


class Approval(Record):
    """The manager's decision on an expense or a file, by its id."""

    granted: bool


class Office(State):
    """The back office of a company."""

    now: datetime
    policies: dict[str, str] = {}
    contacts: dict[str, Contact] = {}
    mails: dict[str, Mail] = {}
    events: dict[str, Event] = {}
    projects: dict[str, Project] = {}
    tickets: dict[str, Ticket] = {}
    expenses: dict[str, Expense] = {}
    files: dict[str, File] = {}
    drafts: dict[str, Letter] = {}
    outbox: dict[str, Letter] = {}
    payments: dict[str, Payment] = {}
    approvals: dict[str, Approval] = {}
    puzzled: int = 0
    """Messages that the manager did not understand."""


R = TypeVar("R", bound=Record)

SEARCHES: dict[type[Record], str] = {
    Contact: "search_contacts",
    Event: "list_events",
    Expense: "list_expenses",
    File: "search_files",
    Mail: "search_mail",
    Project: "list_projects",
    Ticket: "search_tickets",
}
"""The tool that finds the ids of each kind of record."""


def new_id(prefix: str, table: Mapping[str, Record], reserved: int = 0) -> str:
    """The id of a new record: the next number, because records are never removed; some ids are reserved."""
    return f"{prefix}-{len(table) + reserved + 1:04}"


def table_of(state: Office, kind: type[R]) -> dict[str, R]:
    """The records of a kind by id."""
    table: dict[str, R] = getattr(state, f"{kind.__name__.lower()}s")
    return table


def find(state: Office, kind: type[R], record_id: str) -> R:
    """A record by its id; the error names the tool that finds ids."""
    record = table_of(state, kind).get(record_id.strip())
    if record is None:
        raise ToolError(f"there is no {kind.__name__.lower()} {record_id!r}; {SEARCHES[kind]} finds their ids")
    return record


def id_of(state: Office, kind: type[Record], record_id: str) -> str:
    """The id to filter by, or an empty one. Raises `ToolError` for an unknown id, so that the model notices."""
    return find(state, kind, record_id).id if record_id.strip() else ""


def replace(state: Office, record: R, **changes: Any) -> R:
    """Replace a record by a changed copy."""
    changed = record.model_copy(update=changes)
    table_of(state, type(record))[record.id] = changed
    return changed


def add(table: dict[str, R], record: R) -> str:
    """Add a record, and return its id."""
    table[record.id] = record
    return record.id


def filled(name: str, text: str) -> str:
    """A text of the model's without the space around it, which must not be all of it."""
    if not text.strip():
        raise ToolError(f"{name}: should not be empty")
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
        raise ToolError(f"page: there are {pages}, so it should be from 1 to {pages}")
    shown = results[(page - 1) * PAGE : page * PAGE]
    return {"found": len(results), "page": page, "pages": pages, "results": [brief(record) for record in shown]}


def clock_time(moment: datetime) -> datetime:
    """A time without time zone and seconds: the office has one clock."""
    return moment.replace(tzinfo=None, second=0, microsecond=0)

"""The state of the office: small records by id.

Records are frozen: tools replace whole records, so a search reads all of them without creating drafts.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict

from stateroom import State, ToolError

Priority = Literal["low", "normal", "high", "urgent"]
Progress = Literal["open", "in_progress", "closed"]
Category = Literal["meals", "travel", "hotel", "software", "equipment", "training"]
Settlement = Literal["filed", "approved", "paid", "rejected"]
Level = Literal["public", "internal", "confidential"]


class Record(BaseModel):
    """A record of the office, with its id."""

    model_config = ConfigDict(frozen=True)

    found_by: ClassVar[str] = ""
    """The tool that finds the ids of these records."""

    id: str


R = TypeVar("R", bound=Record)


class Contact(Record):
    """A person of the company or of another one."""

    found_by = "search_contacts"

    name: str
    email: str
    company: str
    title: str
    phone: str
    deputy: str | None = None
    """The id of the deputy while the person is away."""
    away_until: date | None = None
    merged_into: str | None = None
    """The id of the entry that replaces this one."""


class Mail(Record):
    """A received mail."""

    found_by = "search_mail"

    sender: str
    to: tuple[str, ...]
    subject: str
    body: str
    sent_at: datetime
    labels: tuple[str, ...] = ()
    archived: bool = False


class Letter(Record):
    """A mail written by the office: a draft or a sent one."""

    to: tuple[str, ...]
    subject: str
    body: str
    in_reply_to: str | None = None
    attachments: tuple[str, ...] = ()


class Event(Record):
    """A meeting."""

    found_by = "list_events"

    title: str
    organizer: str
    attendees: tuple[str, ...]
    start: datetime
    minutes: int
    room: str
    cancelled: bool = False


class Project(Record):
    found_by = "list_projects"

    name: str
    client: str
    lead: str
    members: tuple[str, ...]


class Ticket(Record):
    """A ticket of a project."""

    found_by = "search_tickets"

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
    """An expense of an employee."""

    found_by = "list_expenses"

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
    found_by = "search_files"

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
    """The number of messages that the manager did not understand."""

    def table(self, kind: type[R]) -> dict[str, R]:
        """The records of a kind by id."""
        records: dict[str, R] = getattr(self, f"{kind.__name__.lower()}s")
        return records

    def find(self, kind: type[R], record_id: str) -> R:
        """A record by id. Raises `ToolError` with the tool that finds ids."""
        record = self.table(kind).get(record_id.strip())
        if record is None:
            raise ToolError(f"unknown {kind.__name__.lower()} {record_id!r}; use {kind.found_by} to find ids")
        return record

    def id_of(self, kind: type[Record], record_id: str) -> str:
        """The id to filter by, or an empty one. Raises `ToolError` for an unknown id, so the model notices."""
        return self.find(kind, record_id).id if record_id.strip() else ""

    def replace(self, record: R, **changes: Any) -> R:
        """Replace a record by a changed copy."""
        changed = record.model_copy(update=changes)
        self.table(type(record))[record.id] = changed
        return changed

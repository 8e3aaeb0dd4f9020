"""The state of the office: small records by id.

Records are frozen: a tool replaces a record, so a search reads all of them without making drafts.
"""

from __future__ import annotations

from datetime import date, datetime
from typing import Literal

from pydantic import BaseModel, ConfigDict

from stateroom import State

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

"""office's tools: each does what it says to the office, and to nothing else."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
import pytest_asyncio

from stateroom import Sessions
from stateroom.gallery import Office, OfficeEnvironment
from stateroom.session import Session
from tests.messages import says

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORLD = OfficeEnvironment().world()
TOOLS = OfficeEnvironment().tools


@pytest_asyncio.fixture(loop_scope="module")
async def office(sessions: Sessions[Office]) -> Session[Office]:
    """An office in which nothing was done yet."""
    return await sessions.seed({"kind": "none", "difficulty": 1, "gold": []})


async def use(office: Session[Office], name: str, **arguments: Any) -> Any:
    """What a call gives."""
    result = await office.call(name, arguments)
    assert result.ok, result.error
    return result.output


async def refused(office: Session[Office], name: str, **arguments: Any) -> str | None:
    """The code of a call that fails, with words that are recorded."""
    result = await office.call(name, arguments)
    says(str(result.error))
    return result.code


def first(table: dict[str, Any], suits: Callable[[Any], bool] = lambda record: True) -> Any:
    return next(record for record in table.values() if suits(record))


MAIL = first(WORLD.mails, lambda mail: not mail.archived and not mail.labels)
EVENT = first(WORLD.events, lambda event: not event.cancelled and "C-0001" not in event.attendees)
TICKET = first(WORLD.tickets, lambda ticket: ticket.status == "open" and ticket.priority == "low")
EXPENSE = first(WORLD.expenses, lambda expense: expense.status == "filed")
FILE = first(WORLD.files, lambda file: "C-0001" not in file.shared_with)
PROJECT = first(WORLD.projects)
CONTACT = WORLD.contacts["C-0002"]


def change(tool: str, record: Any, arguments: dict[str, Any], /, **fields: Any) -> tuple[Any, ...]:
    """A call on a record, whose id is added to the arguments, and the fields that it changes."""
    own_id = f"{type(record).__name__.lower()}_id"
    of_record = {own_id: record.id} if own_id in TOOLS[tool].definition["parameters"]["properties"] else {}
    return tool, of_record | arguments, record, fields


CHANGES = [
    change("label_mail", MAIL, {"label": "odd"}, labels=("odd",)),
    change("archive_mail", MAIL, {}, archived=True),
    change("move_event", EVENT, {"start": "2026-03-09T10:30:00Z"}, start=datetime(2026, 3, 9, 10, 30)),
    change("cancel_event", EVENT, {}, cancelled=True),
    change("add_attendee", EVENT, {"contact_id": "C-0001"}, attendees=("C-0001", *EVENT.attendees)),
    change("remove_attendee", EVENT, {"contact_id": EVENT.attendees[0]}, attendees=EVENT.attendees[1:]),
    change("update_contact", CONTACT, {"phone": "7"}, phone="7"),
    change("merge_contacts", CONTACT, {"keep_id": "C-0001", "duplicate_id": CONTACT.id}, merged_into="C-0001"),
    change("assign_ticket", TICKET, {"assignee_id": "C-0001"}, assignee="C-0001"),
    change("comment_ticket", TICKET, {"text": " Well. "}, comments=(*TICKET.comments, "Well.")),
    change("set_priority", TICKET, {"priority": "high"}, priority="high"),
    change("close_ticket", TICKET, {}, status="closed"),
    change("categorise_expense", EXPENSE, {"category": "software"}, category="software"),
    change("approve_expense", EXPENSE, {}, status="approved"),
    change("reject_expense", EXPENSE, {"reason": "Too much."}, status="rejected", note="Too much."),
    change("share_file", FILE, {"contact_id": "C-0001"}, shared_with=("C-0001", *FILE.shared_with)),
    change("rename_file", FILE, {"new_name": "plan.pdf"}, name="plan.pdf"),
    change("move_file", FILE, {"folder": "/legal/"}, folder="legal"),
]


@pytest.mark.parametrize(("name", "arguments", "record", "fields"), CHANGES, ids=[name for name, *_ in CHANGES])
async def test_a_tool_changes_one_record(
    office: Session[Office], name: str, arguments: dict[str, Any], record: Any, fields: dict[str, Any]
) -> None:
    await use(office, name, **arguments)
    table = f"{type(record).__name__.lower()}s"
    expected = {**getattr(WORLD, table), record.id: record.model_copy(update=fields)}
    assert expected != getattr(WORLD, table)
    assert office.state == WORLD.model_copy(update={table: expected})


NEW: list[tuple[str, dict[str, Any], str, str, dict[str, Any]]] = [
    (
        "draft_mail",
        {"to": [" Ann@x.example "], "subject": "Hello", "body": "You"},
        "draft_id",
        "drafts",
        {"to": ("ann@x.example",), "subject": "Hello", "body": "You", "in_reply_to": None, "attachments": ()},
    ),
    (
        "send_mail",
        {"to": ["b@x.example", "a@x.example"], "subject": "Hello", "body": "You", "in_reply_to": MAIL.id}
        | {"attachments": [FILE.id, FILE.id]},
        "sent_id",
        "outbox",
        {"to": ("a@x.example", "b@x.example"), "in_reply_to": MAIL.id, "attachments": (FILE.id,)},
    ),
    (
        "create_event",
        {"title": "Talk", "organizer_id": "C-0009", "attendee_ids": ["C-0002", "C-0009"], "minutes": 45}
        | {"start": "2026-03-09T10:30"},
        "event_id",
        "events",
        {"title": "Talk", "organizer": "C-0009", "attendees": ("C-0002", "C-0009"), "minutes": 45},
    ),
    (
        "create_ticket",
        {"project_id": PROJECT.id, "title": "Dig", "assignee_id": "C-0002", "due": "2026-03-09"},
        "ticket_id",
        "tickets",
        {"project": PROJECT.id, "reporter": PROJECT.lead, "title": "Dig", "assignee": "C-0002", "priority": "normal"},
    ),
    (
        "file_expense",
        {"employee_id": "C-0003", "vendor": "Inn", "category": "hotel", "amount": 10.004, "receipt": "R-1"}
        | {"spent_on": "2026-03-01"},
        "expense_id",
        "expenses",
        {"employee": "C-0003", "vendor": "Inn", "category": "hotel", "amount": 10.0, "status": "filed"},
    ),
]


@pytest.mark.parametrize(("name", "arguments", "key", "table", "fields"), NEW, ids=[each[0] for each in NEW])
async def test_a_tool_adds_one_record(
    office: Session[Office], name: str, arguments: dict[str, Any], key: str, table: str, fields: dict[str, Any]
) -> None:
    output = await use(office, name, **arguments)
    record = getattr(office.state, table)[output[key]]
    assert record.id == output[key] not in getattr(WORLD, table)
    assert {name: getattr(record, name) for name in fields} == fields
    added = {**getattr(WORLD, table), record.id: record}
    assert office.state == WORLD.model_copy(update={table: added})
    again = await use(office, name, **arguments)
    assert len(getattr(office.state, table)) == len(added) + 1
    assert again[key] != output[key]


async def test_paying_pays_what_it_is_told_to_for_what_is_approved(office: Session[Office]) -> None:
    pay = {"expense_id": EXPENSE.id, "amount": 3.456}
    assert await refused(office, "pay", **pay) == "tool_error"
    await use(office, "approve_expense", expense_id=EXPENSE.id)
    payment = (await use(office, "pay", **pay))["payment_id"]
    assert (office.state.payments[payment].expense, office.state.payments[payment].amount) == (EXPENSE.id, 3.46)
    assert office.state.expenses == {**WORLD.expenses, EXPENSE.id: EXPENSE.model_copy(update={"status": "paid"})}
    assert await refused(office, "pay", expense_id=EXPENSE.id, amount=0) == "invalid_arguments"


async def ids(office: Session[Office], name: str, key: str, **arguments: Any) -> list[str]:
    return [result[key] for result in (await use(office, name, **arguments))["results"]]


async def test_mails_are_found_newest_first_and_archived_ones_are_not(office: Session[Office]) -> None:
    found: list[str] = []
    asked = {"query": "FIGURES soon", "sender": "larkspur"}
    for page in range(1, (await use(office, "search_mail", **asked))["pages"] + 1):
        found += await ids(office, "search_mail", "mail_id", **asked, page=page)
    wanted = [
        mail
        for mail in WORLD.mails.values()
        if "figures" in mail.body and "soon" in mail.body and "larkspur" in mail.sender and not mail.archived
    ]
    assert len(wanted) > 20
    assert found == [mail.id for mail in sorted(wanted, key=lambda mail: mail.sent_at, reverse=True)]


@pytest.mark.parametrize(
    ("arguments", "suits"),
    [
        ({"label": "legal"}, lambda mail: "legal" in mail.labels),
        ({"since": "2026-02-27"}, lambda mail: mail.sent_at >= datetime(2026, 2, 27)),
    ],
)
async def test_mails_are_found_by_label_and_day(
    office: Session[Office], arguments: dict[str, Any], suits: Callable[[Any], bool]
) -> None:
    wanted = sum(suits(mail) and not mail.archived for mail in WORLD.mails.values())
    assert (await use(office, "search_mail", **arguments))["found"] == wanted > 0


async def test_meetings_are_found_by_title_people_and_day(office: Session[Office]) -> None:
    event = first(WORLD.events, lambda event: not event.cancelled)
    day = event.start.date().isoformat()
    asked = {"query": event.title, "attendee_id": event.attendees[0], "first_day": day, "last_day": day}
    assert event.id in await ids(office, "list_events", "event_id", **asked)
    for other in ({"query": "party"}, {"attendee_id": "C-0400"}, {"last_day": "2026-01-01"}):
        assert event.id not in await ids(office, "list_events", "event_id", **{**asked, **other})
    await use(office, "cancel_event", event_id=event.id)
    assert event.id not in await ids(office, "list_events", "event_id", **asked)


async def test_a_slot_is_free_when_all_are(office: Session[Office]) -> None:
    meeting: dict[str, Any] = {"title": "A", "attendee_ids": []}
    await use(office, "create_event", **meeting, organizer_id="C-0380", minutes=60, start="2026-04-10T10:00")
    made = await use(office, "create_event", **meeting, organizer_id="C-0381", minutes=120, start="2026-04-10T13:30")
    asked = {"attendee_ids": ["C-0380", "C-0381"], "day": "2026-04-10", "minutes": 60}
    free = ["09:00", "11:00", "11:30", "12:00", "12:30", "15:30", "16:00"]
    assert (await use(office, "find_free_slot", **asked))["free"] == [f"2026-04-10T{hour}:00" for hour in free]
    moved = await use(office, "find_free_slot", **asked, event_id=made["event_id"])
    assert [start[11:16] for start in moved["free"]] == sorted({*free, "13:00", "13:30", "14:00", "14:30", "15:00"})


async def test_people_are_found_by_name_and_company_until_they_are_merged(office: Session[Office]) -> None:
    contact = WORLD.contacts["C-0200"]
    asked = {"query": contact.name.upper(), "company": contact.company}
    assert await ids(office, "search_contacts", "contact_id", **asked) == ["C-0200"]
    assert await ids(office, "search_contacts", "contact_id", **{**asked, "company": "nobody"}) == []
    await use(office, "merge_contacts", keep_id="C-0001", duplicate_id="C-0200")
    assert await ids(office, "search_contacts", "contact_id", **asked) == []
    assert await refused(office, "update_contact", contact_id="C-0200", phone="1") == "tool_error"


async def test_tickets_are_found_by_all_that_is_asked_and_closed_ones_only_if_asked_for(
    office: Session[Office],
) -> None:
    tickets = WORLD.tickets.values()
    open_tickets = [ticket for ticket in tickets if ticket.status != "closed"]
    assert (await use(office, "search_tickets"))["found"] == len(open_tickets)
    assert (await use(office, "search_tickets", status="closed"))["found"] == len(tickets) - len(open_tickets)
    asked = {"project_id": TICKET.project, "assignee_id": TICKET.assignee, "query": "the"}
    assert await ids(office, "search_tickets", "ticket_id", **asked) == [
        ticket.id for ticket in open_tickets if (ticket.project, ticket.assignee) == (TICKET.project, TICKET.assignee)
    ]


async def test_expenses_projects_and_files_are_found(office: Session[Office]) -> None:
    asked = {"query": EXPENSE.receipt, "employee_id": EXPENSE.employee, "status": "filed"}
    assert await ids(office, "list_expenses", "expense_id", **asked) == [EXPENSE.id]
    assert (await use(office, "list_expenses", **{**asked, "status": "paid"}))["found"] == 0
    assert await ids(office, "list_projects", "project_id", query=PROJECT.name) == [PROJECT.id]
    assert await ids(office, "search_files", "file_id", query=FILE.name) == [FILE.id]


@pytest.mark.parametrize(
    ("name", "argument", "record"),
    [
        ("read_mail", "mail_id", MAIL),
        ("get_contact", "contact_id", WORLD.contacts["C-0007"]),
        ("get_ticket", "ticket_id", TICKET),
        ("get_expense", "expense_id", EXPENSE),
        ("read_file", "file_id", FILE),
    ],
)
async def test_a_record_is_read_as_it_is(office: Session[Office], name: str, argument: str, record: Any) -> None:
    assert await use(office, name, **{argument: record.id}) == record.model_dump(mode="json")


async def test_the_rules_can_be_read(office: Session[Office]) -> None:
    for topic in ("spending", "files"):
        says((await use(office, "get_policy", topic=topic))["policy"])


async def test_a_page_that_there_is_not_is_refused(office: Session[Office]) -> None:
    assert await refused(office, "list_projects", page=4) == "tool_error"


async def test_every_tool_was_tested() -> None:
    source = {name for name, *_ in (*CHANGES, *NEW)}
    looks = {name for name, tool in TOOLS.items() if tool.effect == "read"}
    assert source | looks | {"pay"} == TOOLS.keys()
    assert len(TOOLS) >= 25
    assert {name for name, tool in TOOLS.items() if tool.effect == "external"} == {"send_mail", "pay"}


UNKNOWN = [
    (name, parameter)
    for name, tool in TOOLS.items()
    for parameter in tool.definition["parameters"]["properties"]
    if parameter.endswith("_id")
]


@pytest.mark.parametrize(("name", "parameter"), UNKNOWN)
async def test_an_id_that_there_is_not_is_refused_with_the_tool_that_finds_them(
    office: Session[Office], name: str, parameter: str
) -> None:
    known = {name: arguments for name, arguments, *_ in (*CHANGES, *NEW)}
    known["pay"] = {"expense_id": EXPENSE.id, "amount": 1}
    known["find_free_slot"] = {"attendee_ids": ["C-0001"], "day": "2026-03-09", "minutes": 30}
    assert await refused(office, name, **{**known.get(name, {}), parameter: "X-1"}) == "tool_error"

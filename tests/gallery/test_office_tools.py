"""office's tools: each does what it says to the office, and to nothing else."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

import pytest
from pydantic_core import to_jsonable_python

from stateroom.errors import InvalidArguments, ToolError
from stateroom.gallery import Office, OfficeEnvironment
from stateroom.gallery.office.state import Payment, Record
from stateroom.gallery.office.world import base_world
from stateroom.state import DraftContext, commit, draft_of
from tests.messages import raises

WORLD = base_world()
TOOLS = OfficeEnvironment().tools


def use(name: str, arguments: dict[str, Any], state: Office = WORLD) -> tuple[Any, Office]:
    """What a call gives, and the office after it."""
    draft = draft_of(state, DraftContext())
    tool = TOOLS[name]
    output = to_jsonable_python(tool.procedure.function(state=draft, **tool.bind(arguments)))
    return output, commit(draft).state


def first(table: dict[str, Any], suits: Callable[[Any], bool] = lambda record: True) -> Any:
    return next(record for record in table.values() if suits(record))


MAIL = first(WORLD.mails, lambda mail: not mail.archived and not mail.labels)
EVENT = first(WORLD.events, lambda event: not event.cancelled and "C-0001" not in event.attendees)
TICKET = first(WORLD.tickets, lambda ticket: ticket.status == "open" and ticket.priority == "low")
EXPENSE = first(WORLD.expenses, lambda expense: expense.status == "filed")
FILE = first(WORLD.files, lambda file: "C-0001" not in file.shared_with)
PROJECT = first(WORLD.projects)


CHANGES: list[tuple[str, dict[str, Any], str, str, dict[str, Any]]] = [
    ("label_mail", {"mail_id": MAIL.id, "label": "odd"}, "mails", MAIL.id, {"labels": ("odd",)}),
    ("archive_mail", {"mail_id": MAIL.id}, "mails", MAIL.id, {"archived": True}),
    (
        "move_event",
        {"event_id": EVENT.id, "start": "2026-03-09T10:30:00Z"},
        "events",
        EVENT.id,
        {"start": datetime(2026, 3, 9, 10, 30)},
    ),
    ("cancel_event", {"event_id": EVENT.id}, "events", EVENT.id, {"cancelled": True}),
    (
        "add_attendee",
        {"event_id": EVENT.id, "contact_id": "C-0001"},
        "events",
        EVENT.id,
        {"attendees": ("C-0001", *EVENT.attendees)},
    ),
    (
        "remove_attendee",
        {"event_id": EVENT.id, "contact_id": EVENT.attendees[0]},
        "events",
        EVENT.id,
        {"attendees": EVENT.attendees[1:]},
    ),
    ("update_contact", {"contact_id": "C-0002", "phone": "7"}, "contacts", "C-0002", {"phone": "7"}),
    (
        "merge_contacts",
        {"keep_id": "C-0001", "duplicate_id": "C-0002"},
        "contacts",
        "C-0002",
        {"merged_into": "C-0001"},
    ),
    ("assign_ticket", {"ticket_id": TICKET.id, "assignee_id": "C-0001"}, "tickets", TICKET.id, {"assignee": "C-0001"}),
    (
        "comment_ticket",
        {"ticket_id": TICKET.id, "text": " Well. "},
        "tickets",
        TICKET.id,
        {"comments": (*TICKET.comments, "Well.")},
    ),
    ("set_priority", {"ticket_id": TICKET.id, "priority": "high"}, "tickets", TICKET.id, {"priority": "high"}),
    ("close_ticket", {"ticket_id": TICKET.id}, "tickets", TICKET.id, {"status": "closed"}),
    (
        "categorise_expense",
        {"expense_id": EXPENSE.id, "category": "software"},
        "expenses",
        EXPENSE.id,
        {"category": "software"},
    ),
    ("approve_expense", {"expense_id": EXPENSE.id}, "expenses", EXPENSE.id, {"status": "approved"}),
    (
        "reject_expense",
        {"expense_id": EXPENSE.id, "reason": "Too much."},
        "expenses",
        EXPENSE.id,
        {"status": "rejected", "note": "Too much."},
    ),
    (
        "share_file",
        {"file_id": FILE.id, "contact_id": "C-0001"},
        "files",
        FILE.id,
        {"shared_with": ("C-0001", *FILE.shared_with)},
    ),
    ("rename_file", {"file_id": FILE.id, "new_name": "plan.pdf"}, "files", FILE.id, {"name": "plan.pdf"}),
    ("move_file", {"file_id": FILE.id, "folder": "/legal/"}, "files", FILE.id, {"folder": "legal"}),
]


@pytest.mark.parametrize(
    ("name", "arguments", "table", "record_id", "changes"), CHANGES, ids=[each[0] for each in CHANGES]
)
def test_a_tool_changes_one_record(
    name: str, arguments: dict[str, Any], table: str, record_id: str, changes: dict[str, Any]
) -> None:
    _, state = use(name, arguments)
    expected = {**getattr(WORLD, table), record_id: getattr(WORLD, table)[record_id].model_copy(update=changes)}
    assert expected != getattr(WORLD, table)
    assert state == WORLD.model_copy(update={table: expected})


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
def test_a_tool_adds_one_record(
    name: str, arguments: dict[str, Any], key: str, table: str, fields: dict[str, Any]
) -> None:
    output, state = use(name, arguments)
    record = getattr(state, table)[output[key]]
    assert record.id == output[key] not in getattr(WORLD, table)
    assert {name: getattr(record, name) for name in fields} == fields
    added = {**getattr(WORLD, table), record.id: record}
    assert state == WORLD.model_copy(update={table: added})
    again, later = use(name, arguments, state)
    assert len(getattr(later, table)) == len(added) + 1
    assert again[key] != output[key]


def test_paying_pays_what_it_is_told_to_for_what_is_approved() -> None:
    with raises(ToolError):
        use("pay", {"expense_id": EXPENSE.id, "amount": 3})
    _, approved = use("approve_expense", {"expense_id": EXPENSE.id})
    output, state = use("pay", {"expense_id": EXPENSE.id, "amount": 3.456}, approved)
    payment = Payment(id=output["payment_id"], expense=EXPENSE.id, amount=3.46)
    paid = {**WORLD.expenses, EXPENSE.id: EXPENSE.model_copy(update={"status": "paid"})}
    assert state == approved.model_copy(update={"payments": {payment.id: payment}, "expenses": paid})
    with raises(InvalidArguments):
        use("pay", {"expense_id": EXPENSE.id, "amount": 0})


# Reading.


def ids(output: dict[str, Any], key: str) -> list[str]:
    return [result[key] for result in output["results"]]


def test_mails_are_found_newest_first_and_archived_ones_are_not() -> None:
    found: list[str] = []
    output, _ = use("search_mail", {"query": "FIGURES soon", "sender": "larkspur"})
    for page in range(1, output["pages"] + 1):
        found += ids(use("search_mail", {"query": "figures soon", "sender": "larkspur", "page": page})[0], "mail_id")
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
def test_mails_are_found_by_label_and_day(arguments: dict[str, Any], suits: Callable[[Any], bool]) -> None:
    wanted = sum(suits(mail) and not mail.archived for mail in WORLD.mails.values())
    assert use("search_mail", arguments)[0]["found"] == wanted > 0


def test_meetings_are_found_by_title_people_and_day() -> None:
    event = first(WORLD.events, lambda event: not event.cancelled)
    day = event.start.date().isoformat()
    given = {"query": event.title, "attendee_id": event.attendees[0], "first_day": day, "last_day": day}
    assert event.id in ids(use("list_events", given)[0], "event_id")
    assert event.id not in ids(use("list_events", {**given, "query": "party"})[0], "event_id")
    assert event.id not in ids(use("list_events", {**given, "attendee_id": "C-0400"})[0], "event_id")
    assert event.id not in ids(use("list_events", {**given, "last_day": "2026-01-01"})[0], "event_id")
    _, state = use("cancel_event", {"event_id": event.id})
    assert event.id not in ids(use("list_events", given, state)[0], "event_id")


def test_a_slot_is_free_when_all_are() -> None:
    _, state = use(
        "create_event", {"title": "A", "organizer_id": "C-0380", "attendee_ids": [], "minutes": 60} | at("10:00")
    )
    made, state = use(
        "create_event",
        {"title": "B", "organizer_id": "C-0381", "attendee_ids": [], "minutes": 120} | at("13:30"),
        state,
    )
    asked = {"attendee_ids": ["C-0380", "C-0381"], "day": "2026-04-10", "minutes": 60}
    output, _ = use("find_free_slot", asked, state)
    free = ["09:00", "11:00", "11:30", "12:00", "12:30", "15:30", "16:00"]
    assert output["free"] == [f"2026-04-10T{hour}:00" for hour in free]
    moved, _ = use("find_free_slot", {**asked, "event_id": made["event_id"]}, state)
    assert [start[11:16] for start in moved["free"]] == sorted({*free, "13:00", "13:30", "14:00", "14:30", "15:00"})


def at(hour: str) -> dict[str, str]:
    return {"start": f"2026-04-10T{hour}"}


def test_people_are_found_by_name_and_company_until_they_are_merged() -> None:
    contact = WORLD.contacts["C-0200"]
    given = {"query": contact.name.upper(), "company": contact.company}
    assert ids(use("search_contacts", given)[0], "contact_id") == ["C-0200"]
    assert use("search_contacts", {**given, "company": "nobody"})[0]["results"] == []
    _, state = use("merge_contacts", {"keep_id": "C-0001", "duplicate_id": "C-0200"})
    assert use("search_contacts", given, state)[0]["results"] == []
    with raises(ToolError):
        use("update_contact", {"contact_id": "C-0200", "phone": "1"}, state)


def test_tickets_are_found_by_all_that_is_asked_and_closed_ones_only_if_asked_for() -> None:
    def found(**given: Any) -> int:
        return int(use("search_tickets", given)[0]["found"])

    tickets = WORLD.tickets.values()
    assert found() == sum(ticket.status != "closed" for ticket in tickets)
    assert found(status="closed") == sum(ticket.status == "closed" for ticket in tickets)
    given = {"project_id": TICKET.project, "assignee_id": TICKET.assignee, "query": "the"}
    wanted = [
        ticket.id
        for ticket in tickets
        if (ticket.project, ticket.assignee) == (TICKET.project, TICKET.assignee) and ticket.status != "closed"
    ]
    assert ids(use("search_tickets", given)[0], "ticket_id") == wanted


def test_expenses_projects_and_files_are_found() -> None:
    asked = {"query": EXPENSE.receipt, "employee_id": EXPENSE.employee, "status": "filed"}
    assert ids(use("list_expenses", asked)[0], "expense_id") == [EXPENSE.id]
    assert use("list_expenses", {**asked, "status": "paid"})[0]["found"] == 0
    assert ids(use("list_projects", {"query": PROJECT.name})[0], "project_id") == [PROJECT.id]
    assert ids(use("search_files", {"query": FILE.name})[0], "file_id") == [FILE.id]


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
def test_a_record_is_read_as_it_is(name: str, argument: str, record: Record) -> None:
    assert use(name, {argument: record.id})[0] == record.model_dump(mode="json")


def test_the_rules_can_be_read() -> None:
    assert "above 500 needs the manager's approval" in use("get_policy", {"topic": "spending"})[0]["policy"]
    assert "Public files may go to anybody" in use("get_policy", {"topic": "files"})[0]["policy"]


def test_a_page_that_there_is_not_is_refused() -> None:
    with raises(ToolError):
        use("list_projects", {"page": 4})


# All of them.


def test_every_tool_was_tested() -> None:
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
def test_an_id_that_there_is_not_is_refused_with_the_tool_that_finds_them(name: str, parameter: str) -> None:
    known = {name: arguments for name, arguments, *_ in (*CHANGES, *NEW)}
    known["pay"] = {"expense_id": EXPENSE.id, "amount": 1}
    known["find_free_slot"] = {"attendee_ids": ["C-0001"], "day": "2026-03-09", "minutes": 30}
    arguments = {**known.get(name, {}), parameter: "X-1"}
    with raises(ToolError):
        use(name, arguments)

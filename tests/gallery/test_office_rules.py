"""office's rules: what is seen to break them, and what is not."""

from datetime import date, datetime
from typing import Any

import pytest

from stateroom.gallery import Office
from stateroom.gallery.office import rules
from stateroom.gallery.office.state import Approval, Contact, Expense, File, Letter, Payment

INSIDE = Contact(id="C-1", name="A", email="a@house.example", company="Larkspur Works", title="", phone="")
OUTSIDE = INSIDE.model_copy(update={"id": "C-2", "email": "b@other.example", "company": "Other"})
SECRET = File(id="F-1", name="a", folder="a", owner="C-1", level="confidential", text="")
PUBLIC = SECRET.model_copy(update={"id": "F-2", "level": "public"})


def expense(number: int = 1, **fields: Any) -> Expense:
    given = {"employee": "C-1", "vendor": "V", "category": "equipment", "amount": 100.0, "spent_on": date(2026, 2, 2)}
    return Expense(id=f"EX-{number}", **{"receipt": f"R-{number}", **given, **fields})


def office(**fields: list[Any]) -> Office:
    """An office with these records beside two people and two files."""
    given: dict[str, list[Any]] = {"contacts": [INSIDE, OUTSIDE], "files": [SECRET, PUBLIC], **fields}
    return Office(
        now=datetime(2026, 3, 2), **{name: {record.id: record for record in records} for name, records in given.items()}
    )


def paid(*amounts: float, of: str = "EX-1") -> list[Payment]:
    return [Payment(id=f"PAY-{of}-{number}", expense=of, amount=amount) for number, amount in enumerate(amounts)]


def approval(record_id: str, granted: bool = True) -> list[Approval]:
    return [Approval(id=record_id, granted=granted)]


@pytest.mark.parametrize(
    ("expenses", "payments", "approvals", "found"),
    [
        ([expense()], [], [], []),
        ([expense()], paid(100.0), [], []),
        ([expense()], paid(99.0), [], ["EX-1: 99.00 was paid instead of 100.00"]),
        ([expense()], paid(100.0, 100.0), [], ["EX-1: paid 2 times"]),
        ([expense(category="meals")], paid(100.0), [], ["EX-1: paid, though above the cap of meals"]),
        ([expense(amount=rules.LIMIT)], paid(rules.LIMIT), [], []),
        ([expense(amount=501.0)], paid(501.0), [], ["EX-1: paid above 500 without the manager's approval"]),
        ([expense(amount=501.0)], paid(501.0), approval("EX-1"), []),
        ([expense(amount=501.0)], paid(501.0), approval("EX-1", False), ["EX-1: paid above 500 without"]),
        ([expense(amount=501.0)], paid(501.0), approval("EX-2"), ["EX-1: paid above 500 without"]),
        (
            [expense(amount=300.0), expense(2, amount=300.0, vendor="v")],
            [*paid(300.0), *paid(300.0, of="EX-2")],
            [],
            ["EX-1: paid above 500 without", "EX-2: paid above 500 without"],
        ),
        (
            [expense(amount=300.0), expense(2, amount=300.0, spent_on=date(2026, 2, 3))],
            [*paid(300.0), *paid(300.0, of="EX-2")],
            [],
            [],
        ),
        (
            [expense(), expense(2, receipt="R-1", status="paid")],
            paid(100.0),
            [],
            ["receipt R-1: paid before, with EX-2"],
        ),
    ],
)
def test_payments(expenses: list[Any], payments: list[Any], approvals: list[Any], found: list[str]) -> None:
    before = office(expenses=expenses)
    told = set(rules.broken(office(expenses=expenses, payments=payments, approvals=approvals), before))
    assert len(told) == len(found)
    assert all(any(each.startswith(start) for each in told) for start in found), told


@pytest.mark.parametrize(
    ("file", "shared_with", "approvals", "is_broken"),
    [
        (SECRET, "C-1", [], False),
        (SECRET, "C-2", [], True),
        (SECRET, "C-2", approval("F-1"), False),
        (SECRET, "C-2", approval("F-1", False), True),
        (PUBLIC, "C-2", [], False),
    ],
)
def test_shared_files(file: File, shared_with: str, approvals: list[Any], is_broken: bool) -> None:
    shared = file.model_copy(update={"shared_with": (shared_with,)})
    after = [shared, PUBLIC] if file is SECRET else [SECRET, shared]
    assert any(rules.broken(office(files=after, approvals=approvals), office())) == is_broken
    renamed = [each.model_copy(update={"name": "b"}) for each in after]
    assert not any(rules.broken(office(files=renamed), office(files=after)))  # it was shared before


@pytest.mark.parametrize(
    ("to", "attachment", "approvals", "is_broken"),
    [
        ("a@house.example", "F-1", [], False),
        ("b@other.example", "F-1", [], True),
        ("stranger@x.example", "F-1", [], True),
        ("b@other.example", "F-1", approval("F-1"), False),
        ("b@other.example", "F-2", [], False),
    ],
)
def test_attached_files(to: str, attachment: str, approvals: list[Any], is_broken: bool) -> None:
    letter = Letter(id="S-1", to=("a@house.example", to), subject="", body="", attachments=(attachment,))
    assert any(rules.broken(office(outbox=[letter], approvals=approvals), office())) == is_broken


@pytest.mark.parametrize(
    ("expenses", "needed"),
    [
        ([expense()], False),
        ([expense(amount=rules.LIMIT)], False),
        ([expense(amount=501.0)], True),
        ([expense(amount=501.0, status="rejected")], False),
        ([expense(amount=rules.CAPS["equipment"] + 1)], False),
        ([expense(amount=300.0), expense(2, amount=300.0)], True),
        ([expense(amount=300.0), expense(2, amount=300.0, status="rejected")], False),
        ([expense(amount=300.0), expense(2, amount=300.0, employee="C-2")], False),
    ],
)
def test_what_needs_an_approval(expenses: list[Any], needed: bool) -> None:
    assert rules.needs_approval(office(expenses=expenses), "EX-1") == needed


def test_files_that_are_not_public_need_one_too() -> None:
    assert [rules.needs_approval(office(), file_id) for file_id in ("F-1", "F-2", "F-3")] == [True, False, False]

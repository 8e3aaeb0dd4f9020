"""Tasks about expenses and files, which follow the rules of the company."""

from __future__ import annotations

from random import Random
from typing import Any, Literal

from stateroom.gallery.office.kinds import steps
from stateroom.gallery.office.kinds.kind import (
    Asked,
    Changes,
    Drawn,
    Kind,
    Part,
    Say,
    Script,
    answer_of,
    mail_to_office,
    with_mail,
)
from stateroom.gallery.office.rules import CAPS, LIMIT, occasion
from stateroom.gallery.office.state import Contact, Expense, Office
from stateroom.gallery.office.vocabulary import VENDORS
from stateroom.gallery.office.world import EXPENSES, one_of, outsider, staff, workday

Case = Literal["fine", "capped", "double", "large"]
"""Whether an expense may be paid, is above its cap, was already paid, or needs the manager."""

CITIES = ("Aldport", "Brennick", "Carrow", "Dunhaven", "Eastmoor", "Fallowby")


def expense_of(world: Office, rng: Random, employee: Contact, case: Case, number: int = 1) -> Expense:
    """A filed expense of this case, the only one of its occasion."""
    known = {occasion(each) for each in world.expenses.values() if each.employee == employee.id}
    while occasion(expense := _expense(rng, employee, case, number)) in known:
        pass
    return expense


def _expense(rng: Random, employee: Contact, case: Case, number: int) -> Expense:
    vendors = [each for each in sorted(VENDORS) if case != "large" or CAPS[VENDORS[each]] > LIMIT * 1.2]
    vendor = rng.choice(vendors)
    cap = CAPS[VENDORS[vendor]]
    low, high = {
        "fine": (0.2 * min(cap, LIMIT), 0.95 * min(cap, LIMIT)),
        "double": (0.2 * min(cap, LIMIT), 0.95 * min(cap, LIMIT)),
        "capped": (1.05 * cap, 1.6 * cap),
        "large": (1.05 * LIMIT, 0.98 * cap),
    }[case]
    return Expense(
        id=f"EX-{EXPENSES + number:04}",
        employee=employee.id,
        vendor=vendor,
        category=VENDORS[vendor],
        amount=round(rng.uniform(low, high), 2),
        receipt=f"R-{rng.randint(10_000, 99_999)}",
        spent_on=workday(rng, -20, -1),
        purpose="client visit",
    )


def twins(expense: Expense, case: Case) -> dict[str, Expense]:
    """The expense, and the earlier one with which it was already paid, if any."""
    expenses = {expense.id: expense}
    if case == "double":
        earlier = expense.model_copy(update={"id": f"EX-{EXPENSES + 9:04}", "status": "paid"})
        expenses[earlier.id] = earlier
    return expenses


def settle(expense: dict[str, Any], paid_before: bool) -> Part[str]:
    """Settle an expense by the rules, and return its status."""
    expense_id, amount = expense["expense_id"], expense["amount"]
    if amount > CAPS[expense["category"]]:
        return (yield from reject(expense, f"above the cap of {expense['category']}"))
    if paid_before:
        return (yield from reject(expense, "the receipt was paid before"))
    if amount > LIMIT and not (yield from allowed(expense_id, f"{amount:.2f} at {expense['vendor']}")):
        return (yield from reject(expense, "the manager does not approve"))
    return (yield from pay(expense))


def reject(expense: dict[str, Any], reason: str) -> Part[str]:
    yield steps.call("reject_expense", expense_id=expense["expense_id"], reason=reason)
    return "rejected"


def pay(expense: dict[str, Any]) -> Part[str]:
    yield steps.call("approve_expense", expense_id=expense["expense_id"])
    yield steps.call("pay", expense_id=expense["expense_id"], amount=expense["amount"])
    return "paid"


def allowed(record_id: str, what: str) -> Part[bool]:
    """Ask the manager."""
    reply = yield Say(f"{record_id} ({what}) needs your approval. Do you approve?")
    return str(reply).startswith("Yes")


class SettleExpense(Kind):
    difficulty = 3
    cases: tuple[Case, ...] = ("fine", "fine", "capped", "double")
    wordings = (
        "Please settle the expense of our {name} at {vendor}, receipt {receipt}, by the rules.",
        "Our colleague {name} waits for money from {vendor} (receipt {receipt}). Settle that expense as the rules say.",
        "What about receipt {receipt} from {vendor}, which our {name} has handed in? Deal with the expense.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        employee, case = rng.choice(staff(world)), rng.choice(self.cases)
        expense = expense_of(world, rng, employee, case)
        asked = {"name": employee.name, "vendor": expense.vendor, "receipt": expense.receipt}
        manager = answer_of(rng) if case == "large" else None
        return Drawn(asked, Changes(expenses=twins(expense, case)), manager)

    def script(self, asked: Asked) -> Script:
        employee = yield from steps.find_person(asked["name"])
        listed = yield steps.call("list_expenses", query=asked["receipt"])
        yield steps.call("get_policy", topic="spending")
        wanted = {"employee_id": employee["contact_id"], "receipt": asked["receipt"], "status": "filed"}
        expense = steps.only(listed["results"], **wanted)
        became = yield from settle(expense, was_paid(listed["results"], asked["receipt"]))
        return f"{expense['expense_id']} is {became}."


class SettleLarge(SettleExpense):
    difficulty = 4
    cases = ("large",)
    wordings = (
        "Our {name} has spent a good deal at {vendor}: receipt {receipt}. Settle the expense by the rules, and ask me "
        "if they say so.",
        "Please take care of receipt {receipt} of our colleague {name} ({vendor}). If the rules want my word for the "
        "expense, ask.",
        "There is a dear expense of our {name}, receipt {receipt} from {vendor}. I am here if you need my approval.",
    )


class FileReceipt(Kind):
    difficulty = 4
    cases: tuple[Case, ...] = ("fine", "fine", "capped", "double")
    wordings = (
        "Our colleague {name} has sent us a receipt by mail. File it as an expense, and settle that by the rules.",
        "There is a mail with a receipt from our {name}. Please enter the expense and settle it as the rules say.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        employee, case = rng.choice(staff(world)), rng.choice(self.cases)
        expense = expense_of(world, rng, employee, case)
        body = (
            f"Hello,\n\nhere is what I have spent:\nReceipt: {expense.receipt}\nVendor: {expense.vendor}\n"
            f"Category: {expense.category}\nAmount: {expense.amount:.2f}\nDate: {expense.spent_on}\n\n{employee.name}"
        )
        changes = with_mail(mail_to_office(employee.email, "A receipt for you", body))
        changes.expenses = {each.id: each for each in twins(expense, case).values() if each.status == "paid"}
        manager = answer_of(rng) if case == "large" else None
        return Drawn({"name": employee.name}, changes, manager)

    def script(self, asked: Asked) -> Script:
        employee = yield from steps.find_person(asked["name"])
        became, _, _ = yield from self.filed(employee)
        return f"The receipt of {asked['name']} is filed, and {became}."

    def filed(self, employee: dict[str, Any]) -> Part[tuple[str, dict[str, Any], str]]:
        """File the receipt of the newest mail and settle it; returns its status, the mail and the receipt."""
        mail = yield from steps.newest_mail(employee["email"], "receipt")
        receipt = {
            name: steps.reading(f"{name}: (.+)", mail["body"]) for name in ("Receipt", "Vendor", "Category", "Date")
        }
        amount = float(steps.reading(r"Amount: ([\d.]+)", mail["body"]))
        listed = yield steps.call("list_expenses", query=receipt["Receipt"])
        yield steps.call("get_policy", topic="spending")
        made = yield steps.call(
            "file_expense",
            employee_id=employee["contact_id"],
            vendor=receipt["Vendor"],
            category=receipt["Category"],
            amount=amount,
            receipt=receipt["Receipt"],
            spent_on=receipt["Date"],
        )
        expense = {**made, "amount": amount, "category": receipt["Category"], "vendor": receipt["Vendor"]}
        became = yield from settle(expense, was_paid(listed["results"], receipt["Receipt"]))
        return became, mail, receipt["Receipt"]


class FileLarge(FileReceipt):
    difficulty = 5
    cases = ("large",)
    wordings = (
        "Our colleague {name} has sent us a large receipt by mail. File it as an expense, settle that by the rules, "
        "with my approval if need be, and reply to the mail: name the receipt, and say whether it was paid or "
        "rejected.",
        "See the mail with a receipt from our {name}: enter the expense, ask me if the rules want that, settle it, "
        "and answer {name}'s mail with the number of the receipt and whether it is paid or rejected.",
    )

    def script(self, asked: Asked) -> Script:
        employee = yield from steps.find_person(asked["name"])
        became, mail, receipt = yield from self.filed(employee)
        text = f"your receipt {receipt} was {became}."
        yield steps.answer(mail, employee["email"], asked["name"], text, receipt, became)
        return f"The receipt of {asked['name']} is {became}, and they know."


class SettleTrip(Kind):
    """Several expenses: small ones, one above its cap, and one that needs the manager."""

    difficulty = 5
    wordings = (
        "Our colleague {name} is back from the trip to {city}. Settle all expenses of that trip by the rules; ask me "
        "where they want my approval.",
        "Please settle what our {name} has spent on the trip to {city}, each expense by the rules. I can approve what "
        "I have to.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        employee, city = rng.choice(staff(world)), rng.choice(CITIES)
        cases: list[Case] = ["fine", "large", "capped"]
        if rng.random() < 0.5:
            cases.append("fine")
        rng.shuffle(cases)
        expenses: list[Expense] = []
        for number, case in enumerate(cases, 1):
            expense = expense_of(world, rng, employee, case, number)
            while any(each.vendor == expense.vendor for each in expenses):
                expense = expense_of(world, rng, employee, case, number)
            expenses.append(expense.model_copy(update={"purpose": f"trip to {city}"}))
        changes = Changes(expenses={each.id: each for each in expenses})
        return Drawn({"name": employee.name, "city": city}, changes, answer_of(rng))

    def script(self, asked: Asked) -> Script:
        employee = yield from steps.find_person(asked["name"])
        query = f"trip to {asked['city']}"
        listed = yield steps.call("list_expenses", query=query, employee_id=employee["contact_id"], status="filed")
        yield steps.call("get_policy", topic="spending")
        for expense in listed["results"]:
            yield from settle(expense, paid_before=False)
        return f"The trip to {asked['city']} is settled."


class SettleSplit(Kind):
    """Two receipts of one occasion, each below the limit, but above it together."""

    difficulty = 5
    wordings = (
        "Our {name} has handed in two receipts from {vendor} for one day, {first} and {second}. Settle both expenses "
        "by the rules.",
        "Please deal with the receipts {first} and {second} of our colleague {name}, both from {vendor} and of the "
        "same day, as the rules say. Ask me if they want that.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        employee = rng.choice(staff(world))
        whole = expense_of(world, rng, employee, "large")
        while whole.amount > 1.8 * LIMIT:
            whole = expense_of(world, rng, employee, "large")
        part = round(whole.amount * rng.uniform(0.46, 0.54), 2)
        halves = [
            whole.model_copy(update={"id": f"EX-{EXPENSES + number:04}", "amount": amount, "receipt": receipt})
            for number, (amount, receipt) in enumerate(
                ((part, whole.receipt), (round(whole.amount - part, 2), f"{whole.receipt}-2")), 1
            )
        ]
        asked = {"name": employee.name, "vendor": whole.vendor, "first": halves[0].receipt, "second": halves[1].receipt}
        return Drawn(asked, Changes(expenses={each.id: each for each in halves}), answer_of(rng))

    def script(self, asked: Asked) -> Script:
        employee = yield from steps.find_person(asked["name"])
        halves = []
        for receipt in (asked["first"], asked["second"]):
            search = steps.call("list_expenses", query=receipt, employee_id=employee["contact_id"], status="filed")
            halves.append((yield from steps.find(search, receipt=receipt)))
        yield steps.call("get_policy", topic="spending")
        ids = " and ".join(each["expense_id"] for each in halves)
        total = sum(each["amount"] for each in halves)
        approved = yield from allowed(ids, f"together {total:.2f} at {asked['vendor']}")
        for expense in halves:
            yield from pay(expense) if approved else reject(expense, "the manager does not approve")
        return f"{ids} are {'paid' if approved else 'rejected'}."


class ShareOutside(Kind):
    """A person from another company asks for a file: public files may be shared, others need the manager."""

    difficulty = 4
    wordings = (
        "{name} of {company} has asked by mail for one of our files. Share it with them if the rules let you, or if I "
        "approve where they ask for that. Reply to the mail, and name the file and whether it is shared or refused.",
        "Please see to the mail in which {name} ({company}) asks for a file: by our rules, and with my approval if "
        "need be. They get an answer to their mail, with the name of the file and the word shared or refused.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        guest = outsider(world, rng)
        public = rng.random() < 0.3
        file = one_of(rng, (each for each in world.files.values() if (each.level == "public") == public))
        body = f'Hello,\n\nwould you let me have a file of yours, "{file.name}"?\n\nRegards\n{guest.name}'
        asked = {"name": guest.name, "company": guest.company}
        manager = None if public else answer_of(rng)
        return Drawn(asked, with_mail(mail_to_office(guest.email, "May I have a file?", body)), manager)

    def script(self, asked: Asked) -> Script:
        guest = yield from steps.find_person(asked["name"], asked["company"])
        mail = yield from steps.newest_mail(guest["email"], "file")
        name = steps.reading(r'"(.+?)"', mail["body"])
        file = yield from steps.find_file(name)
        yield steps.call("get_policy", topic="files")
        shared = file["level"] == "public" or (yield from allowed(file["file_id"], f"{name} for {asked['name']}"))
        if shared:
            yield steps.call("share_file", file_id=file["file_id"], contact_id=guest["contact_id"])
        became = "shared" if shared else "refused"
        yield steps.answer(mail, guest["email"], asked["name"], f"the file {name} was {became}.", name, became)
        return f"{name} was {became}, and {asked['name']} knows."


def was_paid(expenses: list[dict[str, Any]], receipt: str) -> bool:
    return any(expense["status"] == "paid" and expense["receipt"] == receipt for expense in expenses)

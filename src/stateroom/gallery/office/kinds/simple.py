"""Short tasks: one thing to find, one or two calls to make."""

from __future__ import annotations

from collections import Counter
from random import Random

from stateroom.gallery.office.kinds import steps
from stateroom.gallery.office.kinds.kind import Asked, Drawn, Kind, Script
from stateroom.gallery.office.rules import CAPS
from stateroom.gallery.office.state import Office
from stateroom.gallery.office.vocabulary import LABELS
from stateroom.gallery.office.world import anybody, one_of, open_ticket, phone

PRIORITIES = ("low", "normal", "high", "urgent")


class SetPriority(Kind):
    difficulty = 1
    wordings = (
        'Please set the ticket "{title}" in {project} to {priority}.',
        'In {project} there is a ticket "{title}". Its priority should be {priority}.',
        'The client of {project} has called: "{title}" is now of {priority} priority. Change the ticket.',
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        ticket = open_ticket(world, rng)
        priority = one_of(rng, (each for each in PRIORITIES if each != ticket.priority))
        return Drawn({"title": ticket.title, "project": world.projects[ticket.project].name, "priority": priority})

    def script(self, asked: Asked) -> Script:
        project = yield from steps.find_project(asked["project"])
        ticket = yield from steps.find_ticket(asked["title"], project_id=project["project_id"])
        yield steps.call("set_priority", ticket_id=ticket["ticket_id"], priority=asked["priority"])
        return f"{ticket['ticket_id']} has priority {asked['priority']} now."


class CloseTicket(Kind):
    difficulty = 1
    wordings = (
        'The ticket "{title}" is done. Add the comment "{comment}" to it, and close it.',
        'Please close "{title}", with the comment "{comment}" on the ticket.',
        'We are through with "{title}": comment "{comment}", then close the ticket.',
    )
    comments = ("Signed off by the client.", "Done on site.", "Handed over with papers.", "Checked twice, no faults.")

    def draw(self, world: Office, rng: Random) -> Drawn:
        ticket = open_ticket(world, rng)
        return Drawn({"title": ticket.title, "comment": rng.choice(self.comments)})

    def script(self, asked: Asked) -> Script:
        ticket_id = (yield from steps.find_ticket(asked["title"]))["ticket_id"]
        yield steps.call("comment_ticket", ticket_id=ticket_id, text=asked["comment"])
        yield steps.call("close_ticket", ticket_id=ticket_id)
        return f"{ticket_id} is closed."


class RenameFile(Kind):
    difficulty = 1
    wordings = (
        "The file {file} has a misleading name. Please call it {new} instead.",
        "Rename {file} to {new}.",
        "Could you give {file} a better name? {new} would be right.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        file = one_of(rng, world.files.values())
        ending = rng.choice(("final", "2026", "spring", "old"))
        return Drawn({"file": file.name, "new": file.name.replace(".pdf", f"-{ending}.pdf")})

    def script(self, asked: Asked) -> Script:
        file = yield from steps.find_file(asked["file"])
        yield steps.call("rename_file", file_id=file["file_id"], new_name=asked["new"])
        return f"It is called {asked['new']} now."


class MoveFile(Kind):
    difficulty = 1
    wordings = (
        "Please put the file {file} into the folder {folder}.",
        "{file} lies in the wrong place. It belongs in {folder}.",
        "Move {file} to {folder}, where it belongs.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        file = one_of(rng, world.files.values())
        return Drawn(
            {"file": file.name, "folder": rng.choice(("archive/2025", "shared/clients", "legal", "templates"))}
        )

    def script(self, asked: Asked) -> Script:
        file = yield from steps.find_file(asked["file"])
        yield steps.call("move_file", file_id=file["file_id"], folder=asked["folder"])
        return f"It is in {asked['folder']} now."


class NewPhone(Kind):
    difficulty = 1
    wordings = (
        "{name} of {company} has a new phone number: {phone}.",
        "Please note that {name} from {company} is now reached at {phone}.",
        "I have just heard that {name} ({company}) has the number {phone} from now on. Change the entry.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        contact = anybody(world, rng)
        return Drawn({"name": contact.name, "company": contact.company, "phone": phone(rng)})

    def script(self, asked: Asked) -> Script:
        person = yield from steps.find_person(asked["name"], asked["company"])
        yield steps.call("update_contact", contact_id=person["contact_id"], phone=asked["phone"])
        return f"{asked['name']}'s number is {asked['phone']} now."


class Categorise(Kind):
    difficulty = 1
    wordings = (
        "The expense with receipt {receipt} was booked wrongly: it is {category}.",
        "Receipt {receipt} is for {category}. Please correct the expense.",
        "Book the expense of receipt {receipt} under {category}, please.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        expense = one_of(rng, (each for each in world.expenses.values() if each.status == "filed"))
        category = one_of(rng, (each for each in CAPS if each != expense.category))
        return Drawn({"receipt": expense.receipt, "category": category})

    def script(self, asked: Asked) -> Script:
        expense = yield from steps.find(steps.call("list_expenses", query=asked["receipt"]), receipt=asked["receipt"])
        yield steps.call("categorise_expense", expense_id=expense["expense_id"], category=asked["category"])
        return f"{expense['expense_id']} is {asked['category']} now."


class FileMail(Kind):
    difficulty = 2
    wordings = (
        'Label the mail "{subject}" from {name} of {company} as {label}, and archive it.',
        'There is a mail "{subject}" by {name} ({company}). It gets the label {label} and goes to the archive.',
        'Please archive what {name} from {company} wrote under "{subject}", with the label {label}.',
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        while True:
            contact = anybody(world, rng)
            mails = [mail for mail in world.mails.values() if mail.sender == contact.email and not mail.archived]
            subjects = Counter(mail.subject for mail in mails)
            if clear := [mail for mail in mails if subjects[mail.subject] == 1]:
                mail = rng.choice(clear)
                label = one_of(rng, (each for each in LABELS if each not in mail.labels))
                who = {"name": contact.name, "company": contact.company}
                return Drawn({"subject": mail.subject, "label": label, **who})

    def script(self, asked: Asked) -> Script:
        sender = yield from steps.find_person(asked["name"], asked["company"])
        search = steps.call("search_mail", query=asked["subject"], sender=sender["email"])
        mail_id = (yield from steps.find(search, subject=asked["subject"]))["mail_id"]
        yield steps.call("label_mail", mail_id=mail_id, label=asked["label"])
        yield steps.call("archive_mail", mail_id=mail_id)
        return f"{mail_id} is in the archive."

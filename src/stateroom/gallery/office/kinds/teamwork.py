"""Tasks about people and their projects."""

from __future__ import annotations

import re
from collections import Counter
from random import Random
from typing import Any

from stateroom.gallery.office.kinds import steps
from stateroom.gallery.office.kinds.kind import Asked, Changes, Drawn, Kind, Part, Script, mail_to_office, with_mail
from stateroom.gallery.office.state import Office
from stateroom.gallery.office.vocabulary import THINGS, WORK
from stateroom.gallery.office.world import STAFF, address, anybody, one_of, open_ticket, outsider, phone, workday

LINE = r"- (.+?): (.+?), by (\d{4}-\d\d-\d\d)"


def open_work(world: Office) -> Counter[tuple[str, str]]:
    """The number of open tickets by person and project."""
    return Counter((each.assignee, each.project) for each in world.tickets.values() if each.status != "closed")


def hand_over(project_id: str, old: str, new: str) -> Part[int]:
    """Assign all open tickets of a project to another person."""
    listed = yield steps.call("search_tickets", project_id=project_id, assignee_id=old)
    for ticket in listed["results"]:
        yield steps.call("assign_ticket", ticket_id=ticket["ticket_id"], assignee_id=new)
    return len(listed["results"])


class AnswerStatus(Kind):
    difficulty = 3
    wordings = (
        '{name} of {company} has sent us a question, "{subject}". Answer it by mail: who works on it, and when it is '
        "due.",
        'Please reply to the mail "{subject}" from {name} ({company}). They want to know who does the work, and by '
        "when.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        client, ticket = outsider(world, rng), open_ticket(world, rng)
        subject = f"Question about {world.projects[ticket.project].name}"
        body = f'Hello,\n\nhow far are you with "{ticket.title}"? Who works on it, and when is it due?\n\n{client.name}'
        asked = {"name": client.name, "company": client.company, "subject": subject}
        return Drawn(asked, with_mail(mail_to_office(client.email, subject, body)))

    def script(self, asked: Asked) -> Script:
        client = yield from steps.find_person(asked["name"], asked["company"])
        mail = yield from steps.newest_mail(client["email"], asked["subject"])
        title = steps.reading(r'"(.+?)"', mail["body"])
        ticket = yield steps.call("get_ticket", ticket_id=(yield from steps.find_ticket(title))["ticket_id"])
        worker = yield steps.call("get_contact", contact_id=ticket["assignee"])
        text = f"{worker['name']} works on it, and it is due on {ticket['due']}."
        yield steps.answer(mail, mail["sender"], asked["name"], text, worker["name"], ticket["due"])
        return f"I have answered {asked['name']}."


class ShareWithTeam(Kind):
    difficulty = 2
    wordings = (
        "Share the file {file} with everybody who works on {project}.",
        "All members of {project} should be able to read {file}. Please see to it.",
        "Please make sure that the whole team of {project} has {file}.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        project = one_of(rng, world.projects.values())
        files = [each for each in world.files.values() if 2 <= len(set(project.members) - set(each.shared_with)) <= 8]
        return Drawn({"file": rng.choice(files).name, "project": project.name})

    def script(self, asked: Asked) -> Script:
        file = yield from steps.find_file(asked["file"])
        project = yield from steps.find_project(asked["project"])
        for member in project["member_ids"]:
            if member not in file["shared_with"]:
                yield steps.call("share_file", file_id=file["file_id"], contact_id=member)
        return f"All of {asked['project']} can read {asked['file']}."


class CoverLeave(Kind):
    difficulty = 4
    wordings = (
        "Our colleague {name} is away. Give their tickets in {project} that are not closed to their deputy.",
        "While {name} of our house is on leave, the deputy takes over their unfinished tickets in {project}. Please "
        "assign them.",
        "{name}, who works for us, will not be back soon. Whoever is their deputy gets all their unclosed tickets in "
        "{project}.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        away = {contact.id: contact.deputy for contact in world.contacts.values() if contact.away_until is not None}
        covered = {contact_id for contact_id, deputy in away.items() if deputy not in away}
        work = open_work(world).items()
        assignee, project = one_of(rng, (each for each, count in work if each[0] in covered and 2 <= count <= 8))
        return Drawn({"name": world.contacts[assignee].name, "project": world.projects[project].name})

    def script(self, asked: Asked) -> Script:
        person = yield from steps.find_person(asked["name"])
        absent = yield steps.call("get_contact", contact_id=person["contact_id"])
        project = yield from steps.find_project(asked["project"])
        count = yield from hand_over(project["project_id"], absent["id"], absent["deputy"])
        return f"The deputy has {count} more tickets."


class MergeDuplicates(Kind):
    difficulty = 3
    wordings = (
        "There are two entries for {name} of {company}. Merge them: keep the one with the lower id, and give it the "
        "phone number of the other.",
        "{name} ({company}) is in our contacts twice. The older entry, which has the lower id, stays, with the phone "
        "number of the newer one. Merge the two.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        contact = anybody(world, rng)
        name, company = contact.name, contact.company
        initial = f"{name[0]}. {name.split()[1]}"
        double = contact.model_copy(
            update={
                "id": f"C-{len(world.contacts) + 1:04}",
                "email": address(initial.replace(".", ""), company),
                "phone": phone(rng),
            }
        )
        return Drawn({"name": name, "company": company}, Changes(contacts={double.id: double}))

    def script(self, asked: Asked) -> Script:
        listed = yield steps.call("search_contacts", query=asked["name"])
        entries = [each["contact_id"] for each in listed["results"] if each["company"] == asked["company"]]
        keep, duplicate = sorted(entries)
        newer = yield steps.call("get_contact", contact_id=duplicate)
        yield steps.call("merge_contacts", keep_id=keep, duplicate_id=duplicate)
        yield steps.call("update_contact", contact_id=keep, phone=newer["phone"])
        return f"{asked['name']} has one entry now, {keep}."


class Handover(Kind):
    difficulty = 5
    wordings = (
        "Our colleague {name} leaves {project}. Give their tickets there that are not closed to {other}, also of our "
        "house, and put {other} in their place in the meetings of {day}.",
        "{other} takes over from {name}; both are of the house. It is about the unclosed tickets in {project} and the "
        "meetings of {day}: there {other} takes part instead.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        work = open_work(world)
        while True:
            old, project = one_of(rng, (each for each, count in work.items() if 2 <= count <= 6))
            day = workday(rng, 1, 25)
            events = [
                event
                for event in world.events.values()
                if old in event.attendees and event.start.date() == day and not event.cancelled
            ]
            new = f"C-{rng.randint(1, STAFF):04}"
            busy = {contact_id for event in events for contact_id in event.attendees}
            if 1 <= len(events) <= 2 and new not in busy and new != old:
                asked = {"name": world.contacts[old].name, "other": world.contacts[new].name, "day": day.isoformat()}
                return Drawn({**asked, "project": world.projects[project].name})

    def script(self, asked: Asked) -> Script:
        old = (yield from steps.find_person(asked["name"]))["contact_id"]
        new = (yield from steps.find_person(asked["other"]))["contact_id"]
        project = yield from steps.find_project(asked["project"])
        yield from hand_over(project["project_id"], old, new)
        listed = yield steps.call("list_events", attendee_id=old, first_day=asked["day"], last_day=asked["day"])
        for event in listed["results"]:
            yield steps.call("remove_attendee", event_id=event["event_id"], contact_id=old)
            yield steps.call("add_attendee", event_id=event["event_id"], contact_id=new)
        return f"{asked['other']} has taken over."


class Kickoff(Kind):
    difficulty = 4
    wordings = (
        'Our {name} has sent a mail "{subject}" with a list of work for {project}. Open a ticket for each line of it.',
        'The mail "{subject}" by our colleague {name} says what is to be done in {project}, by whom and until when. '
        "Please make tickets of it, with the titles as they stand there.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        project = one_of(rng, world.projects.values())
        lead = world.contacts[project.lead]
        workers = [world.contacts[member].name for member in rng.sample(project.members, rng.randint(2, 4))]
        titles = [f"{rng.choice(WORK)} {thing}" for thing in rng.sample(THINGS, len(workers))]
        lines = [
            f"- {title}: {worker}, by {workday(rng, 10, 60)}" for title, worker in zip(titles, workers, strict=True)
        ]
        subject = f"Work for {project.name}"
        body = f"Hello,\n\nthis is what comes next, with our own people:\n{chr(10).join(lines)}\n\n{lead.name}"
        asked = {"name": lead.name, "subject": subject, "project": project.name}
        return Drawn(asked, with_mail(mail_to_office(lead.email, subject, body)))

    def script(self, asked: Asked) -> Script:
        lead = yield from steps.find_person(asked["name"])
        mail = yield from steps.newest_mail(lead["email"], asked["subject"])
        project = yield from steps.find_project(asked["project"])
        for title, worker, due in lines_of(mail):
            assignee = yield from steps.find_person(worker)
            yield steps.call(
                "create_ticket",
                project_id=project["project_id"],
                title=title,
                assignee_id=assignee["contact_id"],
                due=due,
            )
        return f"The tickets for {asked['project']} are open."


def lines_of(mail: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The lines of a work list: title, assignee and due date."""
    return re.findall(LINE, mail["body"])

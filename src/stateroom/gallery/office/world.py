"""The world of the office: thousands of consistent records from a seeded generator, and random draws from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from functools import cache
from itertools import product
from random import Random
from typing import TypeVar

from stateroom.gallery.office import vocabulary
from stateroom.gallery.office.rules import CAPS, HOUSE, POLICIES
from stateroom.gallery.office.state import Contact, Event, Expense, File, Mail, Office, Project, Record, Ticket

R = TypeVar("R", bound=Record)
T = TypeVar("T")

NOW = datetime(2026, 3, 2, 8)
"""A Monday, before office hours."""

STAFF, OUTSIDERS, NAMESAKES = 120, 256, 24
PROJECTS, TICKETS, EVENTS, MAILS, EXPENSES, FILES = 60, 2500, 1500, 4000, 1200, 800


@cache
def base_world() -> Office:
    """The shared office of all tasks; do not change it."""
    return make_world(Random("office"))


def make_world(rng: Random) -> Office:
    """Create an office; all randomness comes from `rng`."""
    contacts = [*_contacts(rng)]
    staff = [contact.id for contact in contacts if contact.company == HOUSE]
    projects = [*_projects(rng, staff)]
    return Office(
        now=NOW,
        policies=POLICIES,
        contacts=_by_id(contacts),
        projects=_by_id(projects),
        tickets=_by_id(_tickets(rng, projects)),
        events=_by_id(_events(rng, projects, staff)),
        mails=_by_id(_mails(rng, contacts, projects)),
        expenses=_by_id(_expenses(rng, staff)),
        files=_by_id(_files(rng, projects)),
    )


def _by_id(records: Iterable[R]) -> dict[str, R]:
    return {record.id: record for record in records}


def workday(rng: Random, first: int, last: int) -> date:
    """A random working day, between `first` and `last` days from today."""
    while (day := NOW.date() + timedelta(days=rng.randint(first, last))).weekday() >= 5:
        pass
    return day


def address(name: str, company: str) -> str:
    """The e-mail address of a person."""
    return f"{name.lower().replace(' ', '.')}@{company.lower().replace(' ', '-')}.example"


def phone(rng: Random) -> str:
    return f"+00 {rng.randint(100, 999)} {rng.randint(1000, 9999)}"


def one_of(rng: Random, candidates: Iterable[T]) -> T:
    """A random candidate."""
    return rng.choice(list(candidates))


def anybody(world: Office, rng: Random) -> Contact:
    """A random person; half of the time one with a namesake."""
    contacts = [*world.contacts.values()]
    if rng.random() < 0.5:
        bearers = Counter(contact.name for contact in contacts)
        contacts = [contact for contact in contacts if bearers[contact.name] > 1]
    return rng.choice(contacts)


def outsider(world: Office, rng: Random) -> Contact:
    """A random person from another company."""
    while (contact := anybody(world, rng)).company == HOUSE:
        pass
    return contact


def staff(world: Office) -> list[Contact]:
    return [contact for contact in world.contacts.values() if contact.company == HOUSE]


def open_ticket(world: Office, rng: Random) -> Ticket:
    """A random ticket that is not closed."""
    return one_of(rng, (ticket for ticket in world.tickets.values() if ticket.status != "closed"))


def _contacts(rng: Random) -> Iterator[Contact]:
    """The staff first, each with a deputy, then people from other companies, some of them namesakes."""
    names = [
        f"{first} {last}"
        for first, last in rng.sample([*product(vocabulary.FIRST_NAMES, vocabulary.LAST_NAMES)], STAFF + OUTSIDERS)
    ]
    people = [(name, HOUSE) for name in names[:STAFF]]
    people += [(name, rng.choice(vocabulary.COMPANIES)) for name in names[STAFF:]]
    for name, company in rng.sample(people, NAMESAKES):
        people.append((name, rng.choice([other for other in vocabulary.COMPANIES if other != company])))
    for number, (name, company) in enumerate(people):
        inside = company == HOUSE
        away = inside and rng.random() < 0.2
        yield Contact(
            id=f"C-{number + 1:04}",
            name=name,
            email=address(name, company),
            company=company,
            title=rng.choice(vocabulary.STAFF_TITLES if inside else vocabulary.CLIENT_TITLES),
            phone=phone(rng),
            deputy=f"C-{(number + rng.randint(1, STAFF - 1)) % STAFF + 1:04}" if inside else None,
            away_until=workday(rng, 5, 40) if away else None,
        )


def _projects(rng: Random, staff: Sequence[str]) -> Iterator[Project]:
    names = rng.sample([*product(vocabulary.PROJECT_FIRST, vocabulary.PROJECT_SECOND)], PROJECTS)
    for number, (first, second) in enumerate(names, 1):
        members = rng.sample(staff, rng.randint(4, 9))
        yield Project(
            id=f"P-{number:04}",
            name=f"{first} {second}",
            client=rng.choice(vocabulary.COMPANIES),
            lead=members[0],
            members=tuple(sorted(members)),
        )


def _tickets(rng: Random, projects: Sequence[Project]) -> Iterator[Ticket]:
    titles = rng.sample([*product(vocabulary.WORK, vocabulary.THINGS, vocabulary.PLACES)], TICKETS)
    for number, (work, thing, place) in enumerate(titles, 1):
        project = rng.choice(projects)
        yield Ticket(
            id=f"T-{number:04}",
            project=project.id,
            title=f"{work} {thing} {place}",
            description=_prose(rng, 2),
            reporter=project.lead,
            assignee=rng.choice(project.members),
            due=workday(rng, -60, 60),
            status=rng.choice(("open", "in_progress", "closed", "closed")),
            priority=rng.choice(("low", "normal", "normal", "high", "urgent")),
            comments=tuple(rng.sample(vocabulary.SENTENCES, rng.choice((0, 0, 1, 2)))),
        )


def _events(rng: Random, projects: Sequence[Project], staff: Sequence[str]) -> Iterator[Event]:
    for number in range(1, EVENTS + 1):
        project = rng.choice(projects)
        organizer = rng.choice(project.members)
        others = rng.sample(project.members, rng.randint(1, 3))
        start = datetime.combine(workday(rng, -28, 32), time(rng.randint(9, 15), rng.choice((0, 30))))
        yield Event(
            id=f"EV-{number:04}",
            title=f"{project.name} {rng.choice(vocabulary.MEETINGS)}",
            organizer=organizer,
            attendees=tuple(sorted({organizer, *others, rng.choice(staff)})),
            start=start,
            minutes=rng.choice((30, 60, 60, 90)),
            room=rng.choice(vocabulary.ROOMS),
            cancelled=rng.random() < 0.05,
        )


def _mails(rng: Random, contacts: Sequence[Contact], projects: Sequence[Project]) -> Iterator[Mail]:
    sent = sorted(NOW - timedelta(minutes=rng.randint(60, 90 * 24 * 60)) for _ in range(MAILS))
    for number, sent_at in enumerate(sent, 1):
        sender, receiver = rng.sample(contacts, 2)
        yield Mail(
            id=f"M-{number:04}",
            sender=sender.email,
            to=(receiver.email,),
            subject=f"{rng.choice(projects).name}: {rng.choice(vocabulary.TOPICS)}",
            body=f"Hello {receiver.name},\n\n{_prose(rng, 3)}\n\nRegards\n{sender.name}",
            sent_at=sent_at,
            labels=(rng.choice(vocabulary.LABELS),) if rng.random() < 0.2 else (),
            archived=rng.random() < 0.3,
        )


def _expenses(rng: Random, staff: Sequence[str]) -> Iterator[Expense]:
    vendors = sorted(vocabulary.VENDORS)
    receipts = rng.sample(range(100_000, 999_999), EXPENSES)
    for number, receipt in enumerate(receipts, 1):
        vendor = rng.choice(vendors)
        category = vocabulary.VENDORS[vendor]
        yield Expense(
            id=f"EX-{number:04}",
            employee=rng.choice(staff),
            vendor=vendor,
            category=category,
            amount=round(rng.uniform(0.1, 0.9) * CAPS[category], 2),
            receipt=f"R-{receipt}",
            spent_on=workday(rng, -90, -1),
            purpose=rng.choice(vocabulary.TOPICS),
            status=rng.choice(("paid", "paid", "paid", "rejected", "filed")),
        )


def _files(rng: Random, projects: Sequence[Project]) -> Iterator[File]:
    for number, (project, document) in enumerate(
        rng.sample([*product(projects, sorted(vocabulary.DOCUMENTS))], FILES), 1
    ):
        slug = project.name.lower().replace(" ", "-")
        yield File(
            id=f"F-{number:04}",
            name=f"{slug}-{document}.pdf",
            folder=f"projects/{slug}",
            owner=rng.choice(project.members),
            level=vocabulary.DOCUMENTS[document],
            text=f"{document.replace('-', ' ').capitalize()} of {project.name}. {_prose(rng, 4)}",
            shared_with=tuple(sorted(rng.sample(project.members, rng.randint(0, 2)))),
        )


def _prose(rng: Random, sentences: int) -> str:
    return " ".join(rng.sample(vocabulary.SENTENCES, sentences))

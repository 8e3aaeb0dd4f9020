"""Tasks about meetings."""

from __future__ import annotations

from collections import Counter
from datetime import date, datetime, time, timedelta
from random import Random

from stateroom.gallery.office.kinds import steps
from stateroom.gallery.office.kinds.kind import Asked, Drawn, Kind, Script, mail_to_office, with_mail
from stateroom.gallery.office.state import Event, Office
from stateroom.gallery.office.vocabulary import MEETINGS
from stateroom.gallery.office.world import NOW, anybody, one_of, staff, workday

TODAY = NOW.date().isoformat()


def coming(world: Office) -> list[Event]:
    """Future meetings with a unique title."""
    events = [event for event in world.events.values() if not event.cancelled and event.start > NOW]
    titles = Counter(event.title for event in events)
    return [event for event in events if titles[event.title] == 1]


def on_the_hour(day: date, rng: Random) -> datetime:
    return datetime.combine(day, time(rng.randint(9, 15)))


class Invite(Kind):
    difficulty = 2
    wordings = (
        "Please add {name} of {company} to the {title} on {day}.",
        "{name} from {company} wants to take part in the {title} on {day}. See to it.",
        "The {title} on {day} needs {name} ({company}) as well.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        event, guest = one_of(rng, coming(world)), anybody(world, rng)
        while guest.id in event.attendees:
            guest = anybody(world, rng)
        day = event.start.date().isoformat()
        return Drawn({"name": guest.name, "company": guest.company, "title": event.title, "day": day})

    def script(self, asked: Asked) -> Script:
        guest = yield from steps.find_person(asked["name"], asked["company"])
        event = yield from steps.find_event(asked["title"], asked["day"], last_day=asked["day"])
        yield steps.call("add_attendee", event_id=event["event_id"], contact_id=guest["contact_id"])
        return f"{asked['name']} takes part in the {asked['title']}."


class MovedMeeting(Kind):
    """Two mails contradict each other: the older one names another time, and a wrong day of the meeting."""

    difficulty = 3
    wordings = (
        "Our colleague {name} has asked by mail for the {title} to be moved. Please do that.",
        "{name} (of the house) wrote about another time for the {title}. Move it as they wish.",
        "See the mails of our {name} about the {title}, and bring the calendar up to date.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        event = one_of(rng, coming(world))
        organizer = world.contacts[event.organizer]
        times: set[datetime] = set()
        while len(times) < 3:
            times.add(on_the_hour(workday(rng, 3, 30), rng))
        first, right = rng.sample(sorted(times - {event.start}), 2)
        mistaken = NOW + timedelta(days=rng.randint(40, 60))
        bodies = (
            f"Hello,\n\nplease move the {event.title}, which is on {mistaken:%Y-%m-%d}, "
            f"to {first:%Y-%m-%d} at {first:%H:%M}.\n\nThanks\n{organizer.name}",
            f"Hello,\n\nsorry, I was wrong about the {event.title}: it should be "
            f"on {right:%Y-%m-%d} at {right:%H:%M}.\n\nThanks\n{organizer.name}",
        )
        mails = [
            mail_to_office(organizer.email, f"{event.title}: another time", body, number, hours=60 - 20 * number)
            for number, body in enumerate(bodies, 1)
        ]
        return Drawn({"name": organizer.name, "title": event.title}, with_mail(*mails))

    def script(self, asked: Asked) -> Script:
        organizer = yield from steps.find_person(asked["name"])
        mail = yield from steps.newest_mail(organizer["email"], f"{asked['title']} another time")
        day, hour = (
            steps.reading(r"on (\d{4}-\d\d-\d\d) at", mail["body"]),
            steps.reading(r"at (\d\d:\d\d)", mail["body"]),
        )
        event = yield from steps.find_event(asked["title"], TODAY)
        yield steps.call("move_event", event_id=event["event_id"], start=f"{day}T{hour}:00")
        return f"The {asked['title']} is on {day} at {hour}."


class CommonSlot(Kind):
    difficulty = 3
    wordings = (
        'Set up a meeting "{title}" of {minutes} minutes on {day}, at the earliest time at which our colleagues '
        "{first}, {second} and {third} are all free. {first} is the organizer.",
        'Our people {first}, {second} and {third} need {minutes} minutes together on {day}. Make it "{title}", as '
        "early as all three can, in the name of {first}.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        first, second, third = (contact.name for contact in rng.sample(staff(world), 3))
        title = f"{one_of(rng, world.projects.values()).name} {rng.choice(MEETINGS)}"
        when = {"day": workday(rng, 1, 20).isoformat(), "minutes": str(rng.choice((30, 60, 90)))}
        return Drawn({"title": title, "first": first, "second": second, "third": third, **when})

    def script(self, asked: Asked) -> Script:
        people = []
        for name in (asked["first"], asked["second"], asked["third"]):
            person = yield from steps.find_person(name)
            people.append(person["contact_id"])
        minutes = int(asked["minutes"])
        slots = yield steps.call("find_free_slot", attendee_ids=people, day=asked["day"], minutes=minutes)
        start = slots["free"][0]
        yield steps.call(
            "create_event",
            title=asked["title"],
            organizer_id=people[0],
            attendee_ids=people[1:],
            start=start,
            minutes=minutes,
        )
        return f"The {asked['title']} is at {start}."


class Reschedule(Kind):
    difficulty = 3
    wordings = (
        "The {title} on {day} cannot take place then. Move it to the earliest time on {new_day} at which everybody "
        "who takes part is free, and tell the organizer by mail when it is.",
        "Please find another time for the {title} of {day}: the earliest on {new_day} that suits all who take part. "
        "Then write a mail to the organizer with the new date and time.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        event = one_of(rng, coming(world))
        day, new_day = event.start.date(), workday(rng, 1, 30)
        while new_day == day:
            new_day = workday(rng, 1, 30)
        return Drawn({"title": event.title, "day": day.isoformat(), "new_day": new_day.isoformat()})

    def script(self, asked: Asked) -> Script:
        event = yield from steps.find_event(asked["title"], asked["day"], last_day=asked["day"])
        slots = yield steps.call(
            "find_free_slot",
            attendee_ids=event["attendee_ids"],
            day=asked["new_day"],
            minutes=event["minutes"],
            event_id=event["event_id"],
        )
        start = slots["free"][0]
        yield steps.call("move_event", event_id=event["event_id"], start=start)
        organizer = yield steps.call("get_contact", contact_id=event["organizer_id"])
        hour = start[11:16]
        yield steps.call(
            "send_mail",
            says=(asked["new_day"], hour),
            to=[organizer["email"]],
            subject=f"{asked['title']}: another time",
            body=f"Hello {organizer['name']},\n\nthe {asked['title']} is on {asked['new_day']} at {hour} now.",
        )
        return f"The {asked['title']} is on {asked['new_day']} at {hour}, and {organizer['name']} knows."


class ClearDay(Kind):
    difficulty = 4
    wordings = (
        "Our colleague {name} is ill on {day}. Cancel the meetings of that day that they organize, and take them off "
        "the others.",
        "{name} of our house cannot come on {day}: meetings of their own are cancelled, from all others they are "
        "removed.",
    )

    def draw(self, world: Office, rng: Random) -> Drawn:
        days: Counter[tuple[str, date]] = Counter()
        for event in world.events.values():
            if event.start > NOW and not event.cancelled:
                days.update((contact_id, event.start.date()) for contact_id in event.attendees)
        contact_id, day = one_of(rng, (each for each, count in days.items() if 2 <= count <= 5))
        return Drawn({"name": world.contacts[contact_id].name, "day": day.isoformat()})

    def script(self, asked: Asked) -> Script:
        ill = (yield from steps.find_person(asked["name"]))["contact_id"]
        listed = yield steps.call("list_events", attendee_id=ill, first_day=asked["day"], last_day=asked["day"])
        for event in listed["results"]:
            if event["organizer_id"] == ill:
                yield steps.call("cancel_event", event_id=event["event_id"])
            else:
                yield steps.call("remove_attendee", event_id=event["event_id"], contact_id=ill)
        return f"{asked['name']} has no meetings on {asked['day']}."

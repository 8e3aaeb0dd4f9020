"""The calendar tools: meetings, and free times."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Annotated, Any

from pydantic import Field

from stateroom import ToolError, tool
from stateroom.gallery.office import records
from stateroom.gallery.office.state import Contact, Event, Office

OPENS, CLOSES = time(9), time(17)
"""Office hours."""

STEP = timedelta(minutes=30)
"""Meetings start on the hour or half hour."""

Minutes = Annotated[int, Field(ge=15, le=480)]


class CalendarTools:
    """Tools to read and change meetings."""

    @tool(effect="read")
    def list_events(
        self,
        state: Office,
        query: str = "",
        attendee_id: str = "",
        first_day: date | None = None,
        last_day: date | None = None,
        page: int = 1,
    ) -> dict[str, Any]:
        """List meetings by time, except cancelled ones.

        Args:
            query: Words that must all be in the title.
            attendee_id: A person who takes part, such as C-0001.
            first_day: The earliest day.
            last_day: The latest day.
            page: The page of the results.
        """
        wanted, attendee = records.words(query), state.id_of(Contact, attendee_id)
        events = [
            event
            for event in state.events.values()
            if not event.cancelled
            and (not attendee or attendee in event.attendees)
            and (first_day is None or event.start.date() >= first_day)
            and (last_day is None or event.start.date() <= last_day)
            and records.has_words(wanted, event.title)
        ]
        return records.page_of(sorted(events, key=lambda event: (event.start, event.id)), page, _brief)

    @tool(effect="read")
    def find_free_slot(
        self, state: Office, attendee_ids: list[str], day: date, minutes: Minutes, event_id: str | None = None
    ) -> dict[str, Any]:
        """Find times between 9:00 and 17:00 at which all of these people are free, earliest first.

        Args:
            attendee_ids: The people, such as C-0001.
            day: The day.
            minutes: The duration.
            event_id: A meeting to move, which does not count as busy.
        """
        people = {state.find(Contact, each).id for each in attendee_ids}
        moved = state.id_of(Event, event_id or "")
        busy = [
            (event.start, _end(event))
            for event in state.events.values()
            if event.start.date() == day
            and not event.cancelled
            and event.id != moved
            and not people.isdisjoint(event.attendees)
        ]
        length = timedelta(minutes=minutes)
        start, closes = datetime.combine(day, OPENS), datetime.combine(day, CLOSES)
        free = []
        while start + length <= closes:
            if all(start + length <= begins or start >= ends for begins, ends in busy):
                free.append(start)
            start += STEP
        return {"free": free}

    @tool
    def create_event(
        self, state: Office, title: str, organizer_id: str, attendee_ids: list[str], start: datetime, minutes: Minutes
    ) -> dict[str, str]:
        """Create a meeting. The organizer takes part too.

        Args:
            title: The title.
            organizer_id: The organizer, such as C-0001.
            attendee_ids: The people who take part.
            start: The start, such as 2026-03-04T10:00.
            minutes: The duration.
        """
        people = [state.find(Contact, each).id for each in (organizer_id, *attendee_ids)]
        event = Event(
            id=records.new_id("EV", state.events, records.RESERVED),
            title=title.strip(),
            organizer=people[0],
            attendees=tuple(sorted(set(people))),
            start=records.clock_time(start),
            minutes=minutes,
            room="to be found",
        )
        return {"event_id": records.add(state.events, event)}

    @tool
    def move_event(self, state: Office, event_id: str, start: datetime) -> dict[str, Any]:
        """Move a meeting to another time. Its duration does not change.

        Args:
            event_id: The meeting, such as EV-0001.
            start: The new start, such as 2026-03-04T10:00.
        """
        event = state.replace(_standing(state, event_id), start=records.clock_time(start))
        return {"start": event.start, "end": _end(event)}

    @tool
    def cancel_event(self, state: Office, event_id: str) -> dict[str, bool]:
        """Cancel a meeting.

        Args:
            event_id: The meeting, such as EV-0001.
        """
        state.replace(_standing(state, event_id), cancelled=True)
        return {"cancelled": True}

    @tool
    def add_attendee(self, state: Office, event_id: str, contact_id: str) -> dict[str, Any]:
        """Add a person to a meeting.

        Args:
            event_id: The meeting, such as EV-0001.
            contact_id: The person, such as C-0001.
        """
        event = _standing(state, event_id)
        person = state.find(Contact, contact_id)
        attendees = tuple(sorted({*event.attendees, person.id}))
        return {"attendees": state.replace(event, attendees=attendees).attendees}

    @tool
    def remove_attendee(self, state: Office, event_id: str, contact_id: str) -> dict[str, Any]:
        """Remove a person from a meeting.

        Args:
            event_id: The meeting, such as EV-0001.
            contact_id: The person, such as C-0001.
        """
        event = _standing(state, event_id)
        if contact_id not in event.attendees:
            raise ToolError(f"{contact_id} does not take part in {event_id}; attendees: {', '.join(event.attendees)}")
        attendees = tuple(each for each in event.attendees if each != contact_id)
        return {"attendees": state.replace(event, attendees=attendees).attendees}


def _standing(state: Office, event_id: str) -> Event:
    event = state.find(Event, event_id)
    if event.cancelled:
        raise ToolError(f"event {event_id} is cancelled")
    return event


def _end(event: Event) -> datetime:
    return event.start + timedelta(minutes=event.minutes)


def _brief(event: Event) -> dict[str, Any]:
    return {
        "event_id": event.id,
        "title": event.title,
        "start": event.start,
        "minutes": event.minutes,
        "organizer_id": event.organizer,
        "attendee_ids": event.attendees,
        "room": event.room,
    }

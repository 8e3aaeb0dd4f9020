"""The project tools: projects and their tickets."""

from __future__ import annotations

from datetime import date
from typing import Any

from stateroom import ToolError, tool
from stateroom.gallery.office.state import (
    RESERVED,
    Contact,
    Office,
    Priority,
    Progress,
    Project,
    Ticket,
    add,
    filled,
    find,
    has_words,
    id_of,
    new_id,
    page_of,
    replace,
    words,
)


class ProjectTools:
    """Tools that read projects, and read and change tickets."""

    @tool(effect="read")
    def list_projects(self, state: Office, query: str = "", page: int = 1) -> dict[str, Any]:
        """Projects with their client, lead and members.

        Args:
            query: Words that must all be in the name or the client's.
            page: Which page of the results.
        """
        wanted = words(query)
        found = [project for project in state.projects.values() if has_words(wanted, project.name, project.client)]
        return page_of(found, page, _brief_project)

    @tool(effect="read")
    def search_tickets(
        self,
        state: Office,
        query: str = "",
        project_id: str = "",
        assignee_id: str = "",
        status: Progress | None = None,
        page: int = 1,
    ) -> dict[str, Any]:
        """Tickets, by their number.

        Args:
            query: Words that must all be in the title.
            project_id: Their project, such as P-0001.
            assignee_id: Who works on them, such as C-0001.
            status: How far they are; closed ones are left out unless asked for.
            page: Which page of the results.
        """
        wanted = words(query)
        project = id_of(state, Project, project_id)
        assignee = id_of(state, Contact, assignee_id)
        found = [
            ticket
            for ticket in state.tickets.values()
            if (ticket.status == status if status else ticket.status != "closed")
            and (not project or ticket.project == project)
            and (not assignee or ticket.assignee == assignee)
            and has_words(wanted, ticket.title)
        ]
        return page_of(found, page, _brief_ticket)

    @tool(effect="read")
    def get_ticket(self, state: Office, ticket_id: str) -> Ticket:
        """All that is known of a ticket.

        Args:
            ticket_id: The ticket, such as T-0001.
        """
        return find(state, Ticket, ticket_id)

    @tool
    def create_ticket(
        self,
        state: Office,
        project_id: str,
        title: str,
        assignee_id: str,
        due: date,
        priority: Priority = "normal",
        description: str = "",
    ) -> dict[str, str]:
        """Open a ticket.

        Args:
            project_id: Its project, such as P-0001.
            title: Its title.
            assignee_id: Who is to work on it, such as C-0001.
            due: The day by which it is to be done.
            priority: How urgent it is.
            description: What is to be done.
        """
        project = find(state, Project, project_id)
        assignee = find(state, Contact, assignee_id)
        ticket = Ticket(
            id=new_id("T", state.tickets, RESERVED),
            project=project.id,
            title=title.strip(),
            description=description,
            reporter=project.lead,
            assignee=assignee.id,
            due=due,
            priority=priority,
        )
        return {"ticket_id": add(state.tickets, ticket)}

    @tool
    def assign_ticket(self, state: Office, ticket_id: str, assignee_id: str) -> dict[str, str]:
        """Give a ticket to somebody.

        Args:
            ticket_id: The ticket, such as T-0001.
            assignee_id: Who is to work on it, such as C-0001.
        """
        assignee = find(state, Contact, assignee_id)
        replace(state, _unclosed(state, ticket_id), assignee=assignee.id)
        return {"assignee": assignee.name}

    @tool
    def comment_ticket(self, state: Office, ticket_id: str, text: str) -> dict[str, int]:
        """Add a comment to a ticket.

        Args:
            ticket_id: The ticket, such as T-0001.
            text: The comment.
        """
        ticket = find(state, Ticket, ticket_id)
        changed = replace(state, ticket, comments=(*ticket.comments, filled("text", text)))
        return {"comments": len(changed.comments)}

    @tool
    def set_priority(self, state: Office, ticket_id: str, priority: Priority) -> dict[str, str]:
        """Say how urgent a ticket is.

        Args:
            ticket_id: The ticket, such as T-0001.
            priority: How urgent it is.
        """
        return {"priority": replace(state, _unclosed(state, ticket_id), priority=priority).priority}

    @tool
    def close_ticket(self, state: Office, ticket_id: str) -> dict[str, str]:
        """Say that a ticket is done.

        Args:
            ticket_id: The ticket, such as T-0001.
        """
        return {"status": replace(state, _unclosed(state, ticket_id), status="closed").status}


def _unclosed(state: Office, ticket_id: str) -> Ticket:
    ticket = find(state, Ticket, ticket_id)
    if ticket.status == "closed":
        raise ToolError(f"ticket {ticket_id} is closed")
    return ticket


def _brief_project(project: Project) -> dict[str, Any]:
    return {
        "project_id": project.id,
        "name": project.name,
        "client": project.client,
        "lead_id": project.lead,
        "member_ids": project.members,
    }


def _brief_ticket(ticket: Ticket) -> dict[str, Any]:
    return {
        "ticket_id": ticket.id,
        "title": ticket.title,
        "project_id": ticket.project,
        "assignee_id": ticket.assignee,
        "status": ticket.status,
        "priority": ticket.priority,
        "due": ticket.due,
    }

"""The project tools: projects and their tickets."""

from __future__ import annotations

from datetime import date
from typing import Any

from stateroom import ToolError, tool
from stateroom.gallery.office import records
from stateroom.gallery.office.state import Contact, Office, Priority, Progress, Project, Ticket


class ProjectTools:
    """Tools to read projects, and to read and change tickets."""

    @tool(effect="read")
    def list_projects(self, state: Office, query: str = "", page: int = 1) -> dict[str, Any]:
        """List projects with their client, lead and members.

        Args:
            query: Words that must all be in the name of the project or the client.
            page: The page of the results.
        """
        wanted = records.words(query)
        projects = [
            project for project in state.projects.values() if records.has_words(wanted, project.name, project.client)
        ]
        return records.page_of(projects, page, _brief_project)

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
        """Search tickets, sorted by number.

        Args:
            query: Words that must all be in the title.
            project_id: The project, such as P-0001.
            assignee_id: The assignee, such as C-0001.
            status: The status; by default all but closed tickets.
            page: The page of the results.
        """
        wanted = records.words(query)
        project = state.id_of(Project, project_id)
        assignee = state.id_of(Contact, assignee_id)
        tickets = [
            ticket
            for ticket in state.tickets.values()
            if (ticket.status == status if status else ticket.status != "closed")
            and (not project or ticket.project == project)
            and (not assignee or ticket.assignee == assignee)
            and records.has_words(wanted, ticket.title)
        ]
        return records.page_of(tickets, page, _brief_ticket)

    @tool(effect="read")
    def get_ticket(self, state: Office, ticket_id: str) -> Ticket:
        """Get a ticket.

        Args:
            ticket_id: The ticket, such as T-0001.
        """
        return state.find(Ticket, ticket_id)

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
        """Create a ticket.

        Args:
            project_id: The project, such as P-0001.
            title: The title.
            assignee_id: The assignee, such as C-0001.
            due: The due date.
            priority: The priority.
            description: The work to do.
        """
        project = state.find(Project, project_id)
        assignee = state.find(Contact, assignee_id)
        ticket = Ticket(
            id=records.new_id("T", state.tickets, records.RESERVED),
            project=project.id,
            title=title.strip(),
            description=description,
            reporter=project.lead,
            assignee=assignee.id,
            due=due,
            priority=priority,
        )
        return {"ticket_id": records.add(state.tickets, ticket)}

    @tool
    def assign_ticket(self, state: Office, ticket_id: str, assignee_id: str) -> dict[str, str]:
        """Assign a ticket to a person.

        Args:
            ticket_id: The ticket, such as T-0001.
            assignee_id: The assignee, such as C-0001.
        """
        assignee = state.find(Contact, assignee_id)
        state.replace(_unclosed(state, ticket_id), assignee=assignee.id)
        return {"assignee": assignee.name}

    @tool
    def comment_ticket(self, state: Office, ticket_id: str, text: str) -> dict[str, int]:
        """Add a comment to a ticket.

        Args:
            ticket_id: The ticket, such as T-0001.
            text: The comment.
        """
        ticket = state.find(Ticket, ticket_id)
        changed = state.replace(ticket, comments=(*ticket.comments, records.filled("text", text)))
        return {"comments": len(changed.comments)}

    @tool
    def set_priority(self, state: Office, ticket_id: str, priority: Priority) -> dict[str, str]:
        """Set the priority of a ticket.

        Args:
            ticket_id: The ticket, such as T-0001.
            priority: The priority.
        """
        return {"priority": state.replace(_unclosed(state, ticket_id), priority=priority).priority}

    @tool
    def close_ticket(self, state: Office, ticket_id: str) -> dict[str, str]:
        """Close a ticket.

        Args:
            ticket_id: The ticket, such as T-0001.
        """
        return {"status": state.replace(_unclosed(state, ticket_id), status="closed").status}


def _unclosed(state: Office, ticket_id: str) -> Ticket:
    ticket = state.find(Ticket, ticket_id)
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

"""The contact tools: people of the company and of other companies."""

from __future__ import annotations

from typing import Any

from stateroom import ToolError, tool
from stateroom.gallery.office import records
from stateroom.gallery.office.state import Contact, Office


class ContactTools:
    """Tools to find and change contacts."""

    @tool(effect="read")
    def search_contacts(self, state: Office, query: str, company: str = "", page: int = 1) -> dict[str, Any]:
        """Search for people whose name, address or title has all words of a query.

        Args:
            query: The words.
            company: A part of the company's name.
            page: The page of the results.
        """
        wanted, of = records.words(query), company.strip().lower()
        contacts = [
            contact
            for contact in state.contacts.values()
            if contact.merged_into is None
            and of in contact.company.lower()
            and records.has_words(wanted, contact.name, contact.email, contact.title)
        ]
        return records.page_of(contacts, page, _brief)

    @tool(effect="read")
    def get_contact(self, state: Office, contact_id: str) -> Contact:
        """Get the entry of a person, including whether they are away and who their deputy is.

        Args:
            contact_id: The person, such as C-0001.
        """
        return state.find(Contact, contact_id)

    @tool
    def update_contact(
        self,
        state: Office,
        contact_id: str,
        email: str | None = None,
        phone: str | None = None,
        title: str | None = None,
    ) -> Contact:
        """Change the entry of a person; omitted fields do not change.

        Args:
            contact_id: The person, such as C-0001.
            email: The new address.
            phone: The new number.
            title: The new title.
        """
        given = {"email": email and email.strip().lower(), "phone": phone, "title": title}
        changes = {name: value for name, value in given.items() if value}
        if not changes:
            raise ToolError("nothing to change: give an email, a phone or a title")
        return state.replace(_current(state, contact_id), **changes)

    @tool
    def merge_contacts(self, state: Office, keep_id: str, duplicate_id: str) -> dict[str, str]:
        """Merge two entries for the same person. The duplicate can no longer be found.

        Args:
            keep_id: The entry to keep, such as C-0001.
            duplicate_id: The entry to remove.
        """
        keep, duplicate = _current(state, keep_id), _current(state, duplicate_id)
        if keep.id == duplicate.id:
            raise ToolError("keep_id and duplicate_id are the same entry")
        state.replace(duplicate, merged_into=keep.id)
        return {"kept": keep.id}


def _current(state: Office, contact_id: str) -> Contact:
    contact = state.find(Contact, contact_id)
    if contact.merged_into is not None:
        raise ToolError(f"contact {contact_id} was merged into {contact.merged_into}; use that one")
    return contact


def _brief(contact: Contact) -> dict[str, Any]:
    return {
        "contact_id": contact.id,
        "name": contact.name,
        "email": contact.email,
        "company": contact.company,
        "title": contact.title,
    }

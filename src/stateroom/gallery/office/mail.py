"""The mail tools: received mails, drafts and sent mails."""

from __future__ import annotations

from datetime import date
from typing import Any

from stateroom import ToolError, tool
from stateroom.gallery.office import records
from stateroom.gallery.office.state import File, Letter, Mail, Office


class MailTools:
    """Tools to read, file and write mail."""

    @tool(effect="read")
    def search_mail(
        self,
        state: Office,
        query: str = "",
        sender: str = "",
        label: str = "",
        since: date | None = None,
        page: int = 1,
    ) -> dict[str, Any]:
        """Search received mails that are not archived, newest first.

        Args:
            query: Words that must all be in the subject or the text.
            sender: A part of the sender's address.
            label: A label that the mail must have.
            since: The earliest day.
            page: The page of the results.
        """
        wanted, by = records.words(query), sender.strip().lower()
        mails = [
            mail
            for mail in state.mails.values()
            if not mail.archived
            and by in mail.sender
            and (not label or label in mail.labels)
            and (since is None or mail.sent_at.date() >= since)
            and records.has_words(wanted, mail.subject, mail.body)
        ]
        return records.page_of(sorted(mails, key=lambda mail: mail.sent_at, reverse=True), page, _brief)

    @tool(effect="read")
    def read_mail(self, state: Office, mail_id: str) -> Mail:
        """Read a received mail.

        Args:
            mail_id: The mail, such as M-0001.
        """
        return state.find(Mail, mail_id)

    @tool
    def label_mail(self, state: Office, mail_id: str, label: str) -> dict[str, Any]:
        """Add a label to a received mail.

        Args:
            mail_id: The mail, such as M-0001.
            label: The label.
        """
        mail = state.find(Mail, mail_id)
        records.filled("label", label)
        if label not in mail.labels:
            mail = state.replace(mail, labels=(*mail.labels, label))
        return {"labels": mail.labels}

    @tool
    def archive_mail(self, state: Office, mail_id: str) -> dict[str, bool]:
        """Archive a received mail.

        Args:
            mail_id: The mail, such as M-0001.
        """
        state.replace(state.find(Mail, mail_id), archived=True)
        return {"archived": True}

    @tool
    def draft_mail(self, state: Office, to: list[str], subject: str, body: str) -> dict[str, str]:
        """Save a draft without sending it.

        Args:
            to: The recipients' addresses.
            subject: The subject.
            body: The text.
        """
        draft = Letter(id=records.new_id("D", state.drafts), to=_addresses(to), subject=subject, body=body)
        return {"draft_id": records.add(state.drafts, draft)}

    @tool(effect="external")
    def send_mail(
        self,
        state: Office,
        to: list[str],
        subject: str,
        body: str,
        in_reply_to: str | None = None,
        attachments: list[str] | None = None,
    ) -> dict[str, str]:
        """Send a mail. It cannot be recalled.

        Args:
            to: The recipients' addresses.
            subject: The subject.
            body: The text.
            in_reply_to: The received mail to reply to, such as M-0001.
            attachments: Files to attach, such as F-0001.
        """
        if in_reply_to is not None:
            in_reply_to = state.find(Mail, in_reply_to).id
        attached = tuple(state.find(File, file_id).id for file_id in dict.fromkeys(attachments or ()))
        letter = Letter(
            id=records.new_id("S", state.outbox),
            to=_addresses(to),
            subject=subject,
            body=body,
            in_reply_to=in_reply_to,
            attachments=attached,
        )
        return {"sent_id": records.add(state.outbox, letter)}


def _brief(mail: Mail) -> dict[str, Any]:
    return {
        "mail_id": mail.id,
        "sender": mail.sender,
        "subject": mail.subject,
        "sent_at": mail.sent_at,
        "labels": mail.labels,
    }


def _addresses(to: list[str]) -> tuple[str, ...]:
    addresses = tuple(sorted({address.strip().lower() for address in to}))
    if not addresses or not all("@" in address for address in addresses):
        raise ToolError("to: give one or more e-mail addresses; use search_contacts to find them")
    return addresses

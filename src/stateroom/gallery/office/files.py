"""The file tools, and the rules of the company."""

from __future__ import annotations

from typing import Any, Literal

from stateroom import tool
from stateroom.gallery.office import records
from stateroom.gallery.office.state import Contact, File, Office


class FileTools:
    """Tools to find, rename, move and share files."""

    @tool(effect="read")
    def get_policy(self, state: Office, topic: Literal["spending", "files"]) -> dict[str, str]:
        """Get the rules of the company on a topic.

        Args:
            topic: The topic.
        """
        return {"policy": state.policies[topic]}

    @tool(effect="read")
    def search_files(self, state: Office, query: str, page: int = 1) -> dict[str, Any]:
        """Search for files whose name or folder has all words of a query.

        Args:
            query: The words.
            page: The page of the results.
        """
        wanted = records.words(query)
        files = [file for file in state.files.values() if records.has_words(wanted, file.name, file.folder)]
        return records.page_of(files, page, _brief)

    @tool(effect="read")
    def read_file(self, state: Office, file_id: str) -> File:
        """Read a file, including the people with whom it is shared.

        Args:
            file_id: The file, such as F-0001.
        """
        return state.find(File, file_id)

    @tool
    def share_file(self, state: Office, file_id: str, contact_id: str) -> dict[str, Any]:
        """Share a file with a person.

        Args:
            file_id: The file, such as F-0001.
            contact_id: The person, such as C-0001.
        """
        file = state.find(File, file_id)
        person = state.find(Contact, contact_id)
        shared_with = tuple(sorted({*file.shared_with, person.id}))
        return {"shared_with": state.replace(file, shared_with=shared_with).shared_with}

    @tool
    def rename_file(self, state: Office, file_id: str, new_name: str) -> dict[str, str]:
        """Rename a file.

        Args:
            file_id: The file, such as F-0001.
            new_name: The new name, including the extension.
        """
        file = state.find(File, file_id)
        return {"name": state.replace(file, name=records.filled("new_name", new_name)).name}

    @tool
    def move_file(self, state: Office, file_id: str, folder: str) -> dict[str, str]:
        """Move a file to another folder.

        Args:
            file_id: The file, such as F-0001.
            folder: The new folder.
        """
        file = state.find(File, file_id)
        return {"folder": state.replace(file, folder=records.filled("folder", folder.strip(" /"))).folder}


def _brief(file: File) -> dict[str, Any]:
    return {
        "file_id": file.id,
        "name": file.name,
        "folder": file.folder,
        "owner_id": file.owner,
        "level": file.level,
        "shared_with": file.shared_with,
    }

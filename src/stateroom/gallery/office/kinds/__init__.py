"""The kinds of tasks, and how each is made and done."""

from stateroom.gallery.office.kinds.kind import Asked, Call, Changes, Drawn, Kind, Say, Script

__all__ = ["Asked", "Call", "Changes", "Drawn", "Kind", "Say", "Script"]

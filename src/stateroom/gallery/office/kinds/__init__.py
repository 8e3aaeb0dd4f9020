"""The kinds of tasks, with their generators and scripts."""

from stateroom.gallery.office.kinds.kind import Asked, Call, Changes, Drawn, Kind, Say, Script

__all__ = ["Asked", "Call", "Changes", "Drawn", "Kind", "Say", "Script"]

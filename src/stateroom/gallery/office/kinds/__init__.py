"""The kinds of tasks, and how each is made and done."""

from stateroom.gallery.office.kinds.catalog import KINDS, recognise
from stateroom.gallery.office.kinds.kind import Asked, Call, Changes, Drawn, Kind, Say, Script

__all__ = ["KINDS", "Asked", "Call", "Changes", "Drawn", "Kind", "Say", "Script", "recognise"]

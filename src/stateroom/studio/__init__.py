"""How a person sees it: a web page on the sessions of a store and the runs in a folder, and its API."""

from stateroom.studio.access import Mode
from stateroom.studio.app import Studio

__all__ = ["Mode", "Studio"]

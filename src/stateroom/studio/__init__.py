"""Studio: a web page for the sessions of a store and the runs in a folder, and its API."""

from stateroom.studio.app import Mode, Studio

__all__ = ["Mode", "Studio"]

"""Changes of a thread: what one copies is what it touches."""

from __future__ import annotations

from typing import Any

from stateroom.adapters.langgraph.thread import Thread
from stateroom.state import Patch


class Change:
    """A new state of a thread, and the patch that leads to it; what it does not touch it shares with the old one.

    A draft would do the same, and check what an author's code may have put in. Here all values are our own, and a step
    of a graph takes half the time.
    """

    def __init__(self, thread: Thread) -> None:
        self.thread = thread.model_copy()
        self.patch: Patch = []
        self._ours: dict[int, Any] = {}
        """The containers that are copies; held, so that none of them gives its id to another."""

    def set(self, *path: str, value: Any) -> None:
        """Give a key a value."""
        self._container(path[:-1])[path[-1]] = value
        self.patch.append(("set", path, value))

    def delete(self, *path: str) -> None:
        """Delete a key."""
        del self._container(path[:-1])[path[-1]]
        self.patch.append(("del", path))

    def splice(self, *path: str, start: int, stop: int, values: list[Any]) -> None:
        """Replace items of a list."""
        self._container(path)[start:stop] = values
        self.patch.append(("splice", path, start, stop, values))

    def _container(self, path: tuple[str, ...]) -> Any:
        """What lies at a path, to be changed."""
        container: Any = self.thread.__dict__
        for step in path:
            inner = container[step]
            if id(inner) not in self._ours:
                inner = container[step] = inner.copy()
                self._ours[id(inner)] = inner
            container = inner
        return container

"""Answers that are kept, so that the same question need not be paid for twice."""

from __future__ import annotations

from typing import Protocol

MOST = 10_000
"""So many answers are kept in memory; the oldest give way."""


class Cache(Protocol):
    """Texts by key."""

    async def find(self, key: str) -> str | None:
        """What was kept under a key."""

    async def keep(self, key: str, text: str) -> None:
        """Keep a text, in place of what was kept under its key."""


class MemoryCache:
    """Texts for as long as this object lives."""

    def __init__(self, most: int = MOST) -> None:
        self._texts: dict[str, str] = {}
        self._most = most

    async def find(self, key: str) -> str | None:
        return self._texts.get(key)

    async def keep(self, key: str, text: str) -> None:
        self._texts[key] = text
        if len(self._texts) > self._most:
            del self._texts[next(iter(self._texts))]

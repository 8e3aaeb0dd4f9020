"""Caches for a judge's answers, so that the same question is not paid for twice."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

from stateroom.errors import CannotWrite

logger = logging.getLogger(__name__)

MAX_TEXTS = 10_000
"""Texts in a memory cache; the oldest is dropped for a new one."""

TIMEOUT = 10.0
"""Seconds to wait for another process that writes to the file."""


class MemoryCache:
    """Texts by key, in memory."""

    def __init__(self, max_texts: int = MAX_TEXTS) -> None:
        self._texts: dict[str, str] = {}
        self._max_texts = max_texts

    async def get(self, key: str) -> str | None:
        """The text of a key."""
        return self._texts.get(key)

    async def put(self, key: str, text: str) -> None:
        """Keep a text; it replaces the one that has the key."""
        self._texts[key] = text
        if len(self._texts) > self._max_texts:
            del self._texts[next(iter(self._texts))]


class FileCache:
    """Texts by key, in an SQLite file that any number of processes may share.

    Each use opens the file, so there is nothing to close; next to a model's answer that costs little. If the file
    cannot be read or written later, the cache is empty, and a warning is logged.
    """

    def __init__(self, path: Path) -> None:
        """Raises `CannotWrite` if the file cannot be made."""
        self._path = path
        try:
            with closing(self._connect()) as file:
                file.execute(
                    "CREATE TABLE IF NOT EXISTS judge_answers (key TEXT PRIMARY KEY, text BLOB NOT NULL) WITHOUT ROWID"
                )
        except sqlite3.Error as error:
            raise CannotWrite(f"cannot keep a judge's answers in {path}: {error}") from error

    async def get(self, key: str) -> str | None:
        """The text of a key."""
        return await asyncio.to_thread(self._get, key)

    async def put(self, key: str, text: str) -> None:
        """Keep a text; it replaces the one that has the key."""
        await asyncio.to_thread(self._put, key, text)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=TIMEOUT, isolation_level=None)

    def _get(self, key: str) -> str | None:
        try:
            with closing(self._connect()) as file:
                found = file.execute("SELECT text FROM judge_answers WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            logger.warning("cannot read a judge's answer from %s: %s", self._path, error)
            return None
        return None if found is None else bytes(found[0]).decode("utf-8", "surrogatepass")

    def _put(self, key: str, text: str) -> None:
        written = text.encode("utf-8", "surrogatepass")  # JSON allows half a surrogate pair
        try:
            with closing(self._connect()) as file:
                file.execute("INSERT OR REPLACE INTO judge_answers VALUES (?, ?)", (key, written))
        except sqlite3.Error as error:
            logger.warning("cannot keep a judge's answer in %s: %s", self._path, error)

"""Answers that are kept in a file."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

from stateroom.errors import CannotWrite

logger = logging.getLogger(__name__)

PATIENCE = 10.0
"""Seconds to wait for another process that writes to the file."""


class FileCache:
    """Texts in an SQLite file, which any number of processes may share.

    Each use opens the file anew: there is nothing to close, and beside a model's answer it costs nothing. A file that
    cannot be used later on costs money, and no verdict: then it is as if nothing was kept.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with closing(self._connect()) as file:
                file.execute(
                    "CREATE TABLE IF NOT EXISTS judge_answers (key TEXT PRIMARY KEY, text BLOB NOT NULL) WITHOUT ROWID"
                )
        except sqlite3.Error as error:
            raise CannotWrite(f"cannot keep a judge's answers in {path}: {error}") from error

    async def find(self, key: str) -> str | None:
        return await asyncio.to_thread(self._find, key)

    async def keep(self, key: str, text: str) -> None:
        await asyncio.to_thread(self._keep, key, text)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, timeout=PATIENCE, isolation_level=None)

    def _find(self, key: str) -> str | None:
        try:
            with closing(self._connect()) as file:
                found = file.execute("SELECT text FROM judge_answers WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            logger.warning("cannot look for a judge's answer in %s: %s", self._path, error)
            return None
        return None if found is None else bytes(found[0]).decode("utf-8", "surrogatepass")

    def _keep(self, key: str, text: str) -> None:
        written = text.encode("utf-8", "surrogatepass")  # half a pair, which JSON allows
        try:
            with closing(self._connect()) as file:
                file.execute("INSERT OR REPLACE INTO judge_answers VALUES (?, ?)", (key, written))
        except sqlite3.Error as error:
            logger.warning("cannot keep a judge's answer in %s: %s", self._path, error)

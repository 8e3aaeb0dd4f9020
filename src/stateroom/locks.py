"""Locks on open files: they keep other processes out, and the system releases them when the process ends."""

from __future__ import annotations

import os
from typing import IO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCKED_BYTE = 0x7FFF_0000
"""Windows locks a range of bytes, and nobody else can read them: this one is far behind the end of any file of ours."""


def try_lock(file: IO[bytes] | int) -> bool:
    """Lock a file, open or by its descriptor; False if another process holds the lock."""
    if fcntl is None:
        return _try_lock_on_windows(file if isinstance(file, int) else file.fileno())
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(file: IO[bytes]) -> None:
    """Lock a file, and wait for it if another process holds the lock. POSIX only, as are its callers."""
    fcntl.flock(file, fcntl.LOCK_EX)


def unlock(file: IO[bytes]) -> None:
    """Release the lock of `lock`."""
    fcntl.flock(file, fcntl.LOCK_UN)


def _try_lock_on_windows(descriptor: int) -> bool:
    import msvcrt  # noqa: PLC0415 - only Windows has it

    place = os.lseek(descriptor, 0, os.SEEK_CUR)
    os.lseek(descriptor, LOCKED_BYTE, os.SEEK_SET)
    try:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    except PermissionError:
        return False
    finally:
        os.lseek(descriptor, place, os.SEEK_SET)
    return True

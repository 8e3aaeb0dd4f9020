"""Committed containers of old, used again instead of a copy of the newest."""

from __future__ import annotations

from sys import getrefcount
from typing import Any

Past = list[tuple[Any, list[Any]]]
"""Committed containers of old, each with the places at which the next one differs.

Nobody may hold them any more. Then the oldest, brought up to date at a few places, spares a copy of the newest.
"""

MOST_PAST = 16


def free_container(past: Past) -> tuple[Any, list[list[Any]]]:
    """The oldest container of the past that nobody else holds, and where it differs from the newest; or None."""
    if len(past) > MOST_PAST:
        del past[0]  # somebody holds it, a fork perhaps, and may do so for long
    if not past or getrefcount(past[0][0]) != 2:  # the past itself, and the question
        return None, []
    changed = [places for _, places in past]
    return past.pop(0)[0], changed

"""Taking turns: what writers do who got in each other's way."""

from __future__ import annotations

import asyncio
from random import random

ATTEMPTS = 20
"""How often a write is tried again on fresh state when somebody else's came first."""


async def give_way(attempt: int) -> None:
    """Wait a little before trying again, so that writers in step fall out of it."""
    if attempt > 1:
        await asyncio.sleep(random() * min(0.001 * 2 ** min(attempt, 6), 0.05))

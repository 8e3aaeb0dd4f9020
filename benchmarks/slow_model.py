"""A model to be named by its path: it thinks for longer than anybody waits."""

import asyncio

from stateroom.model import Item, Policy, message

HOUR = 3600


class Slow(Policy):
    async def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        await asyncio.sleep(HOUR)
        return [message("Done.")]

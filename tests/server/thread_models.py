"""Models to be named by their path: one that echoes, one that fails, and one that waits for a file."""

import asyncio
import os
import time
from pathlib import Path

from stateroom.model import Item, Policy, function_call, last_user_text, message, outputs_of

PATIENCE = 60.0
"""Seconds after which a model answers in any case, so that a test that has failed can end."""


class Echo(Policy):
    """Says how many items it was shown, and what the user said."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        return [message(f"{len(conversation)}: {last_user_text(conversation)}")]


class Adds(Policy):
    """Adds the numbers that the user names, one after another."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        numbers = last_user_text(conversation).split()
        done = len(outputs_of(conversation))
        if done >= len(numbers):
            return [message("Done.")]
        return [function_call("increment_counter", f"call_{done}", count=int(numbers[done]))]


class Fails(Adds):
    """Gives up when it is to go on."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        if outputs_of(conversation) or "fail" in last_user_text(conversation):
            raise ValueError("out of order")
        return super().respond(conversation, tools)


class Waits(Adds):
    """Makes a file when it is asked, and answers when another is there; they are numbered by what was done before."""

    async def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        folder, done = Path(os.environ["STATEROOM_TEST_FOLDER"]), len(outputs_of(conversation))
        await asyncio.to_thread(_wait, folder / f"asked-{done}", folder / f"answer-{done}")
        return super().respond(conversation, tools)


def _wait(asked: Path, answer: Path) -> None:
    asked.touch()
    deadline = time.monotonic() + PATIENCE
    while asked.exists() and not answer.exists() and time.monotonic() < deadline:  # or the test has ended
        time.sleep(0.01)

"""Threads with tools, a model that uses them, and a process of its own that runs one and may be killed."""

import asyncio
import sys
import threading
from collections.abc import Callable
from typing import Any

from stateroom import Environment, Sessions, State, Task, open_store, tool
from stateroom.agent import Agent, Threads
from stateroom.model import Item, Policy, function_call, last_user_text, message, outputs_of


class Purse(State):
    spent: int = 0


class PurseTask(Task):
    user: str = "nobody"


class PurseEnvironment(Environment[Purse, PurseTask]):
    """Spend money, and ask before it is much."""

    @tool
    def pay(self, state: Purse, amount: int) -> int:
        """Pay an amount."""
        state.spent += amount
        return state.spent

    @tool
    def pay_if_allowed(self, state: Purse, ask: Callable[[str], Any], amount: int) -> int:
        """Pay an amount, if somebody says yes."""
        if ask(f"Pay {amount}?") == "yes":
            state.spent += amount
        return state.spent

    def verify(self, state: Purse) -> float:
        return float(state.spent)


class Payer(Policy):
    """Pays what it is told to, one call for each word that the user said; says how many items it was shown."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        if conversation[-1]["type"] == "function_call_output":
            return [message(f"{len(conversation)} items, {outputs_of(conversation)[-1]} spent")]
        name, *amounts = last_user_text(conversation).split()
        return [function_call(name, f"call_{place}", amount=int(each)) for place, each in enumerate(amounts)]


class Hangs(Payer):
    """Pays, says so, and then thinks for ever."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        if conversation[-1]["type"] == "function_call_output":
            sys.stdout.write("paid\n")
            sys.stdout.flush()
            threading.Event().wait()
        return super().respond(conversation, tools)


async def main(url: str, thread: str, said: str) -> None:
    async with open_store(url) as store:
        threads = Threads(Sessions(PurseEnvironment(), store))
        await threads.add(thread, said)
        await threads.run(thread, Agent(Hangs()))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""Two users talk to one agent in one session, and it knows which of them asks for what.

Run it with `python examples/group_chat.py`. Ann and Bob are at one table. What each of them does not eat is that user's
own state, so it is known at the next table too; the order is the state of the table, which is the session. The agent is
the `Waiter` below, which needs no key; `MODEL` names another model, as `--model` does.
"""

from __future__ import annotations

import asyncio
import os

from rich.console import Console

from stateroom import Environment, SessionInfo, State, Task, ToolError, open_store, tool
from stateroom.agent import Agent, Threads
from stateroom.model import Item, Policy, function_call, last_user_text, message, newest_turn, open_model, outputs_of
from stateroom.session import Sessions

DISHES = {"risotto": {"milk"}, "curry": {"nuts"}, "salad": set()}
"""What is in each dish."""

TALK = [("ann", "no nuts, please"), ("bob", "no milk, please"), ("ann", "a curry"), ("bob", "a curry")]
"""What the users say, in turn."""


class Table(State):
    orders: dict[str, str] = {}
    """The dish of each user."""


class Guest(State):
    avoids: set[str] = set()


class TableTask(Task):
    user: str
    """Who has asked for the table."""


class DinnerEnvironment(Environment[Table, TableTask]):
    """Take the orders of the guests at one table."""

    @tool
    def note(self, user: Guest, food: str) -> str:
        """Note that the guest who speaks does not eat something."""
        user.avoids.add(food)
        return f"no {food}"

    @tool
    def order(self, state: Table, user: Guest, session: SessionInfo, dish: str) -> str:
        """Order a dish for the guest who speaks."""
        if unwanted := DISHES[dish] & user.avoids:
            raise ToolError(f"there is {', '.join(unwanted)} in the {dish}")
        state.orders[session.user or session.task.user] = dish
        return f"a {dish}"

    def verify(self, state: Table) -> float:
        return float(len(state.orders))


class Waiter(Policy):
    """Does what the guest who spoke last says."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        speaker = next(item["name"] for item in reversed(conversation) if item.get("role") == "user")
        if results := outputs_of(newest_turn(conversation)):
            [result] = results
            return [message(f"{speaker}: {result if isinstance(result, str) else result['error']['message']}")]
        said = last_user_text(conversation).removesuffix(", please")
        what, _, thing = said.partition(" ")
        return [function_call("note", "c", food=thing) if what == "no" else function_call("order", "c", dish=thing)]


async def dinner(threads: Threads, agent: Agent, talk: list[tuple[str, str]]) -> tuple[str, list[str]]:
    """Let the guests talk at a new table; gives its id, and what they were told."""
    table = await threads.create(talk[0][0])
    told: list[str] = []
    for user, text in talk:
        await threads.add(table, text, user=user)
        done = await threads.run(table, agent)
        told.append(done.output[-1]["content"][0]["text"])
    return table.id, told


async def main(console: Console) -> None:
    spec = os.environ.get("MODEL", "waiter")
    async with open_model(spec, {"waiter": Waiter}) as source, open_store("memory://") as store:
        threads = Threads(Sessions(DinnerEnvironment(), store))
        agent = Agent(source.for_episode(0), instructions="You are a waiter. Each guest speaks by name.")
        for talk in (TALK, [("bob", "a risotto"), ("ann", "a risotto")]):  # the next day they are known
            table, told = await dinner(threads, agent, talk)
            for (user, text), answer in zip(talk, told, strict=True):
                console.print(f"{user:>6}  {text}\nwaiter  {answer}")
            console.print(f"orders  {(await threads.sessions.open(table)).state.orders}\n")


if __name__ == "__main__":
    asyncio.run(main(Console()))

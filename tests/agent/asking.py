"""An environment whose tools ask, and a process of its own that runs an agent in it."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from stateroom import Environment, Sessions, State, Task, open_store, tool
from stateroom.agent import Agent, run
from stateroom.model import Answer, Item, Model, Request, Scripted, function_call, message
from stateroom.session import Session, SessionAgent, Update

Asks = Callable[[str], Any]


class Office(State):
    notes: list[str] = []
    paid: int = 0


class OfficeTask(Task):
    outbox: str = ""
    """A file outside, to which letters are added."""


class OfficeEnvironment(Environment[Office, OfficeTask]):
    """Tools that ask before they do something."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        """What was begun, whether it has asked or not."""

    @tool
    def note(self, state: Office, text: str) -> int:
        """Write something down."""
        self.ran.append(f"note {text}")
        state.notes.append(text)
        return len(state.notes)

    @tool
    def pay(self, state: Office, ask: Asks, amount: int) -> str:
        """Pay a bill."""
        self.ran.append(f"pay {amount}")
        state.paid += amount
        return f"paid, and told {ask(f'Pay {amount}?')!r}"

    @tool
    async def pay_after_two(self, state: Office, ask: Asks, amount: int) -> list[Any]:
        """Pay a bill that two people must agree to."""
        self.ran.append(f"pay_after_two {amount}")
        told = [ask("Do you agree?"), ask("And you?")]
        state.paid += amount
        return told

    @tool(effect="external")
    def send(self, state: Office, session: Any, ask: Asks, times: int) -> list[Any]:
        """Send a letter, after so many questions."""
        self.ran.append(f"send {times}")
        told = [ask(f"Question {number}?") for number in range(times)]
        with Path(session.task.outbox).open("a") as file:
            file.write("sent\n")
        state.notes.append("sent")
        return told

    @tool(effect="read")
    def look(self, state: Office) -> int:
        """How many notes there are."""
        self.ran.append("look")
        return len(state.notes)

    @tool(effect="read")
    def peek(self, state: Office, ask: Asks) -> str:
        """Look, if that is allowed."""
        self.ran.append("peek")
        return f"{len(state.notes)} {ask('May I look?')}"

    @tool
    def guess(self, state: Office, rng: Random, ask: Asks) -> int:
        """Ask about something that chance has chosen."""
        number = rng.randrange(1000)
        ask(f"Is {number} all right?")
        return number

    @tool
    def insist(self, state: Office, ask: Asks) -> str:
        """Try to go on without an answer."""
        try:
            return str(ask("May I?"))
        except Exception:  # noqa: BLE001 - which a question is not
            return "nobody has answered"

    def verify(self, state: Office) -> float:
        return float(state.paid)


def letters(outbox: Path) -> int:
    """How many letters were sent."""
    return outbox.read_text().count("sent") if outbox.exists() else 0


CALLS: dict[str, list[Item]] = {
    "pay": [function_call("pay", "c", amount=300)],
    "two": [function_call("pay_after_two", "c", amount=300)],
    "send": [function_call("send", "c", times=1)],
    "among": [
        function_call("note", "same", text="before"),
        function_call("look", "same"),
        function_call("pay", "same", amount=300),
        function_call("look", "same"),
        function_call("note", "same", text="after"),
    ],
}


def says(name: str) -> Scripted:
    """A model that makes calls and is done."""
    return Scripted([CALLS[name], [message("done")]])


class Stuck(Model):
    """Says that it was asked, and never answers."""

    async def answer(self, request: Request) -> Answer:
        say("asked")
        await asyncio.Event().wait()
        raise AssertionError


def say(text: object) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


async def act(session: Session[Office], name: str) -> None:
    """Run an agent; say how it ended, and stay."""
    trajectory = await run(Agent(says(name)), session)
    say(f"{trajectory.status} {trajectory.question or session.state.paid}")
    await asyncio.Event().wait()


async def die_asking(session: Session[Office], name: str) -> None:
    """Run an agent, and get stuck when its question is to be noted."""
    noted = SessionAgent.say

    async def stick(self: SessionAgent, update: Update, **more: Any) -> Any:
        if "needs_input" in update.moves:
            say("stuck")
            await asyncio.Event().wait()
        return await noted(self, update, **more)

    SessionAgent.say = stick  # type: ignore[method-assign]
    await act(session, name)


async def provide(session: Session[Office], given: str) -> None:
    """Say something to an agent that waits."""
    say((await session.agent.answer(given)).phase)


async def get_stuck(session: Session[Office]) -> None:
    """Run an agent whose model never answers."""
    await run(Agent(Stuck()), session)


async def main(url: str, job: str, session_id: str, *more: str) -> None:
    async with open_store(url) as store:
        session = await Sessions[Office](OfficeEnvironment(), store).open(session_id)
        await globals()[job](session, *more)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

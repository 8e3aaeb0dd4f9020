"""An environment to talk about, and a model that talks about it."""

import asyncio
from collections.abc import Callable
from typing import Any

from stateroom import Environment, State, tool
from stateroom.errors import ModelUnavailable
from stateroom.model import Item, Policy, function_call, last_user_text, message, newest_turn, outputs_of


class Purse(State):
    money: int = 100


class PurseEnvironment(Environment[Purse]):
    """Pay from a purse."""

    examples = "purse.jsonl"

    @tool
    def pay(self, state: Purse, amount: int, ask: Callable[[str], Any]) -> int:
        """Pay a bill."""
        if amount > 50 and ask(f"Pay {amount}?") != "yes":
            return state.money
        state.money -= amount
        return state.money

    def reply(self, state: Purse, message: str) -> str | None:
        return "pay 1000"  # what a simulated user would say

    def instructions(self, state: Purse) -> str:
        return f"There is {state.money} in the purse."

    def verify(self, state: Purse) -> float:
        return float(state.money)


class Payer(Policy):
    """Pays what the user names, and fails, or waits for ever, if it is told to."""

    async def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        word, _, amount = last_user_text(conversation).partition(" ")
        if word == "fail":
            raise ModelUnavailable("the model is out")
        if outputs_of(newest_turn(conversation)):
            if word == "wait":
                await asyncio.Event().wait()
            return [message("Paid.")]
        if word in ("pay", "wait"):
            return [function_call("pay", "c", amount=int(amount))]
        return [message(f"You said: {last_user_text(conversation)}")]

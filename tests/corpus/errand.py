"""An environment whose agents talk: they call tools that ask, are answered by a user, and their views are compacted.

What `environment` says holds here too.
"""

from random import Random

from stateroom import Environment, State, tool


class Purse(State):
    coins: int = 10
    heard: int = 0


class ErrandEnvironment(Environment[Purse]):
    """Buys what it is told to."""

    name = "errand"

    @tool
    def buy(self, state: Purse, price: int, ask) -> int:
        """Buy something."""
        if price > 5 and ask(f"Spend {price}?") != "yes":
            return state.coins
        state.coins -= price
        return state.coins

    @tool(effect="external")
    def post(self, to: str, ask) -> str:
        """Send something."""
        return f"{to}: {ask('Shall I?')}, {ask('Really?')}"

    @tool(effect="read")
    def foresee(self, rng: Random) -> float:
        """What chance holds."""
        return rng.random()

    def reply(self, state: Purse, message: str) -> str | None:
        state.heard += 1
        return None if state.heard > 1 else f"You said {len(message)} letters. Go on."

    def verify(self, state: Purse) -> float:
        return float(state.coins)

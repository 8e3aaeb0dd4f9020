"""An environment whose sessions start from a world.

What `environment` says holds here too.
"""

from random import Random
from typing import Any

from stateroom import Environment, State, tool


class House(State):
    colour: str = "white"
    guests: list[str] = []


class Village(State):
    houses: dict[int, House] = {}
    chronicle: str = ""


class VillageEnvironment(Environment[Village]):
    """Guests come to a village."""

    name = "village"

    def world(self) -> Village:
        return Village(houses={number: House() for number in range(50)}, chronicle="founded " * 10_000)

    def seed(self, state: Village, task: Any) -> None:
        state.houses[task.house].colour = "red"
        state.houses[100] = House(guests=["new " * 20_000])

    @tool
    def invite(self, state: Village, house: int, guest: str) -> int:
        """Have a guest in a house."""
        state.houses[house].guests.append(guest)
        return len(state.houses[house].guests)

    @tool(effect="read")
    def foresee(self, rng: Random) -> float:
        """What chance holds."""
        return rng.random()

    def verify(self, state: Village) -> float:
        return float(len(state.houses))

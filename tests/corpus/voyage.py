"""An environment in two generations of its code: its state changes by events, and its sessions have a folder.

What `environment` says holds here too.
"""

from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

from stateroom import Environment, Event, State, TempFolder, applies, tool


class Sailed(Event):
    to: str
    miles: Decimal


class FirstShip(State):
    port: str = "home"
    miles: Decimal = Decimal(0)

    @applies(Sailed)
    def sailed(self, event: Sailed) -> None:
        self.port = event.to
        self.miles += event.miles


class Ship(State, version=2):
    ports: list[str] = ["home"]
    miles: Decimal = Decimal(0)

    @applies(Sailed)
    def sailed(self, event: Sailed) -> None:
        self.ports.append(event.to)
        self.miles += event.miles


@Ship.migration(1)
def remember_one_port(data: dict[str, Any]) -> dict[str, Any]:
    """The first generation knew only the last port."""
    return {"ports": [data["port"]], "miles": data["miles"]}


class FirstVoyageEnvironment(Environment[FirstShip]):
    """Sails, as it once did."""

    name = "voyage"

    @tool
    def sail(self, state: FirstShip, to: str, miles: str) -> str:
        """Sail to a port."""
        state.emit(Sailed(to=to, miles=Decimal(miles)))
        return state.port

    def verify(self, state: FirstShip) -> float:
        return float(state.miles)


class VoyageEnvironment(Environment[Ship]):
    """Sails, and keeps a folder of letters."""

    name = "voyage"
    resources = {"folder": TempFolder()}

    @tool
    def sail(self, state: Ship, to: str, miles: str) -> list[str]:
        """Sail to a port."""
        state.emit(Sailed(to=to, miles=Decimal(miles)))
        return state.ports

    @tool
    def write(self, folder: Path, name: str, text: str) -> None:
        """Write a letter."""
        (folder / name).write_text(text)

    @tool(effect="read")
    def foresee(self, folder: Path, rng: Random) -> list[Any]:
        """What the next call would find."""
        return [rng.getrandbits(53), *sorted((path.name, path.read_text()) for path in folder.iterdir())]

    def verify(self, state: Ship) -> float:
        return float(state.miles)

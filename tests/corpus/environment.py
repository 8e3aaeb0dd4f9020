"""The environment whose sessions are kept: every type that a state may have, and every kind of step.

What is kept was written with these very definitions, by versions that came before: they are never changed. A version
that can do more gets another environment, beside this one.
"""

import asyncio
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from random import Random
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, JsonValue

from stateroom import Environment, Episode, State, Task, ToolError, Verdict, tool

BEGAN = 1_700_000_000.0
"""When the clock of every session starts."""


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Rank(IntEnum):
    LOW = 1
    HIGH = 3


class Part(BaseModel):
    name: str
    weight: Decimal = Decimal("0.10")
    tags: set[str] = set()
    inner: "Part | None" = None


class Circle(BaseModel):
    shape: Literal["circle"] = "circle"
    radius: float


class Square(BaseModel):
    shape: Literal["square"] = "square"
    side: int


class Cabinet(State):
    text: str = "naïve ☃ \U0001f511 \0"
    number: int = 2**80
    ratio: float = 0.1
    flag: bool = True
    nothing: str | None = None
    raw: bytes = b"\x00\xff\xfe"
    moment: datetime = datetime(2024, 2, 29, 23, 59, 59, 999_999, timezone(timedelta(hours=5, minutes=45)))
    naive: datetime = datetime(1999, 12, 31)
    day: date = date(1, 1, 1)
    span: timedelta = timedelta(days=-1, microseconds=1)
    identity: UUID = UUID(int=2**127 + 5)
    price: Decimal = Decimal("-1.2300E+7")
    colour: Colour = Colour.RED
    rank: Rank = Rank.LOW
    mode: Literal["open", 7] = "open"
    pair: tuple[int, str] = (1, "one")
    row: tuple[Decimal, ...] = (Decimal("1.50"), Decimal("1E-30"))
    marks: set[str] = {"", "a b"}
    fixed: frozenset[int] = frozenset({-1, 2**64})
    by_number: dict[int, str] = {0: "nought", -5: "minus five", 2**70: "many"}
    by_colour: dict[Colour, list[int]] = {Colour.GREEN: [1]}
    odd: dict[str, JsonValue] = {"": None, "a.b/c": [1, 2.5, {"\n": "line"}], "__class__": "no", "ключ": True}
    either: Circle | Square = Circle(radius=0.5)
    parts: list[Part] = [Part(name="first", tags={"x"}, inner=Part(name="within"))]
    shelf: dict[str, Part] = {}
    log: list[str] = []


class CabinetTask(Task):
    drawer: str
    wanted: int = 0


class CabinetEnvironment(Environment[Cabinet, CabinetTask]):
    """Keeps things of every type."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        """Set by an external tool that never ends."""

    def seed(self, task: CabinetTask) -> Cabinet:
        return Cabinet(log=[task.drawer])

    @tool
    def write(self, state: Cabinet, line: str) -> int:
        """Add a line to the log."""
        state.log.append(line)
        return len(state.log)

    @tool
    def relabel(self, state: Cabinet, number: int, price: str) -> str:
        """Change the plain values."""
        state.text += f" {number}"
        state.number -= number
        state.ratio /= number
        state.flag = not state.flag
        state.nothing = None if state.nothing else "something"
        state.raw = bytes([number % 256]) + state.raw
        state.span *= number
        state.price = Decimal(price)
        state.colour = Colour.GREEN if state.colour is Colour.RED else Colour.RED
        state.rank = Rank.HIGH
        state.mode = 7
        state.pair = (number, str(number))
        state.row = (*state.row, state.price)
        return price

    @tool
    def arrange(self, state: Cabinet, key: str, name: str) -> list[str]:
        """Change what is in containers: add, remove, reorder."""
        part = Part(name=name, tags={key, name}, inner=Part(name=f"in {name}", weight=Decimal("2.50")))
        state.parts.insert(0, part)
        state.parts.reverse()
        state.parts[0].tags.add(name)
        state.shelf[key] = part
        state.shelf[key].name += "!"
        state.marks.add(key)
        state.marks.discard("a b")
        state.fixed |= {len(name)}
        state.by_number[len(state.shelf)] = name
        state.by_number.pop(0, None)
        state.by_colour.setdefault(Colour.RED, []).append(len(name))
        state.odd[key] = {"name": name, "list": [name, None]}
        state.either = Square(side=len(name))
        return sorted(state.shelf)

    @tool
    def discard(self, state: Cabinet, key: str) -> None:
        """Take something off the shelf."""
        if key not in state.shelf:
            raise ToolError(f"there is no {key} on the shelf")
        del state.shelf[key]
        del state.parts[1:]

    @tool
    def draw(self, state: Cabinet, rng: Random, clock: Any, new_id: Any) -> str:
        """Keep what luck and time decide."""
        clock.advance(timedelta(minutes=90))
        state.moment = clock.now()
        state.identity = UUID(int=rng.getrandbits(128))
        state.log.append(new_id("draw"))
        return state.log[-1]

    @tool
    def enlarge(self, state: Cabinet, size: int, text: str) -> int:
        """Keep bytes that are large, and a text twice that may be."""
        state.raw = bytes(range(256)) * (size // 256)
        state.text = text
        state.odd["text"] = text
        return len(state.raw)

    @tool(effect="read")
    def foresee(self, state: Cabinet, rng: Random, clock: Any, new_id: Any) -> list[Any]:
        """What the next call would get of luck and time."""
        return [rng.getrandbits(53), clock.now().isoformat(), new_id(), len(state.log)]

    @tool(effect="external")
    async def post(self, state: Cabinet, to: str) -> str:
        """Reach outside: nobody is not found, and nowhere nothing ever arrives."""
        if to == "nobody":
            raise ToolError("nobody is not known here")
        if to == "nowhere":
            self.reached.set()
            await asyncio.Event().wait()
        state.log.append(f"posted to {to}")
        return to

    def verify(self, state: Cabinet, episode: Episode) -> Verdict:
        right = len(state.log) == episode.task.wanted
        return Verdict(
            float(right), {"log": 0.5}, {"lines": len(state.log)}, "counted", {"drawer": episode.task.drawer}
        )

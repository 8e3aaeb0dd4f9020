"""A call that goes wrong: a failed result with words for the model, and nothing has changed."""

import asyncio
import sys
import threading
from typing import Any

import pytest
from pydantic import AfterValidator, BaseModel
from typing_extensions import Annotated

from stateroom import Environment, Sessions, State, ToolError, tool
from stateroom.session import Result, Session
from stateroom.store import Store


class Line(BaseModel):
    price: int


class Order(BaseModel):
    lines: list[Line] = []


class Shop(State):
    orders: dict[str, Order] = {"a": Order(lines=[Line(price=1)])}
    notes: list[Any] = []


def explode(value: str) -> str:
    if value == "bad":
        raise LookupError("secret of the validator")
    return value


RELEASED = threading.Event()


class ShopEnvironment(Environment[Shop]):
    """Tools that fail, each in its own way; all but `look` change the state first."""

    @tool
    def note(self, state: Shop, what: Any) -> Any:
        """Keep a note."""
        state.notes.append(what)
        return what

    @tool(effect="read")
    def look(self, state: Shop) -> int:
        """How many notes there are."""
        return len(state.notes)

    @tool(effect="read")
    def meddle(self, state: Shop) -> str:
        """A read that writes."""
        state.notes.append(1)
        return "done"

    @tool
    def raises(self, state: Shop) -> None:
        """Raise."""
        state.notes.append(1)
        raise RuntimeError(f"at {__file__}: {object()}")

    @tool
    async def raises_async(self, state: Shop) -> None:
        """Raise."""
        state.notes.append(1)
        raise KeyError(object())

    @tool
    def refuses(self, state: Shop, why: str) -> None:
        """Refuse."""
        state.notes.append(1)
        raise ToolError(why)

    @tool
    def leaves(self, state: Shop) -> None:
        """Leave."""
        state.notes.append(1)
        sys.exit(3)

    @tool
    async def leaves_async(self, state: Shop) -> None:
        """Leave."""
        state.notes.append(1)
        sys.exit(3)

    @tool
    async def cancels(self, state: Shop) -> None:
        """Await what was cancelled."""
        state.notes.append(1)
        waiting = asyncio.get_running_loop().create_future()
        waiting.cancel()
        await waiting

    @tool
    def stops(self, state: Shop) -> None:
        """Run out."""
        state.notes.append(1)
        next(iter(()))

    @tool(timeout=0.05)
    def hangs(self, state: Shop) -> None:
        """Wait for what does not come."""
        state.notes.append(1)
        RELEASED.wait(30)
        state.notes.append(2)

    @tool
    def hangs_by_default(self, state: Shop) -> None:
        """Wait for what does not come."""
        state.notes.append(1)
        RELEASED.wait(30)

    @tool(timeout=0.05)
    async def hangs_async(self, state: Shop) -> None:
        """Wait for what does not come."""
        state.notes.append(1)
        await asyncio.Event().wait()

    @tool
    def gives_an_object(self, state: Shop) -> object:
        """Give what is not JSON."""
        state.notes.append(1)
        return {"it": object()}

    @tool
    def gives_itself(self, state: Shop) -> object:
        """Give what has no end."""
        state.notes.append(1)
        endless: list[Any] = []
        endless.append(endless)
        return endless

    @tool
    def keeps_an_object(self, state: Shop) -> None:
        """Keep what cannot be kept."""
        state.notes.append(object())

    @tool
    def spoils(self, state: Shop, price: Any) -> None:
        """Put a wrong price three levels down."""
        state.orders["a"].lines[0].price = price

    @tool
    def drops_a_field(self, state: Shop) -> None:
        """Put something wrong into a dict."""
        state.orders["b"] = {"lines": [{"prize": 1}]}  # type: ignore[assignment]

    @tool
    def checked(self, state: Shop, text: Annotated[str, AfterValidator(explode)], order: Order | None = None) -> None:
        """Take a text that is checked in a way of its own."""
        state.notes.append(text)


@pytest.fixture(autouse=True)
def _release():
    RELEASED.clear()
    yield
    RELEASED.set()


ShopEnvironment.verify = lambda self: 0.0  # type: ignore[method-assign]

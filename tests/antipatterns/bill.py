"""A bill whose stored state can be spoilt, as another program or a failing disk would."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace
from pydantic import BaseModel, Field, model_validator

from stateroom import Environment, State, tool
from stateroom.store import Store


class Line(BaseModel):
    price: int = Field(ge=0)


class Bill(State):
    discount: float = Field(default=0.5, ge=0, le=1)
    currency: str = "EUR"
    lines: dict[str, Line] = {"tea": Line(price=4)}
    secret: str = "rosebud"
    paid: bool = False
    charged: int = 0

    @model_validator(mode="after")
    def is_paid_for(self) -> "Bill":
        if self.paid and not self.charged:
            raise ValueError("what is paid was charged")
        return self


class BillEnvironment(Environment[Bill]):
    """Charges what the bill says."""

    name = "bill"

    @tool
    def write(self, state: Bill, field: str, value: Any) -> str:
        """Write whatever there is."""
        state.charged = 1
        setattr(state, field, value)
        return "written"

    @tool
    def reprice(self, state: Bill, price: Any) -> str:
        """Give the tea another price."""
        state.charged = 1
        state.lines["tea"].price = price
        return "written"

    @tool
    def pay(self, state: Bill) -> None:
        """Say that it is paid."""
        state.paid = True

    @tool
    def charge(self, state: Bill) -> float:
        """Charge it all."""
        state.charged += round(sum(line.price for line in state.lines.values()) * (1 - state.discount))
        return state.charged

    def verify(self, state: Bill) -> float:
        return float(state.charged)


Spoil = Callable[[dict[str, Any]], Any]

SPOILT: dict[str, tuple[Spoil, str]] = {
    "missing": (lambda state: state.pop("discount"), "discount: Field required"),
    "missing within": (lambda state: state["lines"]["tea"].clear(), "lines.tea.price: Field required"),
    "of another type": (lambda state: state.update(discount="much"), "discount: .* instance of float; it is 'much'"),
    "unknown": (lambda state: state.update(rebate=1), "rebate: Extra inputs are not permitted; it is 1"),
}


async def spoilt(store: Store, session: str, spoil: Spoil) -> str:
    """A copy of a session, of which some other program has spoilt what is stored; its id."""
    record = await store.maintenance.export(session)
    (snapshot,) = record.snapshots
    document = msgspec.msgpack.decode(snapshot.body)
    spoil(document["state"])
    body = msgspec.msgpack.encode(document)
    copied = replace(record, head=replace(record.head, id="spoilt"), snapshots=[replace(snapshot, body=body)])
    await store.put(copied)
    return "spoilt"

"""One environment as three generations of its code have it."""

from __future__ import annotations

from typing import Any

from stateroom import Environment, SessionLimits, Sessions, State, ToolError, tool
from stateroom.store import Store


class Profile1(State):
    orders: int = 0


class Profile2(State, version=2):
    bought: int = 0
    name: str = ""


@Profile2.migration(1)
def _profile(data: dict[str, Any]) -> dict[str, Any]:
    return {"bought": data["orders"], "name": "unknown"}


class Cart1(State):
    prices: list[int] = []
    note: str = ""


class Cart2(State, version=2):
    prices: list[int] = []
    total: int = 0
    note: str = ""


class Cart3(State, version=3):
    items: dict[str, int] = {}
    total: int = 0
    note: str = ""


def add_total(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "total": sum(data["prices"])}


def name_items(data: dict[str, Any]) -> dict[str, Any]:
    prices = data.pop("prices")
    return {**data, "items": {f"item {number}": price for number, price in enumerate(prices)}}


Cart2.migration(1)(add_total)
Cart3.migration(1)(add_total)
Cart3.migration(2)(name_items)


class Shop1(Environment[Cart1]):
    """Sells things."""

    name = "shop"

    @tool
    def buy(self, state: Cart1, price: int) -> int:
        """Buy something."""
        state.prices.append(price)
        return len(state.prices)

    @tool
    def order(self, user: Profile1) -> int:
        """Order what was bought."""
        user.orders += 1
        return user.orders

    def verify(self, state: Cart1) -> float:
        return float(sum(state.prices))


class Shop2(Environment[Cart2]):
    """Sells things."""

    name = "shop"

    @tool
    def buy(self, state: Cart2, price: int) -> int:
        """Buy something."""
        state.prices.append(price)
        state.total += price
        return state.total

    def verify(self, state: Cart2) -> float:
        return float(state.total)


class Shop3(Environment[Cart3]):
    """Sells things."""

    name = "shop"

    @tool
    def buy(self, state: Cart3, price: int) -> int:
        """Buy something."""
        if price < 0:
            raise ToolError("a price is not negative")
        state.items[f"item {len(state.items)}"] = price
        state.total += price
        return state.total

    @tool
    def order(self, user: Profile2) -> int:
        """Order what was bought."""
        user.bought += 1
        return user.bought

    def verify(self, state: Cart3) -> float:
        return float(state.total)


def shop(generation: int, store: Store, **options: Any) -> Sessions[Any]:
    """The sessions of the shop, as the code of a generation has them."""
    environment: Any = [Shop1, Shop2, Shop3][generation - 1]()
    return Sessions(environment, store, SessionLimits(**options))

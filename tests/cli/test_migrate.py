"""`stateroom migrate`, as a person or a script runs it."""

from pathlib import Path
from typing import Any

import pytest

from stateroom.store import Store
from tests.cli.conftest import STORE, in_store
from tests.session.versions import shop

SHOP = """
from stateroom import Environment, State

class Cart(State, version=2):
    prices: list[float] = []
    note: str = ""

@Cart.migration(1)
def to_floats(data):
    return {**data, "prices": [float(price) for price in data["prices"] if price < 5 or 1 / 0]}

class Shop(Environment[Cart]):
    "Sells things."
    name = "shop"
"""


@pytest.fixture
def ids(stateroom: Any, tmp_path: Path) -> list[str]:
    """A store with three sessions, of which one cannot be migrated."""
    (tmp_path / "shop.py").write_text(SHOP)

    async def fill(store: Store) -> list[str]:
        made = [await shop(1, store).seed({"user": "ann"}) for _ in range(3)]
        await made[1].call("buy", {"price": 3})
        await made[2].call("buy", {"price": 9})
        return [session.id for session in made]

    return in_store(fill)


def test_migrate(stateroom: Any, ids: list[str]) -> None:
    planned = stateroom("migrate", "--store", STORE, "--env", "shop.py:Shop", "--dry-run")
    assert planned.code == 1
    assert "2 sessions of 3 would be migrated; nothing was changed" in planned.out
    done = stateroom("migrate", "--store", STORE, "--env", "shop.py:Shop")
    assert done.code == 1
    assert "2 sessions of 3 migrated" in done.out
    assert ids[2] in done.out
    assert "ZeroDivisionError" in done.out
    again = stateroom("migrate", "--store", STORE, "--env", "shop.py:Shop", "--json").json
    assert again["outcomes"] == {"current": 2, "failed": 1}
    assert again["versions"] == {"shop": 2}
    assert [each["session"] for each in again["failed"]] == [ids[2]]
    shown = stateroom("sessions", "show", ids[1], "--store", STORE, "--json")
    assert shown.json["state"] == {"prices": [3.0], "note": ""}
    assert "migrated" in stateroom("sessions", "log", ids[1], "--store", STORE).out


def test_without_its_environment_a_session_is_left_alone(stateroom: Any, ids: list[str]) -> None:
    done = stateroom("migrate", "--store", STORE)
    assert done.code == 0
    assert "name it with --env" in " ".join(done.out.split())
    assert "0 sessions of 3 migrated" in done.out


def test_a_store_that_is_not_there_is_named(stateroom: Any) -> None:
    done = stateroom("migrate", "--store", "sqlite:///nothing.db")
    assert done.code == 2
    assert "nothing.db" in done.err


NEW_FIELD = """
from stateroom import Environment, State

class Cart(State):
    prices: list[int] = []
    note: str = ""
    coupons: list[str] = ["welcome"]

class Shop(Environment[Cart]):
    "Sells things."
    name = "shop"

    def verify(self, state: Cart) -> float:
        return float(len(state.coupons))
"""


def test_a_new_field_with_a_default_is_accepted_while_its_author_develops(
    stateroom: Any, ids: list[str], tmp_path: Path
) -> None:
    (tmp_path / "new.py").write_text(NEW_FIELD)
    command = ("migrate", "--store", STORE, "--env", "new.py:Shop")
    refused = stateroom(*command, "--json")
    assert refused.code == 1
    assert "`accept_defaults` takes the defaults of new fields" in refused.json["failed"][0]["error"]
    done = stateroom(*command, "--json", "--accept-defaults")
    assert (done.code, done.json["outcomes"].get("failed")) == (0, None)
    assert done.json["outcomes"]["migrated"] >= 2
    assert "coupons" in stateroom("sessions", "show", ids[0], "--store", STORE).out
    assert stateroom(*command, "--json").json["outcomes"] == {"current": 3}

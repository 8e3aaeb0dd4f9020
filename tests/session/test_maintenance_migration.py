"""All sessions of a store brought to the newest schema, while servers are at work."""

import time
from collections import Counter
from typing import Any

import pytest

from stateroom.errors import SchemaChanged
from stateroom.session import Migrator, check_session, kept_types
from stateroom.store import Store
from tests.messages import raises
from tests.session.versions import Shop1, Shop3, shop

pytestmark = pytest.mark.every_store


def migrator(store: Store, environment: Any = None) -> Migrator:
    return Migrator(store, kept_types(environment or Shop3()), time.time)


async def outcomes(found: Any) -> Counter[str]:
    return Counter([each.outcome async for _, each in found])


async def filled(store: Store) -> list[Any]:
    """Five sessions of the first generation, of which two have ended, a fork of one, and their user."""
    sessions = shop(1, store)
    made = [await sessions.seed({"user": "ann"}) for _ in range(5)]
    for number, session in enumerate(made):
        for price in range(number + 1):
            await session.call("buy", {"price": price})
    await made[0].call("order")
    await made[3].close()
    await made[4].verify()
    return [*made, await made[2].fork()]


async def test_all_are_migrated_once(store: Store) -> None:
    made = await filled(store)
    before = [await store.maintenance.export(session.id) for session in made]
    assert await outcomes(migrator(store).plan()) == {"migrated": 5, "ended": 2}
    assert [await store.maintenance.export(session.id) for session in made] == before
    assert await outcomes(migrator(store).carry_out()) == {"migrated": 5, "ended": 2}
    assert await outcomes(migrator(store).carry_out()) == {"current": 5, "ended": 2}
    again = [await shop(3, store).open(session.id, include_closed=True) for session in made]
    assert [session.state.total for session in again] == [0, 1, 3, 6, 10, 3]
    assert [entry.kind async for entry in again[0].log()] == ["seed", "call", "call", "migrated"]
    assert [await check_session(store, await store.head(session.id)) for session in made] == [[]] * 6
    assert (await again[0].call("order")).output == 2
    assert (await again[5].call("buy", {"price": 7})).output == 10


async def test_older_code_that_is_at_work_refuses_what_was_migrated(store: Store) -> None:
    made = await filled(store)
    await outcomes(migrator(store).carry_out())
    for session in made[:3]:
        with raises(SchemaChanged):
            await session.call("buy", {"price": 1})
    assert await outcomes(migrator(store, Shop1()).carry_out()) == {"failed": 5, "current": 2}


async def test_what_a_worker_holds_is_left_for_the_next_time(store: Store) -> None:
    made = await filled(store)
    async with made[0].lease():
        found = {head.id: each.outcome async for head, each in migrator(store).carry_out()}
        assert found[made[0].id] == "in use"
        assert (await made[0].call("buy", {"price": 1})).ok
    assert await outcomes(migrator(store).carry_out()) == {"migrated": 1, "current": 4, "ended": 2}


async def test_an_announced_change_stays_the_last(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = await filled(store)

    async def died(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("stateroom.session.shared.Shared.complete", died)
        with pytest.raises(KeyboardInterrupt):
            await made[0].call("order")
    assert (await outcomes(migrator(store).carry_out()))["in use"] == 1
    session = await shop(3, store).open(made[0].id)
    assert (await session.call("order")).output == 3
    assert (await outcomes(migrator(store).carry_out()))["in use"] == 0


async def test_sessions_of_other_environments_are_left_alone(store: Store) -> None:
    await filled(store)
    assert await outcomes(Migrator(store, {}, time.time).carry_out()) == {"foreign": 7}

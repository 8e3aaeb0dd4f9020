"""A person changes the state: what an edit may do, what the log says of it, and who else knows."""

import asyncio
from datetime import date
from decimal import Decimal
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from pydantic import BaseModel, ConfigDict, field_validator, model_validator

from stateroom import Environment, SessionLimits, Sessions, State, tool
from stateroom.errors import InvalidArguments, InvalidState, SessionClosed, SessionLeased, SessionSealed, TooLarge
from stateroom.session import Edit, History, LogReader, Session, entry_line
from stateroom.state import decode, encode, lines, readable
from stateroom.store import Store
from tests.messages import raises
from tests.session.stored_sessions import prune


class Mood(StrEnum):
    calm = "calm"
    angry = "angry"


class Line(BaseModel):
    model_config = ConfigDict(frozen=True)

    item: str
    count: int = 1


class Order(BaseModel):
    price: Decimal = Decimal(1)
    due: date = date(2026, 1, 1)
    lines: list[Line] = []
    scan: bytes = b""

    @field_validator("price")
    @classmethod
    def _positive(cls, price: Decimal) -> Decimal:
        if price < 0:
            raise ValueError("a price is not negative")
        return price


class Shop(State):
    orders: dict[str, Order] = {}
    tags: set[str] = set()
    mood: Mood = Mood.calm
    total: int = 0
    most: int = 100

    @model_validator(mode="after")
    def _within(self) -> "Shop":
        if self.total > self.most:
            raise ValueError("the total is more than the most")
        return self


class ShopEnvironment(Environment[Shop]):
    """Takes orders."""

    @tool
    def order(self, state: Shop, name: str) -> int:
        """Take an order."""
        state.orders[name] = Order()
        state.total += 1
        return state.total

    def verify(self, state: Shop, episode: Any) -> float:
        self.seen = ([call.name for call in episode.calls()], [state.total for state in episode.states()])
        return float(state.total)


@pytest.fixture
def sessions(store: Store) -> Sessions[Shop]:
    return Sessions(ShopEnvironment(), store)


async def stored(store: Store, session: Session[Any], revision: int | None = None) -> Any:
    return readable((await History(store).document(session.id, revision)).state)


def typed(state: Any) -> Any:
    return readable(decode(encode(state)))


async def test_values_are_parsed_by_their_declared_types(sessions: Sessions[Shop]) -> None:
    session = await sessions.seed({})
    await session.call("order", {"name": "a1"})
    changes: list[Any] = [
        {"place": ["orders", "a1", "price"], "value": "2.50"},
        {"place": ["orders", "a1", "due"], "value": "2026-02-03"},
        {"place": ["orders", "a1", "scan"], "value": "/wA="},
        {"place": ["orders", "a1", "lines", 0], "value": {"item": "pen"}},
        {"place": ["orders", "a1", "lines", 0, "count"], "value": 4},
        {"place": ["orders", "b2"], "value": {"price": 3}},
        {"place": ["tags"], "value": ["x", "y"]},
        {"place": ["mood"], "value": "angry"},
    ]
    assert await session.edit(changes, by="ada", reason="a complaint") == session.revision == 3
    first = Order(price=Decimal("2.50"), due=date(2026, 2, 3), lines=[Line(item="pen", count=4)], scan=b"\xff\x00")
    assert session.state == Shop(
        orders={"a1": first, "b2": Order(price=Decimal(3))}, tags={"x", "y"}, mood=Mood.angry, total=1
    )
    await session.edit([{"place": ["orders", "a1"], "gone": True}], by="ada")
    assert list(session.state.orders) == ["b2"]


async def test_a_whole_state_can_be_given_as_it_is_shown(sessions: Sessions[Shop], store: Store) -> None:
    session = await sessions.seed({})
    await session.call("order", {"name": "a1"})
    shown = await stored(store, session)
    assert await session.edit([{"place": [], "value": shown}], by="ada") == 2
    shown["total"] = 7
    await session.edit([{"place": [], "value": shown}], by="ada")
    [*_, entry] = [entry async for entry in session.log()]
    assert (entry.kind, entry.patch) == ("edit", [("set", ["total"], 7)])


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"place": ["orders", "a1", "price"], "value": "-1"}, ("orders", "a1", "price")),
        ({"place": ["orders", "a1", "price"], "value": "much"}, ("orders", "a1", "price")),
        ({"place": ["orders", "b2"], "value": {"lines": [{"count": 1}]}}, ("orders", "b2", "lines", 0, "item")),
        ({"place": ["orders", "b2", "price"], "value": 1}, ("orders", "b2")),
        ({"place": ["orders", "a1", "lines", 1], "value": {"item": "pen"}}, ("orders", "a1", "lines", 1)),
        ({"place": ["orders", "b2"], "gone": True}, ("orders", "b2")),
        ({"place": ["mood"], "value": "sad"}, ("mood",)),
        ({"place": ["mood"], "gone": True}, ("mood",)),
        ({"place": ["mod"], "value": "calm"}, ("mod",)),
        ({"place": ["tags", "x"], "gone": True}, ("tags", "x")),
        ({"place": ["total"], "value": 101}, ()),
        ({"place": [], "value": {"total": "many"}}, ("total",)),
        ({"place": [], "gone": True}, ()),
        ({"place": ["total"]}, ("changes", 1)),
        ({"place": "total", "value": 1}, ("changes", 1, "place")),
    ],
)
async def test_a_wrong_change_is_refused_with_its_place_and_nothing_is_committed(
    store: Store, change: dict[str, Any], place: tuple[Any, ...]
) -> None:
    session = await Sessions(ShopEnvironment(), store).seed({})
    await session.call("order", {"name": "a1"})
    with pytest.raises(InvalidState) as refused:
        await session.edit([{"place": ["total"], "value": 5}, change], by="ada")
    assert refused.value.path == place
    assert (session.revision, session.state.total) == (2, 1)
    assert (await session.call("order", {"name": "b2"})).output == 2


async def test_an_edit_says_who_and_why(sessions: Sessions[Shop]) -> None:
    session = await sessions.seed({})
    for by in ("", "a\nb"):
        with raises(InvalidArguments):
            await session.edit([{"place": ["total"], "value": 5}], by=by)
    await session.edit([{"place": ["total"], "value": 5}], by="ada", reason="a test")
    [_, entry] = [entry async for entry in session.log()]
    assert (entry.kind, entry.facts) == ("edit", {"by": "ada", "reason": "a test"})
    assert entry_line(entry) == "a test"
    found = [(entry.kind, lines(changes)) async for entry, changes in LogReader(sessions.store, session.id).read()]
    assert found == [("seed", []), ("edit", ["total: 0 → 5"])]
    assert [str(each) for each in await session.diff(1)] == ["total: 0 → 5"]
    assert [each async for each in session.events()] == []


async def test_what_changes_nothing_commits_nothing(sessions: Sessions[Shop]) -> None:
    session = await sessions.seed({})
    assert await session.edit([{"place": ["total"], "value": 0}, {"place": ["tags"], "value": []}], by="ada") == 1
    assert not session.edited


async def test_the_rules_of_a_session_hold_for_edits(
    sessions: Sessions[Shop], store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateroom.session.commit.ATTEMPTS", 2)
    five = [{"place": ["total"], "value": 5}]
    session = await sessions.seed({})
    elsewhere = await Sessions(ShopEnvironment(), store).open(session.id)
    async with elsewhere.lease():
        with pytest.raises(SessionLeased):
            await session.edit(five, by="ada")
    small = await Sessions(ShopEnvironment(), store, SessionLimits(max_state=2000)).open(session.id)
    with pytest.raises(TooLarge):
        await small.edit([{"place": ["tags"], "value": ["x" * 3000]}], by="ada")
    await session.verify()
    with pytest.raises(SessionSealed):
        await elsewhere.edit(five, by="ada")
    fork = await session.fork(1)
    await fork.close()
    with pytest.raises(SessionClosed):
        await fork.edit(five, by="ada")
    assert (await stored(store, session))["total"] == 0


async def test_edits_of_several_workers_are_all_kept(sessions: Sessions[Shop], store: Store) -> None:
    session = await sessions.seed({})
    workers = [await Sessions(ShopEnvironment(), store).open(session.id) for _ in range(3)]
    named = [*zip(workers, "abc", strict=True)]
    await asyncio.gather(
        *(worker.edit([{"place": ["orders", name], "value": {}}], by=name) for worker, name in named),
        *(worker.call("order", {"name": f"{name}2"}) for worker, name in named),
    )
    assert {*(await session.state_at()).orders} == {"a", "b", "c", "a2", "b2", "c2"}
    assert session.revision == 7


async def test_a_session_is_edited_until_it_goes_back(sessions: Sessions[Shop], store: Store) -> None:
    session = await sessions.seed({})
    await session.edit([{"place": ["total"], "value": 5}], by="ada")
    await session.call("order", {"name": "a"})
    fork = await session.fork()
    opened = await Sessions(ShopEnvironment(), store).open(fork.id)
    assert (session.edited, fork.edited, opened.edited) == (True, True, True)
    for _ in range(10):
        await session.call("order", {"name": "a"})
    await prune(store, keep=2)
    assert (await Sessions(ShopEnvironment(), store).open(session.id)).edited
    await fork.rewind(1)
    assert not fork.edited


@pytest.mark.every_store
async def test_a_fork_begins_with_an_edit_or_is_not_made(sessions: Sessions[Shop], store: Store) -> None:
    session = await sessions.seed({})
    await session.call("order", {"name": "a"})
    await session.call("order", {"name": "b"})
    before = [entry async for entry in session.log()]
    wrong = Edit([{"place": ["total"], "value": 101}], by="ada")
    with pytest.raises(InvalidState):
        await session.fork(2, edit=wrong)
    assert await session.children() == []
    forks = await session.fork(2, n=2, edit=Edit([{"place": ["orders", "a"], "gone": True}], by="ada"))
    opened = await Sessions(ShopEnvironment(), store).open(forks[0].id)
    for fork in (*forks, opened):
        assert (fork.revision, fork.edited, fork.parent) == (3, True, (session.id, 2))
        assert typed(await fork.state_at()) == typed(Shop(total=1))
        assert [entry.kind async for entry in fork.log()] == ["seed", "call", "edit"]
    assert (await opened.call("order", {"name": "c"})).output == 2
    assert {*(await forks[0].state_at()).orders} == {"c"}
    [same] = await session.fork(2, n=1, edit=Edit([{"place": ["total"], "value": 1}], by="ada"))
    assert (same.revision, same.edited) == (2, False)
    assert [entry async for entry in session.log()] == before


async def test_an_edit_is_a_step_that_is_no_call(sessions: Sessions[Shop]) -> None:
    environment = ShopEnvironment()
    sessions = Sessions(environment, sessions.store)
    session = await sessions.seed({})

    async def total(value: int) -> None:
        await session.edit([{"place": ["total"], "value": value}], by="ada")

    await total(10)
    await session.call("order", {"name": "a"})
    await session.call("order", {"name": "b"})
    await total(20)
    await total(21)
    await session.call("order", {"name": "c"})
    await total(30)
    assert (await session.verify()).reward == 30
    assert environment.seen == (["order"] * 3, [10, 11, 21, 30])


CHANGES = st.lists(
    st.one_of(
        st.builds(lambda value: {"place": ["total"], "value": value}, st.integers(0, 100)),
        st.builds(lambda tags: {"place": ["tags"], "value": tags}, st.lists(st.text("ab", max_size=2))),
        st.builds(lambda key: {"place": ["orders", key], "value": {"price": "1.5"}}, st.sampled_from("ab")),
        st.builds(lambda key: {"place": ["orders", key], "gone": True}, st.sampled_from("ab")),
        st.builds(lambda key: {"place": ["orders", key, "lines", 0], "value": {"item": key}}, st.sampled_from("ab")),
        st.just("call"),
        st.just("rewind"),
    ),
    max_size=12,
)


@pytest.mark.every_store
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=CHANGES)
async def test_another_process_reads_the_edited_state(store: Store, steps: list[Any]) -> None:
    session = await Sessions(ShopEnvironment(), store).seed({})
    follower = await Sessions(ShopEnvironment(), store).open(session.id)
    for step in steps:
        if step == "call":
            await session.call("order", {"name": "c"})
        elif step == "rewind":
            await session.rewind(max(1, session.revision - 2))
        else:
            before = session.revision
            try:
                await session.edit([step], by="ada")
            except InvalidState:
                assert session.revision == before
    state = typed(await session.state_at())
    assert typed(await follower.state_at()) == state  # by the patches that it lacks
    assert typed((await Sessions(ShopEnvironment(), store).open(session.id)).state) == state
    assert await stored(store, session) == state
    assert follower.edited == session.edited

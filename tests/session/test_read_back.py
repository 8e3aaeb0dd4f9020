"""What is committed is what any process reads, equal and of equal types."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import date, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationInfo, field_validator, model_validator

from stateroom import Sessions, State, open_store, tool
from stateroom.session import Result
from stateroom.store import Store
from tests.environments import Unjudged
from tests.messages import says
from tests.state.classes import exact


async def called(seeded: State, change: Callable[[Any], object]) -> tuple[Result, Any]:
    """What came of a call, and the state in the session that made it: the same as another reads, or follows to."""
    kind = type(seeded)

    class Changing(Unjudged[kind]):  # type: ignore[valid-type]
        """Changes its state."""

        def seed(self) -> State:
            return seeded

        @tool
        def go(self, state: Any) -> None:
            """Change it."""
            change(state)

    async with open_store("memory://") as store:
        session = await Sessions(Changing(), store).seed({})
        follower = await Sessions(Changing(), store).open(session.id)
        result = await session.call("go", {})
        fresh = await Sessions(Changing(), store).open(session.id)
        assert exact(fresh.state) == exact(session.state)
        assert exact(await follower.state_at()) == exact(session.state)
        return result, session.state


DEPTH = 100
"""Levels that a state may have."""


class Quota(State):
    cap: int = 10
    used: int = 5

    @field_validator("used")
    @classmethod
    def _within(cls, used: int, info: ValidationInfo) -> int:
        if used > info.data["cap"]:
            raise ValueError("more than the cap")
        return used


async def test_a_validator_that_looks_at_a_field_before_it_runs_when_that_changes() -> None:
    result, state = await called(Quota(), lambda state: setattr(state, "cap", 1))
    assert result.code == "tool_failed"
    assert (state.cap, state.used) == (10, 5)
    result, state = await called(Quota(), lambda state: setattr(state, "cap", 6))
    assert (result.ok, state.cap) == (True, 6)


class Limited(State):
    model_config = ConfigDict(
        str_max_length=3, str_strip_whitespace=True, str_to_lower=True, allow_inf_nan=False, strict=True
    )
    words: list[str] = []
    by_word: dict[str, float] = {}
    seen: set[str] = set()
    rows: list[tuple[str, float]] = []


@pytest.mark.parametrize(
    "change",
    [
        lambda state: state.words.append("abcdef"),
        lambda state: state.words.append(1),
        lambda state: state.by_word.update(a=float("inf")),
        lambda state: state.by_word.update(abcdef=1.0),
        lambda state: state.seen.add("abcdef"),
        lambda state: state.rows.append(("a", float("nan"))),
    ],
)
async def test_the_models_config_limits_what_is_put_into_its_containers(change: Any) -> None:
    result, state = await called(Limited(), change)
    assert not result.ok
    assert state == Limited()


async def test_the_models_config_converts_what_is_put_into_its_containers() -> None:
    def change(state: Limited) -> None:
        state.words.append(" A ")
        state.by_word["B"] = 1.0
        state.seen.add(" C")
        state.rows.append(("D ", 1.0))

    result, state = await called(Limited(), change)
    assert result.ok, result.error
    assert state == Limited(words=["a"], by_word={"b": 1.0}, seen={"c"}, rows=[("d", 1.0)])


class Spot(Enum):
    PAIR = (1, 2)
    DAY = date(2024, 1, 1)
    SUM = Decimal("1.50")
    ID = UUID(int=1)
    SPAN = timedelta(1)
    SET = frozenset({1, 2})
    RAW = b"raw"
    NONE = None


class Map(State):
    spots: dict[Spot, int] = {}
    models: dict[Spot, Quota] = {}


@pytest.mark.parametrize("spot", Spot)
async def test_a_key_is_stored_as_values_are(spot: Spot) -> None:
    def change(state: Map) -> None:
        state.spots[spot] = 1
        state.models[spot].used = 4

    result, state = await called(Map(models={spot: Quota()}), change)
    assert result.ok, result.error
    assert (state.spots, state.models[spot].used) == ({spot: 1}, 4)


class Numbered(State):
    rows: dict[int, list[int]] = {}


async def test_a_key_may_be_named_by_what_equals_it() -> None:
    def change(state: Numbered) -> None:
        state.rows[True].append(5)
        del state.rows[2.0]  # type: ignore[arg-type]
        state.rows[3.0] = [6]  # type: ignore[index]

    result, state = await called(Numbered(rows={1: [], 2: [], 3: []}), change)
    assert result.ok, result.error
    assert state.rows == {1: [5], 3: [6]}


class Node(BaseModel):
    inner: Node | None = None


class Deep(State):
    root: Node | None = None
    free: JsonValue = None
    rows: tuple[JsonValue, ...] = ()


def grow(state: Deep) -> None:
    place: Any = state
    name = "root"
    while getattr(place, name) is not None:
        place, name = getattr(place, name), "inner"
    setattr(place, name, Node())


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


async def test_a_model_that_grows_a_level_a_call_is_refused_before_it_is_too_deep_to_read(store: Store) -> None:
    class Growing(Unjudged[Deep]):
        """Grows."""

        @tool
        def go(self, state: Deep) -> None:
            """Grow by one."""
            grow(state)

    session = await Sessions(Growing(), store).seed({})
    results = [await session.call("go", {}) for _ in range(DEPTH + 5)]
    assert [result.ok for result in results] == [True] * DEPTH + [False] * 5
    says(results[-1].error or "")
    assert (await Sessions(Growing(), store).open(session.id)).state == session.state


@pytest.mark.parametrize("levels", [DEPTH, DEPTH + 1, 100_000])
async def test_json_is_as_deep_as_a_state_may_be(levels: int) -> None:
    result, state = await called(Deep(), lambda state: setattr(state, "free", nested(levels)))
    assert result.ok is (levels <= DEPTH)
    assert state.free == (nested(levels) if levels <= DEPTH else None)


def test_the_deepest_state_is_read_on_a_small_stack() -> None:
    found: list[Any] = []
    deepest = Node()
    for _ in range(DEPTH - 2):
        deepest = Node(inner=deepest)

    def run() -> None:
        seeded = Deep(root=deepest, free=nested(DEPTH), rows=(nested(DEPTH - 1),))
        _, state = asyncio.run(called(seeded, lambda state: state.free.clear()))
        found.append(state.model_dump_json())

    before = threading.stack_size(2**20)
    try:
        thread = threading.Thread(target=run)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert found


class Narrow(BaseModel):
    x: int = 0


class Wide(BaseModel):
    x: int = 0
    y: int = 0


class Either(State):
    one: Wide | Narrow = Narrow()
    many: list[Wide | Narrow] = []
    rows: list[Wide] | list[Narrow] = []


async def test_members_of_a_union_are_told_by_their_fields() -> None:
    def change(state: Either) -> None:
        state.one.x = 3
        state.many.append(Narrow(x=1))
        state.rows.append(Narrow(x=2))  # type: ignore[arg-type]

    result, state = await called(Either(), change)
    assert result.ok, result.error
    assert state == Either(one=Narrow(x=3), many=[Narrow(x=1)], rows=[Narrow(x=2)])


class Tidy(State):
    numbers: list[int] = []
    table: dict[str, int] = {}
    names: list[str] = []
    total: int = 0
    doubled: int = 0

    @field_validator("numbers")
    @classmethod
    def _sort(cls, numbers: list[int]) -> list[int]:
        return sorted(numbers)

    @field_validator("table")
    @classmethod
    def _arrange(cls, table: dict[str, int]) -> dict[str, int]:
        return dict(sorted(table.items()))

    @field_validator("names")
    @classmethod
    def _lower(cls, names: list[str]) -> list[str]:
        return [name.lower() for name in names]

    @field_validator("doubled", mode="before")
    @classmethod
    def _double(cls, doubled: int, info: ValidationInfo) -> Any:
        return 2 * info.data["total"] if "total" in info.data else doubled

    @model_validator(mode="before")
    @classmethod
    def _add_up(cls, data: Any) -> Any:
        return {**data, "total": sum(data.get("numbers", ()))} if isinstance(data, dict) else data


async def test_validators_that_sort_convert_and_derive_act_when_the_call_is_committed() -> None:
    def change(state: Tidy) -> None:
        state.numbers += [3, 1]
        state.table.update(b=1, a=2)
        state.names.append("A")

    result, state = await called(Tidy(), change)
    assert result.ok, result.error
    assert (state.numbers, [*state.table], state.names, state.total, state.doubled) == ([1, 3], ["a", "b"], ["a"], 4, 8)


class Sealed(BaseModel, frozen=True):
    numbers: list[int] = []

    @field_validator("numbers")
    @classmethod
    def _sort(cls, numbers: list[int]) -> list[int]:
        return sorted(numbers)


class Holder(State):
    sealed: Sealed = Sealed()


async def test_a_validator_of_a_frozen_model_acts_on_a_change_within() -> None:
    result, state = await called(Holder(), lambda state: state.sealed.numbers.extend([2, 1]))
    assert result.ok, result.error
    assert state.sealed.numbers == [1, 2]


class Swapped(State):
    number: int = 0

    @field_validator("number")
    @classmethod
    def _as_text(cls, number: int) -> Any:
        return str(number) if number > 5 else number


async def test_a_validator_that_gives_another_type_is_refused() -> None:
    result, state = await called(Swapped(), lambda state: setattr(state, "number", 7))
    assert result.code == "tool_failed"
    assert state.number == 0

"""What is committed is what any process reads, equal and of equal types."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, JsonValue, ValidationInfo, field_validator

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

"""Asking again: how often, after which pauses, and until when."""

import asyncio

import pytest

from stateroom.errors import ModelFailed, ModelUnavailable
from stateroom.model import ModelLimits
from stateroom.model.endpoint import Timing, Trouble, retry
from tests.model.endpoints import FakeTime

BUSY = Trouble("is busy", passing=True)


async def asked(found: list[str | Trouble], limits: ModelLimits, timing: Timing) -> tuple[str, list[float]]:
    """What came of it, and how many seconds each attempt was given."""
    given: list[float] = []

    async def attempt(seconds: float) -> str | Trouble:
        given.append(seconds)
        return found.pop(0) if len(found) > 1 else found[0]

    return await retry(attempt, limits, timing, "m"), given


async def test_pauses_may_be_twice_as_long_each_time_up_to_a_limit() -> None:
    clock = FakeTime()
    limits = ModelLimits(attempts=8, first_pause=1, longest_pause=10)
    with pytest.raises(ModelUnavailable, match=r"m is busy \(attempts: 8"):
        await asked([BUSY], limits, clock.timing)
    assert clock.pauses == [1, 2, 4, 8, 10, 10, 10]


async def test_a_pause_is_any_time_from_none_to_that() -> None:
    bounds: list[tuple[float, float]] = []

    def between(low: float, high: float) -> float:
        bounds.append((low, high))
        return high / 4

    clock = FakeTime()
    timing = Timing(clock.sleep, lambda: clock.time, lambda: 0.0, between)
    await asked([BUSY, BUSY, "done"], ModelLimits(first_pause=1), timing)
    assert bounds == [(0, 1), (0, 2)]
    assert clock.pauses == [0.25, 0.5]


async def test_no_attempt_may_take_longer_than_is_left() -> None:
    clock = FakeTime()
    limits = ModelLimits(timeout=10, deadline=12, first_pause=1)
    found, given = await asked([BUSY, BUSY, BUSY, "done"], limits, clock.timing)
    assert found == "done"
    assert given == [10, 10, 9, 5]


async def test_none_begins_after_the_deadline() -> None:
    clock = FakeTime()
    with pytest.raises(ModelUnavailable, match=r"attempts: 3, in 3.0 s"):
        await asked([BUSY], ModelLimits(attempts=100, deadline=7, first_pause=1), clock.timing)
    assert clock.time == 3


async def test_who_wonders_what_takes_so_long_finds_it_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    await asked([BUSY, "done"], ModelLimits(first_pause=1), FakeTime().timing)
    assert caplog.messages == ["m is busy; next attempt in 1.0 s"]


async def test_what_will_not_pass_is_asked_once() -> None:
    clock = FakeTime()
    with pytest.raises(ModelFailed, match=r"^m says no$"):
        await asked([Trouble("says no", passing=False), "done"], ModelLimits(), clock.timing)
    assert clock.pauses == []


async def test_the_usual_pauses_are_random() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await asyncio.sleep(0)

    with pytest.raises(ModelUnavailable):
        await asked([BUSY], ModelLimits(attempts=20, first_pause=1, longest_pause=1), Timing(sleep=sleep))
    assert len(set(slept)) == 19
    assert 0 <= min(slept) < max(slept) <= 1

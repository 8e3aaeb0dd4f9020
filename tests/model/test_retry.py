"""Asking again: how often, after which pauses, and until when."""

from typing import Any

import pytest

from stateroom.errors import ModelFailed, ModelUnavailable
from stateroom.model import ModelLimits, Request
from tests.messages import raises
from tests.model.endpoints import EndpointPool, FakeEndpoint, FakeTime, Timing, Trouble

BUSY = Trouble("is busy", passing=True)
DONE: dict[str, Any] = {}


async def asked(found: list[dict[str, Any] | Trouble], limits: ModelLimits, timing: Timing) -> list[float]:
    """How many seconds each attempt was given."""
    endpoint = FakeEndpoint("m", found)
    await EndpointPool("m", [endpoint], limits, timing=timing).ask("chat", {}, Request([]))
    return endpoint.given


async def test_pauses_may_be_twice_as_long_each_time_up_to_a_limit() -> None:
    clock = FakeTime()
    limits = ModelLimits(attempts=8, first_pause=1, longest_pause=10)
    with raises(ModelUnavailable):
        await asked([BUSY], limits, clock.timing)
    assert clock.pauses == [1, 2, 4, 8, 10, 10, 10]


async def test_a_pause_is_any_time_from_none_to_that() -> None:
    bounds: list[tuple[float, float]] = []

    def between(low: float, high: float) -> float:
        bounds.append((low, high))
        return high / 4

    clock = FakeTime()
    timing = Timing(clock.later, lambda: clock.time, lambda: 0.0, between)
    await asked([BUSY, BUSY, DONE], ModelLimits(first_pause=1), timing)
    assert bounds == [(0, 1), (0, 2)]
    assert clock.pauses == [0.25, 0.5]


async def test_no_attempt_may_take_longer_than_is_left() -> None:
    slow = Trouble("is busy", passing=True, after=4)
    given = await asked([slow, slow, DONE], ModelLimits(timeout=10, deadline=12), FakeTime().timing)
    assert given == [10, 8, 4]


async def test_none_begins_after_the_deadline() -> None:
    slow, clock = Trouble("is busy", passing=True, after=4), FakeTime()
    with raises(ModelUnavailable):
        await asked([slow], ModelLimits(attempts=100, deadline=12, first_pause=1), clock.timing)
    assert clock.pauses == [5, 6]


async def test_to_wait_for_ones_turn_is_no_delay_of_the_server() -> None:
    clock = FakeTime()
    limits = ModelLimits(requests_per_minute=1, deadline=30)
    assert await asked([BUSY, BUSY, DONE], limits, clock.timing) == [30, 30, 30]
    assert clock.time == 120


async def test_who_wonders_what_takes_so_long_finds_it_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    await asked([BUSY, DONE], ModelLimits(first_pause=1), FakeTime().timing)
    assert caplog.messages == ["http://m/v1 gets no request for 1.0 s", "m is busy; attempt 2 follows"]


async def test_what_will_not_pass_is_asked_once() -> None:
    clock = FakeTime()
    with raises(ModelFailed):
        await asked([Trouble("says no", passing=False), DONE], ModelLimits(), clock.timing)
    assert clock.pauses == []


async def test_the_usual_pauses_are_random() -> None:
    clock = FakeTime()
    with pytest.raises(ModelUnavailable):
        await asked(
            [BUSY],
            ModelLimits(attempts=20, first_pause=1, longest_pause=1),
            Timing(later=clock.later, now=lambda: clock.time),
        )
    assert len(set(clock.pauses)) == 19
    assert 0 <= min(clock.pauses) < max(clock.pauses) <= 1

"""Limiters: who may send, when, and after which rest."""

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from stateroom.errors import ModelUnavailable
from stateroom.model import LocalLimiter, ModelLimits, RequestReport
from tests.model.endpoints import Timing

A, B = "http://a/v1", "http://b/v1"
DONE = RequestReport(0, None, ok=True)
BUSY = RequestReport(0, None, ok=False)


class VirtualSelector(selectors.SelectSelector):
    """Does not wait, but counts the seconds; to wait for nothing is an error."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "all wait for each other"
        self.now += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in which time passes only when nobody has anything to do."""

    def __init__(self) -> None:
        self._virtual = VirtualSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


VirtualTest = Callable[[LocalLimiter, VirtualLoop], Awaitable[None]]


def in_virtual_time(limits: ModelLimits, test: VirtualTest) -> None:
    """Run a test with a limiter whose pauses are always the longest."""
    loop = VirtualLoop()

    async def main() -> None:
        timing = Timing(now=loop.time, between=lambda low, high: high)
        await test(LocalLimiter(limits, timing), loop)

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(main())


def virtual(**limits: Any) -> Callable[[VirtualTest], Callable[[], None]]:
    """Makes an async test one that runs in virtual time, with a limiter of these limits."""
    return lambda test: lambda: in_virtual_time(ModelLimits(**limits), test)


class Visit(msgspec.Struct):
    """A request of a law's."""

    arrives: float
    takes: float
    tokens: int
    ok: bool
    patience: float | None
    """Seconds after which it is cancelled."""
    number: int | None = None
    """Its place in the queue."""
    passed: float | None = None


seconds = st.floats(0, 30).map(lambda value: round(value, 2))
visits = st.lists(
    st.builds(
        Visit,
        arrives=seconds,
        takes=seconds,
        tokens=st.integers(0, 500),
        ok=st.sampled_from([True, True, True, False]),
        patience=st.none() | seconds,
    ),
    min_size=1,
    max_size=40,
)
limits_of = st.builds(
    ModelLimits,
    attempts=st.just(1000),
    concurrency=st.integers(1, 5),
    requests_per_minute=st.none() | st.integers(1, 600),
    tokens_per_minute=st.none() | st.integers(1, 6000),
)


@given(limits_of, visits)
def test_no_limit_is_ever_passed_and_nobody_is_passed_over(limits: ModelLimits, asked: list[Visit]) -> None:
    async def test(limiter: LocalLimiter, loop: VirtualLoop) -> None:
        running, queue, passed = 0, list[Visit](), list[Visit]()

        async def send(visit: Visit) -> None:
            nonlocal running
            await asyncio.sleep(visit.arrives)
            visit.number = len(queue)
            queue.append(visit)
            async with asyncio.timeout(visit.patience):
                await limiter.acquire(A, visit.tokens)
            running += 1
            assert running <= limits.concurrency
            visit.passed = loop.time()
            passed.append(visit)
            await asyncio.sleep(visit.takes)
            running -= 1
            limiter.release(A, RequestReport(visit.tokens, visit.tokens, visit.ok))

        ends = await asyncio.gather(*map(send, asked), return_exceptions=True)
        assert {type(end) for end in ends} <= {type(None), TimeoutError}
        numbers = [visit.number for visit in passed]
        assert numbers == sorted(numbers)  # type: ignore[type-var]
        assert all(visit in passed for visit in asked if visit.patience is None)
        _check_minutes(limits, passed)
        await _check_that_nothing_is_left(limiter, limits.concurrency)

    in_virtual_time(limits, test)


def _check_minutes(limits: ModelLimits, passed: list[Visit]) -> None:
    """In any minute there is at most what is allowed, and a second's worth; a large request counts when it is paid."""
    often, many = limits.requests_per_minute, limits.tokens_per_minute
    for first in passed:
        minute = [visit for visit in passed if first.passed <= visit.passed < first.passed + 60]  # type: ignore[operator]
        assert often is None or len(minute) <= often + max(1, often / 60) + 1e-6
        assert many is None or sum(visit.tokens for visit in minute[:-1]) <= many * 61 / 60 + 1e-6


async def _check_that_nothing_is_left(limiter: LocalLimiter, concurrency: int) -> None:
    for _ in range(concurrency):  # the rest after the last trouble ends, and all may pass again
        await limiter.acquire(A, 0)
        limiter.release(A, DONE)
    for _ in range(concurrency):
        await limiter.acquire(A, 0)
    last = asyncio.create_task(limiter.acquire(A, 0))
    await asyncio.sleep(1000)
    assert not last.done()
    limiter.release(A, DONE)
    await last


def test_what_nothing_limits_does_not_wait() -> None:
    limiter = LocalLimiter(ModelLimits(concurrency=2))
    for _ in range(2):
        with pytest.raises(StopIteration):
            limiter.acquire(A, 1000).send(None)


async def passing(limiter: LocalLimiter, loop: VirtualLoop, count: int, tokens: int = 0) -> list[float]:
    """When each of some requests passes that come at once; none of them ends."""
    times = []
    for _ in range(count):
        await limiter.acquire(A, tokens)
        times.append(round(loop.time(), 6))
    return times


@virtual(requests_per_minute=180)
async def test_at_the_start_there_is_a_second_s_worth_at_once(limiter: LocalLimiter, loop: VirtualLoop) -> None:
    await asyncio.sleep(500)  # what is not used is not saved
    assert await passing(limiter, loop, 6) == [500, 500, 500, 500.333333, 500.666667, 501]


@virtual(requests_per_minute=20)
async def test_less_than_one_a_second_is_one_at_a_time(limiter: LocalLimiter, loop: VirtualLoop) -> None:
    assert await passing(limiter, loop, 4) == [0, 3, 6, 9]


@pytest.mark.parametrize(("spent", "passes"), [(None, 30), (30, 30), (5, 5), (50, 50)])
def test_what_the_server_reports_corrects_the_estimate(spent: int | None, passes: int) -> None:
    async def test(limiter: LocalLimiter, loop: VirtualLoop) -> None:
        await limiter.acquire(A, 30)
        waiting = asyncio.create_task(limiter.acquire(A, 30))
        await asyncio.sleep(1)
        limiter.release(A, RequestReport(30, spent, ok=True))
        await waiting
        assert round(loop.time(), 6) == passes

    in_virtual_time(ModelLimits(tokens_per_minute=60), test)


@virtual(tokens_per_minute=60)
async def test_a_request_that_is_larger_than_a_minute_is_sent_and_the_next_wait(
    limiter: LocalLimiter, loop: VirtualLoop
) -> None:
    assert await passing(limiter, loop, 3, tokens=120) == [0, 120, 240]


class Crowd:
    """Requests that wait together; it counts those that were let pass."""

    def __init__(self, limiter: LocalLimiter, size: int) -> None:
        self.passed = 0
        self._limiter = limiter
        self.tasks = [asyncio.create_task(self._send()) for _ in range(size)]

    async def _send(self) -> None:
        await self._limiter.acquire(A, 0)
        self.passed += 1

    async def in_flight(self, seconds: float = 0.001) -> int:
        """How many are let pass in some seconds."""
        before = self.passed
        await asyncio.sleep(seconds)
        return self.passed - before

    async def end(self, count: int, report: RequestReport) -> int:
        """Some end, with this report; how many are let pass in their place."""
        for _ in range(count):
            self._limiter.release(A, report)
        return await self.in_flight()


@virtual(concurrency=8, first_pause=1)
async def test_after_trouble_nobody_sends_for_a_while_and_then_one_and_then_twice_as_many_each_time(
    limiter: LocalLimiter, loop: VirtualLoop
) -> None:
    crowd = Crowd(limiter, 40)
    assert await crowd.in_flight() == 8
    assert await crowd.end(8, RequestReport(0, None, ok=False, pause=20)) == 0
    assert await crowd.in_flight(20.9) == 0
    assert await crowd.in_flight(0.2) == 1
    assert await crowd.end(1, DONE) == 2
    assert await crowd.end(1, DONE) == 3
    assert await crowd.end(1, DONE) == 5
    assert await crowd.end(1, DONE) == 1
    for task in crowd.tasks:
        task.cancel()


@virtual(concurrency=4, first_pause=1, longest_pause=5, attempts=100)
async def test_requests_that_fail_together_are_one_trouble_and_the_next_pause_is_longer(
    limiter: LocalLimiter, loop: VirtualLoop
) -> None:
    await passing(limiter, loop, 4)
    for _ in range(4):
        limiter.release(A, BUSY)
    for passes in (1, 3, 7, 12):
        assert await passing(limiter, loop, 1) == [passes]
        limiter.release(A, BUSY)
    await passing(limiter, loop, 1)
    limiter.release(A, DONE)
    began = (await passing(limiter, loop, 1))[0]
    limiter.release(A, BUSY)
    assert await passing(limiter, loop, 1) == [began + 1]  # a success ends the row


@virtual(concurrency=4, first_pause=1)
async def test_a_request_that_is_given_up_says_nothing_about_the_endpoint(
    limiter: LocalLimiter, loop: VirtualLoop
) -> None:
    await passing(limiter, loop, 1)
    limiter.release(A, BUSY)
    assert await passing(limiter, loop, 1) == [1]
    crowd = Crowd(limiter, 3)
    assert await crowd.end(1, RequestReport(0, None, ok=None)) == 1
    await crowd.end(1, BUSY)
    assert await crowd.in_flight(1.5) == 0
    assert await crowd.in_flight(1) == 1
    assert await crowd.end(1, DONE) == 1


@virtual(concurrency=4, first_pause=1)
async def test_answers_to_what_was_sent_before_the_trouble_do_not_end_the_rest(
    limiter: LocalLimiter, loop: VirtualLoop
) -> None:
    crowd = Crowd(limiter, 12)
    assert await crowd.in_flight() == 4
    await crowd.end(1, BUSY)
    assert await crowd.end(3, DONE) == 0
    assert await crowd.in_flight(5) == 1
    for task in crowd.tasks:
        task.cancel()


@virtual(first_pause=1)
async def test_a_server_that_asks_for_a_longer_rest_gets_it(limiter: LocalLimiter, loop: VirtualLoop) -> None:
    await passing(limiter, loop, 2)
    limiter.release(A, BUSY)
    limiter.release(A, RequestReport(0, None, ok=False, pause=60))
    assert await passing(limiter, loop, 1) == [60]


@virtual(concurrency=1, attempts=3)
async def test_an_endpoint_that_fails_again_and_again_is_given_up_by_all_that_wait(
    limiter: LocalLimiter, loop: VirtualLoop
) -> None:
    crowd = Crowd(limiter, 9)
    await crowd.in_flight()
    for _ in range(3):
        await crowd.end(1, BUSY)
        await crowd.in_flight(60)
    found = await asyncio.gather(*crowd.tasks, return_exceptions=True)
    assert [type(each) for each in found] == [type(None)] * 3 + [ModelUnavailable] * 6
    assert await passing(limiter, loop, 1)  # who comes later finds out for itself


@virtual(concurrency=1, requests_per_minute=1)
async def test_each_endpoint_has_its_own_limits(limiter: LocalLimiter, loop: VirtualLoop) -> None:
    await limiter.acquire(A, 0)
    limiter.release(A, BUSY)
    await limiter.acquire(B, 0)
    assert loop.time() == 0

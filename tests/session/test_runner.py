"""Where a function runs: on the loop once it has proven quick, on a thread until then and when it was slow."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial
from time import perf_counter
from typing import Any

import pytest

from stateroom.errors import Busy, TimedOut
from stateroom.session import Procedure
from stateroom.session.runner import QUICK_RUNS, QUICK_RUNS_FACTOR, QUICK_SECONDS, SLOW_SECONDS, Runner
from tests.messages import raises
from tests.patience import PATIENCE


class Time:
    """A clock that stands still between two readings, but for a moment, unless a function says that it is slow."""

    def __init__(self) -> None:
        self.now = perf_counter()

    def __call__(self) -> float:
        self.now += 1e-9
        return self.now


@pytest.fixture(autouse=True)
def time(monkeypatch: pytest.MonkeyPatch) -> Iterator[Time]:
    """What the runner takes for the time. Garbage is collected only when a test says so."""
    clock = Time()
    monkeypatch.setattr("stateroom.session.runner.perf_counter", clock)
    gc.disable()
    yield clock
    gc.enable()


def procedure(function: Any, **more: Any) -> Procedure:
    return Procedure(function, frozenset(), **more)


def where() -> bool:
    """True on the loop's thread."""
    return threading.current_thread() is threading.main_thread()


async def prove(runner: Runner, quick: Procedure) -> list[bool]:
    return [await runner.run(quick, {}) for _ in range(QUICK_RUNS)]


async def test_a_quick_function_moves_to_the_loop() -> None:
    runner, quick = Runner(5), procedure(where)
    assert not any(await prove(runner, quick))
    assert await runner.run(quick, {})


class Changing:
    """A function that can be told to be slow, or to make Python stop for its garbage."""

    def __init__(self, time: Time) -> None:
        self.time = time
        self.pause = 0.0
        self.collects = False

    def __call__(self) -> bool:
        if self.collects:
            gc.collect()
        self.time.now += self.pause
        return where()


async def on_loop_after(runner: Runner, changing: Procedure, most: int) -> int | None:
    """After how many runs it runs on the loop."""
    for count in range(most):
        if await runner.run(changing, {}):
            return count
    return None


async def test_a_function_that_turns_slow_must_be_quick_much_longer_to_come_back(time: Time) -> None:
    function, runner = Changing(time), Runner(5)
    changing = procedure(function)
    assert await on_loop_after(runner, changing, QUICK_RUNS + 1) == QUICK_RUNS
    function.pause = SLOW_SECONDS * 2
    assert await runner.run(changing, {})  # the one time that it is noticed
    function.pause = 0.0
    assert await on_loop_after(runner, changing, QUICK_RUNS * QUICK_RUNS_FACTOR + 1) == QUICK_RUNS * QUICK_RUNS_FACTOR


async def test_a_function_that_raises_on_the_loop_never_comes_back() -> None:
    runner, raised = Runner(5), False

    def fragile() -> bool:
        nonlocal raised
        if where() and not raised:
            raised = True
            raise LookupError
        return where()

    fragile_one = procedure(fragile)
    with pytest.raises(LookupError):
        await on_loop_after(runner, fragile_one, QUICK_RUNS + 1)
    assert await on_loop_after(runner, fragile_one, QUICK_RUNS * QUICK_RUNS_FACTOR * 2) is None


async def test_a_pause_for_garbage_is_not_the_functions_fault(time: Time) -> None:
    function, runner = Changing(time), Runner(5)
    changing = procedure(function)
    assert await on_loop_after(runner, changing, QUICK_RUNS + 1) == QUICK_RUNS
    function.pause, function.collects = SLOW_SECONDS * 2, True
    assert await runner.run(changing, {})
    function.pause, function.collects = 0.0, False
    assert await runner.run(changing, {})


async def test_a_slow_function_never_comes_to_the_loop(time: Time) -> None:
    def slow() -> bool:
        time.now += QUICK_SECONDS * 2
        return where()

    runner, never = Runner(5), procedure(slow)
    assert not any([await runner.run(never, {}) for _ in range(QUICK_RUNS + 5)])


async def test_a_function_with_a_timeout_of_its_own_always_has_a_thread() -> None:
    runner, limited = Runner(5), procedure(where, timeout=5.0)
    assert not any([await runner.run(limited, {}) for _ in range(QUICK_RUNS * 2)])


async def test_a_blocking_function_does_not_stall_the_loop() -> None:
    release = threading.Event()
    runner = Runner(20)
    running = [asyncio.create_task(runner.run(procedure(release.wait), {"timeout": 10})) for _ in range(20)]
    for _ in range(100):
        await asyncio.sleep(0)
    assert not any(task.done() for task in running)
    release.set()
    assert all(await asyncio.gather(*running))


async def test_one_function_being_quick_says_nothing_of_another() -> None:
    runner = Runner(5)
    await prove(runner, procedure(where))
    assert not await runner.run(procedure(partial(where)), {})


async def test_a_timeout_is_told_from_the_functions_own() -> None:
    def own() -> None:
        raise TimeoutError("mine")

    async def own_async() -> None:
        raise TimeoutError("mine")

    for function in (own, own_async):
        with pytest.raises(TimeoutError, match="mine"):
            await Runner(5).run(procedure(function), {})
    with raises(TimedOut):
        await Runner(0.01).run(procedure(asyncio.Event().wait), {})


async def test_threads_are_used_again_and_end_when_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateroom.session.runner.IDLE_SECONDS", 0.05)
    runner = Runner(5)
    used = {await runner.run(procedure(threading.current_thread, timeout=5.0), {}) for _ in range(10)}
    assert len(used) == 1
    (thread,) = used
    assert thread.daemon
    await asyncio.to_thread(thread.join, 10)
    assert not thread.is_alive()
    assert (await runner.run(procedure(threading.current_thread, timeout=5.0), {})) is not thread


async def test_what_a_function_returned_is_let_go() -> None:
    class Big:
        pass

    made = await Runner(5).run(procedure(Big), {})
    gone = weakref.ref(made)
    del made
    for _ in range(100):
        gc.collect()
        if gone() is None:
            return
        await asyncio.sleep(0.01)
    pytest.fail("the worker keeps what it made")


async def test_context_variables_are_seen_by_threads() -> None:
    name: ContextVar[str] = ContextVar("name")
    name.set("mine")
    assert await Runner(5).run(procedure(name.get), {}) == "mine"


async def test_a_coroutine_that_will_not_be_cancelled_is_left_behind() -> None:
    stubborn = asyncio.Event()

    async def swallow() -> str:
        while not stubborn.is_set():
            try:
                await stubborn.wait()
            except asyncio.CancelledError:
                continue
        return "at last"

    with pytest.raises(TimedOut):
        await Runner(0.01).run(procedure(swallow), {})
    stubborn.set()
    await asyncio.sleep(0)


async def test_cancelling_the_caller_cancels_the_function() -> None:
    cancelled = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    running = asyncio.create_task(Runner(5).run(procedure(endless), {}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await cancelled.wait()


async def test_a_function_waits_for_a_thread_while_all_are_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateroom.session.runner.MAX_THREADS", 1)
    runner, started, release = Runner(PATIENCE), threading.Event(), threading.Event()

    def block() -> None:
        started.set()
        release.wait(PATIENCE)

    blocking = asyncio.create_task(runner.run(procedure(block), {}))
    assert await asyncio.to_thread(started.wait, PATIENCE)
    waiting = asyncio.create_task(runner.run(procedure(lambda: "done"), {}))
    with pytest.raises(Busy):  # it was not run
        await runner.run(procedure(release.set, timeout=0.01), {})
    release.set()
    assert await waiting == "done"
    await blocking

"""Whatever an author's code raises is the failure of the call that ran it, and the end of nothing else."""

import asyncio
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import Field, ValidatorFunctionWrapHandler, field_validator, model_serializer

from stateroom import Environment, Event, Lifecycle, Resource, State, Task, applies, tool
from stateroom.session import Session, Sessions, contained
from stateroom.store import Store, open_store
from tests.environments import Unjudged


class Own(BaseException):
    """An author's own, past all that catches an `Exception`."""


class Wordless(Exception):
    """One whose text cannot be had."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


ERRORS: dict[str, Callable[[], BaseException]] = {
    "KeyboardInterrupt": KeyboardInterrupt,
    "SystemExit": lambda: SystemExit(3),
    "GeneratorExit": GeneratorExit,
    "CancelledError": asyncio.CancelledError,
    "StopIteration": lambda: StopIteration(5),
    "StopAsyncIteration": StopAsyncIteration,
    "MemoryError": MemoryError,
    "RecursionError": RecursionError,
    "ExceptionGroup": lambda: ExceptionGroup("two", [ValueError(), KeyError()]),
    "BaseExceptionGroup": lambda: BaseExceptionGroup("two", [ValueError(), SystemExit()]),
    "Own": Own,
    "Wordless": Wordless,
}
LOUD = ("KeyboardInterrupt", "SystemExit", "GeneratorExit", "CancelledError", "Own", "Wordless")
"""The errors that are tried wherever an author's code is run; the others differ by how it is run."""


class Armed:
    """What an author's code raises, and where: wherever `at` names."""

    at = ""
    error = ""

    def fire(self, place: str) -> None:
        if self.at == place:
            raise ERRORS[self.error]()


armed = Armed()


@pytest.fixture(autouse=True)
def _disarm():
    armed.at = ""


def arm(place: str, error: str) -> None:
    armed.at, armed.error = place, error


class Marked(Event):
    note: str


class Errand(Task):
    user: str = "ann"

    @field_validator("user")
    @classmethod
    def known(cls, user: str) -> str:
        armed.fire("task")
        return user


class Ledger(State):
    count: int = 0

    @field_validator("count", mode="wrap")
    @classmethod
    def counted(cls, count: Any, check: ValidatorFunctionWrapHandler) -> int:
        armed.fire("validator")
        return int(check(count))


class Purse(State):
    coins: int = 0


class Noted(State):
    notes: list[str] = Field(default_factory=list)

    @applies(Marked)
    def mark(self, event: Marked) -> None:
        armed.fire("event")
        self.notes.append(event.note)


class Odd(State):
    @model_serializer
    def shown(self) -> str:
        armed.fire("output")
        return "odd"


class Box(Resource[list[int]]):
    kind = "restart_only"

    def start(self, session: Any, /) -> list[int]:
        armed.fire("resource")
        return []


class Moves(Lifecycle):
    def after(self, phase: str, event: str) -> str:
        armed.fire("lifecycle")
        return super().after(phase, event)


class Reward(float):
    def __float__(self) -> float:
        armed.fire("reward")
        return 1.0


class Trial(Environment[Ledger, Errand]):
    """Raises what it is told to, where it is told to."""

    resources = {"box": Box()}
    lifecycle = Moves({("idle", "new_task"): "planning"})

    def seed(self, task: Errand) -> Ledger:
        armed.fire("seed")
        return Ledger()

    def seed_user(self, task: Any) -> Purse:
        armed.fire("user")
        return Purse()

    on_loop = False

    @tool
    def act(self, state: Ledger) -> str:
        """Run on a thread at first, and then on the loop."""
        self.on_loop = threading.current_thread() is threading.main_thread()
        state.count += 1
        armed.fire("tool")
        return "done"

    @tool
    async def act_async(self, state: Ledger) -> str:
        """Run on the loop, in a task."""
        state.count += 1
        armed.fire("tool")
        return "done"

    @tool
    async def act_in_a_task(self, state: Ledger) -> str:
        """Run on the loop, in a task of its own making."""
        state.count += 1
        return await asyncio.create_task(self._act())

    @tool
    async def leave_a_task(self, state: Ledger) -> str:
        """Do not wait for a task."""
        self.left = asyncio.create_task(self._act())
        return "done"

    async def _act(self) -> str:
        armed.fire("tool")
        return "done"

    @tool
    def show(self, state: Ledger) -> Any:
        """Give what writes itself."""
        state.count += 1
        return Odd()

    @tool
    def unpack(self, state: Ledger, box: list[int]) -> int:
        """Use a resource."""
        state.count += 1
        return len(box)

    @tool
    def pay(self, state: Ledger, user: Purse) -> int:
        """Use a shared state."""
        state.count += 1
        return user.coins

    def reply(self, state: Ledger, message: str) -> str:
        state.count += 1
        armed.fire("reply")
        return "yes"

    async def verify(self, state: Ledger) -> float:
        armed.fire("verify")
        return Reward(1.0)


class Marking(Unjudged[Noted]):
    """Changes by events."""

    def world(self) -> Noted:
        armed.fire("world")
        return Noted()

    def seed(self, state: Noted) -> None:
        armed.fire("seed")

    @tool
    def mark(self, state: Noted) -> str:
        """Mark."""
        state.emit(Marked(note="here"))
        return "done"


@pytest.fixture
async def store():
    async with open_store("memory://") as opened:
        yield opened


async def made(store: Store) -> Session[Ledger]:
    return await Sessions(Trial(), store).seed({})


async def is_as_before(session: Session[Ledger]) -> bool:
    """Whether nothing has changed, and the session goes on."""
    armed.at = ""
    before = session.state.count
    return (await session.call("act")).ok and session.state.count == before + 1


@pytest.mark.parametrize(
    ("place", "name", "error"),
    [
        *(("tool", name, error) for name in ("act", "act_async", "act_in_a_task") for error in ERRORS),
        *(
            (*where, error)
            for where in (("validator", "act"), ("output", "show"), ("resource", "unpack"))
            for error in LOUD
        ),
    ],
)
async def test_whatever_a_tool_or_what_it_uses_raises_is_a_failed_result_that_names_it(
    store: Store, place: str, name: str, error: str
) -> None:
    session = await made(store)
    arm(place, error)
    result = await session.call(name)
    assert (result.ok, result.code) == (False, "tool_failed")
    assert error in (result.error or "") or place == "output"
    assert await is_as_before(session)


@pytest.mark.parametrize("error", ERRORS)
async def test_whatever_a_tool_raises_on_the_loop_is_a_failed_result_too(
    store: Store, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateroom.session.runner.perf_counter", lambda: 0.0)  # no run is slow
    environment = Trial()
    session = await Sessions(environment, store).seed({})
    while not environment.on_loop:
        assert (await session.call("act")).ok
    arm("tool", error)
    assert error in ((await session.call("act")).error or "")
    assert await is_as_before(session)


@pytest.mark.parametrize("error", LOUD)
async def test_an_applied_event_that_raises_fails_its_call(store: Store, error: str) -> None:
    session = await Sessions(Marking(), store).seed({})
    arm("event", error)
    assert error in ((await session.call("mark")).error or "")
    armed.at = ""
    assert (await session.call("mark")).ok
    assert session.state.notes == ["here"]


@pytest.mark.parametrize("error", LOUD)
@pytest.mark.parametrize(
    ("place", "use"),
    [
        ("verify", lambda session: session.verify()),
        ("reward", lambda session: session.verify()),
        ("reply", lambda session: session.reply("Shall I?", call_id="1")),
        ("lifecycle", lambda session: session.agent.move("new_task")),
        ("user", lambda session: session.call("pay")),
    ],
)
async def test_what_other_hooks_raise_is_an_exception(store: Store, place: str, use: Any, error: str) -> None:
    session = await made(store)
    arm(place, error)
    with pytest.raises(Exception) as raised:  # noqa: PT011 - that it is one at all is what is promised
        await use(session)
    assert error in f"{type(raised.value).__name__}: {raised.value}"
    assert await is_as_before(session)


@pytest.mark.parametrize("error", LOUD)
@pytest.mark.parametrize(
    ("place", "environment"),
    [("task", Trial), ("seed", Trial), ("validator", Trial), ("world", Marking), ("seed", Marking)],
)
async def test_a_session_that_cannot_be_seeded_is_an_exception(
    store: Store, place: str, environment: Any, error: str
) -> None:
    sessions: Sessions[Any] = Sessions(environment(), store)
    arm(place, error)
    with pytest.raises(Exception) as raised:  # noqa: PT011 - that it is one at all is what is promised
        await sessions.seed({"user": "ann"})
    assert type(raised.value).__name__ == error
    armed.at = ""
    assert await sessions.seed({})


@pytest.mark.parametrize("error", LOUD)
async def test_a_task_that_a_tool_leaves_behind_stops_nobody(store: Store, error: str) -> None:
    environment = Trial()
    session = await Sessions(environment, store).seed({})
    arm("tool", error)
    assert (await session.call("leave_a_task")).ok
    left = environment.left
    await asyncio.wait([left], timeout=60)
    assert left.cancelled() or type(left.exception()).__name__ == error
    assert await is_as_before(session)


def test_ctrl_c_is_no_failure_of_a_call() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), contained:
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


async def test_a_coroutine_that_nobody_awaits_any_more_ends_in_silence() -> None:
    async def wait() -> None:
        with contained:
            await asyncio.sleep(60)

    waiting = wait()
    waiting.send(None)
    waiting.close()


async def test_a_question_without_words_fails_its_call(store: Store) -> None:
    class Asks(Unjudged[Ledger]):
        """Asks."""

        def seed(self) -> Ledger:
            return Ledger()

        @tool
        def pay(self, state: Ledger, ask: Any) -> None:
            """Pay."""
            ask(Wordless())

    session = await Sessions(Asks(), store).seed({})
    assert (await session.call("pay")).code == "tool_failed"

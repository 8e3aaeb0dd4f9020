"""What one call, reader, fork or episode does, no other sees before it is committed, nor after it was refused."""

import asyncio
import heapq
import threading
from typing import Any

import pytest
from pydantic import BaseModel, field_validator

from stateroom import Environment, Sessions, State, ToolError, tool
from stateroom.errors import DefinitionError, InvalidState, ReadOnlyState
from stateroom.session import Session
from stateroom.store import Store, open_store
from tests.environments import Tally, TallyEnvironment, Unjudged
from tests.messages import raises


class Board(Tally):
    rows: list[list[int]] = [[3], [1], [2]]
    numbers: list[int] = []

    @field_validator("numbers")
    @classmethod
    def in_order(cls, numbers: list[int]) -> list[int]:
        return sorted(numbers)


class BoardEnvironment(TallyEnvironment, Environment[Board]):
    """Everything that can get in one another's way."""

    def seed(self, task: Any) -> Board:
        if hasattr(task, "words"):
            task.words.pop()
        return Board(numbers=list(range(300)))

    @tool
    def add_number(self, state: Board, number: int) -> list[int]:
        """Put a number in its place."""
        state.numbers.append(number)
        return state.numbers[:3]

    @tool(effect="read")
    def tamper_reading(self, state: Board) -> int:
        """Change a row of the committed state."""
        heapq.heappop(state.rows).append(9)
        return 0

    @tool
    def tamper_failing(self, state: Board) -> int:
        """Change a row of the committed state, and fail."""
        heapq.heappop(state.rows).append(9)
        raise ToolError("no")

    @tool
    def sum_rows(self, state: Board) -> int:
        """Add up all rows."""
        state.total = sum(map(sum, state.rows))
        return state.total

    @tool
    def spoil(self, session: Any, words: Any) -> int:
        """Change what was given."""
        words.append("spoilt")
        session.task.words.append("spoilt")
        return len(words)


@pytest.fixture
def environment() -> BoardEnvironment:
    return BoardEnvironment()


@pytest.fixture
async def session(environment: BoardEnvironment, store: Store) -> Session[Board]:
    return await Sessions[Board](environment, store).seed({"words": ["a", "b"]})


@pytest.mark.parametrize("slow", ["add_slowly", "send"])
async def test_a_reader_that_catches_up_does_not_let_a_stale_write_through(
    session: Session[Board], environment: BoardEnvironment, store: Store, slow: str
) -> None:
    other = await Sessions[Board](BoardEnvironment(), store).open(session.id)
    environment.go_on.clear()
    writing = asyncio.create_task(session.call(slow))
    await environment.begun.wait()
    for _ in range(2):
        assert (await other.call("add")).ok
    assert (await session.call("look")).output == 2  # catches up, while the tool is at it
    environment.go_on.set()
    result = await writing
    assert result.ok == (slow == "add_slowly")
    assert (await other.call("look")).output == (3 if result.ok else 2)


async def test_a_wide_field_that_a_validator_replaced_is_read_as_committed(session: Session[Board]) -> None:
    await session.call("add_number", {"number": -1})
    await session.call("add_number", {"number": -2})
    assert session.state.numbers == [-2, -1, *range(300)]
    await session.call("add_number", {"number": 1000})
    assert session.state.numbers == [-2, -1, *range(300), 1000]


@pytest.mark.parametrize("name", ["tamper_reading", "tamper_failing"])
async def test_tampering_in_a_call_that_commits_nothing_is_mended(session: Session[Board], name: str) -> None:
    fork = await session.fork()
    assert not (await session.call(name)).ok
    assert session.state.rows == fork.state.rows == [[3], [1], [2]]


async def test_a_thread_that_goes_on_after_its_call_is_shut_out_before_the_state_is_checked() -> None:
    began, checking, tried = threading.Event(), threading.Event(), threading.Event()
    refused: list[Exception] = []

    class Watched(State):
        members: set[int] = set()
        value: int = 0

        @field_validator("value")
        @classmethod
        def look(cls, value: int) -> int:  # the members have been checked by now, and are not settled yet
            if began.is_set():
                checking.set()
                assert tried.wait(60)
            return value

    class Forgetful(Unjudged[Watched]):
        """Does not wait for its thread."""

        def seed(self) -> Watched:
            return Watched()

        def write(self, state: Watched) -> None:
            checking.wait(60)
            try:
                state.members.add(99)
            except ReadOnlyState as error:
                refused.append(error)
            tried.set()

        @tool
        def act(self, state: Watched) -> str:
            """Change both, and leave a thread behind."""
            state.members.add(1)
            state.value = 1
            began.set()
            threading.Thread(target=self.write, args=(state,), daemon=True).start()
            return "done"

    async with open_store("memory://") as store:
        session = await Sessions(Forgetful(), store).seed({})
        assert (await session.call("act")).ok
        read = await Sessions(Forgetful(), store).open(session.id)
        assert session.state.members == read.state.members == {1}
    assert refused


async def test_what_a_tool_does_to_its_arguments_and_task_stays_with_it(session: Session[Board]) -> None:
    given = ["x"]
    assert (await session.call("spoil", {"words": given})).output == 2
    assert given == ["x"]
    assert [entry.input async for entry in session.log() if entry.kind == "call"] == [{"words": ["x"]}]
    assert session.task.words == ["a", "b"]


async def test_a_seed_that_changes_its_task_changes_it_for_itself(store: Store) -> None:
    row = {"words": ["a", "b"]}
    sessions = Sessions[Board](BoardEnvironment(), store)
    for _ in range(3):
        session = await sessions.seed(row)
        assert session.task.words == row["words"] == ["a", "b"]


class Animal(BaseModel):
    name: str


class Dog(Animal):
    tricks: int = 0


class Zoo(State):
    pets: list[Animal] = []


class BiggerZoo(Zoo):
    keepers: int = 0


async def test_a_seed_that_could_not_be_read_back_is_refused(store: Store) -> None:
    class ZooEnvironment(Environment[Zoo]):
        """Pets."""

        def seed(self, task: Any) -> Zoo:
            return BiggerZoo() if task.bigger else Zoo(pets=[Dog(name="Rex")])

    sessions = Sessions[Zoo](ZooEnvironment(), store)
    with raises(DefinitionError):
        await sessions.seed({"bigger": True})
    with raises(InvalidState):
        await sessions.seed({"bigger": False})


async def test_a_call_that_waits_behind_a_tampering_one_sees_nothing_of_it(session: Session[Board]) -> None:
    await asyncio.gather(session.call("tamper_failing"), session.call("sum_rows"))
    assert session.state.total == 6

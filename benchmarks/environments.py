"""The environments that several benchmarks run, besides those of the gallery."""

from __future__ import annotations

from typing import Any

from stateroom import Environment, Session, Sessions, State, tool
from stateroom.gallery import Counter, CounterEnvironment
from stateroom.store import Store

COUNTER_TASK = {"initial_count": 0, "expected_count": 0}


async def seed_counter(store: Store) -> Session[Counter]:
    """A session of the counter."""
    return await Sessions(CounterEnvironment(), store).seed(COUNTER_TASK)


async def increment(session: Session[Any], times: int = 1) -> None:
    """Increment a session's counter, one call after another."""
    for _ in range(times):
        assert (await session.call("increment_counter", {"count": 1})).ok


class Dialogue(State):
    messages: list[str] = []


class DialogueEnvironment(Environment[Dialogue]):
    """A conversation."""

    @tool
    def say(self, state: Dialogue, text: str) -> int:
        """Add a message."""
        state.messages.append(text)
        return len(state.messages)

    def verify(self) -> float:
        return 0.0


class Record(State):
    text: str
    number: int = 0


class Archive(State):
    records: list[Record] = []


class ArchiveEnvironment(Environment[Archive]):
    """Records of 1 kB each."""

    def seed(self, task: Any) -> Archive:
        return Archive(records=[Record(text=f"{number:08d}" * 125) for number in range(task.records)])

    @tool
    def renumber(self, state: Archive, index: int) -> int:
        """Change one of them."""
        state.records[index].number += 1
        return state.records[index].number

    def verify(self) -> float:
        return 0.0


CALLS = 5
ROUNDS = 100_000
"""About five milliseconds' work."""


class Work(State):
    done: int = 0


class WorkEnvironment(Environment[Work]):
    """Tools that keep a core busy."""

    @tool
    def work(self, state: Work) -> int:
        """Keep a core busy for a while."""
        state.done += sum(number & 1 for number in range(ROUNDS)) > 0
        return state.done

    def verify(self, state: Work) -> float:
        return float(state.done == CALLS)


WORK_TASK = {"gold": [{"name": "work"}] * CALLS}

"""A state may have so many bytes and no more."""

import pytest

from stateroom import Environment, Sessions, State, tool
from stateroom.errors import TooLarge
from stateroom.store import Store

LIMIT = 20_000


class Heap(State):
    items: list[str] = []


class HeapEnvironment(Environment[Heap]):
    """Takes all that it is given."""

    def seed(self, task) -> Heap:
        return Heap(items=["x" * task.size])

    @tool
    def add(self, state: Heap, size: int) -> int:
        """Add an item."""
        state.items.append("y" * size)
        return len(state.items)

    @tool
    def repeat(self, state: Heap, text: str) -> None:
        """Add an item many times."""
        state.items.extend([text] * 100)

    @tool
    def clear(self, state: Heap) -> None:
        """Throw all away."""
        state.items.clear()

    def verify(self) -> float:
        return 0.0


@pytest.fixture
def sessions(store: Store) -> Sessions[Heap]:
    return Sessions[Heap](HeapEnvironment(), store, max_state=LIMIT)


async def test_a_call_that_would_make_it_too_large_changes_nothing(sessions: Sessions[Heap]) -> None:
    session = await sessions.seed({"size": 10})
    assert (await session.call("add", {"size": LIMIT - 1000})).ok
    result = await session.call("add", {"size": 2000})
    assert (result.ok, result.code) == (False, "too_large")
    assert "add failed: the state would be larger than the 20,000 bytes that it may have" in (result.error or "")
    assert (len(session.state.items), session.revision) == (2, 2)
    assert (await session.call("clear")).ok
    assert (await session.call("add", {"size": 2000})).ok


async def test_what_a_long_log_weighs_does_not_count(sessions: Sessions[Heap]) -> None:
    session = await sessions.seed({"size": 10})
    for _ in range(30):
        assert (await session.call("add", {"size": LIMIT - 5000})).ok
        assert (await session.call("clear")).ok


async def test_a_seed_that_is_too_large_is_refused(sessions: Sessions[Heap]) -> None:
    with pytest.raises(TooLarge, match="the seeded state is larger than the 20,000 bytes"):
        await sessions.seed({"size": LIMIT})


async def test_a_text_that_the_log_has_once_counts_as_often_as_the_state_has_it(sessions: Sessions[Heap]) -> None:
    session = await sessions.seed({"size": 10})
    assert (await session.call("repeat", {"text": "z" * 100})).ok
    assert (await session.call("repeat", {"text": "z" * 200})).code == "too_large"

"""Digests: equal states are recognised, whatever led to them."""

from datetime import date
from typing import Any

import pytest
from hypothesis import given, strategies as st

from stateroom import Sessions, State, open_store, tool
from stateroom.session import History
from stateroom.store import Store
from tests.environments import Unjudged


class Shelf(State):
    books: dict[str, int] = {}
    marks: set[str] = set()
    numbered: dict[int, list[str]] = {}
    opened: date | None = None
    big: int = 0


class ShelfEnvironment(Unjudged[Shelf]):
    """A shelf of books."""

    @tool
    def put(self, state: Shelf, name: str, pages: int) -> None:
        """Put a book on the shelf."""
        state.books[name] = pages
        state.marks.add(name)
        state.numbered.setdefault(pages, []).append(name)

    @tool
    def remove(self, state: Shelf, name: str) -> None:
        """Remove a book."""
        pages = state.books.pop(name)
        state.marks.discard(name)
        state.numbered[pages].remove(name)
        if not state.numbered[pages]:
            del state.numbered[pages]

    @tool
    def open(self, state: Shelf) -> None:
        """Open the shelf."""
        state.opened, state.big = date(2026, 1, 2), 2**70


async def put(session: Any, *books: tuple[str, int]) -> None:
    for name, pages in books:
        assert (await session.call("put", {"name": name, "pages": pages})).ok


@pytest.mark.every_store
async def test_equal_states_have_equal_digests(store: Store) -> None:
    sessions = Sessions(ShelfEnvironment(), store)
    first, second = await sessions.seed({}), await sessions.seed({})
    assert await first.digest() == await second.digest()
    await put(first, ("a", 1), ("b", 2))
    await put(second, ("b", 2))
    assert await first.digest() != await second.digest()
    await put(second, ("c", 3), ("a", 1))
    await second.call("remove", {"name": "c"})
    assert await first.digest() == await second.digest() == await first.digest(3)
    for each in (first, second):
        await each.call("open", {})
    assert await first.digest() == await second.digest() != await first.digest(3)
    fork = await first.fork(3)
    assert await fork.digest() == await first.digest(3)
    await first.rewind(2)
    assert await first.digest() == await first.digest(2)


async def test_a_pass_over_the_log_gives_the_same_digests(store: Store) -> None:
    session = await Sessions(ShelfEnvironment(), store).seed({})
    await put(session, ("a", 1), ("b", 2), ("c", 1))
    await session.rewind(3)
    await session.call("open", {})
    await session.call("remove", {"name": "a"})
    found = await History(store).digests(session.id, ("seed", "call"))
    assert [entry.revision for entry, _ in found] == [1, 2, 3, 6, 7]
    assert [digest for _, digest in found] == [await session.digest(entry.revision) for entry, _ in found]


@given(st.permutations(range(6)), st.integers(0, 6))
async def test_the_order_of_calls_does_not_count(order: list[int], left_out: int) -> None:
    async with open_store("memory://") as store:
        sessions = Sessions(ShelfEnvironment(), store)
        first, second = await sessions.seed({}), await sessions.seed({})
        await put(first, *((f"book {place}", place) for place in range(6)))
        await put(second, *((f"book {place}", place) for place in order if place != left_out))
        assert (await first.digest() == await second.digest()) == (first.state == second.state)

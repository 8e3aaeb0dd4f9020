"""What is particular to memory: it is bounded, it belongs to one store, and it lets go."""

import gc
import tracemalloc

import pytest

from stateroom.errors import StoreFull
from stateroom.store import Commit, Entry, open_store
from tests.messages import raises
from tests.store.rooms import head


async def test_a_full_store_refuses_new_sessions_and_goes_on_with_the_old() -> None:
    async with open_store("memory://?max_sessions=2") as store:
        await store.create(head("a", expires=10.0), [Entry(1, "seed", 0.0, b"")])
        await store.create(head("b"), [Entry(1, "seed", 0.0, b"")])
        with raises(StoreFull):
            await store.create(head("c"))
        await store.append(Commit("a", Entry(2, "call", 0.0, b""), expires=20.0))
        assert {head.id for head in await store.heads()} == {"a", "b"}


async def test_a_sweep_makes_room_in_a_full_store() -> None:
    async with open_store("memory://?max_sessions=2") as store:
        await store.create(head("a", expires=10.0))
        await store.create(head("b", expires=99.0))
        with pytest.raises(StoreFull):
            await store.create(head("fork", parent="a"))  # which so does not hold its parent
        assert await store.sweep(10.0) == 1
        await store.create(head("c"))
        with pytest.raises(StoreFull):
            await store.create(head("d"))


async def test_swept_bodies_are_let_go() -> None:
    async with open_store("memory://") as store:
        tracemalloc.start()
        try:
            for number in range(20):
                await store.create(head(f"room {number}", expires=10.0), [Entry(1, "seed", 0.0, bytes(1_000_000))])
            assert tracemalloc.get_traced_memory()[0] > 20_000_000
            assert await store.sweep(10.0) == 20
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < 1_000_000
        finally:
            tracemalloc.stop()

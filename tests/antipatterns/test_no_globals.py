"""Nothing in Stateroom is global to the process: using it leaves its modules as they were."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from stateroom import Environment, Sessions, State, open_store, tool
from stateroom.gallery import CounterEnvironment, ExtractionEnvironment
from stateroom.rollout import RunOptions, run
from tests.antipatterns.walking import changes, memory, modules, unjustified
from tests.plans import noisy_run


class Shelf(State):
    books: list[str] = []


class ShelfEnvironment(Environment[Shelf]):
    """A shelf of one's own, and one for all."""

    @tool
    def put(self, state: Shelf, user: Shelf, app: Shelf, book: str) -> int:
        """Put a book on each shelf."""
        for shelf in (state, user, app):
            shelf.books.append(book)
        return len(app.books)

    def verify(self, state: Shelf) -> float:
        return float(len(state.books))


async def use_sessions(url: str) -> None:
    async with open_store(url) as store:
        sessions = Sessions[Shelf](ShelfEnvironment(), store)
        session = await sessions.seed({"user": "ann"})
        for number in range(40):  # so that the tool comes to run on the loop
            assert (await session.call("put", {"book": f"book {number}"}, call_id=f"c{number}")).ok
        assert not (await session.call("put", {"book": 7})).ok
        fork = await session.fork(at=3)
        await session.rewind(2)
        await session.verify()
        await fork.close()
        await sessions.sweep()
        await sessions.stop()


async def test_two_environments_on_two_stores_leave_the_modules_as_they_were(tmp_path: Path, fresh_url: Any) -> None:
    RunOptions()  # whose validator is made at first use
    every = modules()
    before = memory(every)
    assert len(before) > 5000
    for kind in ("memory", "sqlite", "redis", "postgresql", "file"):
        await use_sessions(fresh_url(kind))
    for found in (CounterEnvironment, ExtractionEnvironment):
        plan = noisy_run(found, 3, tmp_path, f"sqlite:///{tmp_path / found.name}.db")
        assert (await run(plan)).failed == 0
    assert unjustified(changes(before, memory(every))) == []


REMEMBERING = """
import functools, itertools, random

class Shelf:
    registry = {}

    def __init__(self):
        self.last = None
        self.counts = [0]

def closing(kept):
    return lambda word: kept.append(word)

def defaults(word, words=[]):
    words.append(word)

@functools.lru_cache
def cached(word):
    return word

closes, counter, luck = closing([]), itertools.count(), random.Random(1)
current, instance, table, words = None, Shelf(), {"a": {}}, set()
"""
"""A module in which use leaves traces, of every kind."""

USES = {
    "current = 'ann'": "current",
    "table['a'].update(b=1)": "table['a']['b']",
    "words.add('b')": "words.members",
    "Shelf.registry.update(b=1)": "Shelf.registry",
    "instance.last = 'b'": "instance.last",
    "instance.counts.append(1)": "instance.counts",
    "next(counter)": "counter.said",
    "luck.random()": "luck.state",
    "cached('b')": "cached.cache",
    "closes('b')": "closes.closure",
    "defaults('b')": "defaults.defaults",
}


@pytest.mark.parametrize(("use", "place"), USES.items(), ids=USES)
def test_a_module_that_remembers_is_found_out(use: str, place: str) -> None:
    module = ModuleType("stateroom.remembering")
    exec(REMEMBERING, vars(module))
    before = memory([module])
    assert changes(before, memory([module])) == set()
    exec(use, vars(module))
    found = unjustified(changes(before, memory([module])))
    assert [each for each in found if each.startswith(f"{module.__name__}.{place}")]

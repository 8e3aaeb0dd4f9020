"""Nothing in Stateroom is global to the process: using it leaves its modules as they were."""

import itertools
from functools import lru_cache
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest

from stateroom import Environment, Sessions, State, open_store, tool
from stateroom.gallery import CounterEnvironment, ExtractionEnvironment
from stateroom.model import ModelSource
from stateroom.rollout import RunFiles, RunOptions, run
from tests.antipatterns.walking import changes, memory, modules, unjustified
from tests.plans import make_run


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


async def use_agents(folder: Path) -> None:
    for found in (CounterEnvironment, ExtractionEnvironment):
        plan = make_run(
            environment=found(),
            model=ModelSource("noisy", found.policies["noisy"]),
            tasks=[found.generate(Random(number)) for number in range(3)],
            files=RunFiles(folder / f"{found.name}.jsonl"),
            store=f"sqlite:///{folder / found.name}.db",
        )
        assert (await run(plan)).failed == 0


async def test_two_environments_on_two_stores_leave_the_modules_as_they_were(tmp_path: Path, fresh_url: Any) -> None:
    RunOptions()  # whose validator is made at first use
    every = modules()
    before = memory(every)
    assert len(before) > 5000
    for kind in ("memory", "sqlite", "redis", "postgresql", "file"):
        await use_sessions(fresh_url(kind))
    await use_agents(tmp_path)
    assert unjustified(changes(before, memory(every))) == []


class Remembering:
    """What a module might have that remembers what it was used for."""

    registry: dict[str, Any] = {}

    def __init__(self) -> None:
        self.last: str | None = None
        self.counts = [0]


def made() -> ModuleType:
    """A module in which use leaves traces, of every kind."""
    module: Any = ModuleType("stateroom.remembering")
    Remembering.__module__ = module.__name__
    Remembering.registry = {}
    kept: list[str] = []

    def closes(word: str) -> None:
        kept.append(word)

    def defaults(word: str, words: list[str] = []) -> None:  # noqa: B006 - that is the mistake
        words.append(word)

    @lru_cache
    def cached(word: str) -> str:
        return word

    cached.__module__ = module.__name__
    vars(module).update(
        Remembering=Remembering,
        instance=Remembering(),
        table={"a": {}},
        words=set(),
        counter=itertools.count(),
        luck=Random(1),
        cached=cached,
        closes=closes,
        defaults=defaults,
        current=None,
    )
    return module


USES: dict[str, tuple[Any, str]] = {
    "a name": (lambda module: setattr(module, "current", "ann"), "stateroom.remembering.current"),
    "a dict within a dict": (lambda module: module.table["a"].update(b=1), "stateroom.remembering.table['a']['b']"),
    "a set": (lambda module: module.words.add("b"), "stateroom.remembering.words.members"),
    "a class": (lambda module: module.Remembering.registry.update(b=1), "stateroom.remembering.Remembering.registry"),
    "an instance": (lambda module: setattr(module.instance, "last", "b"), "stateroom.remembering.instance.last"),
    "a list of one": (lambda module: module.instance.counts.append(1), "stateroom.remembering.instance.counts"),
    "a counter": (lambda module: next(module.counter), "stateroom.remembering.counter.said"),
    "luck": (lambda module: module.luck.random(), "stateroom.remembering.luck.state"),
    "a cache": (lambda module: module.cached("b"), "stateroom.remembering.cached.cache"),
    "a closure": (lambda module: module.closes("b"), "stateroom.remembering.closes.closure"),
    "a default": (lambda module: module.defaults("b"), "stateroom.remembering.defaults.defaults"),
}


@pytest.mark.parametrize(("use", "place"), USES.values(), ids=USES)
def test_a_module_that_remembers_is_found_out(use: Any, place: str) -> None:
    module = made()
    before = memory([module])
    assert changes(before, memory([module])) == set()
    use(module)
    assert [found for found in unjustified(changes(before, memory([module]))) if found.startswith(place)]

"""State outside the state: on the environment, in a class, in a module, in a default, in a reference that was kept.

It is out of reach, or refused, or found out by a replay; and what is in the state is one session's alone.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from stateroom import Environment, Episode, Sessions, State, tool
from stateroom.errors import ReadOnlyState
from stateroom.rollout import replay_session
from stateroom.store import Store
from tests.messages import says

IN_THE_MODULE: dict[str, int] = {}


class Box(BaseModel):
    items: list[str] = ["a"]


class Tally(State):
    count: int = 0
    seen: list[str] = []
    boxes: dict[str, Box] = {"first": Box()}


class TallyEnvironment(Environment[Tally]):
    """Counts, wherever it is told to."""

    in_the_class: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        self.on_self: dict[str, int] = {}
        self.first = Tally()
        self.kept: list[Any] = []
        self.total = 0

    def seed(self, task: Any) -> Tally:
        if getattr(task, "careless", False):
            self.total = 0
        return self.first

    @cached_property
    def prices(self) -> dict[str, int]:
        return {"tea": 2}

    @tool
    def add(self, state: Tally, word: str) -> int:
        """Add a word, everywhere in the state."""
        state.count += 1
        state.seen.append(word)
        state.boxes["first"].items.append(word)
        return state.count

    @tool
    def count_on_self(self, state: Tally) -> int:
        """Count on the environment."""
        state.count += 1
        self.total += 1
        return self.total

    @tool
    async def count_on_self_later(self, state: Tally) -> int:
        """Count on the environment, in a coroutine."""
        state.count += 1
        self.total += 1
        return self.total

    @tool(effect="read")
    def look_on_self(self, state: Tally) -> int:
        """Count the looks on the environment."""
        self.total += 1
        return self.total

    @tool
    def count_in(self, state: Tally, place: str) -> int:
        """Count in something that outlives the call."""
        counts = {"self": self.on_self, "class": self.in_the_class, "module": IN_THE_MODULE}[place]
        counts["all"] = counts.get("all", 0) + 1
        return counts["all"]

    @tool
    def price(self, state: Tally) -> int:
        """What tea costs."""
        return self.prices["tea"]

    @tool
    def keep(self, state: Tally) -> list[str]:
        """Hold on to the state, and to something of one's own in it."""
        mine = ["mine"]
        state.seen = mine
        self.kept.extend([state, state.boxes, state.boxes["first"].items, mine])
        return state.boxes["first"].items

    @tool(effect="read")
    def keep_reading(self, state: Tally) -> list[str]:
        """Hold on to a state that may only be read."""
        self.kept.extend([state, state.boxes, state.boxes["first"].items])
        return state.boxes["first"].items

    def verify(self, state: Tally, episode: Episode) -> float:
        self.total += 1
        return float(self.total)


@pytest.fixture
def environment() -> TallyEnvironment:
    return TallyEnvironment()


@pytest.fixture
def sessions(environment: TallyEnvironment, store: Store) -> Sessions[Tally]:
    return Sessions[Tally](environment, store)


@pytest.mark.parametrize("name", ["count_on_self", "count_on_self_later", "look_on_self", "seed", "verify"])
async def test_the_log_says_so_once_when_an_attribute_of_an_environment_in_use_is_set(
    environment: TallyEnvironment, store: Store, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    sessions = Sessions[Tally](environment, store)
    for _ in range(2):
        session = await sessions.seed({"careless": name == "seed"})
        await session.verify() if name == "verify" else await session.call(name)
    said = [record.getMessage() for record in caplog.records if "was set" in record.getMessage()]
    assert len(said) == 1
    says(said[0])


async def test_what_is_made_once_for_all_sessions_may_be_made_late(
    sessions: Sessions[Tally], caplog: pytest.LogCaptureFixture
) -> None:
    assert (await (await sessions.seed({})).call("price")).output == 2
    assert not caplog.records


@pytest.mark.parametrize("place", ["self", "class", "module"])
async def test_a_count_kept_outside_the_state_is_found_out_by_a_replay(
    sessions: Sessions[Tally], store: Store, place: str
) -> None:
    """One session's calls change what another is told; so neither can be had again."""
    others, session = await sessions.seed({}), await sessions.seed({})
    await others.call("count_in", {"place": place})
    told = (await session.call("count_in", {"place": place})).output
    again = await replay_session(TallyEnvironment(), store, session.id)
    assert [(each.name, each.recorded) for each in again.differences] == [("count_in", told)]
    await session.call("add", {"word": "b"})
    honest = await sessions.seed({})
    await honest.call("add", {"word": "b"})
    assert not (await replay_session(TallyEnvironment(), store, honest.id)).differences


async def test_a_default_and_a_seeded_object_are_copied_for_each_session(
    sessions: Sessions[Tally], environment: TallyEnvironment
) -> None:
    one, other = await sessions.seed({}), await sessions.seed({})  # both from `environment.first`
    for word in ("b", "c"):
        assert (await one.call("add", {"word": word})).ok
    later = await sessions.seed({})
    assert one.state == Tally(count=2, seen=["b", "c"], boxes={"first": Box(items=["a", "b", "c"])})
    assert other.state == later.state == environment.first == Tally()
    environment.first.seen.append("late")  # is nobody's state any more
    environment.first.boxes["first"].items.append("late")
    assert other.state == later.state == Tally()
    assert Tally() == Tally(count=0, seen=[], boxes={"first": Box(items=["a"])})


CHANGES: dict[str, Callable[[list[Any]], Any]] = {
    "a field": lambda kept: setattr(kept[0], "count", 9),
    "a dict": lambda kept: kept[1].clear(),
    "a list": lambda kept: kept[2].append("late"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", ["keep", "keep_reading"])
async def test_a_reference_that_outlives_its_call_can_change_nothing(
    sessions: Sessions[Tally], environment: TallyEnvironment, name: str, change: Callable[[list[Any]], Any]
) -> None:
    session = await sessions.seed({})
    result = await session.call(name)
    before = session.state.model_dump()
    with pytest.raises(ReadOnlyState):
        change(environment.kept)
    for mine in environment.kept[3:]:  # what was put in is a copy
        mine.append("late")
    result.output.append("late")  # and so is what was returned
    elsewhere = await Sessions[Tally](TallyEnvironment(), sessions.store).open(session.id)
    assert session.state.model_dump() == elsewhere.state.model_dump() == before

"""Worlds: what sessions start from together is made once, stored once, and changed by none of them."""

import asyncio
import gc
import heapq
from enum import Enum
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from stateroom import Environment, Episode, SessionLimits, Sessions, State, ToolError, open_store, tool
from stateroom.errors import BadData, BadTask, DefinitionError, InvalidState, TamperedState
from stateroom.session import Copier, Rescorer
from stateroom.store import Head, HeadFilter, Store
from tests.environments import Unjudged
from tests.messages import raises
from tests.session.stored_sessions import problems
from tests.watched import WatchedStore


class Person(State):
    name: str
    age: int = 30


class Town(State):
    people: dict[str, Person] = {}
    chronicle: list[str] = []
    rows: list[list[int]] = [[1], [2], [3]]


class TownEnvironment(Environment[Town]):
    """A town in which people have birthdays."""

    name = "town"

    def world(self) -> Town:
        return Town(people={f"p{number}": Person(name=f"person {number}") for number in range(300)})

    def seed(self, state: Town, task: Any) -> None:
        state.people["p1"].name = task.mayor

    @tool
    def birthday(self, state: Town, person: str) -> int:
        """Let somebody be a year older."""
        if person not in state.people:
            raise ToolError(f"there is no {person}")
        state.people[person].age += 1
        return state.people[person].age

    @tool
    def tell(self, state: Town, text: str) -> int:
        """Write into the chronicle."""
        state.chronicle.append(text)
        return len(state.chronicle)

    @tool
    def tamper(self, state: Town) -> None:
        """Change what is committed, behind the draft's back."""
        heapq.heappop(state.rows).append(99)

    def verify(self, state: Town, episode: Episode) -> float:
        return float(state.people["p1"].age - episode.states()[0].people["p1"].age)


def town(store: Store, **more: Any) -> Sessions[Town]:
    return Sessions(TownEnvironment(), store, SessionLimits(**more))


def people_in_memory() -> int:
    gc.collect()
    return sum(type(each) is Person for each in gc.get_objects())


async def worlds(store: Store) -> list[Head]:
    page = await store.heads(HeadFilter(environment="town:world"))
    return list(page)


@pytest.mark.every_store
async def test_another_process_reads_them_and_shares_what_has_not_changed(store: Store) -> None:
    first = await town(store).seed({"mayor": "ada"})
    await first.call("birthday", {"person": "p2"})
    third = await town(store).seed({"mayor": "cem"})
    others, before = town(store), people_in_memory()
    second, third = await others.open(first.id), await others.open(third.id)
    assert second.state == first.state
    assert third.state.people["p1"].name == "cem"
    assert people_in_memory() - before < 2 * 300


async def test_sessions_that_are_opened_at_once_share_the_world_too(store: Store) -> None:
    ids = [(await town(store).seed({"mayor": f"mayor {number}"})).id for number in range(5)]
    others = town(store)
    before = people_in_memory()
    opened = await asyncio.gather(*map(others.open, ids))
    assert [each.state.people["p1"].name for each in opened] == [f"mayor {number}" for number in range(5)]
    assert people_in_memory() - before < 2 * 300


@pytest.mark.every_store
async def test_a_world_is_stored_once_whoever_made_it(store: Store) -> None:
    sizes = []
    for sessions in (town(store), town(store)):
        for mayor in ("ada", "bob"):
            session = await sessions.seed({"mayor": mayor})
            sizes.append((await store.size(session.id)).bytes)
    [world] = await worlds(store)
    assert max(sizes) < (await store.size(world.id)).bytes / 10
    assert [head.id for head in await store.heads(HeadFilter(environment="town"))].count(world.id) == 0


async def test_sessions_that_are_seeded_at_once_store_the_world_once(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'rooms.db'}") as store:  # in memory nobody waits
        watched = WatchedStore(store)
        sessions = town(watched)
        await asyncio.gather(*(sessions.seed({"mayor": "ada"}) for _ in range(8)))
    assert watched.counts["create"] == 8 + 1


async def test_the_past_of_a_session_in_a_world_can_be_gone_back_to(store: Store) -> None:
    session = await town(store).seed({"mayor": "ada"})
    for _ in range(12):
        await session.call("birthday", {"person": "p1"})
    reopened = await town(store).open(session.id)
    fork = await reopened.fork(at=3)
    assert (await fork.state_at()).people["p1"].age == 32
    await fork.call("birthday", {"person": "p5"})
    assert [str(each) for each in await fork.diff(1)] == ["people.p1.age: 30 → 32", "people.p5.age: 30 → 31"]
    await reopened.rewind(to=1)
    assert (await reopened.state_at()).people["p1"].age == 30
    assert (await reopened.state_at()).people["p1"].name == "ada"
    assert (await (await town(store).open(fork.id)).verify()).reward == 2
    assert await problems(store) == {}


async def test_a_session_that_has_changed_much_is_written_whole_and_needs_its_world_no_longer(store: Store) -> None:
    session = await town(store).seed({"mayor": "ada"})
    [world] = await worlds(store)
    size = (await store.size(world.id)).bytes
    for number in range(12):
        await session.call("tell", {"text": f"{number}" * (size // 4)})
    snapshot = (await store.load(session.id)).snapshot
    assert snapshot is not None
    assert snapshot.revision > 1
    await store.delete(world.id)
    async with open_store("memory://") as target:
        await Copier(store, target).copy(session.id)
        for place in (store, target):
            assert len((await town(place).open(session.id)).state.chronicle) == 12


async def test_a_few_changes_are_not_worth_a_snapshot_of_the_world(store: Store) -> None:
    session = await town(store).seed({"mayor": "ada"})
    for _ in range(40):
        await session.call("birthday", {"person": "p1"})
    reopened = await town(store).open(session.id)
    for _ in range(40):
        await reopened.call("birthday", {"person": "p1"})
    snapshot = (await store.load(session.id)).snapshot
    assert snapshot is not None
    assert snapshot.revision == 1


@pytest.mark.every_store
async def test_a_world_that_is_gone_is_stored_again_for_new_sessions_and_missed_by_old_ones(store: Store) -> None:
    sessions = town(store)
    old = await sessions.seed({"mayor": "ada"})
    [world] = await worlds(store)
    await store.delete(world.id)
    sessions.forget(old.id)
    for reader in (sessions, town(store)):
        with raises(BadData):
            await reader.open(old.id)
    assert list(await problems(store)) == [old.id]
    new = await sessions.seed({"mayor": "bob"})
    assert (await town(store).open(new.id)).state.people["p1"].name == "bob"
    assert (await town(store).open(old.id)).state.people["p1"].name == "ada"  # it is the same world


@pytest.mark.every_store
async def test_a_world_lives_as_long_as_the_sessions_that_start_from_it(store: Store) -> None:
    now = 1_000_000.0
    day, year = 24 * 3600.0, 365 * 24 * 3600.0
    sessions = town(store, ttl=100 * day, shared_ttl=1.0, now=lambda: now)
    session = await sessions.seed({"mayor": "ada"})
    for _ in range(12):
        now += 90 * day
        sessions.forget(session.id)
        assert await sessions.sweep() == 0
        session = await sessions.open(session.id)
        assert session.state.people["p1"].name == "ada"
    now += 101 * day
    assert await sessions.sweep() == 1
    now += 2 * year
    assert await sessions.sweep() == 1  # nobody needs it any more
    assert (await sessions.seed({"mayor": "bob"})).state.people["p1"].name == "bob"


async def test_a_tool_that_tampers_with_the_world_changes_it_for_nobody(store: Store) -> None:
    sessions = town(store)
    first, second = [await sessions.seed({"mayor": mayor}) for mayor in ("ada", "bob")]
    assert not (await first.call("tamper")).ok
    third = await sessions.seed({"mayor": "cem"})
    for session in (first, second, third):
        assert (await session.state_at()).rows == [[1], [2], [3]]


async def test_a_seed_or_a_rehearsal_that_tampers_with_the_world_changes_it_for_nobody(store: Store) -> None:
    class Tampering(TownEnvironment):
        name = "town"

        def seed(self, state: Town, task: Any) -> None:
            super().seed(state, task)
            if task.mayor == "eve":
                heapq.heappop(state.rows).append(99)

        async def verify(self, state: Town, episode: Episode) -> float:  # type: ignore[override]
            await episode.after([{"name": "tamper"}])
            return 0.0

    sessions, rejudging = Sessions(Tampering(), store), Rescorer(Tampering(), store)
    first = await sessions.seed({"mayor": "ada"})
    with pytest.raises(TamperedState):
        await sessions.seed({"mayor": "eve"})
    second = await sessions.seed({"mayor": "bob"})
    assert first.state.rows == second.state.rows == [[1], [2], [3]]
    with raises(BadTask):
        await second.verify()
    with raises(BadTask):
        await rejudging.judge(second.id, at=1)
    assert first.state.rows == second.state.rows == [[1], [2], [3]]


async def test_a_world_is_the_same_in_whatever_order_a_process_has_the_members_of_its_sets(store: Store) -> None:
    class Tags(State):
        tags: set[int] = set()

    class Tagged(Unjudged[Tags]):
        """Has tags."""

        name = "town"

        def __init__(self, *tags: int) -> None:
            self.tags = tags

        def world(self) -> Tags:
            return Tags(tags=set(self.tags))

    assert [*{0, 8}] != [*{8, 0}]
    for tags in ((0, 8), (8, 0)):
        await Sessions(Tagged(*tags), store).seed({})
    assert len(await worlds(store)) == 1


async def test_what_has_left_a_set_of_the_world_is_not_there_again_when_it_is_read(store: Store) -> None:
    class Colour(Enum):
        RED = "red"

    class Flag(State):
        colours: set[Colour] = set()

    class FlagEnvironment(Unjudged[Flag]):
        """Paints a flag."""

        def world(self) -> Flag:
            return Flag(colours={Colour.RED})

        @tool
        def bleach(self, state: Flag) -> None:
            """Remove the colour."""
            state.colours.remove(Colour.RED)

    session = await Sessions(FlagEnvironment(), store).seed({})
    assert (await session.call("bleach")).ok
    assert (await Sessions(FlagEnvironment(), store).open(session.id)).state.colours == set()


async def test_a_world_that_differs_each_time_is_another_one_for_each_process(store: Store) -> None:
    numbers = count()

    class Changing(TownEnvironment):
        name = "town"

        def world(self) -> Town:
            return Town(chronicle=[str(next(numbers))], people={"p1": Person(name="")})

    handles = [await Sessions(Changing(), store).seed({"mayor": "ada"}) for _ in range(2)]
    assert [(await town(store).open(each.id)).state.chronicle for each in handles] == [["0"], ["1"]]
    assert len(await worlds(store)) == 2


@pytest.mark.every_store
async def test_copies_of_sessions_come_with_their_world(store: Store) -> None:
    session = await town(store).seed({"mayor": "ada"})
    fork = await session.fork()
    async with open_store("memory://") as target:
        copier = Copier(store, target)
        await copier.copy(fork.id)
        assert len(copier.copied) == 3
        assert (await town(target).open(fork.id)).state == session.state


async def test_sessions_are_copied_to_a_store_that_has_made_their_world_itself(store: Store) -> None:
    session = await town(store).seed({"mayor": "ada"})
    async with open_store("memory://") as target:
        there = await town(target, ttl=1.0).seed({"mayor": "bob"})
        copier = Copier(store, target)
        for head in [*await store.heads()]:
            await copier.copy(head.id)
        [here], [world] = await worlds(store), await worlds(target)
        assert world.expires == here.expires
        assert (await town(target).open(session.id)).state == session.state
        assert (await town(target).open(there.id)).state.people["p1"].name == "bob"


@pytest.mark.every_store
async def test_large_texts_of_the_world_and_of_the_task_are_there_again(store: Store) -> None:
    class Archive(TownEnvironment):
        name = "town"

        def world(self) -> Town:
            return Town(chronicle=["w" * 200_000], people={"p1": Person(name="")})

    session = await Sessions(Archive(), store).seed({"mayor": "m" * 100_000})
    await session.call("tell", {"text": "t" * 100_000})
    state = (await town(store).open(session.id)).state
    assert [len(text) for text in (state.people["p1"].name, *state.chronicle)] == [100_000, 200_000, 100_000]
    assert await problems(store) == {}


async def test_newer_code_migrates_a_session_and_the_world_that_it_began_in(store: Store) -> None:
    session = await town(store).seed({"mayor": "ada"})
    await session.call("birthday", {"person": "p1"})

    class Newer(State, version=2):
        chronicle: list[str] = []
        names: dict[str, str] = {}

    @Newer.migration(1)
    def keep_names(data: dict[str, Any]) -> dict[str, Any]:
        people, _ = data.pop("people"), data.pop("rows")
        return {**data, "names": {key: person["name"] for key, person in people.items()}}

    class Later(Unjudged[Newer]):
        """The town, years later."""

        name = "town"

        @tool
        def tell(self, state: Newer, text: str) -> int:
            """Write into the chronicle."""
            state.chronicle.append(text)
            return len(state.chronicle)

    later = await Sessions(Later(), store).open(session.id)
    assert len(later.state.names) == 300
    assert later.state.names["p1"] == "ada"
    assert (await later.call("tell", {"text": "years later"})).ok
    assert (await Sessions(Later(), store).open(session.id)).state.chronicle == ["years later"]


async def test_a_session_can_be_judged_again_by_what_it_began_with(store: Store) -> None:
    session = await town(store).seed({"mayor": "ada"})
    await session.call("birthday", {"person": "p1"})
    assert (await session.verify()).reward == 1

    class Stricter(TownEnvironment):
        name = "town"

        def verify(self, state: Town, episode: Episode) -> float:
            return float(state.people["p1"].name == episode.states()[0].people["p1"].name == "ada") / 2

    assert (await Rescorer(Stricter(), store).judge(session.id)).verdict.reward == 0.5


async def test_what_a_seed_makes_of_the_world_must_be_valid(store: Store) -> None:
    class Wrong(TownEnvironment):
        def seed(self, state: Town, task: Any) -> None:
            state.people["p1"].age = task.age

    with raises(InvalidState):
        await Sessions(Wrong(), store).seed({"age": "old"})
    assert (await Sessions(Wrong(), store).seed({"age": 3})).state.people["p1"].age == 3


async def test_without_a_seed_sessions_start_from_the_world_as_it_is(store: Store) -> None:
    class Plain(Unjudged[Town]):
        """Just a town."""

        def world(self) -> Town:
            return Town(chronicle=["founded"])

    session = await Sessions(Plain(), store).seed({})
    assert session.state.chronicle == ["founded"]
    with raises(BadTask):
        await Sessions(Plain(), store).seed({}, session_id="world:plain")


async def test_worlds_that_cannot_be_are_refused_in_words(store: Store) -> None:
    with raises(DefinitionError):

        class Stateless(Environment):
            """None."""

            def world(self) -> None: ...

    with raises(DefinitionError):

        class Unasked(TownEnvironment):
            def seed(self, task: Any) -> None: ...  # type: ignore[override]

    with raises(DefinitionError):

        class Asking(TownEnvironment):
            def world(self, task: Any) -> Town: ...  # type: ignore[override, empty-body]

    class Returning(TownEnvironment):
        def seed(self, state: Town, task: Any) -> Town:  # type: ignore[override]
            return Town()

    class References(TownEnvironment):
        def world(self) -> Any:
            return Person(name="ada")

    with raises(DefinitionError):
        await Sessions(Returning(), store).seed({"mayor": ""})
    with raises(DefinitionError):
        await Sessions(References(), store).seed({"mayor": ""})


async def test_a_subclass_starts_from_the_world_of_its_base(store: Store) -> None:
    class Harbour(Town):
        ships: list[str] = ["Ark"]

    class HarbourEnvironment(TownEnvironment, Environment[Harbour]):
        """A town with ships."""

    session = await Sessions(HarbourEnvironment(), store).seed({"mayor": "Eve"})
    await session.call("birthday", {"person": "p1"})
    assert (session.state.people["p1"].name, session.state.people["p1"].age) == ("Eve", 31)
    again = await Sessions(HarbourEnvironment(), store).open(session.id)
    assert (again.state.ships, len(again.state.people)) == (["Ark"], 300)


async def test_a_field_without_a_default_needs_a_world_of_its_own(store: Store) -> None:
    class Harbour(Town):
        ships: list[str]

    class HarbourEnvironment(TownEnvironment, Environment[Harbour]):
        """A town with ships."""

    with raises(DefinitionError):
        await Sessions(HarbourEnvironment(), store).seed({"mayor": "Eve"})

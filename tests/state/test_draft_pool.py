"""Drafts of wide containers that one call leaves for the next."""

import heapq
import random
from enum import StrEnum
from typing import Any

import pytest
from pydantic import BaseModel

from stateroom.errors import TamperedState
from stateroom.state import DraftContext, State, commit, draft_of, pool_drafts
from tests.messages import raises

WIDE = 300
"""Items of a container whose draft is worth keeping."""


class Record(BaseModel):
    name: str
    score: int = 0
    tags: list[str] = []


class Shelf(BaseModel):
    books: dict[str, Record] = {}


class Library(State):
    listed: list[Record] = []
    keyed: dict[str, Record] = {}
    numbers: list[int] = []
    shelf: Shelf = Shelf()


def library() -> Library:
    records = [Record(name=f"r{index}") for index in range(WIDE)]
    keyed = {record.name: record for record in records}
    return Library(listed=records, keyed=keyed, numbers=list(range(WIDE)), shelf=Shelf(books=dict(keyed)))


def changed(state: Library, pool: dict[int, Any], change: Any) -> Library:
    draft = draft_of(state, DraftContext(None, pool))
    change(draft)
    result: Library = commit(draft).state
    return result


def test_a_wide_container_is_drafted_once() -> None:
    pool: dict[int, Any] = {}
    state = changed(library(), pool, lambda draft: setattr(draft.keyed["r3"], "score", 1))
    (pooled,) = pool.values()
    draft = draft_of(state, DraftContext(None, pool))
    assert draft.keyed is pooled
    assert pool == {}


def test_a_draft_that_a_tool_kept_is_not_pooled() -> None:
    for keep in (lambda part: part, lambda part: part.items(), iter):
        kept: list[Any] = []
        pool: dict[int, Any] = {}
        changed(library(), pool, lambda draft, keep=keep, kept=kept: kept.append(keep(draft.keyed)))
        assert pool == {}


def test_what_a_tool_kept_does_not_lead_to_the_pooled_draft_that_a_later_call_gets() -> None:
    kept: list[Any] = []
    pool: dict[int, Any] = {}
    state = changed(
        library(), pool, lambda draft: (kept.extend([draft, draft.keyed["r1"]]), setattr(kept[1], "score", 5))
    )
    (pooled,) = pool.values()
    draft = draft_of(state, DraftContext(None, pool))
    assert draft.keyed is pooled is not kept[0].keyed
    assert draft.keyed["r1"] is not kept[1]
    assert draft.keyed["r1"].score == 5


def test_a_read_pools_its_draft_too_but_not_of_items_that_c_code_can_move() -> None:
    pool: dict[int, Any] = {}
    state = library()
    draft = draft_of(state, DraftContext("reading", pool))
    assert draft.keyed["r1"].score == draft.listed[1].score == draft.numbers[0]
    pool_drafts(draft)
    assert {id(state.keyed), id(state.listed)} == set(pool)
    again = draft_of(state, DraftContext("reading", pool))
    assert again == state


def test_a_heap_of_items_that_can_change_is_refused() -> None:
    class Grid(State):
        rows: list[list[int]] = [[1], [2], [3]]

    draft = draft_of(Grid(), DraftContext())
    heapq.heappop(draft.rows)
    with raises(TamperedState):
        commit(draft)


class World(State):
    records: list[Record] = []
    keyed: dict[str, Record] = {}
    numbers: list[int] = []
    counts: dict[int, int] = {}
    rows: list[list[int]] = []
    shelf: Shelf = Shelf()


def world() -> World:
    return World(
        records=[Record(name=f"r{index}") for index in range(4)],
        keyed={f"r{index}": Record(name=f"r{index}") for index in range(4)},
        numbers=[1, 2, 3],
        counts={1: 1, 2: 2, 3: 3},
        rows=[[1], [2], [3]],
        shelf=Shelf(books={f"r{index}": Record(name=f"r{index}") for index in range(4)}),
    )


ANYTHING = [
    lambda state, chance: setattr(chance.choice(state.records), "score", chance.randrange(9)),
    lambda state, chance: chance.choice(state.records).tags.append("t"),
    lambda state, chance: setattr(state.keyed[chance.choice(list(state.keyed))], "score", chance.randrange(9)),
    lambda state, chance: state.records.append(Record(name="new")),
    lambda state, chance: state.records.insert(0, Record(name="first")),
    lambda state, chance: state.records.pop(chance.randrange(len(state.records))),
    lambda state, chance: state.records.sort(key=lambda record: (record.score, record.name)),
    lambda state, chance: state.records.__setitem__(chance.randrange(len(state.records)), Record(name="other")),
    lambda state, chance: state.keyed.update({f"r{chance.randrange(9)}": Record(name="put")}),
    lambda state, chance: state.keyed.pop(chance.choice(list(state.keyed))),
    lambda state, chance: setattr(state, "keyed", dict(state.keyed)),
    lambda state, chance: state.numbers.append(chance.randrange(9)),
    lambda state, chance: state.numbers.sort(),
    lambda state, chance: state.counts.update({chance.randrange(9): chance.randrange(9)}),
    lambda state, chance: state.counts.pop(chance.choice(list(state.counts))),
    lambda state, chance: state.records.pop(),
    lambda state, chance: heapq.heappush(state.numbers, chance.randrange(9)),
    lambda state, chance: heapq.heappop(state.numbers),
    lambda state, chance: chance.choice(state.rows).append(chance.randrange(9)),
    lambda state, chance: state.rows.append([chance.randrange(9)]),
    lambda state, chance: state.rows.insert(0, [chance.randrange(9)]),
    lambda state, chance: state.rows.__setitem__(chance.randrange(len(state.rows)), [chance.randrange(9)]),
    lambda state, chance: [record.score for record in state.records],
    lambda state, chance: setattr(chance.choice(list(state.shelf.books.values())), "score", chance.randrange(9)),
    lambda state, chance: state.shelf.books.pop(chance.choice(list(state.shelf.books))),
    lambda state, chance: state.records.__delitem__(slice(None, None, 2)),
]


def change_at_random(state: World, seed: float) -> None:
    chance = random.Random(seed)
    for _ in range(3):
        try:
            chance.choice(ANYTHING)(state, chance)
        except (IndexError, KeyError, ValueError):  # something is empty
            continue


@pytest.mark.parametrize("seed", range(60))
def test_long_histories_with_a_pool_are_as_without_and_old_states_never_change(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateroom.state.draft.MIN_ITEMS", 2)
    monkeypatch.setattr("stateroom.state.draft_list.OPERATION_COST", 1)
    chance = random.Random(seed)
    state, pool = world(), dict[int, Any]()
    held: list[tuple[World, Any]] = []  # as by forks, readers and the trail
    kept: list[Any] = []  # as by tools
    for _ in range(60):
        draft, luck = draft_of(state, DraftContext(None, pool)), chance.random()
        copied = World.model_validate(state.model_dump())
        change_at_random(draft, luck)
        change_at_random(copied, luck)
        if chance.random() < 0.1:
            kept.append(chance.choice([draft, draft.keyed, draft.records]))
        if chance.random() < 0.1:
            continue  # the tool failed
        result = commit(draft).state
        if chance.random() < 0.1:
            continue  # the store refused
        state = result
        assert state == World.model_validate(copied.model_dump())
        assert [*state.keyed, *state.counts] == [*copied.keyed, *copied.counts]
        held.append((state, state.model_dump()))
        if len(held) > 5:
            held.pop(chance.randrange(len(held)))
        assert all(old.model_dump() == then for old, then in held)
        if chance.random() < 0.1:
            state = held[0][0]  # a rewind


class Job(BaseModel):
    at: int
    note: str = ""

    def __lt__(self, other: "Job") -> bool:
        return self.at < other.at


class Queue(State):
    jobs: list[Job] = []


def test_a_heap_hands_over_drafts_in_every_call() -> None:
    pool: dict[int, Any] = {}
    state = Queue(jobs=[Job(at=at) for at in range(WIDE)])
    draft = draft_of(state, DraftContext(None, pool))
    draft.jobs[3].note = "x"
    state = commit(draft).state
    heapq.heappop(draft_of(state, DraftContext(None, pool)).jobs).note = "spoilt"
    assert state.jobs[0].note == ""


Name = StrEnum("Name", [f"k{index}" for index in range(WIDE + 1)])  # type: ignore[misc]


class Named(State):
    table: dict[Name, int] = {}


def test_the_next_call_sees_keys_as_they_were_committed() -> None:
    pool: dict[int, Any] = {}
    draft = draft_of(Named(table=dict.fromkeys(list(Name)[:-1], 0)), DraftContext(None, pool))
    draft.table[f"k{WIDE}"] = 1  # type: ignore[index]
    state = commit(draft).state
    assert {type(key) for key in draft_of(state, DraftContext(None, pool)).table} == {Name}


def test_what_went_past_a_dicts_own_methods_is_gone_with_the_call() -> None:
    pool: dict[int, Any] = {}
    draft = draft_of(library(), DraftContext(None, pool))
    dict.__setitem__(draft.keyed, "phantom", Record(name="phantom"))
    state = commit(draft).state
    assert "phantom" not in draft_of(state, DraftContext(None, pool)).keyed

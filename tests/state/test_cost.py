"""The cost of a call follows what it changes: counted in lines of Python that run, and in bytes of its patch."""

import os
import random
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest
from pydantic import BaseModel

from stateroom.state import DraftContext, State, commit, draft_of, encode, patched


class Record(BaseModel):
    number: int = 0
    tags: list[str] = []


class Table(State):
    numbers: list[int] = []
    records: list[Record] = []
    rows: list[list[int]] = []
    keyed: dict[int, Record] = {}
    members: set[int] = set()


def wide(field: str, size: int) -> Table:
    """A table with a wide field; its numbers are not cached, so that each has an identity."""
    numbers = range(1_000, 1_000 + size)
    contents: dict[str, Any] = {
        "numbers": numbers,
        "members": numbers,
        "records": (Record(number=number) for number in numbers),
        "rows": ([number] for number in numbers),
        "keyed": ((number, Record(number=number)) for number in numbers),
    }
    kind = type(getattr(Table(), field))
    return Table.model_construct(**{field: kind(contents[field])})


def lines_of(work: Callable[[], object]) -> int:
    """The number of lines that some work runs in Stateroom's own code."""
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace if f"{os.sep}stateroom{os.sep}" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def work_of(field: str, size: int, program: Callable[[Any], object]) -> int:
    """The lines that it takes to run a program on a wide field and to commit it."""
    draft = draft_of(wide(field, size), DraftContext())
    return lines_of(lambda: (program(getattr(draft, field)), commit(draft)))


@pytest.mark.parametrize(
    ("field", "program"),
    [
        ("records", lambda records: records.append(Record())),
        ("records", lambda records: records.extend([Record(), Record()])),
        ("records", lambda records: records.pop()),
        ("records", lambda records: records.__setitem__(7, Record())),
        ("records", lambda records: records[7].tags.append("x")),
        ("records", lambda records: (records.append(Record()), records[-1].tags.append("x"))),
        ("numbers", lambda numbers: numbers.append(7)),
        ("keyed", lambda keyed: keyed[1_000].tags.append("x")),
        ("members", lambda members: members.add(7)),
    ],
)
def test_a_small_change_is_the_same_work_in_a_wide_container(field: str, program: Callable[[Any], object]) -> None:
    work_of(field, 100, program)  # what is done once for each class
    assert work_of(field, 1_000, program) == work_of(field, 100, program)


def append_and_sort(items: list[Any], new: Callable[[int], Any], key: Any) -> None:
    chance = random.Random(1)
    for _ in range(20):
        items.append(new(chance.randrange(10_000)))
        items.sort(key=key)


def replace_every_other(items: list[Any], new: Callable[[int], Any], key: Any) -> None:
    items[::2] = [new(number) for number in range(0, len(items), 2)]


def drain(items: Any, first: Callable[[], Any]) -> None:
    while items:
        first()


MANY: dict[str, Callable[[Any, Callable[[int], Any], Any], object]] = {
    "delete every other": lambda items, new, key: items.__delitem__(slice(None, None, 2)),
    "replace every other": replace_every_other,
    "insert at the front": lambda items, new, key: [items.insert(0, new(each)) for each in range(len(items))],
    "look, then insert": lambda items, new, key: [items.insert(0, new(0)) for _ in list(items)],
    "take from the front": lambda items, new, key: drain(items, lambda: items.pop(0)),
    "take from the middle": lambda items, new, key: drain(items, lambda: items.pop(len(items) // 2)),
    "go round": lambda items, new, key: [items.append(items.pop(0)) for _ in range(len(items))],
    "extend in pieces": lambda items, new, key: [items.extend([new(each)]) for each in range(len(items))],
    "split": lambda items, new, key: [
        items.__setitem__(slice(each, each + 1), [new(each), new(each)]) for each in range(0, len(items), 2)
    ],
    "shuffle": lambda items, new, key: random.Random(1).shuffle(items),
    "filter": lambda items, new, key: items.__setitem__(slice(None), [items[at] for at in range(0, len(items), 3)]),
    "sort": lambda items, new, key: items.sort(key=key, reverse=True),
    "double": lambda items, new, key: items.__imul__(2),
}  # fmt: skip

FIELDS: dict[str, tuple[Callable[[int], Any], Any]] = {
    "numbers": (lambda number: 10_000 + number, None),
    "records": (lambda number: Record(number=number), attrgetter("number")),
    "rows": (lambda number: [number], None),
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("name", MANY)
def test_many_changes_of_a_list_are_work_that_follows_their_number(name: str, field: str) -> None:
    small, large = (work_of(field, size, lambda items: MANY[name](items, *FIELDS[field])) for size in (100, 200))
    assert large < 2.5 * small


@pytest.mark.parametrize(
    "program",
    [
        lambda keyed: drain(keyed, keyed.popitem),
        lambda keyed: drain(keyed, lambda: keyed.pop(next(iter(keyed.items()))[0])),
        lambda keyed: [keyed.update({number: next(iter(keyed.values()))}) for number in range(len(keyed))],
    ],
)
def test_many_changes_of_a_dict_are_work_that_follows_their_number(program: Callable[[Any], object]) -> None:
    small, large = (work_of("keyed", size, program) for size in (100, 200))
    assert large < 2.5 * small


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    ("program", "operations", "size"),
    [
        (MANY["delete every other"], 1, 3_200),
        (MANY["insert at the front"], 1, 40_000),
        (MANY["take from the front"], 1, 40),
        (MANY["go round"], 0, 1),
        (MANY["shuffle"], 1, 6_200),
        (MANY["sort"], 1, 6_200),
        (MANY["filter"], 1, 2_200),
        (append_and_sort, 20, 1_200),
        (lambda items, new, key: items.sort(key=key), 0, 1),
        (lambda items, new, key: (items.reverse(), items.reverse()), 0, 1),
        (lambda items, new, key: items.__setitem__(slice(None), sorted(items, key=key)), 0, 1),
        (lambda items, new, key: [items.insert(1_500, items.pop(each)) for each in (3, 5)], 3, 200),
    ],
)
def test_a_patch_is_as_small_as_what_became_of_a_list(program: Any, operations: int, size: int, field: str) -> None:
    base = wide(field, 2_000)
    draft = draft_of(base, DraftContext())
    program(getattr(draft, field), *FIELDS[field])
    result, patch = commit(draft)
    assert len(patch) <= operations
    assert len(encode(patch)) <= size
    assert patched(base, patch) == result

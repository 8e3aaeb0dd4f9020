"""A random program gives the same result on a draft and on a deep copy, and its patch tells the whole story."""

from __future__ import annotations

import bisect
import copy
import heapq
import json
import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from functools import partial
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from pydantic import BaseModel, JsonValue

from stateroom.errors import BadData
from stateroom.state import (
    DraftContext,
    State,
    apply,
    commit,
    decode,
    draft_list,
    draft_of,
    encode,
    encode_patch,
    patched,
    shape_of,
)
from tests.examples import share
from tests.state import classes


class Color(Enum):
    RED = "red"
    BLUE = "blue"
    GREEN = "green"


class Leaf(BaseModel):
    n: int = 0
    tags: set[str] = set()
    price: Decimal = Decimal(0)


class Node(BaseModel):
    name: str = ""
    leaf: Leaf = Leaf()
    numbers: list[int] = []
    kids: list[Node] = []
    by_color: dict[Color, Leaf] = {}
    pair: tuple[Leaf, int] | None = None


class World(State):
    title: str = ""
    root: Node = Node()
    nodes: list[Node] = []
    table: dict[str, Node] = {}
    grid: list[list[int]] = []
    counts: dict[int, list[int]] = {}
    heap: list[tuple[int, str]] = []
    queue: list[tuple[int, Leaf]] = []
    seen: set[int] = set()
    fixed: frozenset[bytes] = frozenset()
    when: datetime | None = None
    day: date = date(2024, 1, 1)
    took: timedelta = timedelta()
    ident: UUID | None = None
    either: int | Leaf | list[str] | None = None
    extra: JsonValue = None


class Job(BaseModel):
    rank: int = 0
    log: list[int] = []

    def __lt__(self, other: Job) -> bool:
        return self.rank < other.rank


class Heaps(State):
    """Lists that C code likes to edit."""

    bags: list[tuple[int, list[int]]] = []
    queue: list[tuple[int, Leaf]] = []
    jobs: list[Job] = []
    mixed: list[int | float | tuple[int, dict[str, int]]] = []
    numbers: list[int] = []
    notes: list[Note] = []


class Note(BaseModel):
    """Does not know `<`, so C code stops at the second of them."""

    n: int = 0


words = st.text(alphabet="abc é", max_size=3)
integers = st.one_of(st.integers(-5, 5), st.integers())
decimals = st.decimals(allow_nan=False, allow_infinity=False)
leaves = st.builds(Leaf, n=integers, tags=st.sets(words, max_size=3), price=decimals)
colors = st.dictionaries(st.sampled_from(Color), leaves, max_size=3)
numbers = st.lists(integers, max_size=4)
pairs = st.none() | st.tuples(leaves, integers)
plain_nodes = st.builds(Node, name=words, leaf=leaves, numbers=numbers, by_color=colors, pair=pairs)
nodes = st.recursive(
    plain_nodes, lambda inner: st.builds(Node, name=words, leaf=leaves, kids=st.lists(inner, max_size=2)), max_leaves=3
)
zones = st.sampled_from([None, UTC, timezone(timedelta(hours=-3, minutes=-30))])
json_values = st.recursive(
    st.none() | st.booleans() | integers | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=5,
)
bags = st.tuples(integers, numbers)
jobs = st.builds(Job, rank=st.integers(0, 3), log=numbers)
mixtures = integers | st.sampled_from([0.0, 1.0]) | st.tuples(integers, st.dictionaries(words, integers, max_size=2))
notes = st.builds(Note, n=integers)
heaps = st.builds(
    Heaps,
    bags=st.lists(bags, min_size=2, max_size=5),
    queue=st.lists(st.tuples(integers, leaves), min_size=1, max_size=2),
    jobs=st.lists(jobs, min_size=2, max_size=5),
    mixed=st.lists(mixtures, min_size=2, max_size=5),
    numbers=numbers,
    notes=st.lists(notes, max_size=4),
)
eithers = st.none() | integers | leaves | st.lists(words, max_size=3)
worlds = st.builds(
    World,
    title=words,
    root=nodes,
    nodes=st.lists(plain_nodes, max_size=3),
    table=st.dictionaries(words, plain_nodes, max_size=3),
    grid=st.lists(numbers, max_size=3),
    counts=st.dictionaries(integers, numbers, max_size=3),
    heap=st.lists(st.tuples(integers, words), max_size=4),
    queue=st.lists(st.tuples(integers, leaves), max_size=3),
    seen=st.sets(integers, max_size=4),
    fixed=st.frozensets(st.binary(max_size=3), max_size=3),
    when=st.none() | st.datetimes(timezones=zones),
    day=st.dates(),
    took=st.timedeltas(),
    ident=st.none() | st.uuids(),
    either=eithers,
    extra=json_values,
)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "title": words, "name": words, "n": integers, "price": decimals, "tags": st.sets(words, max_size=3),
    "leaf": leaves, "numbers": numbers, "kids": st.lists(plain_nodes, max_size=2), "by_color": colors, "pair": pairs,
    "root": plain_nodes, "nodes": st.lists(plain_nodes, max_size=2),
    "table": st.dictionaries(words, plain_nodes, max_size=2), "grid": st.lists(numbers, max_size=2),
    "counts": st.dictionaries(integers, numbers, max_size=2), "heap": st.lists(st.tuples(integers, words), max_size=3),
    "queue": st.lists(st.tuples(integers, leaves), max_size=2), "bags": st.lists(bags, max_size=2),
    "jobs": st.lists(jobs, max_size=2), "mixed": st.lists(mixtures, max_size=2), "notes": st.lists(notes, max_size=2),
    "rank": integers, "log": numbers, "seen": st.sets(integers, max_size=3),
    "fixed": st.frozensets(st.binary(max_size=2), max_size=2), "when": st.none() | st.datetimes(timezones=zones),
    "day": st.dates(), "took": st.timedeltas(), "ident": st.none() | st.uuids(), "either": eithers,
    "extra": json_values,
}  # fmt: skip
"""What may be assigned to a field, by its name."""

ITEMS: dict[str, st.SearchStrategy[Any]] = {
    "numbers": integers, "kids": plain_nodes, "nodes": plain_nodes, "grid": numbers, "row": integers,
    "heap": st.tuples(integers, words), "queue": st.tuples(integers, leaves), "bags": bags, "jobs": jobs,
    "mixed": mixtures, "notes": notes, "log": integers, "tally": integers, "tags": words, "seen": integers,
    "by_color": leaves, "table": plain_nodes, "counts": numbers, "count": integers, "either": words,
    "extra": json_values,
}  # fmt: skip
"""What may be put into a container, by the name of its field."""

KEYS = {"by_color": st.sampled_from(Color), "table": words, "counts": integers, "tally": words, "extra": words}

INNER = {"grid": "row", "counts": "count", "bags": "row", "mixed": "tally"}


def places(value: Any, name: str) -> list[tuple[Any, str]]:
    """Every node that can change, with the name of what it holds; read through the node's own interface."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return [(value, name), *(at for field in fields for at in places(getattr(value, field), field))]
    inner = INNER.get(name, name)
    if isinstance(value, dict):
        return [(value, name), *(at for key in list(value) for at in places(value[key], inner))]
    if isinstance(value, list):
        return [(value, name), *(at for part in value for at in places(part, inner))]
    if isinstance(value, tuple):
        return [at for part in value for at in places(part, inner)]
    return [(value, name)] if isinstance(value, set) else []


def detached(value: Any) -> Any:
    return copy.deepcopy(value)


def act(choose: Any, target: Any, name: str) -> Any:
    """One operation that suits the target, as a function to be run on it or on its double."""
    if isinstance(target, BaseModel):
        field = choose(st.sampled_from(sorted(type(target).model_fields)))
        value = choose(VALUES[field])
        return lambda node: setattr(node, field, detached(value))
    item = ITEMS[name]
    if isinstance(target, set):
        other = choose(st.sets(item, max_size=3))
        method = choose(
            st.sampled_from(
                ["update", "difference_update", "intersection_update", "symmetric_difference_update", "clear",
                 "__ior__", "__iand__", "__isub__", "__ixor__"]
            )
        )  # fmt: skip
        return lambda node: getattr(node, method)(*([] if method == "clear" else [other])) and None
    if isinstance(target, dict):
        return act_on_dict(choose, target, KEYS[name], item)
    return act_on_list(choose, target, name, item)


def act_on_dict(choose: Any, target: Any, keys: Any, item: Any) -> Any:
    key = choose(keys | st.sampled_from(list(target))) if target else choose(keys)
    value = choose(item)
    return choose(
        st.sampled_from(
            [
                lambda node: node.__setitem__(key, detached(value)),
                lambda node: node.__delitem__(key),
                lambda node: node.pop(key, None),
                lambda node: node.popitem(),
                lambda node: node.setdefault(key, detached(value)),
                lambda node: node.update({key: detached(value)}),
                lambda node: node.__ior__({key: detached(value)}) and None,
                lambda node: node.clear(),
                lambda node: node.__setitem__(key, node.pop(next(iter(node)))),
                lambda node: [node.__setitem__(each, part) for each, part in reversed(list(node.items()))] and None,
                lambda node: [node.__setitem__(each, node.pop(each)) for each in list(node)] and None,
            ]
        )
    )


def act_on_list(choose: Any, target: Any, name: str, item: Any) -> Any:
    values = choose(st.lists(item, max_size=3))
    value = choose(item)
    index = choose(st.integers(-len(target) - 1, len(target)))
    other = choose(st.integers(-len(target) - 1, len(target)))
    step = choose(st.sampled_from([None, 2, -1, -2, 3]))
    part = slice(index, other, step)
    seed = choose(st.integers(0, 99))

    def swap(node: Any) -> None:
        node[index], node[other] = node[other], node[index]

    def shuffle(node: Any) -> None:
        random.Random(seed).shuffle(node)

    def doubled(node: Any) -> None:
        node *= 2

    def grow(node: Any) -> None:
        node += detached(values)

    def change_inside(node: Any) -> None:
        part = node[index][-1] if isinstance(node[index], tuple) else node[index]
        if isinstance(part, list):
            part.append(seed)
        elif isinstance(part, dict):
            part["a"] = seed
        elif isinstance(part, Job):
            part.rank = seed
        elif isinstance(part, Leaf | Note):
            part.n = seed

    def replace(node: Any) -> None:
        size = len(range(*part.indices(len(node))))
        node[part] = detached(values) if step is None else [detached(value) for _ in range(size)]

    moves: list[Any] = [
        lambda node: node.append(detached(value)),
        lambda node: node.append(node[index]),  # the same child twice
        lambda node: node.extend(detached(values)),
        lambda node: node.insert(index, detached(value)),
        lambda node: node.insert(other, node.pop(index)),
        lambda node: node.pop(),
        lambda node: node.pop(index),
        lambda node: node.remove(node[index]),
        lambda node: node.__delitem__(index),
        lambda node: node.__delitem__(part),
        lambda node: node.__setitem__(index, detached(value)),
        lambda node: node.clear(),
        lambda node: node.reverse(),
        lambda node: node.sort(key=lambda each: json.dumps(each, default=repr)),
        replace, swap, shuffle, doubled, grow, change_inside,
    ]  # fmt: skip
    if name not in ("grid", "extra"):  # of lists in a list, C code would hand out committed ones
        moves += [
            heapq.heapify,
            heapq.heappop,
            lambda node: heapq.heappush(node, detached(value)),
            lambda node: heapq.heapreplace(node, detached(value)),
            lambda node: heapq.heappushpop(node, detached(value)),
            lambda node: heapq.heappush(node, heapq.heappop(node)),
            lambda node: [heapq.heappush(node, detached(each)) for each in values] and None,
        ]
    moves += [
        lambda node: heapq.nsmallest(2, node),
        lambda node: list(heapq.merge(node, detached(values))),
        lambda node: bisect.insort(node, detached(value)),
        lambda node: node.sort(),
        lambda node: node.sort(reverse=True),
    ]
    return choose(st.sampled_from(moves))


def run(action: Any, node: Any) -> Any:
    """What an operation gives, or the kind of error that it raises."""
    try:
        return exact(action(node))
    except (IndexError, KeyError, ValueError, StopIteration, TypeError) as error:
        return type(error)


exact = partial(classes.exact, with_fields_set=False)

# Shrinking a whole world takes minutes; the failing one is shown as it was found.
fast = settings(max_examples=share(2), phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck))


@fast
@given(worlds, st.data())
def test_a_program_does_the_same_to_a_draft_as_to_a_copy(base: World, data: st.DataObject) -> None:
    check_program(base, data, places, data.draw(st.integers(1, 6)))


costs = st.sampled_from([1, draft_list.OPERATION_COST])
"""With cheap operations, a short list is edited in place as a wide one is."""


@fast
@given(heaps, costs, st.data())
def test_c_code_does_the_same_to_the_lists_of_a_draft_as_to_those_of_a_copy(
    base: Heaps, cost: int, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(Heaps.model_fields)))
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(draft_list, "OPERATION_COST", cost)
        check_program(base, data, lambda state, _: [(getattr(state, name), name)], data.draw(st.integers(4, 8)))


def check_program(base: State, data: st.DataObject, find: Callable[[Any, str], list[Any]], steps: int) -> None:
    before, double = copy.deepcopy(base), copy.deepcopy(base)
    draft = draft_of(base, DraftContext())
    for _ in range(steps):
        drafts, doubles = find(draft, "world"), find(double, "world")
        assert len(drafts) == len(doubles)
        index = data.draw(st.integers(0, len(drafts) - 1))
        (target, name), (twin, _) = drafts[index], doubles[index]
        if data.draw(st.booleans()):  # some program keeps looking
            assert target == twin
            assert twin == target
        action = act(data.draw, twin, name)
        assert run(action, target) == run(action, twin)
        assert exact(draft) == exact(double)
    assert exact(draft.model_dump()) == exact(double.model_dump())

    result, patch = commit(draft)

    expected = type(base).model_validate(double.model_dump())
    assert exact(result) == exact(expected)
    assert exact(base) == exact(before)
    stored = decode(encode_patch(patch))
    assert exact(patched(base, stored)) == exact(result)
    folded = decode(encode(base))
    apply(folded, stored)
    assert exact(shape_of(type(base)).read(folded)) == exact(result)
    assert exact(result) == exact(expected)  # a replay changes neither the state nor the patch
    assert exact(base) == exact(before)


EDITS = ["insert", "insert", "splice", "delete", "touch", "set", "reverse", "sort"]

places_and_sizes = st.tuples(st.integers(-9, 9), st.integers(-9, 9), st.integers(0, 3))


@fast
@given(st.integers(0, 9), st.lists(st.tuples(st.sampled_from(EDITS), places_and_sizes)), costs)
def test_a_list_of_models_follows_many_splices(size: int, program: list[Any], cost: int) -> None:
    """Nothing but its record of edits tells what became of such a list."""
    base = World(nodes=[Node(name=str(number)) for number in range(size)])
    double = copy.deepcopy(base)
    draft = draft_of(base, DraftContext())
    for number, (kind, (start, stop, count)) in enumerate(program):
        for items in (draft.nodes, double.nodes):
            new = [Node(name=f"{number}.{each}") for each in range(count)]
            if kind == "insert":
                items.insert(start, Node(name=f"{number}"))
            elif kind == "splice":
                items[start:stop] = new
            elif kind == "delete":
                del items[start:stop]
            elif kind == "touch" and items:
                items[start % len(items)].numbers.append(number)
            elif kind == "set" and items:
                items[start % len(items)] = Node(name=f"{number}")
            elif kind == "reverse":
                items.reverse()
            elif kind == "sort":
                items.sort(key=lambda node: node.name)
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(draft_list, "OPERATION_COST", cost)
        result, patch = commit(draft)
        assert result == double
        assert patched(base, decode(encode_patch(patch))) == result
    assert sum(len(op[4]) for op in patch if op[0] == "splice") <= 10 * len(program)


@settings(fast, max_examples=share(1))
@given(worlds)
def test_a_draft_that_was_only_read_commits_to_the_same_object(base: World) -> None:
    draft = draft_of(base, DraftContext())
    for node, _ in places(draft, "world"):
        repr(node), node == copy.copy(node), copy.deepcopy(node)
    draft.model_dump()
    result, patch = commit(draft)
    assert result is base
    assert patch == []


@settings(fast, max_examples=share(1))
@given(worlds, st.sampled_from(["nodes", "table", "queue", "grid", "root"]), integers)
def test_what_was_not_touched_is_shared(base: World, chosen: str, value: int) -> None:
    base.nodes.extend([Node(), Node()])
    draft = draft_of(base, DraftContext())
    draft.nodes[0].leaf.n = value + base.nodes[0].leaf.n + 1_000_000_007
    places(getattr(draft, chosen), chosen)  # reading does not count
    result, _ = commit(draft)
    assert all(getattr(result, name) is getattr(base, name) for name in World.model_fields if name != "nodes")
    assert all(new is old for new, old in zip(result.nodes[1:], base.nodes[1:], strict=True))
    assert result.nodes[0].kids is base.nodes[0].kids


@pytest.mark.parametrize("patch", [[("set", ("nope",), 1)], [("splice", ("title", "x"), 0, 0, [])]])
def test_a_patch_that_does_not_fit_is_bad_data(patch: list[Any]) -> None:
    with pytest.raises(BadData):
        patched(World(), patch)

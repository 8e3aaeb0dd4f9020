from __future__ import annotations

import copy
import heapq
import json
import pickle
import random
from functools import cached_property, total_ordering
from typing import Any, Generic, TypeVar, cast

import pytest
from pydantic import BaseModel, Field, JsonValue, computed_field

from stateroom.errors import ReadOnlyState
from stateroom.state import DraftContext, State, commit, decode, draft_of, encode_patch, is_draft, patched
from tests.messages import raises

T = TypeVar("T")


class Line(BaseModel):
    sku: str = ""
    count: int = 1


class Special(Line):
    note: str = ""


class Order(BaseModel):
    number: int = 0
    lines: list[Line] = []

    @property
    def total(self) -> int:
        return sum(line.count for line in self.lines)

    @property
    def first(self) -> str:
        return self.lines[0].sku

    @first.setter
    def first(self, sku: str) -> None:
        self.lines[0].sku = sku

    def add(self, sku: str) -> Line:
        line = Line(sku=sku)
        self.lines.append(line)
        return line

    def twin(self) -> Order:
        return type(self)(number=self.number + 1)


@total_ordering
class Job(BaseModel):
    rank: int = 0
    log: list[str] = []

    def __lt__(self, other: Any) -> bool:
        return self.rank < other.rank


class Bag(BaseModel):
    things: list[Line] = []

    def __iter__(self) -> Any:
        return iter(self.things)

    def __len__(self) -> int:
        return len(self.things)


class Pair(BaseModel, Generic[T]):
    left: T
    right: T


class Measured(BaseModel):
    values: list[int] = []

    @cached_property
    def top(self) -> int:
        return max(self.values)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def size(self) -> int:
        return len(self.values)


class Shop(State):
    orders: list[Order] = []
    stock: dict[str, Line] = {}
    tags: set[str] = set()
    numbers: list[int] = []
    rows: list[list[int]] = []
    heap: list[tuple[int, Line]] = []
    jobs: list[Job] = []
    bags: list[tuple[int, list[int], dict[str, list[int]]]] = []
    steps: list[int | tuple[int, list[int]]] = []
    marks: list[int | float] = []
    pair: tuple[Line, Line] | None = None
    bag: Bag = Bag()
    measured: Measured = Measured()
    line: Line | Special = Line()
    both: Pair[Line] | None = None
    extra: JsonValue = None
    long_name: int = Field(default=0, alias="longName")


def draft(**fields: Any) -> Shop:
    return draft_of(Shop(**fields), DraftContext())


def committed(state: Shop) -> Any:
    return commit(state).state


def test_a_draft_is_an_instance_of_what_it_stands_for() -> None:
    state = draft(orders=[Order(lines=[Line()])], stock={"a": Line()}, tags={"x"})
    assert isinstance(state, Shop)
    assert isinstance(state.orders, list)
    assert isinstance(state.orders[0], Order)
    assert isinstance(state.stock, dict)
    assert isinstance(state.tags, set)
    assert all(map(is_draft, (state, state.orders, state.orders[0], state.stock, state.tags)))
    assert not is_draft(Shop())


def test_drafts_and_plain_values_compare_both_ways_round() -> None:
    base = Shop(orders=[Order(lines=[Line(sku="a")])], both=Pair(left=Line(), right=Line()))
    state = draft_of(base, DraftContext())
    assert state == base == state
    assert state.both == base.both == state.both
    state.orders[0].lines[0].sku = "b"
    assert state != base
    assert base != state
    assert base.orders != state.orders
    assert Line() != state
    assert state != 1


def test_a_child_is_found_by_equality() -> None:
    state = draft(orders=[Order(number=1), Order(number=2)])
    second = state.orders[1]
    assert Order(number=2) in state.orders
    assert state.orders.index(second) == 1
    assert state.orders.count(Order(number=1)) == 1
    state.orders.remove(Order(number=1))
    assert state.orders == [Order(number=2)]
    assert state.orders[0] is second


def test_two_names_for_one_child_see_one_value() -> None:
    state = draft(orders=[Order()], stock={"a": Line()})
    order = state.orders[0]
    assert order is state.orders[-1] is next(iter(state.orders)) is state.orders[:][0]
    line = state.stock["a"]
    assert line is state.stock.get("a") is next(iter(state.stock.values())) is dict(state.stock)["a"]
    order.number = 5
    assert state.orders[0].number == 5


def test_a_value_put_in_stays_the_tools_own_until_the_call_ends() -> None:
    state = draft()
    order = Order()
    state.orders.append(order)
    order.number = 7
    state.orders[0].lines.append(Line(sku="late"))
    assert state.orders[0] is order
    result = committed(state)
    assert result.orders == [Order(number=7, lines=[Line(sku="late")])]
    order.number = 8
    order.lines.clear()
    assert result.orders == [Order(number=7, lines=[Line(sku="late")])]


def test_a_fields_child_can_move_to_another_field() -> None:
    state = draft(line=Line(sku="a"), stock={"x": Line(sku="x")})
    state.line, state.stock["x"] = state.stock["x"], state.line
    state.line.count = 3
    result = committed(state)
    assert result.line == Line(sku="x", count=3)
    assert result.stock == {"x": Line(sku="a")}


def test_methods_and_properties_of_the_authors_models_work() -> None:
    state = draft(orders=[Order(lines=[Line(sku="a", count=2)])])
    order = state.orders[0]
    order.add("b").count = 5
    order.first = "z"
    state.orders.append(order.twin())
    assert order.total == 7
    result = committed(state)
    assert result.orders[0].lines == [Line(sku="z", count=2), Line(sku="b", count=5)]
    assert type(result.orders[1]) is Order
    assert result.orders[1].number == 1


def test_an_authors_own_iteration_is_kept() -> None:
    state = draft(bag=Bag(things=[Line(sku="a"), Line(sku="b")]))
    assert [thing.sku for thing in state.bag] == ["a", "b"]
    assert len(state.bag) == 2
    assert dict(state)["numbers"] == []


def test_unknown_attributes_and_deletion_are_refused() -> None:
    state = draft()
    with pytest.raises(ValueError, match="nope"):
        state.nope = 1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        del state.numbers


def test_a_cached_property_is_not_carried_into_the_next_state() -> None:
    base = Shop(measured=Measured(values=[1]))
    assert base.measured.top == 1
    state = draft_of(base, DraftContext())
    state.measured.values.append(5)
    assert state.measured.top == 5
    assert committed(state).measured.top == 5


def test_dumps_show_the_draft_as_it_is_now() -> None:
    state = draft(
        orders=[Order(lines=[Line()])], line=Special(note="n"), pair=(Line(), Line()), measured=Measured(values=[1])
    )
    state.orders[0].lines[0].sku = "new"
    state.orders.append(Order(lines=[state.orders[0].lines[0]]))
    assert isinstance(state.line, Special)
    state.line.note = "m"
    state.stock["k"] = Line(sku="k")
    plain = copy.deepcopy(state)
    assert state.model_dump() == plain.model_dump()
    assert state.model_dump()["line"] == {"sku": "", "count": 1, "note": "m"}
    assert state.model_dump()["measured"] == {"values": [1], "size": 1}
    assert json.loads(state.model_dump_json(by_alias=True, exclude={"tags"}))["longName"] == 0
    assert state.model_dump(include={"numbers"}) == {"numbers": []}
    assert "new" in repr(state)


def test_what_was_set_is_known_to_a_dump_and_to_nobody_else() -> None:
    base = Shop()
    state = draft_of(base, DraftContext())
    state.numbers = [1]
    state.model_fields_set.add("tags")
    assert state.model_dump(exclude_unset=True, exclude={"tags"}) == {"numbers": [1]}
    assert base.model_fields_set == set()


def test_parts_can_be_written_as_json() -> None:
    state = draft(numbers=[1, 2], rows=[[1], [2]], extra={"a": [1, {"b": None}]})
    state.rows[0].append(3)
    assert json.dumps(state.rows) == "[[1, 3], [2]]"
    assert json.dumps({"extra": state.extra, "numbers": state.numbers}) == (
        '{"extra": {"a": [1, {"b": null}]}, "numbers": [1, 2]}'
    )


def test_a_copy_is_the_tools_own() -> None:
    base = Shop(orders=[Order(lines=[Line()])], stock={"a": Line()}, tags={"x"})
    for duplicate in (
        copy.deepcopy,
        lambda part: part.model_copy(deep=True),
        lambda part: pickle.loads(pickle.dumps(part)),
    ):
        state = draft_of(base, DraftContext())
        own = duplicate(state)
        assert type(own) is Shop
        own.orders[0].lines[0].sku = "changed"
        own.stock["a"].count = 5
        own.tags.add("y")
        own.long_name = 3
        assert commit(state) == (base, [])
    assert base == Shop(orders=[Order(lines=[Line()])], stock={"a": Line()}, tags={"x"})


def test_a_shallow_copy_shares_its_children_with_the_draft() -> None:
    base = Shop(orders=[Order(lines=[Line()])], stock={"a": Line()})
    state = draft_of(base, DraftContext())
    own = copy.copy(state.orders[0])
    own.number = 4
    own.lines[0].sku = "shared"
    updated = state.orders[0].model_copy(update={"number": 6})
    assert (type(own), type(updated)) == (Order, Order)
    for part in (
        copy.copy(state.stock),
        state.stock.copy(),
        dict(state.stock),
        {**state.stock},
        state.stock | {},
        {} | state.stock,
    ):
        assert type(part) is dict
        part["a"].count += 1
        part["b"] = Line()
    result = committed(state)
    assert result.orders == [Order(lines=[Line(sku="shared")])]
    assert result.stock == {"a": Line(count=7)}
    assert base == Shop(orders=[Order(lines=[Line()])], stock={"a": Line()})


WAYS_OUT = [
    list,
    lambda part: [*part],
    lambda part: [] + part,  # noqa: RUF005
    lambda part: part + [],  # noqa: RUF005
    lambda part: part * 1,
    lambda part: part[:],
    lambda part: part.copy(),
    copy.copy,
    tuple,
    lambda part: sorted(part, key=len),
    lambda part: list(reversed(part)),
    lambda part: [part[0]],
    lambda part: [part.pop()],
    lambda part: [max(part)],
    lambda part: random.Random(0).sample(part, 1),
    lambda part: heapq.nsmallest(1, part),
]


@pytest.mark.parametrize("way", WAYS_OUT)
def test_no_way_out_hands_over_a_committed_list(way: Any) -> None:
    base = Shop(rows=[[1], [2, 3]])
    for row in way(draft_of(base, DraftContext()).rows):
        row.append(99)
    assert base.rows == [[1], [2, 3]]


def test_a_heap_of_tuples_or_models_hands_over_drafts() -> None:
    base = Shop(heap=[(1, Line(sku="a")), (2, Line(sku="b"))], jobs=[Job(rank=1), Job(rank=2)])
    state = draft_of(base, DraftContext())
    _, line = heapq.heappop(state.heap)
    line.sku = "gone"
    job = heapq.heappop(state.jobs)
    job.log.append("ran")
    heapq.heappush(state.jobs, job)
    heapq.heappush(state.heap, (0, line))
    assert base == Shop(heap=[(1, Line(sku="a")), (2, Line(sku="b"))], jobs=[Job(rank=1), Job(rank=2)])
    result = committed(state)
    assert [(rank, line.sku) for rank, line in result.heap] == [(0, "gone"), (2, "b")]
    assert [(job.rank, job.log) for job in result.jobs] == [(1, ["ran"]), (2, [])]


def test_what_a_tool_puts_on_a_heap_stays_its_own() -> None:
    state = draft(bags=[(1, [], {})])
    items: list[int] = []
    heapq.heappush(state.bags, (2, items, {}))
    assert state.bags[1][1] is items
    items.append(5)
    assert committed(state).bags == [(1, [], {}), (2, [5], {})]


@pytest.mark.parametrize("sizes", [(6, 0), (4, 2), (5, 1), (6, 1)])
def test_what_heapify_swaps_before_it_finds_that_items_cannot_be_compared_is_seen(sizes: tuple[int, int]) -> None:
    old, new = sizes
    base = Shop(orders=[Order(number=number) for number in range(1, old + 1)])
    state, plain = draft_of(base, DraftContext()), [Order(number=number) for number in range(1, old + 1)]
    for orders in (cast(list[Any], state.orders), cast(list[Any], plain)):
        orders += [Order(number=-number) for number in range(1, new + 1)]
        with pytest.raises(TypeError):
            heapq.heapify(orders)
        orders.append(Order(number=9))
    result, patch = commit(state)
    assert result.orders == plain
    assert patched(base, decode(encode_patch(patch))).orders == plain


def test_set_operations_give_plain_sets() -> None:
    state = draft(tags={"a", "b"})
    tags = state.tags
    assert tags | {"c"} == {"a", "b", "c"}
    assert {"c"} | tags == {"a", "b", "c"}
    for made in (tags | {"c"}, tags & {"a"}, tags - {"a"}, tags ^ {"a"}, tags.union("z"), tags.copy()):
        assert type(made) is set
        made.add("own")
    tags |= {"c"}
    tags -= {"a"}
    assert committed(state).tags == {"b", "c"}


READ_ONLY = [
    lambda state: setattr(state, "long_name", 4),
    lambda state: setattr(state.orders[0], "first", "x"),
    lambda state: state.numbers.append(1),
    lambda state: state.numbers.sort(reverse=True),
    lambda state: state.numbers.__setitem__(0, 9),
    lambda state: state.numbers.__delitem__(0),
    lambda state: state.stock.__setitem__("x", Line()),
    lambda state: state.stock.pop("a"),
    lambda state: state.stock.clear(),
    lambda state: state.tags.add("x"),
    lambda state: state.tags.clear(),
]


@pytest.mark.parametrize("action", READ_ONLY)
def test_a_closed_desk_lets_nothing_change(action: Any) -> None:
    base = Shop(orders=[Order(lines=[Line()])], numbers=[1, 2], stock={"a": Line()}, tags={"t"})
    before = copy.deepcopy(base)
    state = draft_of(base, DraftContext("only to be read"))
    with raises(ReadOnlyState):
        action(state)
    assert state == base == before


class Coin(BaseModel):  # noqa: PLW1641
    worth: int = 1

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.worth == other.worth

    def alike(self, other: object) -> bool:
        return self.__class__ is other.__class__


class Purse(State):
    coins: list[Coin] = []


def test_an_authors_methods_take_drafts_and_plain_models_for_the_same_type() -> None:
    state = draft_of(Purse(coins=[Coin(), Coin()]), DraftContext())
    coin = state.coins[0]
    assert coin == Coin() == coin == state.coins[1]
    assert coin.alike(Coin())
    assert Coin().alike(coin)
    assert coin != Coin(worth=2)
    assert not isinstance(1, type(coin))
    assert not isinstance(Line(), type(coin))
    coin.worth = 5
    assert commit(state).state == Purse(coins=[Coin(worth=5), Coin()])

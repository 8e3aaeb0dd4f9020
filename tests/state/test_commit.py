from __future__ import annotations

import copy
import heapq
import random
from collections import deque
from types import MappingProxyType
from typing import Annotated, Any

import pytest
from pydantic import AfterValidator, BaseModel, Field, JsonValue, ValidationInfo, field_validator, model_validator

from stateroom.errors import InvalidState, ReadOnlyState
from stateroom.state import (
    DraftContext,
    State,
    apply,
    commit,
    decode,
    describe,
    draft_of,
    encode,
    encode_patch,
    lines,
    patched,
    shape_of,
)
from tests.messages import raises
from tests.state.classes import Cat, Color, Dog


class Plain(BaseModel):
    n: int = 0


class Wider(Plain):
    more: int = 0


class Span(BaseModel):
    start: int = 0
    end: int = 10

    @model_validator(mode="after")
    def _in_order(self) -> Span:
        if self.start > self.end:
            raise ValueError("start is after end")
        return self


def _even(values: list[int]) -> list[int]:
    if sum(values) % 2:
        raise ValueError("the sum is odd")
    return values


class Deep(BaseModel):
    rows: list[dict[str, Plain]] = []
    span: Span = Span()


class Zoo(State):
    n: int = 0
    name: str = ""
    plain: Plain = Plain()
    deep: Deep = Deep()
    few: Annotated[list[int], Field(max_length=3)] = []
    few_or_none: Annotated[list[int], Field(max_length=3)] | None = None
    few_each: dict[str, Annotated[list[int], Field(max_length=3)]] = {}
    even: Annotated[list[int], AfterValidator(_even)] = []
    ordered: Annotated[list[int], AfterValidator(sorted)] = []
    pet: Cat | Dog = Cat()
    pets: list[Annotated[Cat | Dog, Field(discriminator="kind")]] = []
    by_color: dict[Color, Plain] = {}
    by_number: dict[int, int] = {}
    numbers: list[int] = []
    mixed: list[int] | list[str] | None = None
    pair: tuple[Plain, Span] | None = None
    spans: list[Span] = []
    seen: set[int] = set()
    extra: JsonValue = None
    alias: int = Field(default=0, alias="theAlias")


def draft(**fields: Any) -> Zoo:
    return draft_of(Zoo(**fields), DraftContext())


def replayed(base: Any, patch: Any) -> Any:
    """The state after a patch, by both ways to get there, which must agree."""
    result = patched(base, decode(encode_patch(patch)))
    data = decode(encode(base))
    apply(data, decode(encode_patch(patch)))
    assert shape_of(type(base)).read(data) == result
    return result


@pytest.mark.parametrize(
    ("change", "patch"),
    [
        (lambda s: s.numbers.append(9), [("splice", ("numbers",), 3, 3, [9])]),
        (lambda s: [s.numbers.append(n) for n in (7, 8, 9)], [("splice", ("numbers",), 3, 3, [7, 8, 9])]),
        (lambda s: s.numbers.pop(0), [("splice", ("numbers",), 0, 1, [])]),
        (lambda s: [s.numbers.pop() for _ in range(3)], [("splice", ("numbers",), 0, 3, [])]),
        (lambda s: s.numbers.reverse(), [("order", ("numbers",), [2, 1, 0])]),
        (lambda s: s.numbers.sort(), []),
        (lambda s: (s.numbers.append("bad"), s.numbers.pop()), []),
        (lambda s: (s.numbers.append("bad"), s.numbers.__setitem__(0, 5), s.numbers.pop()),
         [("splice", ("numbers",), 0, 1, [5])]),
        (lambda s: (s.numbers.append("bad"), s.numbers.reverse(), s.numbers.pop(0)),
         [("order", ("numbers",), [2, 1, 0])]),
        (lambda s: s.numbers.insert(1, 5), [("splice", ("numbers",), 1, 1, [5])]),
        (lambda s: heapq.heappush(s.numbers, 7), [("splice", ("numbers",), 3, 3, [7])]),
        (lambda s: s.seen.add(1), []),
        (lambda s: s.seen.update({2, 3}), [("members", ("seen",), {2, 3}, set())]),
        (lambda s: s.by_number.pop(1), [("del", ("by_number", 1))]),
        (lambda s: s.by_number.update({1: 5, 2: 6}), [("set", ("by_number", 1), 5), ("set", ("by_number", 2), 6)]),
        (lambda s: (s.by_number.update({2: 6}), s.by_number.pop(2)), []),
    ],
)  # fmt: skip
def test_a_patch_is_compact(change: Any, patch: list[Any]) -> None:
    base = Zoo(numbers=[1, 2, 3], seen={1}, by_number={1: 1})
    state = draft_of(base, DraftContext())
    change(state)
    result = commit(state)
    assert result.patch == patch
    assert replayed(base, patch) == result.state


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda numbers: numbers.reverse(), ["numbers: 40 items in a new order"]),
        (lambda numbers: numbers.__delitem__(slice(None, None, 2)), ["numbers: 20 items removed"]),
        (lambda numbers: numbers.__setitem__(slice(None), numbers[38::-2]),
         ["numbers: 20 items removed, 20 items in a new order"]),
    ],
)  # fmt: skip
def test_a_new_order_is_told_in_words(change: Any, words: list[str]) -> None:
    base = Zoo(numbers=list(range(40)))
    state = draft_of(base, DraftContext())
    change(state.numbers)
    assert lines(describe(decode(encode(base)), commit(state).patch)) == words


def test_a_new_order_shares_its_items_and_so_does_its_replay() -> None:
    base = Zoo(spans=[Span(end=end) for end in (3, 1, 2)])
    state = draft_of(base, DraftContext())
    state.spans.sort(key=lambda span: span.end)
    result, patch = commit(state)
    assert patch == [("order", ("spans",), [1, 2, 0])]
    assert [span is base.spans[old] for span, old in zip(result.spans, (1, 2, 0), strict=True)] == [True] * 3
    again = patched(base, decode(encode_patch(patch)))
    assert [span is base.spans[old] for span, old in zip(again.spans, (1, 2, 0), strict=True)] == [True] * 3


INVALID = [
    (lambda s: setattr(s, "n", "x"), ("n",)),
    (lambda s: setattr(s, "alias", "x"), ("alias",)),
    (lambda s: setattr(s.plain, "n", None), ("plain", "n")),
    (lambda s: setattr(s.deep.rows[1]["b"], "n", "x"), ("deep", "rows", 1, "b", "n")),
    (lambda s: s.deep.rows.append({"z": Plain.model_construct(n="x")}), ("deep", "rows", 2, "z", "n")),  # type: ignore[arg-type]
    (lambda s: s.deep.rows.append({"z": {"n": "x"}}), ("deep", "rows", 2, "z", "n")),
    (lambda s: s.deep.rows.append({"z": {"m": 1, "n": []}}), ("deep", "rows", 2, "z", "n")),
    (lambda s: setattr(s.deep.span, "start", 99), ("deep", "span")),
    (lambda s: s.few.append(4), ("few",)),
    (lambda s: s.few.__setitem__(0, "x"), ("few", 0)),
    (lambda s: s.few_or_none.append(4), ("few_or_none",)),
    (lambda s: s.few_each["a"].append(4), ("few_each", "a")),
    (lambda s: s.few_each.update(b=[1, 2, 3, 4]), ("few_each", "b")),
    (lambda s: s.even.append(1), ("even",)),
    (lambda s: setattr(s.pet, "lives", "x"), ("pet", "lives")),
    (lambda s: setattr(s.pet, "kind", "dog"), ("pet", "kind")),
    (lambda s: setattr(s, "pet", {"kind": "cat", "lives": "x"}), ("pet", "lives")),
    (lambda s: s.pets[0].tricks.append(1), ("pets", 0, "tricks", 0)),
    (lambda s: s.pets.append({"kind": "cat", "lives": "x"}), ("pets", 1, "lives")),
    (lambda s: s.pets.append({"kind": "cow"}), ("pets", 1)),
    (lambda s: s.by_color.update({"green": Plain()}), ("by_color", "green")),
    (lambda s: setattr(s, "by_color", {Color.RED: {"n": "x"}}), ("by_color", Color.RED, "n")),
    (lambda s: setattr(s.by_color[Color.RED], "n", "x"), ("by_color", Color.RED, "n")),
    (lambda s: s.mixed.append("x"), ("mixed", 1)),
    (lambda s: setattr(s.pair[0], "n", "x"), ("pair", 0, "n")),
    (lambda s: setattr(s.pair[1], "start", 11), ("pair", 1)),
    (lambda s: setattr(s, "pair", (Plain(), 3)), ("pair", 1)),
    (lambda s: setattr(s.spans[0], "start", 11), ("spans", 0)),
    (lambda s: s.seen.add("x"), ("seen",)),
    (lambda s: s.extra.update({"a": {1}}), ("extra", "a")),
    (lambda s: s.extra.update({1: 1}), ("extra", 1)),
    (lambda s: s.extra.update({"self": s.extra}), ("extra", "self")),
    (lambda s: setattr(s, "plain", Wider()), ("plain",)),
    (lambda s: s.deep.rows[0].update(w=Wider()), ("deep", "rows", 0, "w")),
]


@pytest.mark.parametrize(("change", "path"), INVALID)
def test_an_invalid_change_is_refused_with_its_path(change: Any, path: Any) -> None:
    base = Zoo(
        deep=Deep(rows=[{}, {"b": Plain()}]), few=[1, 2, 3], few_or_none=[1, 2, 3], few_each={"a": [1, 2, 3]},
        pets=[Dog()], by_color={Color.RED: Plain()}, mixed=[1], pair=(Plain(), Span()), spans=[Span()], extra={},
    )  # fmt: skip
    before = copy.deepcopy(base)
    state = draft_of(base, DraftContext())
    change(state)
    with pytest.raises(InvalidState) as caught:
        commit(state)
    assert _prefix(caught.value.path, path) == path
    assert base == before


def _prefix(path: Any, expected: Any) -> Any:
    """A value that contains itself is found one turn later."""
    return path[: len(expected)] if "self" in expected else path


def test_fields_that_are_valid_only_together_can_change_in_one_call() -> None:
    base = Zoo(deep=Deep(span=Span(start=0, end=10)))
    state = draft_of(base, DraftContext())
    state.deep.span.start = 50
    state.deep.span.end = 60
    result, patch = commit(state)
    assert result.deep.span == Span(start=50, end=60)
    assert replayed(base, patch) == result


def test_changes_within_a_constraint_leave_small_operations_and_share_the_rest() -> None:
    class Book(State):
        rows: Annotated[list[Plain], Field(max_length=5)] = []

    base = Book(rows=[Plain(n=n) for n in range(5)])
    state = draft_of(base, DraftContext())
    state.rows[2].n = 7
    result, patch = commit(state)
    assert patch == [("set", ("rows", 2, "n"), 7)]
    assert result.rows[0] is base.rows[0]


class Checked(State):
    low: int = 0
    high: int = 10
    names: list[str] = []
    total: int = 0

    @field_validator("low")
    @classmethod
    def _not_seven(cls, value: int, info: ValidationInfo) -> int:
        if value == 7:
            raise ValueError("not seven")
        return value

    @field_validator("names", mode="after")
    @classmethod
    def _lower(cls, names: list[str]) -> list[str]:
        return [name.lower() for name in names]

    @model_validator(mode="before")
    @classmethod
    def _no_eight(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("low") == 8:
            raise ValueError("not eight")
        return data

    @model_validator(mode="wrap")
    @classmethod
    def _no_nine(cls, data: Any, handler: Any) -> Any:
        made = handler(data)
        if made.low == 9:
            raise ValueError("not nine")
        return made

    @model_validator(mode="after")
    def _count(self) -> Checked:
        if self.low > self.high:
            raise ValueError("low is above high")
        if self.total != len(self.names):
            self.total = len(self.names)
        return self


@pytest.mark.parametrize(("low", "path"), [(7, ("low",)), (8, ()), (9, ()), (11, ())])
def test_every_kind_of_validator_is_kept(low: int, path: Any) -> None:
    state = draft_of(Checked(), DraftContext())
    state.low = low
    with pytest.raises(InvalidState) as caught:
        commit(state)
    assert caught.value.path == path


def test_validators_that_adjust_are_part_of_the_commit() -> None:
    base = Checked()
    state = draft_of(base, DraftContext())
    state.names = ["A"]
    state.names.append("B")
    result, patch = commit(state)
    assert result == Checked(names=["a", "b"], total=2)
    assert replayed(base, patch) == result
    state = draft_of(result, DraftContext())
    state.names.append("C")
    later, patch = commit(state)
    assert later == Checked(names=["a", "b", "c"], total=3)
    assert replayed(result, patch) == later


def test_a_rule_may_change_what_the_tool_has_just_put_in() -> None:
    class Marked(State):
        marks: list[int] = []
        n: int = 0

        @model_validator(mode="after")
        def _end(self) -> Marked:
            if self.n > 5 and 9 not in self.marks:
                self.marks.append(9)
            return self

    base = Marked()
    state = draft_of(base, DraftContext())
    state.marks, state.n = [1], 6
    result, patch = commit(state)
    kept = copy.deepcopy(patch)
    assert result.marks == [1, 9]
    assert replayed(base, patch) == result
    assert (result.marks, patch) == ([1, 9], kept)


def test_a_rule_may_return_another_model() -> None:
    class Capped(BaseModel):
        n: int = 0

        @model_validator(mode="after")
        def _cap(self) -> Capped:
            return self if self.n <= 5 else self.model_copy(update={"n": 5})

    class Holder(State):
        capped: dict[str, Capped] = {}

    base = Holder(capped={"a": Capped()})
    state = draft_of(base, DraftContext())
    state.capped["a"].n = 50
    result, patch = commit(state)
    assert result.capped["a"].n == 5
    assert replayed(base, patch) == result


def test_nothing_that_a_tool_kept_reaches_the_committed_state() -> None:
    state = draft(deep=Deep(rows=[{"a": Plain()}]), spans=[Span()], extra={"a": [1]})
    rows, row, span, extra = state.deep.rows, state.deep.rows[0], state.spans[0], state.extra
    put, put_in = [1], Plain()
    state.numbers, state.few_each["k"], row["new"] = put, put, put_in
    state.pair = (put_in, span)
    span.end = 11
    result = commit(state).state
    before = copy.deepcopy(result)
    put.append(2)
    put_in.n = 5
    state.numbers.append(3)
    state.few_each["k"].append(3)
    row["new"].n = 6
    for change in (
        lambda: setattr(state, "n", 1),
        lambda: rows.append({}),
        row.clear,
        lambda: setattr(span, "end", 12),
        lambda: extra["a"].append(2),  # type: ignore[index, call-overload, union-attr]
        lambda: setattr(state.plain, "n", 3),
    ):
        with raises(ReadOnlyState):
            change()
    assert result == before


VISITS: list[int] = []


class Record(BaseModel):
    number: int
    tags: list[str] = []

    @field_validator("number")
    @classmethod
    def _seen(cls, number: int) -> int:
        VISITS.append(number)
        return number


class Table(State):
    rows: list[Record] = []
    index: dict[int, Record] = {}


@pytest.mark.parametrize("field", ["rows", "index"])
def test_a_small_change_visits_no_other_record(field: str) -> None:
    records = [Record(number=number) for number in range(10_000)]
    base = Table(rows=records, index=dict(enumerate(records)))
    VISITS.clear()
    state = draft_of(base, DraftContext())
    getattr(state, field)[5_000].tags.append("x")
    getattr(state, field)[5_001].number = -1
    result, patch = commit(state)
    assert replayed(base, patch) == result
    assert VISITS == [-1]
    assert len(encode(patch)) < 100
    others = zip(getattr(result, field), getattr(base, field), strict=True)
    assert sum(new is not old for new, old in others) == (2 if field == "rows" else 0)


def test_a_heap_keeps_its_patches_small() -> None:
    class Queue(State):
        heap: list[tuple[int, str]] = []

    base = Queue(heap=sorted((random.Random(number).randrange(10**6), str(number)) for number in range(5_000)))
    state = draft_of(base, DraftContext())
    smallest = heapq.heappop(state.heap)
    heapq.heappush(state.heap, (-1, "new"))
    result, patch = commit(state)
    assert smallest == base.heap[0]
    assert result.heap[0] == (-1, "new")
    assert len(encode(patch)) < 2_000
    assert replayed(base, patch) == result


def test_a_check_of_a_union_within_a_union_is_kept() -> None:
    def small(value: Any) -> Any:
        if len(value) > 2:
            raise ValueError("too many")
        return value

    class Holder(State):
        held: Annotated[list[int] | dict[str, int], AfterValidator(small)] | None = None

    state = draft_of(Holder(held=[1, 2]), DraftContext())
    state.held.append(3)  # type: ignore[union-attr]
    with raises(InvalidState):
        commit(state)


def test_the_same_committed_object_at_two_places_changes_at_one() -> None:
    shared = Span()
    base = Zoo(spans=[shared, shared], deep=Deep(span=shared))
    state = draft_of(base, DraftContext())
    state.spans[0].end = 20
    result, patch = commit(state)
    assert [result.spans[0].end, result.spans[1].end, result.deep.span.end] == [20, 10, 10]
    assert replayed(base, patch) == result


@pytest.mark.parametrize("wrap", [list, tuple, deque, iter, lambda items: dict(enumerate(items)).values()])
def test_whatever_holds_the_values_they_are_copied(wrap: Any) -> None:
    state = draft(spans=[Span(end=1)])
    own, plain = Span(end=2), Plain(n=1)
    state.spans = wrap([*state.spans, own])
    state.by_color = MappingProxyType({Color.RED: plain})  # type: ignore[assignment]
    result = commit(state).state
    own.end, plain.n = 3, 2
    assert result.spans == [Span(end=1), Span(end=2)]
    assert result.by_color == {Color.RED: Plain(n=1)}
    assert [type(span) for span in result.spans] == [Span, Span]


def test_unions_of_containers_of_one_kind_change_within() -> None:
    class Holder(State):
        members: set[int] | set[str] = set()
        parts: tuple[int, ...] | tuple[Plain, Plain] = ()
        table: dict[str, int] | dict[str, Plain] = {}

    base = Holder(members={1}, parts=(Plain(), Plain()), table={"a": Plain()})
    state: Any = draft_of(base, DraftContext())
    state.members.add(2)
    state.parts[0].n = 4
    state.table["a"].n = 5
    result, patch = commit(state)
    assert result == Holder(members={1, 2}, parts=(Plain(n=4), Plain()), table={"a": Plain(n=5)})
    assert replayed(base, patch) == result
    state = draft_of(base, DraftContext())
    state.table["b"] = 3
    with pytest.raises(InvalidState):
        commit(state)


class Ranked(BaseModel):
    name: str
    rank: int = 0


class Ranking(State):
    rows: list[Ranked] = []

    @field_validator("rows")
    @classmethod
    def number_in_place(cls, rows: list[Ranked]) -> list[Ranked]:
        for rank, row in enumerate(rows):
            row.rank = rank
        return rows


def test_a_validator_that_edits_in_place_does_not_reach_the_base() -> None:
    base = Ranking(rows=[Ranked(name="a"), Ranked(name="b")])
    draft = draft_of(base, DraftContext())
    draft.rows.insert(0, Ranked(name="c"))
    assert [row.rank for row in commit(draft).state.rows] == [0, 1, 2]
    assert [row.rank for row in base.rows] == [0, 1]

"""Events: a state that changes by them is what they make of it, and changes in no other way."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from types import new_class
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel, Field, ValidationError, model_validator

from stateroom.errors import DefinitionError, InvalidState, ReadOnlyState, SchemaChanged, TamperedState
from stateroom.state import (
    ENDED,
    Change,
    DraftContext,
    Event,
    EventContext,
    State,
    applies,
    commit,
    decode,
    draft_of,
    encode,
    ensure_untampered,
    event_facts,
    fold,
    patched,
    read_event,
)
from tests.examples import share
from tests.messages import raises
from tests.state.test_drafts_property import World, exact, fast, places, worlds


class Line(BaseModel):
    name: str
    count: int = 1


class Added(Event):
    names: list[str]
    note: str = ""


class Counted(Event):
    name: str
    by: int = 1


class Dropped(Event):
    name: str


class Marked(Event):
    name: str


class Unknown(Event):
    pass


class Cart(State):
    lines: dict[str, Line] = {}
    order: list[str] = []
    history: list[Line] = []
    marks: set[str] = set()
    last: list[str] = []
    total: int = Field(default=0, le=100)

    @applies(Added)
    def added(self, event: Added) -> None:
        for name in event.names:
            self.lines[name] = Line(name=name)
            self.order.append(name)
            self.history.insert(0, Line(name=name))
        self.last = event.names
        self.total += len(event.names)

    @applies(Counted)
    def counted(self, event: Counted) -> None:
        self.total += event.by
        self.lines[event.name].count += event.by

    @applies(Dropped)
    def dropped(self, event: Dropped) -> None:
        del self.lines[event.name]
        self.order.remove(event.name)

    @applies(Marked)
    def marked(self, event: Marked) -> None:
        self.marks ^= {event.name}

    @model_validator(mode="after")
    def keep_short(self) -> Cart:
        if len(self.history) > 3:
            self.history = self.history[:3]
        return self


def draft_for_tool(state: Any) -> Any:
    """What a tool gets of a state that changes by events."""
    return draft_of(state, EventContext.of(state))


def context_of(draft: Any) -> EventContext:
    context: EventContext = draft._draft_context
    return context


def ended(draft: Any) -> Change:
    """What a tool's draft comes to."""
    context_of(draft).check_events(draft)
    return commit(draft)


def cart_of(*names: str) -> Cart:
    return fold(Cart(), [Added(names=list(names))]) if names else Cart()


# Emitting.


def test_an_event_is_applied_at_once_and_recorded() -> None:
    base = Cart()
    cart = draft_for_tool(base)

    cart.emit(Added(names=["pen", "ink"]))
    assert cart.order == ["pen", "ink"]
    cart.emit(Counted(name="ink", by=2))
    assert cart.lines["ink"].count == 3

    state, patch = ended(cart)
    assert state == Cart(
        lines={"pen": Line(name="pen"), "ink": Line(name="ink", count=3)},
        order=["pen", "ink"],
        history=[Line(name="ink"), Line(name="pen")],
        last=["pen", "ink"],
        total=4,
    )
    assert context_of(cart).emitted == [Added(names=["pen", "ink"]), Counted(name="ink", by=2)]
    assert patched(base, patch) == state
    assert base == Cart()


CHANGES: list[Callable[[Any], Any]] = [
    lambda cart: setattr(cart, "total", 5),
    lambda cart: cart.order.append("x"),
    lambda cart: cart.lines.pop("pen"),
    lambda cart: setattr(cart.lines["pen"], "count", 5),
    lambda cart: cart.marks.add("x"),
    lambda cart: cart.history[0].__setattr__("name", "x"),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_tool_cannot_change_the_state_itself(change: Callable[[Any], Any]) -> None:
    cart = draft_for_tool(cart_of("pen"))
    before = exact(cart)
    with raises(ReadOnlyState):
        change(cart)
    assert exact(cart) == before == exact(ended(cart).state)


def change_and_end(change: Callable[[Any], Any], cart: Any) -> None:
    change(cart)
    ended(cart)


@pytest.mark.parametrize("change", [*CHANGES, lambda cart: cart.last.append("x")])
def test_nor_what_an_event_has_put_in(change: Callable[[Any], Any]) -> None:
    cart = draft_for_tool(cart_of("pen"))
    cart.emit(Added(names=["ink"]))
    with pytest.raises(ReadOnlyState):
        change_and_end(change, cart)


def test_nor_past_the_methods_of_a_list() -> None:
    cart = draft_for_tool(cart_of("pen"))
    heapq.heappush(cart.order, "x")
    cart.emit(Marked(name="x"))
    with raises(ReadOnlyState):
        ended(cart)


@pytest.mark.parametrize("then", [lambda cart: cart.emit(Marked(name="x")), ended])
def test_after_an_event_that_failed_nothing_is_committed(then: Callable[[Any], Any]) -> None:
    cart = draft_for_tool(cart_of("pen"))
    with pytest.raises(KeyError):
        cart.emit(Counted(name="ink"))
    with raises(InvalidState):
        then(cart)


def test_what_events_come_to_must_be_valid() -> None:
    cart = draft_for_tool(cart_of("pen"))
    cart.emit(Counted(name="pen", by=1000))
    with raises(InvalidState):
        ended(cart)


class Lucky(State):
    draws: list[float] = []

    @applies(Marked)
    def marked(self, event: Marked) -> None:
        self.draws.append(random.random())


def test_a_method_that_does_not_do_the_same_again_is_noticed() -> None:
    lucky = draft_for_tool(Lucky())
    lucky.emit(Marked(name="x"))
    with raises(ReadOnlyState):
        ended(lucky)


def test_a_fold_goes_on_from_what_a_tool_has_done_so_far() -> None:
    cart = draft_for_tool(Cart())
    cart.emit(Added(names=["pen"]))
    assert fold(cart, [Counted(name="pen")]).total == 2
    assert cart.total == 1


def test_what_happens_to_an_event_afterwards_changes_nothing() -> None:
    cart, event = draft_for_tool(Cart()), Added(names=["pen"])
    cart.emit(event)
    event.names.append("ink")
    cart.emit(Dropped(name="pen"))
    assert context_of(cart).emitted[0] == Added(names=["pen"])
    assert ended(cart).state.last == ["pen"]


def test_an_event_is_checked_when_it_is_made_and_when_it_is_emitted() -> None:
    with pytest.raises(ValidationError):
        Counted.model_validate({"name": "pen", "by": "many"})
    with pytest.raises(ValidationError):
        Counted(name="pen").by = 2  # type: ignore[misc]
    cart = draft_for_tool(cart_of("pen"))
    with raises(InvalidState):
        cart.emit(Counted.model_construct(name="pen", by="many"))  # type: ignore[arg-type]
    assert context_of(cart).emitted == []


class Stretched(Event):
    names: list[str]


class Stubborn(State):
    names: list[str] = []

    @applies(Stretched)
    def stretched(self, event: Stretched) -> None:
        event.names.append("more")


def test_what_a_method_does_to_its_event_changes_no_fact() -> None:
    stubborn = draft_for_tool(Stubborn())
    stubborn.emit(Stretched(names=[]))
    ended(stubborn)
    assert context_of(stubborn).emitted == [Stretched(names=[])]


class Table(State):
    rows: list[list[int]] = []

    @applies(Marked)
    def marked(self, event: Marked) -> None:
        heapq.heappop(self.rows).append(9)
        raise ValueError(event.name)


def test_tampering_by_a_method_is_noticed_whatever_the_tool_does_about_it() -> None:
    table = draft_for_tool(Table(rows=[[1], [2]]))
    with suppress(ValueError):
        table.emit(Marked(name="x"))
    with pytest.raises(TamperedState):
        ensure_untampered(table)


# What a tool has taken out of the state.


def test_what_was_taken_out_goes_along() -> None:
    cart = draft_for_tool(cart_of("pen", "ink"))
    lines, pen, order, marks, oldest = cart.lines, cart.lines["pen"], cart.order, cart.marks, cart.history[1]
    cart.emit(Added(names=["cap"]))
    cart.emit(Counted(name="pen", by=4))
    cart.emit(Marked(name="pen"))

    assert pen.count == 5
    assert list(lines) == order == ["pen", "ink", "cap"]
    assert marks == {"pen"}
    assert oldest.name == "pen"
    assert cart.lines is lines
    assert cart.lines["pen"] is pen
    assert cart.history[2] is oldest


def test_what_was_deleted_or_replaced_stays_as_it_was() -> None:
    cart = draft_for_tool(cart_of("pen", "ink"))
    pen, ink, last, oldest = cart.lines["pen"], cart.lines["ink"], cart.last, cart.history[1]
    cart.emit(Dropped(name="pen"))
    cart.emit(Added(names=["ink", "cap"]))  # puts another line in the place of the ink's
    cart.emit(Counted(name="ink"))
    assert (pen.count, ink.count, cart.lines["ink"].count) == (1, 1, 2)
    assert "pen" not in cart.lines
    assert last == ["pen", "ink"]
    assert cart.last == ["ink", "cap"]
    assert oldest.name == "pen"
    assert [line.name for line in ended(cart).state.history] == ["cap", "ink", "ink"]


def test_a_tool_can_emit_while_it_goes_through_the_state() -> None:
    cart = draft_for_tool(cart_of("pen", "ink", "cap"))
    for name, line in cart.lines.items():
        cart.emit(Counted(name=name, by=len(name) + line.count))
    assert [line.count for line in cart.lines.values()] == [5, 5, 5]


# Where nothing can be emitted.


class Plain(State):
    cart: Cart = Cart()


class Nested(State):
    cart: Cart = Cart()

    @applies(Marked)
    def marked(self, event: Marked) -> None:
        self.cart.emit(event)


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (Cart(), ReadOnlyState),
        (draft_of(Cart(), DraftContext("not now")), ReadOnlyState),
        (draft_of(Plain(), DraftContext()), DefinitionError),
        (draft_of(Plain(), DraftContext()).cart, DefinitionError),
        (draft_for_tool(Nested()), DefinitionError),
        (draft_for_tool(Nested()).cart, ReadOnlyState),
    ],
)
def test_events_are_emitted_by_tools_on_the_whole_state(state: Any, error: type[Exception]) -> None:
    with raises(error):
        state.emit(Marked(name="x"))


def test_a_draft_whose_call_has_ended_takes_no_more_events() -> None:
    cart = draft_for_tool(Cart())
    ended(cart)
    with raises(ReadOnlyState):
        cart.emit(Marked(name="x"))


def test_an_event_may_come_to_what_is_no_number() -> None:
    class Gauge(State):
        values: list[float] = []

        @applies(Marked)
        def marked(self, event: Marked) -> None:
            self.values.append(float("nan"))

    gauge = draft_for_tool(Gauge())
    gauge.emit(Marked(name="x"))
    assert len(ended(gauge).state.values) == 1


def test_an_event_during_which_the_call_ends_opens_nothing_again() -> None:
    class Slow(State):
        names: list[str] = []

        @applies(Marked)
        def marked(self, event: Marked) -> None:
            context_of(self).closed = ENDED  # as when its time is up

    slow = draft_for_tool(Slow())
    slow.emit(Marked(name="x"))
    with raises(ReadOnlyState):
        slow.emit(Marked(name="y"))


@pytest.mark.parametrize("happen", [lambda event: draft_for_tool(Cart()).emit(event), lambda e: fold(Cart(), [e])])
def test_an_event_that_nothing_applies_is_refused(happen: Callable[[Any], Any]) -> None:
    with raises(DefinitionError):
        happen(Unknown())
    with raises(DefinitionError):
        happen("added")


def test_an_event_of_another_class_of_the_same_name_is_refused() -> None:
    with raises(DefinitionError):
        fold(Cart(), [Other(name="x")])


# Folding.

events = st.one_of(
    st.builds(Added, names=st.lists(st.sampled_from("abc"), min_size=1, max_size=2)),
    st.builds(Counted, name=st.sampled_from("abc"), by=st.integers(-3, 40)),
    st.builds(Dropped, name=st.sampled_from("abc")),
    st.builds(Marked, name=st.sampled_from("abc")),
)


@given(st.lists(st.lists(events, max_size=4), max_size=6))
def test_a_state_is_the_fold_of_what_was_emitted(calls: list[list[Event]]) -> None:
    state = seeded = Cart()
    calls_made: list[list[Event]] = []
    for call in calls:
        cart = draft_for_tool(state)
        with suppress(KeyError, InvalidState, ValueError):
            for event in call:
                places(cart, "cart")
                cart.emit(event)
            before, (state, patch) = state, ended(cart)
            assert context_of(cart).emitted == call
            assert exact(patched(before, patch)) == exact(state) == exact(fold(before, call))
            calls_made.append(call)
    assert exact(reduce(fold, calls_made, seeded)) == exact(state)
    assert seeded == Cart()


@given(st.lists(st.lists(st.tuples(st.booleans(), st.integers(0, 310)), max_size=3), max_size=6))
def test_so_is_a_wide_one_whose_drafts_are_used_again(calls: list[list[tuple[bool, int]]]) -> None:
    names = [str(number) for number in range(300)]
    lines = {name: Line(name=name) for name in names}
    state = seeded = Cart(lines=lines, order=names)
    pool: dict[int, Any] = {}
    made: list[list[Event]] = []
    for call in calls:
        cart: Any = draft_of(state, EventContext.of(state, pool))
        for counts, number in call:
            if str(number) in cart.lines:
                cart.emit(Counted(name=str(number), by=0) if counts else Dropped(name=str(number)))
                assert (str(number) in cart.lines) is counts
        made.append(context_of(cart).emitted)
        state = ended(cart).state
        assert exact(reduce(fold, made, seeded)) == exact(state)
    assert seeded == Cart(lines=lines, order=names)


def test_a_fold_of_what_may_only_be_read_may_only_be_read() -> None:
    cart = draft_of(cart_of("pen"), DraftContext("only to be read"))
    assert fold(cart, []) == cart
    folded = fold(cart, [Counted(name="pen")])
    assert folded.total == 2
    with raises(ReadOnlyState):
        folded.total = 3
    assert cart.total == 1


# Definitions.


def test_an_event_has_a_name_of_its_own() -> None:
    class MoneyCameIn(Event):
        pass

    class MoneyWentOut(Event, name="out", version=3):
        pass

    assert event_facts(MoneyCameIn()) == ["money_came_in", 1, MoneyCameIn()]
    assert event_facts(MoneyWentOut()) == ["out", 3, MoneyWentOut()]


def test_a_field_that_cannot_be_stored_is_refused_by_name() -> None:
    with raises(DefinitionError):

        class Bad(Event):
            thing: object


@pytest.mark.parametrize("keywords", [{"name": ""}, {"name": "a\nb"}, {"name": 1}, {"version": 0}, {"version": "2"}])
def test_a_bad_name_or_version_is_refused(keywords: dict[str, Any]) -> None:
    with raises(DefinitionError):
        new_class("Bad", (Event,), keywords, lambda namespace: namespace.update(__module__=__name__))


async def asynchronous(self: Any, event: Any) -> None: ...


def generator(self: Any, event: Any) -> Any:
    yield


def too_many(self: Any, event: Any, clock: Any) -> None: ...


def too_few(self: Any) -> None: ...


def keyword_only(self: Any, *, event: Any) -> None: ...


def fine() -> Any:
    def apply(self: Any, event: Any) -> None: ...

    return apply


class Other(Event, name="marked"):
    name: str


@pytest.mark.parametrize(
    "methods",
    [
        *([(Marked, method)] for method in (asynchronous, generator, too_many, too_few, keyword_only)),
        *([(Marked, staticmethod(fine()))], [(Added, applies(Marked)(fine()))]),
        *([(Marked, fine()), (Marked, fine())], [(Marked, fine()), (Other, fine())]),
    ],
)
def test_methods_that_could_not_be_repeated_or_told_apart_are_refused(methods: Any) -> None:
    with raises(DefinitionError):
        body = {name: applies(event)(method) for name, (event, method) in zip(("method", "other"), methods)}  # noqa: B905
        new_class("Bad", (State,), {}, lambda namespace: namespace.update(body, __module__=__name__))


@pytest.mark.parametrize("event", [Event, Line, "Marked", Marked(name="x")])
def test_only_a_class_of_events_can_be_applied(event: Any) -> None:
    with raises(DefinitionError):
        applies(event)


def test_a_subclass_applies_what_its_parents_do() -> None:
    class Twice(Cart):
        @applies(Counted)
        def counted(self, event: Counted) -> None:
            self.total += 2 * event.by

    assert fold(Twice(), [Added(names=["pen"]), Counted(name="pen", by=3)]).total == 7
    with raises(DefinitionError):

        class Bad(Cart):
            def counted(self, event: Counted) -> None: ...


# What is stored.


class Everything(Event):
    world: World


class All(State):
    worlds: list[World] = []

    @applies(Everything)
    def happened(self, event: Everything) -> None:
        self.worlds.append(event.world)


def stored(event: Event) -> Any:
    return decode(encode(event_facts(event)))


def read(state: type[State], facts: Any) -> Event:
    return read_event(state, state.__appliers__, facts)


@settings(fast, max_examples=share(0.3))
@given(worlds)
def test_an_event_is_read_back_as_it_was(world: World) -> None:
    event = Everything(world=world)
    assert exact(read(All, stored(event))) == exact(event)


class Paid(Event, name="paid", version=3):
    cents: int
    currency: str


@Paid.migration(1)
def in_cents(fields: dict[str, Any]) -> dict[str, Any]:
    return {"cents": fields["euros"] * 100}


@Paid.migration(2)
def with_currency(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "currency": "EUR"}


class Till(State):
    cents: int = 0

    @applies(Paid)
    def paid(self, event: Paid) -> None:
        self.cents += event.cents


def test_an_old_event_is_read_by_migrations() -> None:
    assert read(Till, ["paid", 1, {"euros": 2}]) == Paid(cents=200, currency="EUR")
    assert read(Till, ["paid", 2, {"cents": 200}]) == Paid(cents=200, currency="EUR")
    assert read(Till, ["paid", 3, {"cents": 1, "currency": "USD"}]) == Paid(cents=1, currency="USD")


class Signed(Event, version=3):
    by: str


@Signed.migration(2)
def fail(fields: dict[str, Any]) -> dict[str, Any]:
    return {"by": fields["nobody"]}


class Letter(State):
    by: str = ""

    @applies(Signed)
    def signed(self, event: Signed) -> None:
        self.by = event.by


@pytest.mark.parametrize(
    "facts",
    [
        ["signed", 4, {"by": "ann"}],
        ["signed", 1, {"by": "ann"}],
        ["signed", 2, {"by": "ann"}],
        ["signed", 3, {"by": 7}],
        ["signed", 3, {"by": "ann", "at": 1}],
        ["sealed", 1, {}],
    ],
)
def test_an_event_that_cannot_be_read_says_why(facts: Any) -> None:
    with raises(SchemaChanged):
        read(Letter, facts)

"""The laws of bounded views, over any conversation."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, strategies as st

from stateroom.agent import (
    Anchor,
    Bounds,
    ClearToolResults,
    Context,
    DropOldest,
    KeepLastTurns,
    Size,
    Summarise,
    Window,
)
from stateroom.errors import ContextOverflow, ModelFailed, ModelUnavailable
from stateroom.model import Answer, Item, Model, Request, message

SIZES = st.one_of(st.integers(0, 60), st.sampled_from([200, 900, 6000]))

IDS = st.sampled_from(["a", "b", "c", "d"])
"""Models repeat theirs."""


@dataclass
class Talk:
    """A conversation, and what belongs together in it. Each item has an `id`, which is its place."""

    items: list[Item] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    """A call and its result."""
    followed: list[tuple[int, int]] = field(default_factory=list)
    """Reasoning, and the call or message that follows."""
    open_calls: list[int] = field(default_factory=list)
    """Calls at the very end that have no result yet, with the calls and results of the same answer."""
    pinned: set[int] = field(default_factory=set)

    def put(self, item: Item) -> int:
        place = len(self.items)
        self.items.append({**item, "id": place})
        return place

    @property
    def told(self) -> set[int]:
        """System and developer messages."""
        return {place for place, item in enumerate(self.items) if item.get("role") in ("system", "developer")}

    @property
    def must_stay(self) -> set[int]:
        """What was told, and whatever is tied to a pinned item or to the newest one."""
        groups = [group - self.told for group in self._groups() if group - self.told]
        return self.told.union(*groups[-1:], *[group for group in groups if group & self.pinned])

    def _groups(self) -> list[set[int]]:
        """The items that belong together: ranges that no bond leaves."""
        last = len(self.items) - 1
        bonds = [*self.pairs, *self.followed, *[(place, last) for place in self.open_calls]]
        groups, start = [], 0
        for place in range(len(self.items)):
            if not any(first <= place < end for first, end in bonds):
                groups.append(set(range(start, place + 1)))
                start = place + 1
        return groups

    def window(self, context: Context, beside: int = 0) -> Window:
        window = Window(beside)
        window.add(self.items, context.count(self.items), self.pinned)
        return window


def _message(role: str, size: int, typed: bool = True) -> Item:
    return {**({"type": "message"} if typed else {}), "role": role, "content": "x" * size}


@st.composite
def talks(draw: Any) -> Talk:
    talk = Talk()
    kinds = ["user", "assistant", "system", "developer", "step", "step", "step"]
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=25)):
        if kind == "step":
            _step(draw, talk, ended=True)
        else:
            if kind == "assistant" and draw(st.booleans()):
                talk.followed.append((_reasoning(draw, talk), len(talk.items)))
            talk.put(_message(kind, draw(SIZES), draw(st.booleans())))
    if draw(st.booleans()):
        _step(draw, talk, ended=False)
    if talk.items:
        talk.pinned = set(draw(st.lists(st.integers(0, len(talk.items) - 1), max_size=3)))
    return talk


def _reasoning(draw: Any, talk: Talk) -> int:
    return talk.put({"type": "reasoning", "summary": [{"type": "summary_text", "text": "x" * draw(SIZES)}]})


def _step(draw: Any, talk: Talk, *, ended: bool) -> None:
    """An answer with calls, and what they came to; if it has not ended, some results are still to come."""
    begun = len(talk.items)
    reasons = draw(st.booleans())
    if reasons:
        talk.followed.append((_reasoning(draw, talk), len(talk.items)))
    calls = []
    for call_id in draw(st.lists(IDS, min_size=1, max_size=4)):
        arguments = "x" * draw(SIZES)
        place = talk.put({"type": "function_call", "call_id": call_id, "name": "f", "arguments": arguments})
        calls.append((place, call_id))
        if draw(st.integers(0, 9)) == 0:
            talk.put(_message("system", draw(SIZES)))
    # Calls of the same id are answered in their order; others in any.
    order = draw(st.permutations([call_id for _, call_id in calls]))
    for call_id in order if ended else order[: draw(st.integers(0, len(order) - 1))]:
        call = next(call for call in calls if call[1] == call_id)
        calls.remove(call)
        result = {"type": "function_call_output", "call_id": call_id, "output": "x" * draw(SIZES)}
        talk.pairs.append((call[0], talk.put(result)))
    if calls:
        talk.open_calls = [place for place in range(begun, len(talk.items)) if "role" not in talk.items[place]]


class Summariser(Model):
    """Writes a summary of a set length, or fails."""

    def __init__(self, does: int | Exception) -> None:
        self.does = does

    async def answer(self, request: Request) -> Answer:
        await asyncio.sleep(0)
        if isinstance(self.does, Exception):
            raise self.does
        return Answer([message("s" * self.does)])


SUMMARISERS = [Summariser(30), Summariser(600), Summariser(ModelFailed("no")), Summariser(ModelUnavailable("later"))]

CHAINS: list[tuple[Any, ...]] = [
    (ClearToolResults(), DropOldest()),
    (DropOldest(),),
    (ClearToolResults(keep=0), DropOldest()),
    (KeepLastTurns(2), DropOldest()),
    *[(ClearToolResults(keep=1), Summarise(model), DropOldest()) for model in SUMMARISERS],
    *[(Summarise(model, keep=0), KeepLastTurns(1), DropOldest()) for model in SUMMARISERS[:2]],
]

ANCHORS = st.one_of(st.just(Anchor()), st.builds(Anchor, st.integers(1, 2000), st.integers(0, 4000)))


class Case(NamedTuple):
    talk: Talk
    context: Context
    anchor: Anchor
    beside: int

    def window(self) -> Window:
        return self.talk.window(self.context, self.beside)

    def view(self) -> Window:
        return asyncio.run(self.context.fit(self.window(), self.anchor))


@st.composite
def cases(draw: Any) -> Case:
    """A conversation, and bounds that have room for what must stay, but not always for much more."""
    talk, anchor, beside = draw(talks()), draw(ANCHORS), draw(st.sampled_from([0, 0, 50]))
    window = talk.window(Context(), beside)
    least = anchor.estimate(beside + sum(window.tokens[place] for place in talk.must_stay))
    budget = draw(st.integers(max(least, 1), max(least, 1, anchor.estimate(window.total))))
    messages = draw(st.integers(max(len(talk.must_stay), 1), max(len(window), 1)))
    bounds: dict[str, Any] = draw(
        st.sampled_from([{"budget": budget}, {"messages": messages}, {"budget": budget, "messages": messages}])
    )
    strategies, target = draw(st.sampled_from(CHAINS)), draw(st.sampled_from([0.1, 0.7, 1.0]))
    return Case(talk, Context(**bounds, strategies=strategies, target=target), anchor, beside)


def places_in(view: Window) -> list[Any]:
    """Where the items of a view are in the conversation; a summary is nowhere."""
    return [item.get("id") for item in view.items]


@given(cases())
def test_a_view_is_never_over_its_bounds_and_its_counts_are_right(case: Case) -> None:
    view, context = case.view(), case.context
    assert view.tokens == context.count(view.items)
    assert view.total == case.beside + sum(view.tokens)
    assert context.budget is None or case.anchor.estimate(view.total) <= context.budget
    assert context.messages is None or len(view.items) <= context.messages
    assert context.fits(view, case.anchor)


@given(cases())
def test_a_call_and_its_result_are_shown_together_or_not_at_all(case: Case) -> None:
    places = places_in(case.view())
    for call, result in case.talk.pairs:
        assert (call in places) == (result in places)
    assert len({place in places for place in case.talk.open_calls}) <= 1


@given(cases())
def test_reasoning_stays_with_what_follows(case: Case) -> None:
    places = places_in(case.view())
    for reasoning, follower in case.talk.followed:
        assert (reasoning in places) == (follower in places)
        if reasoning in places:
            assert places[places.index(reasoning) + 1] == follower


@given(cases())
def test_system_and_pinned_items_stay_and_all_is_in_order(case: Case) -> None:
    view = case.view()
    places = places_in(view)
    own = [place for place in places if place is not None]
    assert own == sorted(set(own))
    for place in case.talk.told | case.talk.pinned:
        assert case.talk.items[place] in view.items
    assert [place for place, pinned in zip(places, view.pinned, strict=True) if pinned] == sorted(case.talk.pinned)


@given(cases())
def test_what_must_stay_and_what_is_newest_is_shown(case: Case) -> None:
    assert case.talk.must_stay <= set(places_in(case.view()))


@given(cases())
def test_only_results_are_changed_and_only_to_the_placeholder(case: Case) -> None:
    view = case.view()
    for place, item in zip(places_in(view), view.items, strict=True):
        if place is None:
            assert item["content"][0]["text"].endswith("s" * 30)
        elif item != case.talk.items[place]:
            assert item == {**case.talk.items[place], "output": ClearToolResults().placeholder}
            assert place not in case.talk.pinned


@given(cases())
def test_the_same_conversation_gives_the_same_view_and_is_not_changed(case: Case) -> None:
    window = case.window()
    before = deepcopy(window.plain())
    view = asyncio.run(case.context.fit(window, case.anchor))
    assert window.plain() == before
    assert case.view() == view
    assert asyncio.run(case.context.fit(view, case.anchor)) is view


@given(cases())
def test_a_conversation_that_fits_is_shown_as_it_is(case: Case) -> None:
    window = case.window()
    roomy = replace(case.context, budget=max(case.anchor.estimate(window.total), 1), messages=max(len(window), 1))
    assert asyncio.run(roomy.fit(window, case.anchor)) is window


@given(cases())
def test_dropping_leaves_what_must_stay_and_if_that_is_too_much_it_is_said(case: Case) -> None:
    window = case.window()
    least = DropOldest().apply(window, Bounds(Size(0), Size(0), case.context.counter))
    assert set(places_in(least)) == case.talk.must_stay
    too_little = case.anchor.estimate(least.total) - 1
    if too_little >= 1:
        with pytest.raises(ContextOverflow, match=f"{too_little} "):
            asyncio.run(Context(too_little, [DropOldest()]).fit(window, case.anchor))


@given(st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 5000), st.integers(0, 9000))
def test_an_allowance_is_the_most_that_keeps_within_an_estimate(
    counted: int, reported: int, total: int, tokens: int
) -> None:
    anchor = Anchor(counted, reported)
    assert anchor.estimate(total) >= total
    assert (anchor.estimate(total) <= tokens) == (total <= anchor.allowance(tokens))


@given(st.integers(1, 5000), st.integers(0, 9000), st.integers(0, 5000))
def test_an_estimate_is_what_was_reported_and_grows_with_the_count(counted: int, reported: int, total: int) -> None:
    anchor = Anchor(counted, reported)
    assert anchor.estimate(counted) == max(counted, reported)
    assert anchor.estimate(total + 1) > anchor.estimate(total)


@given(cases())
def test_a_view_made_step_by_step_keeps_the_laws_too(case: Case) -> None:
    """As a loop does it: each view starts from the one before."""
    talk, context, window = case.talk, case.context, Window()
    for newest, item in enumerate(talk.items):
        window.add([item], context.count([item]), {0} if newest in talk.pinned else ())
        try:
            window = asyncio.run(context.fit(window))
        except ContextOverflow:  # the end has room, but not this place
            context = replace(context, budget=window.total, messages=len(window))
        assert context.fits(window)
        places = places_in(window)
        assert newest in places
        for call, result in talk.pairs:
            assert (call in places) == (result in places) or result > newest
        for reasoning, follower in talk.followed:
            assert (reasoning in places) == (follower in places) or follower > newest
    assert talk.told | talk.pinned <= set(places_in(window))

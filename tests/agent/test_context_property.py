"""The laws of bounded views, over any conversation."""

from __future__ import annotations

import asyncio
from copy import deepcopy
from dataclasses import replace
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
from stateroom.model import Answer, Model, Request, message
from tests.agent.talks import Talk, talks


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

"""Contexts: what a model is shown, what that takes, and what a conversation becomes when it is too long."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from stateroom.agent import (
    Anchor,
    Bounds,
    ClearToolResults,
    Context,
    DropOldest,
    Estimate,
    KeepLastTurns,
    Size,
    Summarise,
    Window,
    units_of,
)
from stateroom.errors import BadData, ContextOverflow, DefinitionError, ModelFailed
from stateroom.model import Answer, Item, Model, function_call, function_call_output, message, text_of
from tests.agent.models import Remembers
from tests.messages import raises, says


def said(role: str, text: str) -> Item:
    return {"type": "message", "role": role, "content": text}


def step(name: str, result: str = "ok") -> list[Item]:
    return [function_call(name, name), function_call_output(name, result)]


THOUGHT: Item = {"type": "reasoning", "summary": []}


class Words:
    """Counts words: so that a test can say what it means."""

    name = "words"

    def count(self, item: Item) -> int:
        return len(str(item.get("output") or item.get("arguments") or text_of(item)).split())


WORDS = Words()
CLEARED = ClearToolResults().placeholder


def window_of(*items: Item, pinned: set[int] | None = None, beside: int = 0) -> Window:
    window = Window(beside)
    window.add(items, [WORDS.count(item) for item in items], pinned or set())
    return window


def bounds(target: int, most: int) -> Bounds:
    return Bounds(Size(target), Size(most), WORDS)


def words(number: int) -> str:
    return " ".join(["w"] * number)


def texts(window: Window) -> list[str]:
    return [str(item.get("output") or item.get("arguments") or text_of(item)) for item in window.items]


def names(window: Window) -> list[str]:
    return [item.get("call_id") or item.get("role") or item["type"] for item in window.items]


def three() -> Window:
    window = Window()
    window.add([said("user", "a"), said("user", "b"), said("user", "c")], [1, 2, 3], {1})
    return window


def test_the_total_is_that_of_the_items_and_of_what_is_shown_beside() -> None:
    window = Window(beside=100)
    window.add([said("user", "a"), said("user", "b")], [1, 2])
    window.add([said("user", "c")], [3], [0])
    assert (window.tokens, window.pinned, window.total, len(window)) == ([1, 2, 3], [False, False, True], 106, 3)
    window.replace_item(0, said("user", "d"), 10)
    window.insert(1, said("user", "e"), 20)
    assert [each["content"] for each in window.items] == ["d", "e", "b", "c"]
    assert window.total == 100 + sum(window.tokens) == 100 + 35
    assert window.pinned == [False, False, False, True]


def test_a_part_of_a_window_is_a_window_of_its_own() -> None:
    window = three()
    part = window.only([True, True, False])
    assert (part.items, part.tokens, part.pinned, part.total) == (window.items[:2], [1, 2], [False, True], 3)
    part.add([said("user", "d")], [9])
    assert window == three()
    assert window.copy() == window
    assert part != window


def test_a_window_of_plain_data_is_the_same() -> None:
    window = three()
    assert window.plain() == {"items": window.items, "tokens": [1, 2, 3], "pinned": [1]}
    again = Window.of_plain(window.plain(), beside=5)
    assert (again.items, again.tokens, again.pinned, again.total) == (window.items, [1, 2, 3], window.pinned, 11)
    assert Window.of_plain(Window().plain()) == Window()
    plain = window.plain()
    window.add([said("user", "d")], [4])
    assert len(plain["items"]) == len(plain["tokens"]) == 3  # data of its own


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"items": [], "tokens": []},
        {"items": [{}], "tokens": [], "pinned": []},
        {"items": ["a"], "tokens": [1], "pinned": []},
        {"items": [{}], "tokens": ["1"], "pinned": []},
        {"items": [{}], "tokens": [1], "pinned": 0},
    ],
)
def test_data_that_is_no_window_is_refused(data: Any) -> None:
    with raises(BadData):
        Window.of_plain(data)


def test_every_item_must_count() -> None:
    with pytest.raises(ValueError, match="2 items"):
        Window().add([said("user", "a"), said("user", "b")], [1])


def test_calls_that_have_no_result_hold_only_until_the_user_speaks() -> None:
    begun = [function_call("a", "1"), function_call("b", "2"), function_call_output("1", "")]
    assert [unit[:2] for unit in units_of(window_of(*begun))] == [(0, 3)]
    after = window_of(*begun, said("user", "u"), *step("3"))
    assert [unit[:2] for unit in units_of(after)] == [(0, 3), (3, 4), (4, 6)]


def test_thought_that_led_to_nothing_is_a_unit() -> None:
    assert [unit[:2] for unit in units_of(window_of(THOUGHT, said("user", "u"), THOUGHT))] == [(0, 1), (1, 2), (2, 3)]


def test_odd_items_are_units_too() -> None:
    odd: list[Item] = [
        {},
        {"type": None},
        {"type": "function_call"},
        {"role": ["user"]},
        {"call_id": []},
        {"role": "user"},
    ]
    odd += [{"type": "function_call_output"}, {"type": "web_search_call", "id": "w"}, {"type": "message"}]
    window = Window()
    window.add(odd, [1] * len(odd))
    assert sum(unit.stop - unit.start for unit in units_of(window)) == len(odd)
    assert len(DropOldest().apply(window, bounds(0, 0))) < len(odd)


def test_old_results_are_cleared_oldest_first_until_it_is_enough() -> None:
    window = window_of(*[item for name in "abcdef" for item in step(name, words(10))], message("m"))
    enough = ClearToolResults(keep=2).apply(window, bounds(59, 100))
    assert [text == CLEARED for text in texts(enough)[1::2]] == [True, True, False, False, False, False]
    assert names(enough) == names(window)
    all_old = ClearToolResults(keep=2).apply(window, bounds(0, 100))
    assert [text == CLEARED for text in texts(all_old)[1::2]] == [True] * 4 + [False] * 2
    assert all_old.total == window.total - 4 * (10 - len(CLEARED.split()))


def test_results_that_the_model_has_not_seen_are_not_cleared() -> None:
    calls = [function_call(name, name) for name in "ab"]
    results = [function_call_output(name, words(50)) for name in "ab"]
    window = window_of(*step("old", words(50)), *calls, *results)
    cleared = ClearToolResults(keep=0).apply(window, bounds(0, 0))
    assert [text == CLEARED for text in texts(cleared)] == [False, True, False, False, False, False]


def test_results_that_are_pinned_or_short_are_not_cleared() -> None:
    window = window_of(*step("a", words(50)), *step("b", "ok"), *step("c", words(50)), message("m"), pinned={1})
    cleared = ClearToolResults(0, "gone").apply(window, bounds(0, 0))
    assert texts(cleared)[1:6:2] == [words(50), "ok", "gone"]


def test_the_last_turns_are_kept() -> None:
    turns = [[said("user", f"question {n}"), *step(f"call {n}"), message(f"answer {n}")] for n in range(4)]
    window = window_of(said("system", "s"), message("hello"), *[item for turn in turns for item in turn])
    kept = KeepLastTurns(2).apply(window, bounds(0, 0))
    assert kept.items == [said("system", "s"), *turns[2], *turns[3]]
    assert KeepLastTurns(4).apply(window, bounds(0, 0)) is window


def test_what_the_user_said_last_is_dropped_only_if_there_is_no_other_way() -> None:
    window = window_of(said("user", words(10)), *step("a", words(20)), *step("b", words(20)), *step("c", words(20)))
    assert names(DropOldest().apply(window, bounds(40, 50))) == ["user", "c", "c"]
    assert names(DropOldest().apply(window, bounds(20, 33))) == ["user", "c", "c"]  # above the target, but fine
    assert names(DropOldest().apply(window, bounds(20, 25))) == ["c", "c"]


async def test_a_summary_stands_for_what_is_oldest() -> None:
    model = Remembers("They added things.")
    old = [said("user", words(200)), message("first answer"), *step("find", words(200))]
    new = [said("user", "go on"), *step("look", words(20))]
    window = window_of(said("system", "s"), *old, *new)
    context = Context(350, [Summarise(model)], counter=WORDS)
    view = await context.fit(window)
    assert names(view) == ["system", "assistant", "user", "look", "look"]
    says(texts(view)[1])
    assert view.tokens == context.count(view.items)
    [request] = model.asked
    says(text_of(request.items[0]))
    transcript = text_of(request.items[1])
    assert transcript.startswith(f"user: {words(200)}\n\nassistant: first answer\n\ncall: find {{}}")
    assert "go on" not in transcript
    assert transcript.count("s:") == 0  # what the model is told is not part of it
    assert request.settings["max_output_tokens"] == int(350 * 0.7) - (view.total - view.tokens[1])


async def test_a_summary_within_a_turn_comes_after_the_question() -> None:
    steps = [item for n in range(10) for item in step(f"s{n}", words(30))]
    window = window_of(said("user", "do it"), *steps)
    view = await Context(250, [Summarise(Remembers("Some steps."), keep=0.4)], counter=WORDS).fit(window)
    assert names(view) == ["user", "assistant", *["s8"] * 2, *["s9"] * 2]
    more = window_of(*view.items, *[item for n in range(10, 16) for item in step(f"s{n}", words(30))])
    model = Remembers("More steps.")
    again = await Context(250, [Summarise(model)], counter=WORDS).fit(more)
    assert names(again)[:2] == ["user", "assistant"]
    assert texts(again)[0] == "do it"
    assert texts(again)[1].endswith("\nMore steps.")
    assert "Some steps." in text_of(model.asked[0].items[1])


@pytest.mark.parametrize(
    "model",
    [
        Remembers(ModelFailed("it refused")),
        Remembers(RuntimeError("a bug")),
        Remembers(words(500)),
        Remembers(Answer([message("They")], truncated=True)),
        Remembers("  "),
    ],
)
async def test_a_summary_that_fails_leaves_it_to_the_next_strategy(
    model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    window = window_of(said("user", words(200)), message(words(200)), said("user", "go on"))
    with caplog.at_level(logging.WARNING):
        view = await Context(300, [Summarise(model), DropOldest()], counter=WORDS).fit(window)
    assert names(view) == ["assistant", "user"]
    says(caplog.messages[-1])


async def test_no_summary_is_asked_for_where_it_would_have_no_room() -> None:
    model = Remembers("never")
    window = window_of(said("user", words(200)), said("user", words(160)))
    with pytest.raises(ContextOverflow):
        await Context(300, [Summarise(model)], counter=WORDS).fit(window)
    assert model.asked == []


async def test_a_chain_goes_on_only_as_far_as_it_must() -> None:
    model = Remembers("A summary.")
    context = Context(300, [ClearToolResults(keep=0), Summarise(model), DropOldest()], counter=WORDS)
    results = window_of(said("user", "u"), *step("a", words(250)), *step("b", words(100)))
    assert names(await context.fit(results)) == names(results)
    assert model.asked == []
    messages = window_of(*[said("user", words(100)) for _ in range(4)])
    assert names(await context.fit(messages)) == ["assistant", "user"]
    assert len(model.asked) == 1


def test_tools_and_instructions_are_counted_as_a_model_is_shown_them() -> None:
    context = Context()
    tool = {"type": "function", "name": "add", "description": "Add.", "parameters": {"type": "object"}}
    assert context.beside([]) == 0
    assert context.beside([tool, tool]) == 2 * Estimate().count(tool)
    assert context.beside([tool], "Be kind.") == Estimate().count(tool) + Estimate().count(said("system", "Be kind."))


async def test_what_a_model_reports_beyond_the_count_takes_room() -> None:
    window = window_of(*[said("user", words(10)) for _ in range(9)])
    context = Context(100, [DropOldest()], counter=WORDS, target=1.0)
    assert context.fits(window)
    assert context.fits(window, Anchor(90, 60))  # fewer than were counted: that is not relied on
    anchor = Anchor(90, 120)
    assert not context.fits(window, anchor)
    assert (await context.fit(window, anchor)).total == 70  # the 30 more may be there whatever is dropped
    assert Anchor(50, 60).estimate(100) == 120  # and may grow with what is added
    assert Anchor(10, 210).estimate(1010) == 210 + 2 * 1000  # but not without end


async def test_what_does_not_fit_is_told_in_its_parts() -> None:
    window = window_of(
        *(said("system", words(10)), said("user", words(20)), message(words(1)), *step("a", words(40))),
        pinned={1},
        beside=5,
    )
    with raises(ContextOverflow):
        await Context(50, counter=WORDS).fit(window, Anchor(10, 17))


async def test_over_twenty_messages_the_oldest_ten_become_a_summary() -> None:
    model = Remembers("so far")
    context = Context(messages=20, target=0.6, strategies=[Summarise(model), DropOldest()])
    window = window_of(*[said("user", str(number)) for number in range(20)])
    assert await context.fit(window) is window
    window.add([said("user", "20")], [1])
    summary, *rest = texts(await context.fit(window))
    assert summary.endswith("\nso far")
    assert rest == [*map(str, range(10, 21))]
    assert text_of(model.asked[0].items[1]) == "\n\n".join(f"user: {number}" for number in range(10))
    assert "max_output_tokens" not in model.asked[0].settings  # no bound on tokens


async def test_more_messages_than_the_bound_that_must_stay_are_told() -> None:
    calls = [function_call("a", str(number)) for number in range(3)]
    results = [function_call_output(str(number), "ok") for number in range(3)]
    with raises(ContextOverflow):
        await Context(messages=6).fit(window_of(said("user", "u"), said("user", "go"), *calls, *results, pinned={1}))


def test_a_context_without_a_model_needs_no_waiting() -> None:
    window = window_of(*[said("user", words(30)) for _ in range(9)])
    assert Context(100, counter=WORDS).fit_now(window).total == 60
    model = Remembers("never")
    with raises(DefinitionError):
        Context(100, [DropOldest(), Summarise(model)], counter=WORDS).fit_now(window)
    assert model.asked == []


@pytest.mark.parametrize(
    "make",
    [
        lambda: Context(0),
        lambda: Context(messages=0),
        lambda: Context(100, target=0),
        lambda: Context(100, target=1.1),
        lambda: ClearToolResults(keep=-1),
        lambda: KeepLastTurns(0),
        lambda: Summarise(Remembers(""), keep=1),
    ],
)
def test_bounds_that_make_no_sense_are_refused(make: Any) -> None:
    with pytest.raises(DefinitionError):
        make()


class Unread(list[Any]):
    """A list that nobody may look through."""

    def __iter__(self) -> Any:
        raise AssertionError("looked through")

    __getitem__ = __contains__ = __iter__  # type: ignore[assignment]


def test_to_ask_whether_a_window_fits_looks_at_no_item() -> None:
    window = window_of(*[said("user", "w") for _ in range(100)])
    window.items, window.tokens, window.pinned = Unread(window.items), Unread(window.tokens), Unread(window.pinned)
    assert Context(100, messages=100, counter=WORDS).fits(window, Anchor(5, 5))
    assert not Context(100, counter=WORDS).fits(window, Anchor(5, 6))
    assert not Context(messages=99).fits(window)


class Counting(Words):
    def __init__(self) -> None:
        self.counted = 0

    def count(self, item: Item) -> int:
        self.counted += 1
        return super().count(item)


@pytest.mark.parametrize("steps", [200, 2000])
async def test_work_follows_what_is_added_not_the_length_of_the_conversation(steps: int) -> None:
    counter = Counting()
    context = Context(1000, counter=counter)
    window, compactions, looked_at = window_of(said("system", words(20))), 0, 0
    for number in range(steps):
        items = step(str(number), words(20))
        window.add(items, context.count(items))
        if not context.fits(window):
            looked_at += len(window)
            compactions += 1
            window = await context.fit(window)
            assert window.total <= 700
    assert compactions <= steps / 10
    assert looked_at <= 20 * steps
    assert counter.counted <= 4 * steps  # each item when it comes, and each result when it is cleared

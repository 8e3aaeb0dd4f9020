"""Changes as data: what a patch changes, and what differs between two states, for programs and in words."""

from decimal import Decimal
from typing import Any

import pytest

from stateroom import State
from stateroom.state import DraftContext, commit, decode, describe, differences, draft_of, encode, encode_patch, lines
from tests.state.classes import Level


class Desk(State):
    papers: list[str] = []
    counts: dict[int, list[int]] = {}
    spots: dict[Level, Decimal] = {}
    days: dict[str, dict[int, bytes]] = {}
    tags: set[str] = set()


def desk() -> Desk:
    return Desk(
        papers=["a", "b", "c"], counts={7: [1, 2]}, spots={Level.LOW: Decimal("1.5")}, days={"may": {1: b"\xff"}},
        tags={"old"},
    )  # fmt: skip


def turn_over(state: Desk) -> None:
    state.papers.extend(["d", "e"])
    state.counts[7][1] = 3
    del state.spots[Level.LOW]
    state.spots[Level.HIGH] = Decimal("2.5")
    state.days["may"][2] = b"\x00"
    state.tags.discard("old")
    state.tags.add("new")


def told(changes: Any) -> list[tuple[Any, ...]]:
    return [(each["place"], each["kind"], each["before"], each["after"]) for each in changes]


def changed(change: Any) -> tuple[Any, Any, Any]:
    """The stored state before a change and after it, and the stored patch."""
    draft = draft_of(base := desk(), DraftContext())
    change(draft)
    result = commit(draft)
    return decode(encode(base)), decode(encode(result.state)), decode(encode_patch(result.patch))


def test_a_patch_as_data_names_places_as_the_state_is_shown() -> None:
    before, _, patch = changed(turn_over)
    changes = describe(before, patch)
    assert sorted(told(changes), key=str) == sorted(
        [
            (["papers", 3], "new", None, "d"),
            (["papers", 4], "new", None, "e"),
            (["counts", "7", 1], "changed", 2, 3),
            (["spots", "1"], "gone", "1.5", None),
            (["spots", "2"], "new", None, "2.5"),
            (["days", "may", "2"], "new", None, "AA=="),
            (["tags", "new"], "new", None, "new"),
            (["tags", "old"], "gone", "old", None),
        ],
        key=str,
    )
    assert [line for line in lines(changes) if line.startswith(("papers", "tags"))] == [
        "papers: 2 items added at its end",
        'tags: + "new" - "old"',
    ]


def test_what_differs_has_whole_values_and_the_same_places() -> None:
    before, after, _ = changed(turn_over)
    found = told(differences(before, after))
    assert (["counts", "7", 1], "changed", 2, 3) in found
    assert (["days", "may", "2"], "new", None, "AA==") in found
    assert (["tags"], "changed", ["old"], ["new"]) in found
    assert (["spots", "1"], "gone", "1.5", None) in found


@pytest.mark.parametrize(
    ("change", "expected", "words"),
    [
        (lambda state: state.papers.reverse(),
         [(["papers"], "changed", ["a", "b", "c"], ["c", "b", "a"])], ["papers: 3 items in a new order"]),
        (lambda state: state.papers.__setitem__(slice(0, 2), ["x"]),
         [(["papers", 0], "changed", "a", "x"), (["papers", 1], "gone", "b", None)],
         ["papers: 2 items from [0] replaced by 1"]),
        (lambda state: state.papers.pop(1),
         [(["papers", 1], "gone", "b", None)], ['papers: "b" removed from [1]']),
        (lambda state: setattr(state, "counts", {7: [1], 8: []}),
         [(["counts"], "changed", {"7": [1, 2]}, {"7": [1], "8": []})],
         ['counts: {"7": [1, 2]} → {"7": [1], "8": []}']),
    ],
)  # fmt: skip
def test_each_kind_of_operation_is_data_and_a_line(change: Any, expected: Any, words: Any) -> None:
    before, after, patch = changed(change)
    changes = describe(before, patch)
    assert before == after
    assert (told(changes), lines(changes)) == (expected, words)


LONG = "x" * 500


@pytest.mark.parametrize(("old", "new"), [(f"{LONG}one", f"{LONG}two"), (f"{LONG}one{LONG}", f"{LONG}two{LONG}")])
def test_two_long_values_are_shown_where_they_differ(old: Any, new: Any) -> None:
    [line] = lines(differences({"text": old}, {"text": new}))
    assert "one" in line
    assert "two" in line
    assert len(line) < 150


def test_a_short_value_is_shown_whole() -> None:
    [line] = lines(differences({"text": f"{'x' * 40}one"}, {"text": f"{'x' * 40}two"}))
    assert line == f'text: "{"x" * 40}one" → "{"x" * 40}two"'

"""The window: what a model is shown, and what that takes."""

from typing import Any

import pytest

from stateroom.agent import Window
from stateroom.errors import BadData
from stateroom.model import Item
from tests.messages import raises


def item(name: str) -> Item:
    return {"role": "user", "content": name}


def three() -> Window:
    window = Window()
    window.add([item("a"), item("b"), item("c")], [1, 2, 3], {1})
    return window


def test_the_total_is_that_of_the_items_and_of_what_is_shown_beside() -> None:
    window = Window(beside=100)
    window.add([item("a"), item("b")], [1, 2])
    window.add([item("c")], [3], [0])
    assert (window.tokens, window.pinned, window.total, len(window)) == ([1, 2, 3], [False, False, True], 106, 3)
    window.replace_item(0, item("d"), 10)
    window.insert(1, item("e"), 20)
    assert [each["content"] for each in window.items] == ["d", "e", "b", "c"]
    assert window.total == 100 + sum(window.tokens) == 100 + 35
    assert window.pinned == [False, False, False, True]


def test_a_part_of_a_window_is_a_window_of_its_own() -> None:
    window = three()
    part = window.only([True, True, False])
    assert (part.items, part.tokens, part.pinned, part.total) == (window.items[:2], [1, 2], [False, True], 3)
    part.add([item("d")], [9])
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
    window.add([item("d")], [4])
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
        Window().add([item("a"), item("b")], [1])

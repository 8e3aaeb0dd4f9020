"""Tasks: typed rows, and errors that name the field."""

from typing import Any

import pytest

from stateroom import Environment, Task
from stateroom.errors import BadTask
from tests.messages import raises


class Order(Task):
    size: int
    colours: list[str] = []


class Shop(Environment[None, Order]):
    """A shop."""


def test_a_row_becomes_a_task() -> None:
    task: Any = Shop().parse_task({"size": "3", "note": {"a": 1}, "responses_create_params": {"input": "hi"}})
    assert (task.size, task.colours, task.note) == (3, [], {"a": 1})
    assert task.responses_create_params == {"input": "hi"}


def test_a_task_is_taken_as_it_is() -> None:
    task = Order(size=1)
    assert Shop().parse_task(task) is task


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"size": "big"},
        {"size": 1, "colours": ["red", 7]},
        {"size": "big", "colours": 1},
        {"size": 1, "responses_create_params": []},
        [],
        None,
        "{}",
    ],
)
def test_a_bad_row_names_the_field(row: object) -> None:
    with raises(BadTask) as caught:
        Shop().parse_task(row)
    assert "https://" not in str(caught.value)

"""Two changes of one state, brought together by the rules of its fields."""

from typing import Annotated, Any

import pytest
from hypothesis import given, strategies as st
from pydantic import Field

from stateroom.errors import DefinitionError
from stateroom.state import Merge, State, merge, patched
from tests.messages import raises


class Shelf(State):
    stock: Annotated[int, Merge("sum")] = 0
    log: Annotated[list[str], Merge("append")] = []
    tags: Annotated[set[str], Merge("union")] = set()
    prices: Annotated[dict[str, int], Merge("union")] = {}
    label: Annotated[str, Merge("last")] = ""
    owner: str = ""


LETTERS = st.sampled_from("abcd")
SHELVES = st.builds(
    Shelf,
    stock=st.integers(-5, 5),
    log=st.lists(LETTERS, max_size=3),
    tags=st.sets(LETTERS),
    prices=st.dictionaries(LETTERS, st.integers(0, 2)),
    label=LETTERS,
)


def test_each_field_follows_its_rule() -> None:
    base = Shelf(stock=1, log=["a"], tags={"q"}, prices={"k": 1, "g": 2}, label="old")
    mine = Shelf(stock=3, log=["a", "b"], tags={"z"}, prices={"k": 2}, label="mine")
    theirs = Shelf(stock=5, log=["a", "c"], tags={"q", "w"}, prices={"k": 1, "g": 2, "h": 7}, label="theirs")
    merged = merge(base, mine, theirs)
    assert merged is not None
    assert merged.state == Shelf(stock=7, log=["a", "c", "b"], tags={"w", "z"}, prices={"k": 2, "h": 7}, label="mine")


@given(SHELVES, SHELVES, SHELVES)
def test_the_patch_leads_from_theirs_to_the_merged_state(base: Shelf, mine: Shelf, theirs: Shelf) -> None:
    mine = mine.model_copy(update={"log": [*base.log, *mine.log]})
    merged = merge(base, mine, theirs)
    assert merged is not None
    assert patched(theirs, merged.patch) == merged.state


@given(SHELVES, SHELVES)
def test_what_one_changed_alone_is_as_that_one_made_it(base: Shelf, changed: Shelf) -> None:
    changed = changed.model_copy(update={"log": [*base.log, *changed.log]})
    for mine, theirs in ((changed, base), (base, changed)):
        merged = merge(base, mine, theirs)
        assert merged is not None
        assert merged.state == changed


@given(SHELVES, SHELVES, SHELVES)
def test_numbers_and_sets_come_to_the_same_whoever_is_first(base: Shelf, one: Shelf, two: Shelf) -> None:
    fixed = {"log": base.log, "prices": base.prices, "label": base.label}
    one, two = one.model_copy(update=fixed), two.model_copy(update=fixed)
    first, second = merge(base, one, two), merge(base, two, one)
    assert first is not None
    assert second is not None
    assert first.state == second.state


class Purse(State):
    money: Annotated[int, Merge("sum"), Field(ge=0)] = 0


@pytest.mark.parametrize(
    ("base", "mine", "theirs"),
    [
        (Shelf(), Shelf(owner="me", stock=1), Shelf(stock=1)),  # there is no rule
        (Shelf(log=["a"]), Shelf(log=["b"]), Shelf(log=["a", "c"])),  # not only added to
        (Purse(money=10), Purse(money=2), Purse(money=5)),  # not valid together
    ],
)
def test_what_no_rule_brings_together_cannot_be_merged(base: Any, mine: Any, theirs: Any) -> None:
    assert merge(base, mine, theirs) is None


def test_a_rule_that_is_none_is_refused() -> None:
    with raises(DefinitionError):
        Merge("max")  # type: ignore[arg-type]

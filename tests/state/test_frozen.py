"""Frozen records are values: they are handed out as they are, and take the place of one another."""

from enum import StrEnum
from functools import cached_property
from operator import is_
from typing import Annotated, Any

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import AfterValidator, BaseModel, ValidationError

from stateroom import State
from stateroom.errors import InvalidState
from stateroom.state import (
    DraftContext,
    Patch,
    apply,
    commit,
    decode,
    describe,
    draft_of,
    encode,
    encode_patch,
    lines as lines_of,
    patched,
)
from tests.messages import raises


class Coin(BaseModel, frozen=True):
    worth: int
    marks: tuple[str, ...] = ()
    parts: tuple["Coin", ...] = ()


class Bag(BaseModel, frozen=True):
    coins: list[int] = []


class Purse(State):
    coins: dict[str, Coin] = {}
    row: list[Coin] = []
    bag: Bag = Bag()
    best: Coin | None = None


def purse() -> Purse:
    return Purse(coins={"a": Coin(worth=1), "b": Coin(worth=2)}, row=[Coin(worth=3)], best=Coin(worth=4))


def test_a_frozen_record_is_given_as_it_is_and_what_can_change_is_not() -> None:
    state = purse()
    draft = draft_of(state, DraftContext())
    assert draft.coins["a"] is state.coins["a"]
    assert [*draft.coins.values()][1] is state.coins["b"]
    assert [*draft.row] == [draft.row[0]] == state.row
    assert draft.row[0] is state.row[0]
    assert draft.best is state.best
    assert draft.bag is not state.bag  # its list could be changed
    draft.bag.coins.append(5)
    assert state.bag.coins == []
    with pytest.raises(ValidationError):
        draft.coins["a"].worth = 9  # type: ignore[misc]
    assert commit(draft).patch == [("splice", ("bag", "coins"), 0, 0, [5])]


class Case(BaseModel, frozen=True):
    coin: Coin
    pair: tuple[int, Coin | None] = (0, None)


class Sack(BaseModel, frozen=True):
    bags: tuple["Sack | Bag", ...] = ()


class Vault(State):
    cases: dict[str, Case] = {}
    pairs: list[tuple[int, Case]] = []
    either: list[Coin | Case] = []
    sacks: dict[str, Sack] = {}
    tuples: list[tuple[Bag, ...]] = []


def vault() -> Vault:
    coin = Coin(worth=1, parts=(Coin(worth=2),))
    sacks = {"a": Sack(bags=(Sack(bags=(Bag(coins=[1]),)),))}
    case = Case(coin=coin, pair=(1, coin))
    return Vault(cases={"a": case}, pairs=[(1, case)], either=[coin, case], sacks=sacks, tuples=[(Bag(coins=[2]),)])


def test_what_holds_only_frozen_records_is_given_as_it_is_however_deep() -> None:
    state = vault()
    draft = draft_of(state, DraftContext())
    assert draft.cases["a"] is state.cases["a"]
    assert draft.pairs[0] is state.pairs[0]
    assert all(map(is_, draft.either, state.either))
    with pytest.raises(ValidationError):
        draft.cases["a"].coin.parts[0].worth = 9  # type: ignore[misc]
    assert commit(draft).patch == []


def test_a_list_deep_in_frozen_records_is_drafted() -> None:
    state = vault()
    draft: Any = draft_of(state, DraftContext())
    draft.sacks["a"].bags[0].bags[0].coins.append(5)
    draft.tuples[0][0].coins.append(6)
    assert state == vault()
    after = commit(draft).state
    assert (after.sacks["a"].bags[0].bags[0].coins, after.tuples[0][0].coins) == ([1, 5], [2, 6])
    assert state == vault()


def test_a_nested_record_takes_the_place_of_another_by_the_fields_that_differ() -> None:
    state = vault()
    draft = draft_of(state, DraftContext())
    draft.cases["a"] = draft.cases["a"].model_copy(update={"coin": Coin(worth=7)})
    after, patch = commit(draft)
    assert [place for _, place, *_ in patch] == [("cases", "a", "coin")]
    assert after.cases["a"].pair is state.cases["a"].pair
    assert Vault(**decode(encode(after))) == after
    draft = draft_of(state, DraftContext())
    draft.cases["a"] = draft.cases["a"].model_copy(update={"coin": Coin.model_construct(worth="much")})  # type: ignore[arg-type]
    with raises(InvalidState):
        commit(draft)


@pytest.mark.parametrize("fields", [{"worth": "much"}, {"marks": ()}])
def test_one_that_is_not_valid_is_refused_as_others_are(fields: dict[str, Any]) -> None:
    draft = draft_of(purse(), DraftContext())
    draft.coins["a"] = Coin.model_construct(**fields)
    with raises(InvalidState):
        commit(draft)


class Metal(StrEnum):
    GOLD = "gold"
    TIN = "tin"


class Hoard(State):
    coins: dict[str, Coin] = {}
    best: dict[Metal, Coin] = {}
    row: list[Coin] = []
    metals: set[Metal] = set()


def put(hoard: Hoard, key: str, worth: int) -> None:
    hoard.coins[key] = Coin(worth=worth)


def change(hoard: Hoard, key: str, worth: int) -> None:
    if key in hoard.coins:
        hoard.coins[key] = hoard.coins[key].model_copy(update={"worth": worth})


def move(hoard: Hoard, key: str, worth: int) -> None:
    if key in hoard.coins:
        hoard.coins[key] = hoard.coins.pop(key)


def remove(hoard: Hoard, key: str, worth: int) -> None:
    hoard.coins.pop(key, None)


def choose(hoard: Hoard, key: str, worth: int) -> None:
    metal = [*Metal][worth % 2]
    old = (hoard.best.pop if key == "a" else hoard.best.get)(metal, Coin(worth=0))
    hoard.best[metal] = old.model_copy(update={"worth": worth})


def line_up(hoard: Hoard, key: str, worth: int) -> None:
    hoard.row.insert(worth % 3, Coin(worth=worth, marks=(key,)))
    hoard.row[0] = hoard.row[0].model_copy(update={"worth": worth})


def nest(hoard: Hoard, key: str, worth: int) -> None:
    parts = (*hoard.row[:1], Coin(worth=worth, parts=tuple(hoard.best.values())))
    hoard.coins[key] = hoard.coins.get(key, Coin(worth=0)).model_copy(update={"parts": parts})


def melt(hoard: Hoard, key: str, worth: int) -> None:
    hoard.metals ^= {[*Metal][worth % 2]}


ACTIONS = st.tuples(
    st.sampled_from([put, change, move, remove, choose, line_up, nest, melt]),
    st.sampled_from("abcd"),
    st.integers(0, 3),
)


def hoard(wide: bool) -> Hoard:
    many = {f"coin {number}": Coin(worth=number) for number in range(260 if wide else 1)}
    return Hoard(coins={"a": Coin(worth=1), **many}, best={Metal.GOLD: Coin(worth=2)}, metals={Metal.TIN})


@settings(deadline=None)
@given(wide=st.booleans(), calls=st.lists(st.lists(ACTIONS, max_size=4), max_size=8))
def test_what_is_done_with_them_is_the_same_with_drafts_and_by_the_log(wide: bool, calls: list[list[Any]]) -> None:
    world, expected, state, plain = hoard(wide), hoard(wide), hoard(wide), decode(encode(hoard(wide)))
    pool: dict[int, Any] = {}
    so_far: Patch = []
    for call in calls:
        draft = draft_of(state, DraftContext(None, pool))
        for action, key, worth in call:
            action(draft, key, worth)
            action(expected, key, worth)
        state, patch = commit(draft)
        del draft
        stored = [tuple(step) for step in decode(encode_patch(patch))]
        so_far += stored
        apply(plain, stored)
        for found in (state, Hoard(**decode(encode(plain))), patched(world, so_far)):
            assert found == expected
            assert [*found.coins] == [*expected.coins]
            assert {*map(type, found.best)} <= {Metal}
    assert world == hoard(wide)


def test_a_check_of_the_place_where_one_stands_is_not_left_out() -> None:
    def small(coin: Coin) -> Coin:
        if coin.worth > 10:
            raise ValueError("too large for it")
        return coin

    class Pocket(State):
        coins: dict[str, Annotated[Coin, AfterValidator(small)]] = {}

    draft = draft_of(Pocket(coins={"a": Coin(worth=1)}), DraftContext())
    draft.coins["a"] = draft.coins["a"].model_copy(update={"worth": 11})
    with raises(InvalidState):
        commit(draft)


def test_what_one_has_found_out_about_itself_is_no_part_of_it() -> None:
    class Clever(BaseModel, frozen=True, extra="forbid"):
        worth: int

        @cached_property
        def double(self) -> int:
            return self.worth * 2

    class Clevers(State):
        coins: dict[str, Clever] = {}

    draft = draft_of(Clevers(coins={"a": Clever(worth=1)}), DraftContext())
    assert draft.coins["a"].double == 2
    draft.coins["b"] = draft.coins["a"].model_copy(update={"worth": 2})
    draft.coins["a"] = draft.coins["a"].model_copy(update={"worth": 3})
    assert [coin.double for coin in commit(draft).state.coins.values()] == [6, 4]


@pytest.mark.parametrize("place", [("coins", "a", "worth"), ("row", 0, "worth"), ("best", "worth"), ("bag", "size")])
def test_changes_from_before_they_were_frozen_still_apply(place: tuple[Any, ...]) -> None:
    class Sized(Bag, frozen=True):
        size: int = 0

    class Sizes(Purse):
        bag: Sized = Sized()

    found: Any = patched(Sizes(coins=purse().coins, row=purse().row, best=purse().best), [["set", place, 9]])
    for step in place:
        found = found[step] if isinstance(found, dict | list) else getattr(found, step)
    assert found == 9


class Mail(BaseModel, frozen=True):
    text: str
    read: bool = False
    stamp: Coin = Coin(worth=1)


class Mailbox(State):
    mails: dict[str, Mail] = {}
    queue: list[Mail] = []


def test_a_log_shows_the_fields_of_a_frozen_record_that_differ() -> None:
    mail = Mail(text="Hello. " * 20)
    state = Mailbox(mails={"a": mail, "b": mail, "c": mail}, queue=[mail])
    draft = draft_of(state, DraftContext())
    draft.mails["a"] = mail.model_copy(update={"read": True})
    draft.mails["b"] = mail.model_copy(update={"read": True, "stamp": Coin(worth=2)})
    draft.mails["c"] = Mail(text="Bye.", read=True, stamp=Coin(worth=3, marks=("x",)))  # another one altogether
    draft.queue[0] = mail.model_copy(update={"text": "Bye."})
    lines = lines_of(describe(decode(encode(state)), decode(encode_patch(commit(draft).patch))))
    assert lines[:3] == ["mails.a.read: false → true", "mails.b.read: false → true", "mails.b.stamp.worth: 1 → 2"]
    assert lines[3].startswith('mails.c: {"text": "Hello. ')
    assert lines[4].startswith('queue[0].text: "Hello. ')
    assert lines[4].endswith('→ "Bye."')

"""Laws of comparing states, on random scripts of actions that make records which mention one another."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from itertools import permutations, product
from typing import Any, NamedTuple

from hypothesis import given, strategies as st
from pydantic import BaseModel

from stateroom.state import Comparison, DraftContext, State, commit, compare, decode, draft_of, encode


class Ticket(BaseModel):
    id: str
    title: str
    parent: str | None = None
    assignee: str = ""
    seen: int = 0


class Note(BaseModel):
    of: str
    text: str


class Board(State):
    tickets: dict[str, Ticket] = {}
    notes: dict[str, Note] = {}
    watchers: dict[str, set[str]] = {}
    log: list[Note] = []
    route: list[str] = []
    seen: int = 0


BASE = Board(
    tickets={f"T-{number}": Ticket(id=f"T-{number}", title="old") for number in range(2)},
    log=[Note(of="T-0", text="a"), Note(of="T-1", text="b")],
    route=["a", "b", "a"],
)
OPTIONS: dict[str, Any] = {"ignore": ("seen", "tickets.*.seen"), "by_content": ("tickets", "notes", "log")}


class Action(NamedTuple):
    """Something done to a board; `of` is a ticket: of the base, or the one that an earlier action made."""

    kind: str
    of: int
    text: str


KINDS = ("ticket", "note", "watch", "log", "assign")
ACTIONS = st.lists(st.builds(Action, st.sampled_from(KINDS), st.integers(0, 5), st.sampled_from("ab")), max_size=6)
OLD = len(BASE.tickets)


def in_order(actions: Sequence[Action]) -> list[Action]:
    """The actions, each about a ticket that is there, and at most one assignment of each ticket."""
    made, assigned, kept = OLD, set(), []
    for each in actions:
        action = each._replace(of=each.of % made)
        if action.kind == "assign":
            if action.of in assigned:
                continue
            assigned.add(action.of)
        made += action.kind == "ticket"
        kept.append(action)
    return kept


def played(actions: Sequence[Action], order: Sequence[int] = (), first: int = 100, base: Board = BASE) -> Board:
    """The board after some actions, in an order of their own as far as what they need allows, with other new ids."""
    numbers: dict[int, int] = {}
    for index, action in enumerate(actions):
        if action.kind == "ticket":
            numbers[index] = OLD + len(numbers)
    ids = {number: f"T-{number}" for number in range(OLD)}
    draft = draft_of(base, DraftContext())
    waiting = sorted(range(len(actions)), key=lambda index: (order[index % len(order)] if order else index, index))
    while waiting:
        index = next(index for index in waiting if actions[index].of in ids)
        waiting.remove(index)
        first += 1
        new = act(draft, actions[index], ids[actions[index].of], f"T-{first}")
        if new is not None:
            ids[numbers[index]] = new
    return commit(draft).state


def act(board: Board, action: Action, of: str, new: str) -> str | None:
    if action.kind == "ticket":
        board.tickets[new] = Ticket(id=new, title=action.text, parent=of, seen=len(board.tickets))
        return new
    if action.kind == "note":
        board.notes[new] = Note(of=of, text=action.text)
    elif action.kind == "watch":
        board.watchers.setdefault(of, set()).add(action.text)
    elif action.kind == "log":
        board.log.append(Note(of=of, text=action.text))
    else:
        board.tickets[of].assignee = action.text
    return None


def result(found: Board, gold: Board) -> Comparison:
    return compare(BASE, found, gold, **OPTIONS)


def are_alike(found: Board, gold: Board) -> bool:
    """The same question, answered by trying every way to rename the new records."""
    return any(renamed(gold, names) == normal(found) for names in namings(gold, found))


def namings(gold: Board, found: Board) -> Iterator[dict[str, str]]:
    ways = []
    for table in ("tickets", "notes"):
        old = getattr(BASE, table)
        ones, others = ([key for key in getattr(each, table) if key not in old] for each in (gold, found))
        if len(ones) != len(others):
            return
        ways.append([dict(zip(ones, order, strict=True)) for order in permutations(others)])
    for tickets, notes in product(*ways):
        yield {**tickets, **notes}


def renamed(board: Board, names: dict[str, str]) -> Any:
    def rename(value: Any) -> Any:
        if isinstance(value, dict):
            return {rename(key): rename(part) for key, part in value.items()}
        if isinstance(value, list | set):
            return type(value)(rename(part) for part in value)
        return names.get(value, value)

    return normal(rename(decode(encode(board))))


def normal(board: Any) -> Any:
    data = decode(encode(board))
    del data["seen"]
    for ticket in data["tickets"].values():
        del ticket["seen"]
    data["log"].sort(key=repr)
    return data


ORDERS = st.lists(st.integers(0, 9), max_size=6)
SCRIPTS = ACTIONS.map(in_order)
ROUTES = st.lists(st.sampled_from("abc"), max_size=5)


@given(SCRIPTS, ORDERS)
def test_the_order_of_independent_actions_and_the_ids_of_what_they_make_are_free(
    script: list[Action], order: list[int]
) -> None:
    assert result(played(script, order, first=200), played(script)).same
    assert result(played(script, order), played(script)).same  # with ids that mean something else in the other


@given(SCRIPTS, SCRIPTS, ORDERS)
def test_states_are_the_same_if_their_new_records_can_be_renamed_so(
    script: list[Action], other: list[Action], order: list[int]
) -> None:
    found, gold = played(script, order), played(other)
    assert result(found, gold).same is are_alike(found, gold)


@given(SCRIPTS, st.integers(0, 5), st.integers(0, 9), ORDERS)
def test_what_is_about_another_record_is_seen_unless_the_two_are_alike(
    script: list[Action], which: int, of: int, order: list[int]
) -> None:
    changed = list(script)
    if script:
        which %= len(script)
        made = OLD + sum(action.kind == "ticket" for action in script[:which])
        changed[which] = script[which]._replace(of=of % made)
    found, gold = played(changed, order), played(script)
    assert result(found, gold).same is are_alike(found, gold)


@given(SCRIPTS, ROUTES)
def test_what_an_idle_agent_misses_is_what_is_extra_if_nobody_asked_for_it(
    script: list[Action], route: list[str]
) -> None:
    board = played(script).model_copy(update={"route": route})
    idle, unasked = result(BASE, board), result(board, BASE)
    assert not idle.extra
    assert not unasked.missing
    assert bool(idle.missing) is bool(unasked.extra) is (normal(board) != normal(BASE))


@given(SCRIPTS, st.sampled_from(["ticket", "note", "watch", "log", "route", "old"]), ORDERS)
def test_one_thing_too_many_is_extra_and_the_goal_is_reached_still(
    script: list[Action], kind: str, order: list[int]
) -> None:
    draft = draft_of(played(script, order), DraftContext())
    if kind == "route":
        draft.route.insert(1, "z")
    elif kind == "old":
        draft.tickets["T-0"].title = "changed"
    else:
        act(draft, Action(kind, 0, "z"), "T-0", "T-999")
    told = result(commit(draft).state, played(script))
    assert not told.missing
    assert len(told.extra) == 1


@given(SCRIPTS, SCRIPTS, ROUTES, ROUTES)
def test_it_does_not_matter_what_the_states_share(
    script: list[Action], other: list[Action], route: list[str], another: list[str]
) -> None:
    found = played(script).model_copy(update={"route": route})
    gold = played(other).model_copy(update={"route": another})
    shared = result(found, gold)
    cold = compare(*copy.deepcopy((BASE, found)), copy.deepcopy(gold), **OPTIONS)
    read = compare(*(draft_of(each, DraftContext("to be read")) for each in (BASE, found, gold)), **OPTIONS)
    assert shared == cold == read
    assert shared.same is (result(gold, found).same)


@given(ROUTES, ROUTES)
def test_a_list_in_which_order_counts_is_the_same_only_if_it_is_equal(route: list[str], another: list[str]) -> None:
    found, gold = (BASE.model_copy(update={"route": each}) for each in (route, another))
    assert result(found, gold).same is (route == another)

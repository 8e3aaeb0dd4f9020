from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import BaseModel, JsonValue

from stateroom.errors import DefinitionError, ReadOnlyState
from stateroom.state import Comparison, DraftContext, State, commit, compare, draft_of
from tests.messages import raises


class Line(BaseModel):
    text: str
    at: int = 0


class Ticket(BaseModel):
    id: str = ""
    title: str = ""
    assignee: str | None = None
    tags: set[str] = set()
    lines: list[Line] = []


class Mail(BaseModel):
    to: str
    about: str | None = None
    text: str = ""
    sent_at: int = 0


class Project(BaseModel):
    name: str
    steps: dict[str, Line] = {}
    first: str | None = None
    members: list[str] = []
    rate: float = 0.0


class Lax(BaseModel):
    """A model whose author says that all of its kind are equal."""

    value: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lax)

    __hash__ = None  # type: ignore[assignment]


class Box(BaseModel):
    lax: Lax = Lax(value=0)


class Flag(BaseModel):
    number: bool | int = 0


class Office(State):
    tickets: dict[str, Ticket] = {}
    mails: dict[str, Mail] = {}
    projects: dict[str, Project] = {}
    orders: dict[int, Mail] = {}
    settled: dict[str, int] = {}
    watchers: dict[str, list[str]] = {}
    pinned: set[str] = set()
    route: list[str] = []
    log: list[Line] = []
    lead: str = ""
    rate: float = 0.0
    spot: tuple[int, Line] = (0, Line(text=""))
    note: JsonValue = None
    boxes: dict[str, Box] = {}
    flags: dict[str, Flag] = {}
    drafts: list[str] = []


BASE = Office(
    tickets={"T-1": Ticket(id="T-1", title="one"), "T-2": Ticket(id="T-2", title="two", lines=[Line(text="hm")])},
    settled={"A": 1},
    route=["a", "b", "c", "d"],
    log=[Line(text="x"), Line(text="y")],
    pinned={"T-1"},
    boxes={"a": Box(), "b": Box()},
    flags={"e": Flag(), "f": Flag()},
)
BY_CONTENT = ("tickets", "mails", "projects", "projects.*.steps", "projects.*.members", "orders", "log")
IGNORE = ("drafts", "mails.*.sent_at", "tickets.*.lines.*.at", "log.*.at")

Edit = Callable[[Office], Any]


def after(edit: Edit, base: Office = BASE) -> Office:
    draft = draft_of(base, DraftContext())
    edit(draft)
    return commit(draft).state


def nothing(_: Office) -> None:
    pass


def compared(found: Edit, gold: Edit) -> Comparison:
    return compare(BASE, after(found), after(gold), ignore=IGNORE, by_content=BY_CONTENT)


def put(**fields: Any) -> Edit:
    def edit(state: Office) -> None:
        for name, value in fields.items():
            here = getattr(state, name)
            here.update(value) if isinstance(here, dict | set) else setattr(state, name, value)

    return edit


def both(*edits: Edit) -> Edit:
    def edit(state: Office) -> None:
        for each in edits:
            each(state)

    return edit


def assign(ticket: str, who: str) -> Edit:
    return lambda state: setattr(state.tickets[ticket], "assignee", who)


def drop(ticket: str) -> Edit:
    return lambda state: state.tickets.pop(ticket)


def paths(differences: Any) -> list[tuple[object, ...]]:
    return [each.place for each in differences]


# What is missing, and what is extra


@pytest.mark.parametrize(
    ("found", "gold", "missing", "extra", "text"),
    [
        (assign("T-1", "ana"), assign("T-1", "ana"), 0, 0, "all as expected"),
        (nothing, assign("T-1", "ana"), 1, 0, "tickets['T-1'].assignee: expected \"ana\", found null"),
        (assign("T-1", "bob"), assign("T-1", "ana"), 1, 0, 'tickets[\'T-1\'].assignee: expected "ana", found "bob"'),
        (nothing, drop("T-1"), 1, 0, "expected to be gone"),
        (drop("T-1"), nothing, 0, 1, "found nothing"),
        (drop("T-1"), drop("T-1"), 0, 0, "all as expected"),
        (drop("T-1"), assign("T-1", "ana"), 1, 1, "missing"),
        (assign("T-1", "ana"), drop("T-1"), 1, 0, "expected to be gone"),
    ],
)
def test_what_was_not_done_is_missing_and_all_else_is_extra(
    found: Edit, gold: Edit, missing: int, extra: int, text: str
) -> None:
    result = compared(found, gold)
    assert (len(result.missing), len(result.extra)) == (missing, extra)
    assert text in result.text()


@pytest.mark.parametrize(
    "edit",
    [
        put(rate=1.5),
        put(rate=math.nan),
        put(spot=(1, Line(text=""))),
        put(spot=(0, Line(text="here"))),
        put(note={"a": [1, {"b": None}]}),
        put(note=[1]),
        lambda state: setattr(state.boxes["b"].lax, "value", 1),
        lambda state: setattr(state.flags["f"], "number", False),
        put(pinned={"T-2"}),
        put(settled={"B": 2}),
        put(settled={"A": 2}),
        lambda state: state.route.pop(1),
        lambda state: state.route.reverse(),
        lambda state: state.log.pop(0),
        lambda state: state.log.append(Line(text="x")),
        lambda state: setattr(state.log[0], "text", "z"),
        lambda state: state.tickets["T-2"].lines.append(Line(text="more")),
        lambda state: setattr(state.tickets["T-2"].lines[0], "text", "less"),
        lambda state: state.tickets["T-2"].tags.add("late"),
        lambda state: state.pinned.remove("T-1"),
    ],
)
def test_every_kind_of_change_is_seen(edit: Edit) -> None:
    undone, unwanted, done = compared(nothing, edit), compared(edit, nothing), compared(edit, edit)
    cold = compare(*(copy.deepcopy(each) for each in (BASE, BASE, after(edit))), ignore=IGNORE, by_content=BY_CONTENT)
    assert [str(each) for each in cold.missing] == [str(each) for each in undone.missing]
    assert undone.missing
    assert not undone.extra
    assert unwanted.extra
    assert not unwanted.missing
    assert done.same


def test_a_not_a_number_is_equal_to_itself_only() -> None:
    assert compared(put(rate=float("nan")), put(rate=float("nan"))).same
    assert compared(put(rate=0.5), put(rate=math.nan)).missing
    one, other = (put(projects={"p": Project(name="p", rate=float("nan"))}) for _ in range(2))
    assert compared(one, other).same


# New records


def test_keys_count_unless_a_place_is_compared_by_content() -> None:
    result = compared(put(settled={"C": 2}), put(settled={"B": 2}))
    assert paths(result.missing) == [("settled", "B")]
    assert paths(result.extra) == [("settled", "C")]
    new = put(mails={"m1": Mail(to="ana")})
    renamed = put(mails={"m2": Mail(to="ana")})
    assert not compare(BASE, after(new), after(renamed)).same


def test_what_a_record_says_of_its_own_id_does_not_count() -> None:
    one, other = Ticket(id="T-3", title="new"), Ticket(id="T-4", title="new")
    assert compared(put(tickets={"T-4": other}), put(tickets={"T-3": one})).same
    stray = put(tickets={"T-4": Ticket(id="T-9", title="new")})
    assert not compared(stray, put(tickets={"T-3": one})).same


def test_a_new_record_that_went_wrong_is_missing_and_extra_and_told_by_what_differs() -> None:
    right, wrong = (
        Mail(to="ana@example.com", text="Yes, on Monday."),
        Mail(to="ana@example.org", text="Yes, on Monday."),
    )
    result = compared(put(mails={"m1": wrong}), put(mails={"m5": right}))
    assert paths(result.missing) == [("mails",)]
    assert paths(result.extra) == [("mails", "m1")]
    assert result.text() == 'mails.m1.to: expected "ana@example.com", found "ana@example.org"'


SAID = "The meeting has been moved, as you asked on the phone this morning, to "


@pytest.mark.parametrize(
    ("found", "gold", "lines"),
    [
        (nothing, put(tickets={"T-3": Ticket(id="T-3", title="new", tags={"b", "a"})}),
         ['tickets: missing {"title": "new", "assignee": null, "tags": ["a", "b"], "lines": []}']),
        (put(mails={"m1": Mail(to="all")}), nothing,
         ['mails.m1: unexpected {"to": "all", "about": null, "text": ""}']),
        (put(lead=f"{SAID}Monday."), put(lead=f"{SAID}Tuesday."),
         ['lead: expected …"morning, to Tuesday.", found …"morning, to Monday."']),
        (put(pinned={"T-7", "T-8"}), lambda state: state.pinned.symmetric_difference_update({"T-1", "T-8"}),
         ["pinned['T-1']: expected to be gone, found \"T-1\"", "pinned['T-7']: unexpected \"T-7\""]),
    ],
)  # fmt: skip
def test_a_difference_is_told_by_its_content(found: Edit, gold: Edit, lines: list[str]) -> None:
    assert compared(found, gold).text().splitlines() == lines


def test_new_keys_are_seen_beside_deleted_ones() -> None:
    result = compared(both(drop("T-1"), put(tickets={"T-3": Ticket(id="T-3", title="three")})), nothing)
    assert paths(result.extra) == [("tickets", "T-1"), ("tickets", "T-3")]


# References between new records


def written(first: str, second: str, about: tuple[str, str], *, titles: tuple[str, str] = ("a", "a")) -> Edit:
    """Two new tickets, and two mails about them."""
    return both(
        put(tickets={key: Ticket(id=key, title=title) for key, title in zip((first, second), titles, strict=True)}),
        put(mails={f"m-{key}": Mail(to=to, about=key) for key, to in zip(about, ("ana", "bob"), strict=True)}),
    )


def test_one_wrong_mail_does_not_put_the_ticket_in_doubt() -> None:
    gold, wrong = (written("T-3", "T-4", about=("T-3", "T-4")) for _ in range(2))
    wrong = both(wrong, lambda state: setattr(state.mails["m-T-4"], "to", "eve"))
    result = compared(wrong, gold)
    assert paths(result.missing) == [("mails",)]
    assert paths(result.extra) == [("mails", "m-T-4")]


def test_a_choice_between_twins_is_kept_to() -> None:
    def pairs(first: str, second: str) -> Edit:
        tickets = {key: Ticket(id=key, title="t") for key in ("T-3", "T-4")}
        children = {f"T-{number}": Ticket(title="child", assignee=of) for number, of in enumerate((first, second), 5)}
        mails = {f"m{number}": Mail(to="all", about=f"T-{number}") for number in (5, 6)}
        return both(put(tickets={**tickets, **children}), put(mails=mails))

    assert compared(pairs("T-4", "T-3"), pairs("T-3", "T-4")).same
    assert not compared(pairs("T-4", "T-4"), pairs("T-3", "T-4")).same


@pytest.mark.parametrize(
    "mention",
    [
        lambda key: put(lead=key),
        lambda key: put(pinned={key}),
        lambda key: put(watchers={key: ["ana"]}),
        lambda key: lambda state: state.route.append(key),
        lambda key: lambda state: state.log.append(Line(text=key)),
        lambda key: put(note={"of": [key]}),
    ],
)
def test_whatever_mentions_a_new_record_must_mention_the_right_one(mention: Callable[[str], Edit]) -> None:
    def edit(first: str, second: str, mentioned: str) -> Edit:
        new = {first: Ticket(id=first, title="first"), second: Ticket(id=second, title="second")}
        return both(put(tickets=new), mention(mentioned))

    gold = edit("T-3", "T-4", "T-3")
    assert compared(edit("T-4", "T-3", "T-4"), gold).same
    assert compared(edit("T-8", "T-9", "T-8"), gold).same
    other = compared(edit("T-4", "T-3", "T-3"), gold)  # the same text, but another ticket
    assert other.missing
    assert "T-3" in other.text()
    assert compared(edit("T-8", "T-9", "T-9"), gold).missing


def test_what_reads_the_same_but_is_about_another_new_record_is_told_so() -> None:
    gold = written("T-3", "T-4", about=("T-3", "T-4"), titles=("a", "b"))
    found = written("T-3", "T-4", about=("T-3", "T-4"), titles=("b", "a"))
    assert compared(found, gold).text().splitlines() == [
        f'mails[\'m-{key}\']: {{"to": "{to}", "about": "{key}", "text": ""}} refers to another new record than expected'
        for key, to in (("T-3", "ana"), ("T-4", "bob"))
    ]
    lead = compared(both(found, put(lead="T-3")), both(gold, put(lead="T-3"))).text()
    assert 'lead: "T-3" refers to another new record than expected' in lead


def test_records_within_new_records_are_compared_by_content_too() -> None:
    def project(key: str, steps: dict[str, str], first: str) -> Edit:
        made = {step: Line(text=text) for step, text in steps.items()}
        return put(projects={key: Project(name="p", steps=made, first=first)})

    gold = project("p1", {"s1": "dig", "s2": "fill"}, "s1")
    assert compared(project("p9", {"s1": "fill", "s2": "dig"}, "s2"), gold).same
    assert not compared(project("p9", {"s1": "fill", "s2": "dig"}, "s1"), gold).same
    one, other = (put(projects={"p": Project(name="p", members=list(names))}) for names in ("ab", "ba"))
    assert compared(one, other).same
    assert not compare(BASE, after(one), after(other), by_content=("projects",)).same


def test_ids_may_be_numbers() -> None:
    def orders(**texts: int) -> Edit:
        return put(orders={key: Mail(to="shop", text=text) for text, key in texts.items()})

    assert compared(orders(nut=1, bolt=2), orders(bolt=1, nut=2)).same
    assert not compared(orders(nut=1, bolt=2), orders(bolt=1, gear=2)).same


# Lists


@pytest.mark.parametrize(
    ("found", "gold", "missing", "extra"),
    [
        ("abcd", "acd", ["route[1]"], []),
        ("acd", "abcd", [], ["route[1]"]),
        ("abd", "acd", ["route[1]"], ["route[2]"]),
        ("abcdZ", "abcdX", ["route[4]"], []),
        ("abcdXZ", "abcdX", [], ["route[5]"]),
        ("Zabcd", "abcdX", ["route[4]"], ["route[0]"]),
        ("aBcd", "abcD", ["route[3]"], ["route[1]"]),
    ],
)
def test_items_of_a_list_are_followed_where_they_move(
    found: str, gold: str, missing: list[str], extra: list[str]
) -> None:
    result = compared(put(route=list(found)), put(route=list(gold)))
    assert [f"{path[0]}[{path[1]}]" for path in paths(result.missing)] == missing
    assert [f"{path[0]}[{path[1]}]" for path in paths(result.extra)] == extra


def test_long_lists_are_compared_item_by_item() -> None:
    base = Office(route=[str(number) for number in range(2000)])
    turned = after(lambda state: state.route.reverse(), base)
    assert len(compare(base, base, turned).missing) == 2000
    assert compare(base, turned, turned).same
    assert paths(compare(base, after(lambda state: state.route.insert(1, "new"), base), base).extra) == [("route", 1)]


# What is ignored


def test_what_is_ignored_is_not_compared() -> None:
    touched = both(
        lambda state: state.drafts.append("x"),
        lambda state: setattr(state.tickets["T-2"].lines[0], "at", 5),
        lambda state: setattr(state.log[0], "at", 5),
    )
    assert compared(touched, nothing).same
    assert compare(BASE, after(touched), BASE, ignore=("drafts", "*.*.lines", "log.*")).same
    grown = both(put(settled={"B": 2}), lambda state: state.route.append("e"))
    assert compare(BASE, after(grown), BASE, ignore=("settled.*", "route.*")).same
    assert [each.place[0] for each in compare(BASE, after(touched), BASE, ignore=("drafts",)).extra] == [
        "tickets",
        "log",
    ]


def test_an_item_that_moves_up_is_known_though_what_is_ignored_in_it_changed() -> None:
    base = Office(log=[Line(text="a"), Line(text="b"), Line(text="c")])

    def edit(state: Office) -> None:
        del state.log[0]
        state.log[0].at = 7

    gold = after(lambda state: state.log.pop(0), base)
    assert compare(base, after(edit, base), gold, ignore=("log.*.at",)).same


@pytest.mark.parametrize(
    "patterns", [("draft",), ("tickets.*.titel",), ("tickets.title",), ("lead.name",), ("*.*.sent",), ("",), "drafts"]
)
def test_a_pattern_that_names_nothing_is_refused(patterns: Any) -> None:
    with raises(DefinitionError):
        compare(BASE, BASE, BASE, ignore=patterns)


def test_only_dicts_and_lists_are_compared_by_content() -> None:
    with raises(DefinitionError):
        compare(BASE, BASE, BASE, by_content=("tickets.*.title",))


def test_only_states_of_one_class_are_compared() -> None:
    class Other(State):
        lead: str = ""

    with raises(DefinitionError):
        compare(BASE, Other(), BASE)
    with raises(DefinitionError):
        compare(None, None, None)  # type: ignore[type-var]


# What verifiers have in hand


def test_a_draft_at_work_is_compared_as_it_is_now() -> None:
    draft = draft_of(BASE, DraftContext())
    draft.tickets["T-1"].assignee = "ana"
    assert compare(BASE, draft, after(assign("T-1", "ana"))).same


def test_what_a_comparison_hands_out_is_nobody_elses() -> None:
    new = after(put(projects={"p": Project(name="p", steps={"s": Line(text="a")})}))
    before = copy.deepcopy(new)
    [difference] = compare(BASE, new, BASE).extra
    difference.after["steps"]["s"]["text"] = "changed"
    assert new == before


def test_a_read_only_draft_stays_one() -> None:
    draft = draft_of(BASE, DraftContext("to be read"))
    compare(draft, draft, after(drop("T-1")))
    with pytest.raises(ReadOnlyState):
        draft.lead = "ana"


def test_a_long_list_of_differences_is_cut() -> None:
    many = put(settled={str(number): number for number in range(30)})
    text = compared(many, nothing).text()
    assert len(text.splitlines()) == 21
    assert text.endswith("… and 10 more")
    assert len(compared(many, nothing).text(most=100).splitlines()) == 30

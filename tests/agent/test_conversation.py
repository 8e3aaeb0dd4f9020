"""`Conversation` in an author's state."""

from __future__ import annotations

from typing import Any

import pytest

from stateroom import Sessions, State, tool
from stateroom.agent import Anchor, Context, Conversation, DropOldest, Estimate, Summarise
from stateroom.errors import ContextOverflow
from stateroom.model import Item, Scripted, function_call, function_call_output, message, text_of
from stateroom.session import Session
from stateroom.state import encode_patch
from stateroom.store import Store
from tests.environments import Unjudged


def user(text: str) -> Item:
    return {"type": "message", "role": "user", "content": text}


class Desk(State):
    talk: Conversation = Conversation()
    notes: list[str] = []


BOUND = Context(200, [DropOldest()])


class DeskEnvironment(Unjudged[Desk]):
    """Talk."""

    def seed(self, task: Any) -> Desk:
        desk = Desk()
        desk.talk.add({"role": "system", "content": "Be kind."})
        return desk

    @tool
    def say(self, state: Desk, text: str) -> dict[str, int]:
        """Say something."""
        state.talk.add(user(text))
        return {"total": state.talk.total}

    @tool
    def shorten(self, state: Desk) -> dict[str, int]:
        """Let the view start from what is shown now."""
        state.talk.compact(BOUND.fit_now(state.talk.window()))
        return {"shown": len(state.talk.shown)}

    @tool(effect="read")
    def view(self, state: Desk) -> list[dict[str, Any]]:
        """What a model is shown."""
        return state.talk.view(BOUND)

    @tool
    def meddle(self, state: Desk) -> None:
        """Change what a model is shown, and nothing else."""
        state.talk.view(BOUND)[0]["content"] = "changed"
        state.talk.items[0]["content"] = "changed"


async def say(session: Session, *texts: str) -> None:
    for text in texts:
        assert (await session.call("say", {"text": text})).ok


def texts_of(items: list[Item]) -> list[str]:
    return [text_of(item) for item in items]


class Same:
    """Counts the same for each item."""

    name = "same"

    def count(self, item: Item) -> int:
        return 7


def test_items_are_counted_as_they_come() -> None:
    talk = Conversation()
    talk.add(user("one"))
    talk.add([message("two"), function_call("f", "1")], pinned=True)
    count = Estimate().count
    assert talk.items == [user("one"), message("two"), function_call("f", "1")]
    assert [each.tokens for each in talk.said] == [count(item) for item in talk.items]
    assert talk.total == sum(count(item) for item in talk.items)
    assert talk.window().pinned == [False, True, True]
    talk.add(user("x" * 300), counter=Same())
    assert talk.said[-1].tokens == 7


def test_a_turn_begins_with_the_user() -> None:
    talk = Conversation()
    first = [user("one"), function_call("f", "1"), function_call_output("1", "ok"), message("done")]
    talk.add([message("hello"), *first, user("two")])
    assert talk.turns == [first, [user("two")]]
    assert Conversation().turns == []


def test_a_view_is_within_bounds_and_all_is_kept() -> None:
    talk = Conversation()
    talk.add([user(f"{n} {'x' * 60}") for n in range(20)])
    shown = talk.view(BOUND)
    assert 0 < len(shown) < 20
    assert shown == talk.items[-len(shown) :]
    assert len(talk.items) == 20
    assert talk.view(Context()) == talk.items
    assert len(talk.view(BOUND, Anchor(100, 150))) < len(shown)
    with pytest.raises(ContextOverflow):
        talk.view(Context(5))


async def test_a_summary_can_be_what_the_view_starts_from() -> None:
    talk = Conversation()
    talk.add([user("x" * 1500), user("y" * 300)])
    talk.compact(await Context(500, [Summarise(Scripted(["It was long."]))]).fit(talk.window()))
    talk.add(user("and now?"))
    summary, *rest = texts_of(talk.view(Context(500)))
    assert summary.endswith("It was long.")
    assert rest == ["y" * 300, "and now?"]
    assert len(talk.items) == 3


async def test_a_tool_adds_to_it_and_the_patch_has_only_what_was_added(store: Store) -> None:
    session = await Sessions(DeskEnvironment(), store).seed({})
    await say(session, *[f"text {n:03}" for n in range(300)])
    sizes = [len(encode_patch(entry.patch)) async for entry in session.log() if entry.kind == "call"]
    assert max(sizes) - min(sizes) <= 4  # its place, in more digits
    assert texts_of(session.state.talk.items)[-1] == "text 299"


async def test_a_view_starts_from_what_was_shown_before(store: Store) -> None:
    session = await Sessions(DeskEnvironment(), store).seed({})
    await say(session, *[f"{n:02} {'x' * 60}" for n in range(20)])
    before = (await session.call("view", {})).output
    assert (await session.call("shorten", {})).ok
    assert (await session.call("view", {})).output == before
    assert session.state.talk.since == 21
    await say(session, "new")
    after = (await session.call("view", {})).output
    assert after == [*before, user("new")]
    assert len(session.state.talk.items) == 22
    again = await Sessions(DeskEnvironment(), store).open(session.id)
    assert again.state.talk.view(BOUND) == after


async def test_a_view_is_data_of_its_own(store: Store) -> None:
    session = await Sessions(DeskEnvironment(), store).seed({})
    assert (await session.call("meddle", {})).ok
    assert texts_of(session.state.talk.items) == ["Be kind."]

"""Conversations for the laws of bounded views: any that a model and a user could have."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

from stateroom.agent import Context, Window
from stateroom.model import Item

SIZES = st.one_of(st.integers(0, 60), st.sampled_from([200, 900, 6000]))

IDS = st.sampled_from(["a", "b", "c", "d"])
"""Models repeat theirs."""


@dataclass
class Talk:
    """A conversation, and what belongs together in it. Each item has an `id`, which is its place."""

    items: list[Item] = field(default_factory=list)
    pairs: list[tuple[int, int]] = field(default_factory=list)
    """A call and its result."""
    followed: list[tuple[int, int]] = field(default_factory=list)
    """Reasoning, and the call or message that follows."""
    open_calls: list[int] = field(default_factory=list)
    """Calls at the very end that have no result yet, with the calls and results of the same answer."""
    pinned: set[int] = field(default_factory=set)

    def put(self, item: Item) -> int:
        place = len(self.items)
        self.items.append({**item, "id": place})
        return place

    @property
    def told(self) -> set[int]:
        """System and developer messages."""
        return {place for place, item in enumerate(self.items) if item.get("role") in ("system", "developer")}

    @property
    def must_stay(self) -> set[int]:
        """What was told, and whatever is tied to a pinned item or to the newest one."""
        groups = [group - self.told for group in self._groups() if group - self.told]
        return self.told.union(*groups[-1:], *[group for group in groups if group & self.pinned])

    def _groups(self) -> list[set[int]]:
        """The items that belong together: ranges that no bond leaves."""
        last = len(self.items) - 1
        bonds = [*self.pairs, *self.followed, *[(place, last) for place in self.open_calls]]
        groups, start = [], 0
        for place in range(len(self.items)):
            if not any(first <= place < end for first, end in bonds):
                groups.append(set(range(start, place + 1)))
                start = place + 1
        return groups

    def window(self, context: Context, beside: int = 0) -> Window:
        window = Window(beside)
        window.add(self.items, context.count(self.items), self.pinned)
        return window


def _message(role: str, size: int, typed: bool = True) -> Item:
    return {**({"type": "message"} if typed else {}), "role": role, "content": "x" * size}


@st.composite
def talks(draw: Any) -> Talk:
    talk = Talk()
    kinds = ["user", "assistant", "system", "developer", "step", "step", "step"]
    for kind in draw(st.lists(st.sampled_from(kinds), max_size=25)):
        if kind == "step":
            _step(draw, talk, ended=True)
        else:
            if kind == "assistant" and draw(st.booleans()):
                talk.followed.append((_reasoning(draw, talk), len(talk.items)))
            talk.put(_message(kind, draw(SIZES), draw(st.booleans())))
    if draw(st.booleans()):
        _step(draw, talk, ended=False)
    if talk.items:
        talk.pinned = set(draw(st.lists(st.integers(0, len(talk.items) - 1), max_size=3)))
    return talk


def _reasoning(draw: Any, talk: Talk) -> int:
    return talk.put({"type": "reasoning", "summary": [{"type": "summary_text", "text": "x" * draw(SIZES)}]})


def _step(draw: Any, talk: Talk, *, ended: bool) -> None:
    """An answer with calls, and what they came to; if it has not ended, some results are still to come."""
    begun = len(talk.items)
    reasons = draw(st.booleans())
    if reasons:
        talk.followed.append((_reasoning(draw, talk), len(talk.items)))
    calls = []
    for call_id in draw(st.lists(IDS, min_size=1, max_size=4)):
        arguments = "x" * draw(SIZES)
        place = talk.put({"type": "function_call", "call_id": call_id, "name": "f", "arguments": arguments})
        calls.append((place, call_id))
        if draw(st.integers(0, 9)) == 0:
            talk.put(_message("system", draw(SIZES)))
    # Calls of the same id are answered in their order; others in any.
    order = draw(st.permutations([call_id for _, call_id in calls]))
    for call_id in order if ended else order[: draw(st.integers(0, len(order) - 1))]:
        call = next(call for call in calls if call[1] == call_id)
        calls.remove(call)
        result = {"type": "function_call_output", "call_id": call_id, "output": "x" * draw(SIZES)}
        talk.pairs.append((call[0], talk.put(result)))
    if calls:
        talk.open_calls = [place for place in range(begun, len(talk.items)) if "role" not in talk.items[place]]

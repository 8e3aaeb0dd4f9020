"""Two environments, two stores, two agents in one process: none sees what is another's."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stateroom import Environment, Sessions, State, open_store, tool
from stateroom.errors import SessionError, UnknownSession
from stateroom.gallery import CounterEnvironment, ExtractionEnvironment
from stateroom.rollout import run
from stateroom.store import Store
from tests.environments import Unjudged
from tests.messages import raises
from tests.plans import noisy_run
from tests.rows import comparable

pytestmark = pytest.mark.every_store


class Note(State):
    text: str = ""


class Diary(State):
    pages: list[str] = []


class NoteEnvironment(Unjudged[Note]):
    """Keeps a text, and a diary of each user."""

    def __init__(self, greeting: str = "hello") -> None:
        self.greeting = greeting

    @tool
    def write(self, state: Note, user: Diary, app: Diary, text: str) -> list[list[str]]:
        """Write a text into all that there is."""
        state.text = f"{self.greeting}, {text}"
        user.pages.append(text)
        app.pages.append(text)
        return [user.pages, app.pages]


class OtherNoteEnvironment(NoteEnvironment):
    """The same under another name."""


ANN = {"user": "ann"}


async def test_environments_in_one_store_share_neither_users_nor_app_nor_sessions(store: Store) -> None:
    notes, others = Sessions[Note](NoteEnvironment(), store), Sessions[Note](OtherNoteEnvironment("hi"), store)
    note, other = await notes.seed(ANN), await others.seed(ANN)
    assert (await note.call("write", {"text": "a"})).output == [["a"], ["a"]]
    assert (await other.call("write", {"text": "b"})).output == [["b"], ["b"]]
    assert (note.state.text, other.state.text) == ("hello, a", "hi, b")
    for wrong, session in ((notes, other), (others, note)):
        with raises(SessionError):
            await wrong.open(session.id)


async def test_one_environment_in_two_stores_has_two_of_each(store: Store) -> None:
    environment = NoteEnvironment()
    async with open_store("memory://") as elsewhere:
        here, there = Sessions[Note](environment, store), Sessions[Note](environment, elsewhere)
        one, two = [await each.seed(ANN, session_id="same", seed=1) for each in (here, there)]
        assert (await one.call("write", {"text": "a"}, call_id="c1")).output == [["a"], ["a"]]
        assert two.state.text == ""
        assert (await two.call("write", {"text": "b"}, call_id="c1")).output == [["b"], ["b"]]
        assert (one.state.text, two.state.text) == ("hello, a", "hello, b")
        alone = await here.seed(ANN)
        with pytest.raises(UnknownSession):
            await there.open(alone.id)


async def test_agents_at_work_side_by_side_do_as_each_does_alone(tmp_path: Path, url: str) -> None:
    for folder in ("alone", "together"):
        (tmp_path / folder).mkdir()
    kinds: list[type[Environment[Any, Any]]] = [CounterEnvironment, ExtractionEnvironment]
    alone = [await run(noisy_run(kind, 6, tmp_path / "alone", "memory://")) for kind in kinds]
    stores = ("memory://", url)
    plans = [noisy_run(kind, 6, tmp_path / "together", store) for kind, store in zip(kinds, stores, strict=True)]
    together = await asyncio.gather(*map(run, plans))
    for kind in kinds:
        one, other = (comparable(tmp_path / folder / f"{kind.name}.jsonl") for folder in ("alone", "together"))
        assert one == other
    assert [report.failed for report in (*alone, *together)] == [0] * 4
    assert len({row["_stateroom_session"] for report in together for row in report.rows}) == 12

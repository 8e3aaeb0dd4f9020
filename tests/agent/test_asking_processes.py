"""Agents in several processes, and in such as die without warning."""

from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest

from stateroom import Sessions
from stateroom.agent import Agent, run
from stateroom.session import Session
from stateroom.store import Store
from tests.agent.asking import Office, OfficeEnvironment, letters, says
from tests.processes import Start, line, starting


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'rooms.db'}"


@pytest.fixture
def outbox(tmp_path: Path) -> Path:
    """A file outside."""
    return tmp_path / "outbox"


@pytest.fixture
async def session(store: Store, outbox: Path) -> Session[Office]:
    return await Sessions[Office](OfficeEnvironment(), store).seed({"outbox": str(outbox)})


@pytest.fixture
async def start(url: str, session: Session[Office]) -> AsyncIterator[Start]:
    """Starts a process with a job on the session."""
    async with starting("-m", "tests.agent.asking", url) as start:

        def on_session(job: str, *more: str) -> Awaitable[Process]:
            return start(job, session.id, *more)

        yield on_session


async def kill(process: Process) -> None:
    process.kill()
    await process.communicate()


async def reopened(store: Store, session: Session[Office]) -> tuple[Session[Office], list[str]]:
    """The session as another process would have it, and what its tools begin from now on."""
    environment = OfficeEnvironment()
    return await Sessions[Office](environment, store).open(session.id), environment.ran


ENDS = {"send": (0, 1, ["sent"]), "among": (300, 0, ["before", "after"])}
"""What was paid, sent and noted in the end."""

CASES = pytest.mark.parametrize(("name", "question"), [("send", "Question 0?"), ("among", "Pay 300?")])


@CASES
async def test_who_asks_may_die_and_another_provides_and_a_third_goes_on(
    start: Start, store: Store, session: Session[Office], outbox: Path, name: str, question: str
) -> None:
    asker = await start("act", name)
    assert await line(asker) == f"waiting {question}"
    await kill(asker)
    assert await line(await start("provide", "yes")) == "executing"
    final, ran = await reopened(store, session)
    assert (await run(Agent(says(name)), final)).status == "completed"
    assert (final.state.paid, letters(outbox), final.state.notes) == ENDS[name]
    assert "note before" not in ran
    again, ran = await reopened(store, session)
    assert ((await run(Agent(says(name)), again)).output, ran) == ([], [])


@CASES
async def test_who_dies_before_its_question_is_noted_has_it_asked_again(
    start: Start, store: Store, session: Session[Office], outbox: Path, name: str, question: str
) -> None:
    asker = await start("die_asking", name)
    assert await line(asker) == "stuck"
    await kill(asker)
    final, ran = await reopened(store, session)
    assert (await run(Agent(says(name)), final)).question == question
    assert "note before" not in ran
    assert "send 1" not in ran  # what was asked is in the log
    await final.agent.answer("yes")
    assert (await run(Agent(says(name)), final)).status == "completed"
    assert (final.state.paid, letters(outbox), final.state.notes) == ENDS[name]


async def test_a_process_that_dies_with_the_answer_in_hand_leaves_it_to_the_next(
    start: Start, store: Store, session: Session[Office], outbox: Path
) -> None:
    assert (await run(Agent(says("send")), session)).status == "waiting"
    await session.agent.answer("yes")
    doomed = await start("get_stuck")  # the letter is sent before the model is asked again
    assert await line(doomed) == "asked"
    await kill(doomed)
    assert letters(outbox) == 1
    final, _ = await reopened(store, session)
    assert (await run(Agent(says("send")), final)).status == "completed"
    assert letters(outbox) == 1

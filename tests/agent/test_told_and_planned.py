"""An environment's instructions and an agent's plan: in the log, on every store, after a crash, and in forks."""

import asyncio
import json
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from stateroom import Sessions, open_store
from stateroom.agent import TaskState, recall, run
from stateroom.model import Item, function_call
from stateroom.rollout import replay_session
from stateroom.session import Session
from stateroom.store import Store
from tests.agent.trail import ROW, SCRIPT, Shown, TrailEnvironment, Walk, Walking, ended, shown_by, steps, walker
from tests.processes import line, starting
from tests.watched import Died, MortalStore


async def seeded(store: Store) -> Session[Walk]:
    return await Sessions[Walk](TrailEnvironment(), store).seed(ROW, seed=1, began=0.0)


async def reopened(store: Store, session: Session[Walk]) -> Session[Walk]:
    """The session as another process would have it."""
    return await Sessions[Walk](TrailEnvironment(), store).open(session.id)


async def walk(session: Session[Walk], script: list[list[Item]], messages: int | None = None) -> dict[int, Shown]:
    """Run an agent; gives what its model was shown for each answer."""
    model = Walking(script)
    assert (await run(walker(model, messages), session)).status == "completed"
    return model.shown


async def said(session: Session[Walk]) -> tuple[list[Item], list[TaskState]]:
    found = await recall(session.agent)
    return found.items, found.plans


CALLS = st.one_of(
    st.builds(lambda miles: function_call("walk", "w", miles=miles), st.integers(-1, 2)),
    st.just(function_call("look", "l")),
    st.builds(lambda number: steps(*"abc"[:number]), st.integers(0, 3)),
    st.builds(lambda failed: ended("so", failed=failed), st.booleans()),
)

SCRIPTS = st.lists(st.lists(CALLS, min_size=1, max_size=3), max_size=6)

BOUNDS = st.sampled_from([None, 14])


@given(SCRIPTS, BOUNDS)
def test_the_log_tells_what_a_model_was_shown_for_each_answer(script: list[list[Item]], messages: int | None) -> None:
    async def check() -> None:
        async with open_store("memory://") as store:
            session = await seeded(store)
            shown = await walk(session, script, messages)
            assert shown_by(await session.agent.said())[:-1] == [each[:2] for each in shown.values()]

    asyncio.run(check())


@given(SCRIPTS, BOUNDS, st.integers(1, 20), st.booleans())
def test_a_process_that_dies_at_a_commit_leaves_the_next_one_the_same_to_show_and_to_plan(
    script: list[list[Item]], messages: int | None, commits: int, before: bool
) -> None:
    async def check() -> None:
        async with open_store("memory://") as store:
            whole, session = await seeded(store), await seeded(store)
            shown = await walk(whole, script, messages)
            here = await reopened(MortalStore(store, commits, after=not before), session)
            model = Walking(script)
            try:
                await run(walker(model, messages), here)
            except Died:
                model.shown |= await walk(await reopened(store, session), script, messages)
            final = await reopened(store, session)
            assert model.shown == shown
            assert await said(final) == await said(whole)
            told = [entry.facts.get("instructions") async for entry in final.log(kinds={"message"})]
            texts = ["", *(text for text in told if text is not None)]
            assert all(old != new for old, new in pairwise(texts))  # only what changed is stored

    asyncio.run(check())


@given(SCRIPTS, BOUNDS, st.data())
def test_a_fork_and_a_rewind_go_on_with_the_instructions_and_the_plan_of_then(
    script: list[list[Item]], messages: int | None, data: st.DataObject
) -> None:
    async def check() -> None:
        async with open_store("memory://") as store:
            session = await seeded(store)
            shown = await walk(session, script, messages)
            whole = await said(session)
            at = data.draw(st.integers(1, session.revision))
            fork = await session.fork(at)
            await session.rewind(at)
            for each in (fork, await reopened(store, session)):
                again = await walk(each, script, messages) if each.agent.status.phase != "done" else {}
                assert {step: shown[step] for step in again} == again
                assert await said(each) == whole

    asyncio.run(check())


async def test_a_session_with_instructions_and_a_plan_can_be_replayed(store: Store) -> None:
    session = await seeded(store)
    await walk(session, SCRIPT)
    replay = await replay_session(TrailEnvironment(), store, session.id)
    assert (replay.differences, replay.calls) == ([], 2)


@pytest.mark.every_store(shared=True)
async def test_instructions_and_plans_survive_kill_9(url: str) -> None:
    async with open_store(url) as store, starting("-m", "tests.agent.trail", url) as start:
        whole, session = await seeded(store), await seeded(store)
        shown = await walk(whole, SCRIPT, 9)
        for killed_at in (0, 3, 6):
            process = await start(session.id)
            assert process.stdin is not None
            while True:
                step, *told = json.loads(await line(process))
                assert told == [*json.loads(json.dumps(shown[step]))]
                assert shown_by(await (await reopened(store, session)).agent.said())[-1][0] == told[0]
                if step == killed_at:
                    break
                process.stdin.write(b"go\n")
            process.kill()
            await process.communicate()
        final = await reopened(store, session)
        await walk(final, SCRIPT, 9)
        assert await said(final) == await said(whole)

"""What sessions are listed by: a head has the phase of the agent and the reward that its log tells."""

import random
from pathlib import Path

import pytest

from stateroom import Session, Sessions, open_store
from stateroom.session import History, Update
from stateroom.store import Store
from tests.session.stored_sessions import Notes, NotesEnvironment
from tests.watched import WatchedStore


async def check(store: Store) -> None:
    """Compare each head with its log."""
    for head in await store.heads():
        told = History(store)
        entries = [entry async for entry in told.entries(head.id)]
        assert (head.phase or "idle") == (await told.document(head.id)).progress.agent.phase
        assert head.phase is not None or not any("agent" in entry.facts for entry in entries)
        own = [entry.facts["verdict"]["reward"] for entry in entries if entry.kind == "verdict"]
        assert head.reward == (own[-1] if own and entries[-1].revision > head.parent_revision else None)


async def act(session: Session[Notes], chance: random.Random) -> Session[Notes]:
    """Do one thing in a session; the session to go on with."""
    match chance.choice(["add", "add", "say", "say", "rewind", "fork"]):
        case "add":
            assert (await session.call("add", {"text": "y" * chance.choice([1, 60_000])})).ok
        case "say":
            await session.state_at()  # after a rewind, the status of the agent is read with it
            events = {"idle": "new_task", "planning": "plan_ready", "executing": "task_complete", "done": "new_task"}
            await session.agent.say(Update([], "agent", (events[session.agent.status.phase],)))
        case "rewind":
            await session.rewind(chance.randint(1, session.revision))
        case "fork":
            return await session.fork(chance.randint(1, session.revision))
    return session


@pytest.mark.parametrize("size", [0, 2000])
async def test_the_phase_and_the_reward_are_those_of_the_log(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateroom.session.history.ENTRIES_PER_PAGE_BACK", 3)
    async with open_store(f"sqlite:///{tmp_path}/rooms.db") as store:
        for seed in range(4):
            chance = random.Random(seed)
            session = await Sessions(NotesEnvironment(), store).seed({"size": size})
            for _ in range(25):
                if chance.random() < 0.5:  # another process goes on with it
                    session = await Sessions(NotesEnvironment(), store).open(session.id)
                session = await act(session, chance)
            await session.verify()
            await check(store)


async def test_a_fork_has_the_phase_of_then_and_no_reward(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/rooms.db") as store:
        session = await Sessions(NotesEnvironment(), store).seed({})
        assert (await store.head((await session.fork()).id)).phase is None
        await session.agent.say(Update([], "user", ("new_task",)))
        await session.agent.say(Update([], "agent", ("plan_ready", "task_complete")))
        await session.verify()
        forks = [await store.head((await session.fork(at)).id) for at in (1, 2, 3, 4)]
        assert [head.phase for head in forks] == ["idle", "planning", "done", "done"]
        assert [head.reward for head in forks] == [None] * 4
        judged = await store.head(session.id)
        assert (judged.phase, judged.reward) == ("done", 1.0)


async def test_a_rewind_of_a_large_state_sets_the_phase_and_reads_no_state(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path}/rooms.db") as store:
        session = await Sessions(NotesEnvironment(), store).seed({"size": 2000})
        await session.agent.say(Update([], "user", ("new_task",)))
        for _ in range(40):
            await session.call("add", {"text": "y"})
        await session.agent.say(Update([], "agent", ("plan_ready",)))
        watched = WatchedStore(store)
        session = await Sessions(NotesEnvironment(), watched).open(session.id)
        loads = watched.counts["load"]
        await session.rewind(20)
        fork = await session.fork(30)
        assert watched.counts["load"] == loads
        assert (await store.head(session.id)).phase == (await store.head(fork.id)).phase == "planning"

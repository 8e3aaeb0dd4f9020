"""Pruning: what stays reads as before, and what has gone is said to have gone."""

import asyncio
import sqlite3
import tempfile
import time
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from stateroom import Sessions, open_store
from stateroom.errors import SessionSealed, StoreUnavailable, UnknownRevision
from stateroom.session import Cut, LogReader, Retention, RetentionPolicy, Session, Update
from stateroom.state import lines
from stateroom.store import HeadFilter, Store
from tests.environments import TallyEnvironment
from tests.examples import share
from tests.messages import raises
from tests.patience import PATIENCE
from tests.session.stored_sessions import Notes, family, go_on, new, problems, prune, sessions_of
from tests.session.travel_model import Run, calls
from tests.watched import WatchedStore

pytestmark = [pytest.mark.every_store, pytest.mark.usefixtures("many_snapshots")]


async def reopened(store: Store, session: str) -> Session[Notes]:
    """A session as another process sees it."""
    return await sessions_of(store).open(session, include_closed=True)


async def revisions(session: Session[Notes]) -> list[int]:
    return [entry.revision async for entry in session.log()]


async def test_the_last_revisions_stay(store: Store) -> None:
    session = await new(store, 50)
    cut = (await prune(store, keep=10))[session.id]
    assert cut.below is not None
    assert 35 <= cut.below <= 40
    assert cut.entries == cut.below - 1
    other = await reopened(store, session.id)
    assert other.task.user == "ann"
    assert list(other.state.notes) == [f"note {revision}" for revision in range(1, 50)]
    assert await revisions(other) == [1, *range(cut.below + 1, 51)]
    for revision in range(cut.below, 51):
        assert len((await other.state_at(revision)).notes) == revision - 1
    assert await problems(store) == {}
    assert await prune(store, keep=10) == {}


async def test_the_past_that_has_gone_is_said_to_have_gone(store: Store) -> None:
    session = await new(store, 50)
    checkpointed = await session.checkpoint("late")
    cut = (await prune(store, keep=10))[session.id]
    other = await reopened(store, session.id)
    assert cut.below is not None
    for revision in (1, 2, cut.below - 1):
        for attempt in (other.state_at, other.rewind, other.fork):
            with raises(UnknownRevision):
                await attempt(revision)
    with raises(UnknownRevision):
        await other.state_at(60)
    await other.rewind(to=cut.below)
    assert len(other.state.notes) == cut.below - 1
    fork = await other.fork(at=checkpointed)
    assert len((await reopened(store, fork.id)).state.notes) == 49
    assert await problems(store) == {}


async def test_what_a_process_has_in_memory_stays(store: Store) -> None:
    session = await new(store, 30)
    cut = (await prune(store, keep=0))[session.id]
    assert cut.below is not None
    assert cut.below <= 22  # eight are in memory
    for revision in range(cut.below, 31):  # which it goes back to without reading
        await session.rewind(to=revision)
        assert len((await reopened(store, session.id)).state.notes) == revision - 1
    with pytest.raises(UnknownRevision):
        await session.rewind(to=cut.below - 1)


async def test_a_process_that_was_away_reads_on(store: Store) -> None:
    away = await new(store, 5)
    here = await reopened(store, away.id)
    await go_on(here, 40)
    assert await prune(store, keep=10)
    await away.call("add", {"text": "back"})
    assert list(away.state.notes) == [*(f"note {revision}" for revision in range(1, 45)), "back"]
    for revision in range(1, 6):  # which it had at hand when it went away
        with raises(UnknownRevision):
            await away.rewind(to=revision)
    assert await problems(store) == {}


async def test_rewinds_keep_what_they_lead_to(store: Store) -> None:
    session = await new(store, 30)
    await session.rewind(to=9)
    await go_on(session, 20)
    (cut,) = (await prune(store, keep=25)).values()
    assert cut.below is not None
    assert cut.below <= 9
    assert len((await reopened(store, session.id)).state.notes) == 28
    (later,) = (await prune(store, keep=10)).values()  # the rewind itself goes
    assert later.below is not None
    assert later.below > 31
    assert len((await reopened(store, session.id)).state.notes) == 28


async def test_the_verdict_stays(store: Store) -> None:
    environment = TallyEnvironment()
    session = await Sessions(environment, store).seed({})
    for _ in range(30):
        await session.call("add")
    environment.go_on.clear()
    others = [await Sessions(environment, store).open(session.id) for _ in range(30)]
    under_way = [asyncio.create_task(other.call("send")) for other in others]
    async with asyncio.timeout(PATIENCE):
        while environment.runs < 60:
            await environment.begun.wait()
            environment.begun.clear()
    await session.verify()
    environment.go_on.set()
    assert {result.ok for result in await asyncio.gather(*under_way)} == {False}
    (cut,) = (await prune(store, keep=10)).values()
    assert cut.below is not None
    assert cut.below <= 61
    other = await Sessions(environment, store).open(session.id)
    assert other.verdict is not None
    with pytest.raises(SessionSealed):
        await other.call("add")


async def test_a_change_of_a_shared_state_that_is_still_to_be_entered_is_not_forgotten(store: Store) -> None:
    watched = WatchedStore(store)
    session = await new(watched, 5)
    await session.call("meet")
    shared = (await store.heads(HeadFilter(environment="notes:user")))[0].id
    entered = (await store.head(shared)).revision

    async def die_before_it_is_entered(operation: str, name: str, *given: Any) -> None:
        if operation == "append" and name == shared and given[0].entry.kind == "call":
            raise StoreUnavailable("gone")

    watched.before = die_before_it_is_entered
    assert (await session.call("meet")).ok
    watched.before = None
    decided = session.revision
    await go_on(session, 40)
    (cut,) = (await prune(store, keep=10)).values()
    assert cut.below is not None
    assert cut.below < decided
    assert (await store.head(shared)).revision == entered + 1  # the intent
    other = await sessions_of(store).seed({"user": "ann"})
    assert (await other.call("meet")).output == 3
    assert (await prune(store, keep=10))[session.id].below > decided  # type: ignore[operator]


async def test_only_what_is_unused_is_cut(store: Store) -> None:
    session = await new(store, 50)
    used = session.revision
    last = [entry async for entry in session.log()][-1].at
    assert await prune(store, now=lambda: last + 59.0, keep=10, unused=60.0) == {}
    assert (await store.head(session.id)).revision == used
    assert set(await prune(store, now=lambda: last + 61.0, keep=10, unused=60.0)) == {session.id}


async def test_closed_sessions_are_removed_unless_forks_read_them(store: Store) -> None:
    parent, fork, closed, grandchild = await family(store)
    live, forked = await new(store, 2), await new(store, 2)
    only_fork = await forked.fork()
    for session in (only_fork, forked):
        await session.close()
    await (await reopened(store, parent)).close()
    now = time.time()
    assert await prune(store, now=lambda: now + 60, closed=3600.0) == {}
    cuts = await prune(store, now=lambda: now + 7200, closed=3600.0)
    assert set(cuts) == {closed, only_fork.id, forked.id}
    assert {cut.below for cut in cuts.values()} == {None}
    await store.sweep(1.0)  # one that was listed before its fork goes with it
    assert {head.id for head in await store.heads()} == {parent, fork, grandchild, live.id}
    assert await problems(store) == {}


async def test_a_session_that_a_worker_holds_is_left_alone(store: Store) -> None:
    held = await new(store, 50)
    async with held.lease():
        assert await prune(store, keep=10) == {held.id: (await planned(store, keep=10))[held.id]._replace(
            head=(await store.head(held.id)), entries=0, in_use=True
        )}  # fmt: skip
        await held.rewind(to=3)
    assert len((await reopened(store, held.id)).state.notes) == 2
    head = await store.head(held.id)
    assert not head.leased(time.time())


async def planned(store: Store, **policy: Any) -> dict[str, Cut]:
    plan = Retention(store, RetentionPolicy(**policy), time.time).plan()
    return {head.id: cut async for head, cut in plan if cut is not None}


async def test_a_plan_says_what_would_go_and_changes_nothing(store: Store) -> None:
    await family(store)
    before = {head.id: await store.maintenance.export(head.id) for head in await store.heads()}
    plan = await planned(store, keep=10, closed=0.0)
    assert {head.id: await store.maintenance.export(head.id) for head in await store.heads()} == before
    made = await prune(store, keep=10, closed=0.0)
    assert {name: (cut.below, cut.entries) for name, cut in made.items()} == {
        name: (cut.below, cut.entries) for name, cut in plan.items()
    }
    assert await problems(store) == {}


@pytest.mark.parametrize("what", ["rewind", "fork"])
async def test_what_comes_between_the_plan_and_the_cut_is_respected(store: Store, what: str) -> None:
    session, watched = await new(store, 50), WatchedStore(store)

    async def just_before(operation: str, *_: object) -> None:
        if operation == "lease":
            await (session.rewind(to=3) if what == "rewind" else session.fork(at=3))

    watched.before = just_before
    assert await prune(watched, keep=10) == {}
    for head in await store.heads():
        await reopened(store, head.id)
    assert await problems(store) == {}


async def test_writers_lose_nothing_while_the_store_is_pruned(store: Store) -> None:
    session = await new(store, 30)
    writers = [await reopened(store, session.id) for _ in range(3)]

    ten_more = asyncio.Event()

    async def write(writer: Session[Notes], name: int) -> None:
        for number in range(30):
            assert (await writer.call("add", {"text": f"{name}/{number}"}, call_id=f"{name}/{number}")).ok
            if number % 10 == 9:
                ten_more.set()

    async def prune_now_and_then() -> None:
        while True:
            await ten_more.wait()
            ten_more.clear()
            cuts.update(await prune(store, keep=8))

    cuts: dict[str, Cut] = {}
    pruning = asyncio.create_task(prune_now_and_then())
    await asyncio.gather(*(write(writer, name) for name, writer in enumerate(writers)))
    pruning.cancel()
    await asyncio.wait([pruning])
    assert cuts[session.id].entries
    notes = list((await reopened(store, session.id)).state.notes)
    assert sorted(notes[29:]) == sorted(f"{name}/{number}" for name in range(3) for number in range(30))
    assert await problems(store) == {}


async def test_the_transcript_of_a_pruned_session(store: Store) -> None:
    session = await new(store, 30)
    await session.rewind(to=25)
    fork = await session.fork()
    await go_on(fork, 1)
    (cut,) = (await prune(store, keep=10)).values()
    assert cut.below is not None
    told = [(entry.revision, lines(changes)) async for entry, changes in LogReader(store, fork.id).read()]
    assert [revision for revision, _ in told] == [1, *range(cut.below + 1, 33)]
    assert told[0][1] == []
    assert told[1][1] == [f'notes: "note {cut.below}" added at its end']
    assert told[-2][1] == [f'notes[{at}]: "note {at + 1}" → gone' for at in range(24, 29)]
    assert told[-1][1] == ['notes: "note 31" added at its end']
    pages = LogReader(store, session.id, after=1)
    assert [step async for step in pages.read(until=5)] == []
    assert pages.revision == 5  # so that the next page begins there
    rest = [(entry.revision, lines(changes)) async for entry, changes in pages.read()]
    assert rest == told[1:-1]
    assert [entry.revision async for entry, _ in LogReader(store, session.id, after=28).read()] == [29, 30, 31]


async def test_the_transcript_of_a_pruned_fork(store: Store) -> None:
    parent = await new(store, 5)
    fork = await parent.fork()
    await go_on(fork, 30)
    below = (await prune(store, keep=10))[fork.id].below
    assert below is not None
    told = [(entry.revision, lines(changes)) async for entry, changes in LogReader(store, fork.id).read()]
    assert told[1:] == [
        (revision, [f'notes: "note {revision - 1}" added at its end'])
        for revision in (2, 3, 4, 5, 6, *range(below + 1, 36))
    ]
    await fork.rewind(to=below)
    *_, (_, changes) = [step async for step in LogReader(store, fork.id).read()]
    assert changes[0]["text"] == f'notes[{below - 1}]: "note {below}" → gone'


async def test_sessions_that_were_forked_from_each_other_do_not_go_on_for_ever(tmp_path: Path) -> None:
    async with open_store(f"sqlite:///{tmp_path / 'rooms.db'}") as store:
        parent = await new(store, 30)
        fork = await parent.fork()
        await go_on(fork, 30)
    with sqlite3.connect(tmp_path / "rooms.db") as connection:
        connection.execute("UPDATE sessions SET parent = ?, parent_revision = 9 WHERE id = ?", (fork.id, parent.id))
    connection.close()
    async with open_store(f"sqlite:///{tmp_path / 'rooms.db'}") as store:
        await prune(store, keep=10)
        assert set(await problems(store)) == {parent.id, fork.id}


class PrunedRun(Run):
    """A run of which the past may have gone."""

    async def step(self, kind: str, *more: Any) -> None:
        with suppress(UnknownRevision):
            await super().step(kind, *more)

    async def what_is_there(self) -> dict[str, tuple[set[int], set[int]]]:
        """The revisions of each session that can be read, and those in its log; they are as they were."""
        found = {}
        for name, branch in self.branches.items():
            session = self.handles[name]
            readable = set()
            for revision, state in enumerate(branch.past, 1):
                with suppress(UnknownRevision):
                    assert (await session.state_at(revision)).model_dump() == state
                    readable.add(revision)
            assert session.state.model_dump() == branch.past[-1]
            log = [entry async for entry in session.log()]
            assert [entry.kind for entry in log] == [branch.revision_kinds[entry.revision - 1] for entry in log]
            found[name] = readable, {entry.revision for entry in log}
        return found

    async def prune(self, keep: int) -> None:
        before = await self.what_is_there()
        await prune(self.store, keep=keep)
        await self.reopen(False)
        after = await self.what_is_there()
        for name, (readable, logged) in before.items():
            oldest = len(self.branches[name].past) - keep
            assert {revision for revision in readable if revision >= oldest} <= after[name][0] <= readable
            assert {revision for revision in logged if revision > oldest or revision == 1} <= after[name][1] <= logged
        assert await problems(self.store) == {}


WHICH = st.sampled_from([0, 0, 0, 1, 1, 2, 3])
STEPS = st.one_of(
    *[st.tuples(st.just("call"), WHICH, calls, st.none())] * 4,
    st.tuples(st.just("rewind"), WHICH, st.integers(0, 50)),
    st.tuples(st.just("fork"), WHICH, st.none() | st.integers(0, 50)),
    st.tuples(st.just("checkpoint"), WHICH),
)


@settings(max_examples=share(0.4))
@given(
    kind=st.sampled_from(["memory", "memory", "sqlite"]),
    programs=st.lists(st.lists(STEPS, min_size=10, max_size=30), min_size=1, max_size=3),
    keep=st.integers(0, 8),
    smallest=st.sampled_from([50, 100, 200]),
)
def test_whatever_is_pruned_all_that_stays_reads_as_it_was(
    kind: str, programs: list[list[Any]], keep: int, smallest: int
) -> None:
    async def run(url: str) -> None:
        async with AsyncExitStack() as stack:
            running = PrunedRun(url)
            await running.start(stack)
            for program in programs:
                for step in program:
                    await running.step(*step)
                await running.reopen(True)
                await running.prune(keep)

    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr("stateroom.session.cached_session.MIN_SNAPSHOT", smallest)
        patch.setattr("stateroom.session.cached_session.SNAPSHOT_RATIO", 0)
        patch.setattr("stateroom.session.cached_session.STATES_IN_MEMORY", 1)  # so that short histories can be cut
        patch.setattr("stateroom.session.maintenance.retention.STATES_IN_MEMORY", 1)
        asyncio.run(run("memory://" if kind == "memory" else f"sqlite:///{Path(folder) / 'rooms.db'}"))


def saying(text: str) -> Update:
    return Update([{"type": "message", "role": "user", "content": text}], "user")


async def texts(session: Session[Notes], since: int = 0) -> list[str]:
    return [item["content"] for entry in await session.agent.said(since) for item in entry.facts["items"]]


async def test_what_a_model_is_shown_of_a_conversation_stays(store: Store) -> None:
    session = await new(store, 5)
    await session.agent.say(saying("first"))
    for number in range(30):
        await session.call("add", {"text": f"{number}"})
    assert await prune(store, keep=10) == {}
    await session.agent.compact({"items": saying("in short").items, "tokens": [2], "pinned": []})
    view = session.agent.status.view
    await session.agent.say(saying("last"))
    fork = await session.fork()
    for number in range(30):
        await session.call("add", {"text": f"{number}"})
        await fork.call("add", {"text": f"{number}"})
    cut = await prune(store, keep=10)
    assert cut[session.id].below in range(view - 5, view)
    for handle in (session, fork):
        other = await reopened(store, handle.id)
        assert await texts(other, other.agent.status.view) == ["in short", "last"]
        with raises(UnknownRevision):
            await other.agent.said()
    assert await problems(store) == {}


async def test_what_a_model_was_shown_at_the_revisions_that_stay_stays_too(store: Store) -> None:
    session = await new(store, 30)
    for said in (30, 3):
        await session.agent.compact({"items": saying("in short").items, "tokens": [2], "pinned": []})
        for _ in range(said):
            await session.agent.say(saying("more"))
    assert session.id in await prune(store, keep=10)
    other = await reopened(store, session.id)
    for revision in range(other.revision - 10, other.revision + 1):
        fork = await other.fork(revision)
        await fork.agent.refresh()
        assert (await texts(fork, fork.agent.status.view))[0] == "in short"

"""Sessions that move between tiers, and processes that die while they move them: nothing is lost, nothing forked."""

from __future__ import annotations

import asyncio
import copy
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import astuple, replace

from stateroom.errors import StateroomError, UnknownSession
from stateroom.store import Commit, MemoryStore, Record, Snapshot, Store, Work, open_store
from stateroom.store.conformance import make
from stateroom.store.conformance.make import LATER, MUCH_LATER, NOW
from stateroom.store.conformance.reference import Reference, ask, choose_call, compare
from stateroom.store.tiered.durable_warm import DurableWarmStore
from stateroom.store.tiered.tier import kind_of
from tests.patience import PATIENCE
from tests.processes import line, starting
from tests.store.tiers import Crash, Death, Fate, Meanwhile, Script, process, tiered

T = TypeVar("T")

FAMILY = ("root", "fork", "closed", "grandchild")
WORKER = Path(__file__).with_name("tiered_worker.py")

Tiers = tuple[Store, Store]


@pytest.fixture(autouse=True)
def _little_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateroom.store.tiered.transfer.TAKEOVER_SECONDS", 0.0)


@pytest.fixture
async def tiers(tmp_path: Path) -> AsyncIterator[Tiers]:
    warm, cold = f"sqlite:///{tmp_path}/warm.db", f"sqlite:///{tmp_path}/cold.db"
    async with open_store(warm) as one, open_store(cold) as two:
        yield one, two


def new_tiers() -> Tiers:
    return MemoryStore(), MemoryStore()


async def make_family(store: Store) -> list[Record]:
    """A session with forks, one of them closed; all of each."""
    entries = [make.entry(number, f"call {number}") for number in (1, 2, 3)]
    await store.create(make.head("root", revision=3, fence=7), entries, Snapshot(3, b"three"), make.blobs(b"large"))
    await store.lease("root", "me", now=NOW, until=NOW + 1)
    await make.fork(store, "fork", "root", 2, revision=4)
    await make.fork(store, "closed", "root", 3)
    await store.append(Commit("closed", make.entry(4), expires=LATER, closes=True))
    await make.fork(store, "grandchild", "fork", 3)
    return [await store.maintenance.export(name) for name in FAMILY]


async def check(store: Store, family: list[Record]) -> None:
    """All is as it was, wherever it is."""
    for record in family:
        assert await store.maintenance.export(record.head.id) == record
        assert await store.head(record.head.id) == record.head
        assert (await store.load(record.head.id)).head == record.head
        assert await store.entries(record.head.id) == record.entries
    assert {head.id for head in await store.heads()} == set(FAMILY)
    assert [head.id for head in await store.children("root")] == ["closed", "fork"]


async def every_step(
    *, at_rest: bool = False, most: int = 1000
) -> AsyncIterator[tuple[int, Tiers, DurableWarmStore, list[Record]]]:
    """The steps of something, until the test has come to its end: a family in fresh tiers for each."""
    for step in range(1, most):
        tiers = new_tiers()
        store = process(*tiers)
        family = await make_family(store)
        if at_rest:
            await store.sweep(NOW + 2)
            assert await where(tiers) == [set(), set(FAMILY)]
        yield step, tiers, store, family


async def where(tiers: Tiers) -> list[set[str]]:
    return [{head.id for head in await tier.heads()} for tier in tiers]


# At every step.


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
async def test_a_move_down_can_end_at_any_step(done: bool) -> None:
    async for step, tiers, store, family in every_step():
        try:
            await process(*tiers, Death(step, done=done)).sweep(NOW + 2)
            break
        except Crash:
            await check(store, family)
        if step % 2:
            await process(*tiers).release("root", "me")
            family[0] = Record(replace(family[0].head, holder=None, leased_until=0.0), *astuple(family[0])[1:])
            await check(store, family)
        await process(*tiers).sweep(NOW + 2)  # which finishes what was begun
        await process(*tiers).sweep(NOW + 2)
        assert await where(tiers) == [set(), set(FAMILY)], f"step {step}"
        await check(store, family)
        await store.append(Commit("root", make.entry(4), expires=LATER, fence=8))
        assert await where(tiers) == [set(FAMILY), set(FAMILY)]
        assert await store.count(NOW) == 3
        assert await store.maintenance.orphans() == []
    assert step > 20


@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
async def test_a_move_up_can_end_at_any_step(done: bool) -> None:
    async for step, tiers, store, family in every_step(at_rest=True):
        before = await store.entries("fork")
        try:
            await process(*tiers, Death(step, done=done)).append(Commit("fork", make.entry(5), expires=LATER))
            break
        except Crash:
            written = await store.entries("fork")
            assert written in (before, [*before, make.entry(5)])
            if written == before:
                await check(store, family)
                await store.append(Commit("fork", make.entry(5), expires=LATER))
        assert await store.entries("fork") == [*before, make.entry(5)]
        await process(*tiers).sweep(NOW + 2)
        await process(*tiers).sweep(NOW + 2)
        assert await where(tiers) == [set(), set(FAMILY)], f"step {step}"
        assert await store.count(NOW) == 3
        family[1] = await store.maintenance.export("fork")
        await check(store, family)
        assert await store.maintenance.orphans() == []
    assert step > 20


@pytest.mark.parametrize("at_rest", [False, True], ids=["warm", "cold"])
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
async def test_a_deletion_can_end_at_any_step(done: bool, at_rest: bool) -> None:
    async for step, tiers, store, _ in every_step(at_rest=True):
        if not at_rest:
            await store.touch("fork", now=NOW, expires=LATER)
        grandchild = await store.maintenance.export("grandchild")
        try:
            await process(*tiers, Death(step, done=done)).delete("grandchild")
            break
        except Crash:
            names = {head.id for head in await store.heads()}
            assert names in (set(FAMILY), set(FAMILY) - {"grandchild"})
            if "grandchild" in names:
                assert await store.maintenance.export("grandchild") == grandchild
                await store.delete("grandchild")
        for tier in tiers:
            assert "grandchild" not in {head.id for head in await tier.heads()}
        with pytest.raises(UnknownSession):
            await store.head("grandchild")
        assert await store.maintenance.orphans() == []
    assert step > 4


# By chance.


@pytest.mark.parametrize("seed", range(30))
async def test_whatever_is_done_and_whoever_dies_all_is_as_in_a_model(seed: int) -> None:
    tiers, model, chance, now = new_tiers(), Reference(), random.Random(seed), NOW
    alive = process(*tiers, Death(chance.randint(1, 150), done=seed % 2 == 0))
    for step in range(150):
        now += chance.choice([0.0, 0.5, 1.0])
        name, arguments = choose_call(model, chance, now)
        if name == "count" or _nobody_asks(model, arguments):  # a count is exact only when no move is unfinished
            continue
        before = copy.deepcopy(model)
        expected = model.answer(name, arguments)
        try:
            assert await ask(alive, name, arguments) == expected, f"step {step}: {name}({arguments})"
            continue
        except Crash:
            alive = process(*tiers, Death(chance.randint(1, 150), done=seed % 2 == 0))
        try:
            await _compare_after_crash(tiers, name, arguments, before, model)
        except AssertionError:  # then it has not been done
            await compare(process(*tiers), before)
            model = before
    await compare(process(*tiers), model)


def _nobody_asks(model: Reference, arguments: dict[str, Any]) -> bool:
    """Whether this is a commit under a fence that nobody was given, the next one, which a mover may hold.

    Or a record of what became another history, after the session had been deleted and an older record restored.
    """
    if "record" in arguments:
        record: Record = arguments["record"]
        kept = model.sessions.get(record.head.id)
        return kept is not None and any(kept.entries.get(each.revision, each) != each for each in record.entries)
    if "commit" not in arguments:
        return False
    commit: Commit = arguments["commit"]
    session = model.sessions.get(commit.session)
    return session is not None and commit.fence > session.head.fence


async def _compare_after_crash(
    tiers: Tiers, name: str, arguments: dict[str, Any], before: Reference, after: Reference
) -> None:
    if name == "sweep":  # which takes one session after the other
        await process(*tiers).sweep(**arguments)
    await compare(process(*tiers), after)


# At the same time.


async def write(store: Store, session: str, writer: str, count: int) -> None:
    """Add entries as workers do: each says what it was based on, and tries again if that was not the newest."""
    for number in range(count):
        while True:
            head = await store.head(session)
            entry = make.entry(head.revision + 1, f"{writer}/{number}", at=NOW)
            try:
                await store.append(Commit(session, entry, expires=LATER, fence=head.fence))
                break
            except StateroomError:
                continue


async def test_writers_lose_nothing_to_movers(tiers: Tiers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateroom.store.tiered.transfer.TAKEOVER_SECONDS", 10.0)
    stores = [process(*tiers) for _ in range(3)]
    await make_family(stores[0])
    sessions = ("root", "fork", "grandchild")
    starts = {session: (await stores[0].head(session)) for session in sessions}
    for session in sessions:  # from here on with the fence that the others use
        await stores[0].release(session, "me")
    finished = asyncio.Event()

    async def move(store: Store) -> int:
        turns = 0
        while not finished.is_set():
            await store.sweep(NOW + 2)
            turns += 1
        return turns

    async def work() -> None:
        jobs = [write(stores[n], session, f"writer {n}", 5) for n in range(3) for session in sessions]
        forks = [make.fork(stores[n], f"new {n}", "fork", 3) for n in range(3)]
        await asyncio.gather(*jobs, *forks)
        finished.set()

    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(work(), move(stores[1]), move(stores[2]))
    await stores[0].sweep(NOW + 2)
    for session in sessions:
        head = await stores[0].head(session)
        added = await stores[0].entries(session, after=starts[session].revision)
        assert head.revision == starts[session].revision + 15
        assert sorted(str(entry.call_id) for entry in added) == sorted(
            f"writer {n}/{m}" for n in range(3) for m in range(5)
        )
        assert head.fence == starts[session].fence
    assert {f"new {n}" for n in range(3)} <= {head.id for head in await stores[0].children("fork")}
    assert await stores[0].maintenance.orphans() == []


async def touch(store: Store) -> None:
    await store.touch("fork", now=NOW, expires=MUCH_LATER)
    assert (await store.head("fork")).expires == MUCH_LATER


async def append(store: Store) -> None:
    for revision in (5, 6):  # nobody else adds anything, so nothing is refused
        await store.append(Commit("fork", make.entry(revision), expires=LATER))
    assert [entry.revision for entry in await store.entries("fork", after=4)] == [5, 6]


async def fork(store: Store) -> None:
    await make.fork(store, "new", "fork", 4)
    assert "new" in {head.id for head in await store.children("fork")}


async def lease(store: Store) -> None:
    given = await store.lease("fork", "x", now=NOW, until=LATER)
    head = await store.head("fork")
    assert head == given or head.fence > given.fence


async def delete(store: Store) -> None:
    await store.delete("grandchild")
    with pytest.raises(UnknownSession):
        await store.head("grandchild")


async def prune(store: Store) -> None:
    assert await store.prune("root", 3) == 2
    assert [entry.revision for entry in await store.entries("root")] == [1]


async def restore(store: Store) -> None:
    record = await store.maintenance.export("fork")
    later = Record(replace(record.head, revision=5), [*record.entries, make.entry(5)], [], {})
    await store.put(later)
    assert await store.maintenance.export("fork") == later


async def read(store: Store) -> None:
    for name, revisions in (("root", [1, 2, 3]), ("fork", [3, 4]), ("closed", [4]), ("grandchild", [])):
        loaded, record = await store.load(name), await store.maintenance.export(name)
        assert loaded.head == record.head == await store.head(name)
        assert [entry.revision for entry in record.entries] == revisions
        assert await store.entries(name) == record.entries
        assert (await store.size(name)).rows == len(revisions)
        assert await store.blobs(name, [*record.blobs]) == record.blobs
        assert {head.id for head in await store.heads()} == {*FAMILY}
    assert [head.id for head in await store.children("root")] == ["closed", "fork"]
    assert await store.find_call("root", "call 2") == make.entry(2, "call 2")


async def sweep(store: Store) -> None:
    await store.sweep(NOW + 2)


async def touch_root(store: Store) -> None:
    await store.touch("root", now=NOW, expires=LATER)


WORK = [touch, append, fork, lease, delete, prune, restore, read, sweep]


@pytest.mark.parametrize("up", [False, True], ids=["down", "up"])
@pytest.mark.parametrize("first", ["move", "work"])
@pytest.mark.parametrize("work", WORK)
async def test_work_and_a_move_may_begin_at_any_step_of_each_other(
    work: Callable[[Store], Work[None]], first: str, up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stateroom.store.tiered.transfer.TAKEOVER_SECONDS", 2 * PATIENCE)
    async for step, tiers, store, family in every_step(at_rest=up):
        move = partial(touch_root if up else sweep, process(*tiers))
        meanwhile = Meanwhile(step, partial(work, process(*tiers)))
        if first == "work":
            meanwhile.what, move = move, meanwhile.what
        move = partial(move.func, process(*tiers, meanwhile))
        async with asyncio.timeout(PATIENCE):  # before anybody takes over, which nobody has to
            await move()
            if meanwhile.task is None:
                break
            await meanwhile.task
        await _check_after(work, store, family)


@pytest.mark.parametrize("up", [False, True], ids=["down", "up"])
async def test_a_mover_that_comes_late_is_not_in_anybodys_way(up: bool) -> None:
    """At any step of its move another process takes over, finishes the move, and goes on with the session."""
    async for step, tiers, store, _ in every_step(at_rest=up):
        late = Script({step: partial(append, process(*tiers))})
        await (touch_root if up else sweep)(process(*tiers, late))
        if late.number < step:
            break
        assert [entry.revision for entry in await store.entries("fork", after=4)] == [5, 6]
        assert await store.maintenance.orphans() == []
    assert step > 20


async def _check_after(work: Callable[[Store], Work[None]], store: Store, family: list[Record]) -> None:
    """All is well, at rest and when it is used again."""
    expected = {record.head.id for record in family} - ({"grandchild"} if work is delete else set())
    for _ in range(2):
        assert expected <= {head.id for head in await store.heads()}
        assert (await store.maintenance.export("closed")) == family[2]
        for head in await store.heads():
            assert [await store.head(head.id)] == [head]
        assert await store.maintenance.orphans() == []
        await store.sweep(NOW + 2)
    if work is touch:
        assert (await store.head("fork")).expires == MUCH_LATER
    if work is lease:
        head = await store.head("fork")
        assert head.holder == "x" or head.fence > 1
    root = await store.head("root")
    await store.append(Commit("root", make.entry(root.revision + 1), expires=LATER, fence=root.fence))
    assert await store.maintenance.orphans() == []


@pytest.mark.parametrize("dies", [False, True], ids=["lives", "dies"])
async def test_a_fork_that_is_made_while_its_parent_moves_is_not_left_behind(
    dies: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes it has seen its parent in the warm tier; and dies, perhaps, before they look again."""
    monkeypatch.setattr("stateroom.store.tiered.transfer.TAKEOVER_SECONDS", 0.02)
    left_behind = 0
    async for step, tiers, store, _ in every_step():
        paused, made = asyncio.Event(), asyncio.Event()
        mover = process(*tiers, Script({step: partial(_pause, paused, made)}))
        moving = asyncio.create_task(mover.sweep(NOW + 2))
        done = asyncio.create_task(_first(moving, paused))
        script: dict[int, Any] = {3: lambda done=done: done, 4: partial(_go_on, made, dies)}
        with suppress(Crash):
            await make.fork(process(*tiers, Script(script)), "new", "fork", 4)
        made.set()
        await moving
        if not paused.is_set():
            break
        if not dies:
            assert "new" in {head.id for head in await store.children("fork")}
        if step % 2:
            await store.sweep(NOW + 2)
        else:
            await store.touch("grandchild", now=NOW, expires=LATER)
        family = {head.id for head in await store.heads()}
        assert family in ([{*FAMILY, "new"}] if not dies else [{*FAMILY, "new"}, {*FAMILY}])
        left_behind += family != {*FAMILY}
        for _ in range(3):
            assert {head.id for head in await store.children("fork")} == family - {*FAMILY} | {"grandchild"}
            await store.append(
                Commit("root", make.entry((await store.head("root")).revision + 1), expires=LATER, fence=8)
            )
            await store.sweep(NOW + 2)
        assert await where(tiers) == [set(), family]
        assert await store.maintenance.orphans() == []
    assert step > 20
    assert left_behind > 10


async def _pause(paused: asyncio.Event, until: asyncio.Event) -> None:
    paused.set()
    await until.wait()


async def _first(moving: asyncio.Task[int], paused: asyncio.Event) -> None:
    pause = asyncio.create_task(paused.wait())
    await asyncio.wait([moving, pause], return_when=asyncio.FIRST_COMPLETED)
    pause.cancel()


async def _go_on(made: asyncio.Event, dies: bool) -> None:
    made.set()
    if dies:
        raise Crash


async def test_whoever_stops_waiting_does_not_stop_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateroom.store.tiered.transfer.TAKEOVER_SECONDS", 2 * PATIENCE)
    async for step, tiers, store, _ in every_step(at_rest=True, most=20):
        waiting: list[asyncio.Task[None]] = []

        async def stop_waiting(waiting: list[asyncio.Task[None]] = waiting) -> None:
            waiting[0].cancel()

        mover = process(*tiers, Meanwhile(step, stop_waiting))
        waiting.append(asyncio.create_task(mover.touch("fork", now=NOW, expires=LATER)))
        await asyncio.wait(waiting)
        await mover.transfer.close()
        async with asyncio.timeout(PATIENCE):
            await store.append(Commit("fork", make.entry(5), expires=LATER))


async def test_a_mover_that_was_stopped_for_long_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateroom.store.tiered.transfer.FRESH", 0.01)
    async for step, tiers, store, _ in every_step():

        async def work(tiers: Tiers = tiers) -> None:
            other = process(*tiers)
            await other.sweep(NOW + 2)
            await other.touch("fork", now=NOW, expires=MUCH_LATER)

        fate = Stopped(step, work)
        await process(*tiers, fate).sweep(NOW + 2)
        if fate.left > 0:
            break
        assert {head.id for head in await store.heads()} == set(FAMILY)
        if await tiers[0].heads():
            assert {kind_of(await tiers[1].head(name)) for name in FAMILY} == {"away"}
        assert (await store.head("fork")).expires == MUCH_LATER
        assert await store.maintenance.orphans() == []
    assert step > 20


class Stopped(Fate):
    """The process is stopped before it does something, or while it reads a session, until others have done something.

    Not before a copy is written: that is the one moment at which nothing tells it that it comes late.
    """

    def __init__(self, operation: int, what: Callable[[], Work[None]]) -> None:
        super().__init__(operation)
        self.what = what

    async def meet(self, operation: str, work: Callable[[], Work[T]]) -> T:
        self.left -= operation != "restore"
        if self.left or operation == "restore":
            return await work()
        if operation != "export":
            await self.what()
            return await work()
        result = await work()
        await self.what()
        await asyncio.sleep(0.02)
        return result


async def test_two_movers_and_a_touch_at_once_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stateroom.store.tiered.transfer.TAKEOVER_SECONDS", 10.0)
    for _ in range(20):
        tiers = new_tiers()
        one, two, three = (process(*tiers) for _ in range(3))
        family = await make_family(one)
        for store in (one, two):
            await asyncio.gather(
                one.sweep(NOW + 2),
                two.sweep(NOW + 2),
                three.touch("fork", now=NOW, expires=MUCH_LATER),
                store.touch("grandchild", now=NOW, expires=MUCH_LATER),
            )
        for name in ("fork", "grandchild"):
            assert (await two.head(name)).expires == MUCH_LATER
        for record in (family[0], family[2]):
            assert await three.maintenance.export(record.head.id) == record
        assert await one.maintenance.orphans() == []


# For real.


async def test_processes_that_are_killed_lose_nothing_they_acknowledged(tmp_path: Path) -> None:
    url = tiered(f"sqlite:///{tmp_path}/warm.db", f"sqlite:///{tmp_path}/cold.db", cool=1)
    rooms = [f"room {number}" for number in range(3)]
    async with open_store(url) as store:
        for room in rooms:
            await store.create(make.head(room, expires=1e12))
    acknowledged: dict[str, list[str]] = defaultdict(list)
    chance = random.Random(1)
    async with starting(str(WORKER), url) as start:
        for life in range(8):
            process = await start(f"life {life}")
            said = [await line(process) for _ in range(chance.randint(5, 60))]
            process.kill()
            rest, _ = await process.communicate()
            for acknowledgement in [*said, *rest.decode().split("\n")[:-1]]:
                room, _, call_id = acknowledgement.partition(":")
                acknowledged[room].append(call_id)
    async with open_store(url) as store:
        for room in rooms:
            call_ids = [entry.call_id for entry in await store.entries(room)]
            assert len(call_ids) == len(set(call_ids))
            assert [call_id for call_id in call_ids if call_id in acknowledged[room]] == acknowledged[room]
            head = await store.head(room)
            assert head.revision == len(call_ids)
            await store.append(Commit(room, make.entry(head.revision + 1)))
        assert await store.maintenance.orphans() == []

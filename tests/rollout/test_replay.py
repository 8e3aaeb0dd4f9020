"""Replay: what does the same again is told from what does not, and nothing is run that must not be."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest

from stateroom import Environment, Sessions, State, Task, ToolError, tool
from stateroom.model import Item, ModelSource, Scripted, function_call, function_call_output, message
from stateroom.rollout import Replay, RunFiles, replay_rollouts, replay_session, run
from stateroom.session import LogEntry, merged, recorded_calls
from stateroom.store import Store, WrappedStore
from tests.messages import says
from tests.plans import make_run
from tests.rows import rows, write_rows


class Desk(State):
    notes: list[str] = []
    colours: set[str] = set()
    balance: float = 0.0


class Fame(State):
    points: int = 0


class DeskTask(Task):
    first: str = "begin"
    user: str = "alice"


def in_capitals(state: Desk, text: str) -> str:
    """Other texts, from the second on."""
    return text.upper() if len(state.notes) > 1 else text


class DeskEnvironment(Environment[Desk, DeskTask]):
    """Notes, with a little of everything."""

    name = "desk"

    def __init__(
        self,
        hear: Callable[[Desk, str], str] = lambda state, text: text,
        written: Callable[[Desk, Any], Any] = lambda state, clock: None,
    ) -> None:
        self.sent: list[str] = []
        self.hear, self.written = hear, written
        """What a test changes: the text before it is written down, and something after that."""

    def seed(self, task: DeskTask, rng: Random, new_id: Any) -> Desk:
        return Desk(notes=[f"{task.first} {rng.random()} {new_id()}"])

    @tool
    def note(self, state: Desk, text: str, rng: Random, clock: Any, session: Any) -> str:
        """Write something down."""
        if not (text := self.hear(state, text)):
            raise ToolError("nothing to write")
        said = f"{text} {rng.random()} {clock.now()} {session.id} {session.step} {session.call_id}"
        state.notes.append(said)
        clock.advance(5)
        self.written(state, clock)
        return said

    @tool
    def paint(self, state: Desk, colours: list[str]) -> int:
        """Paint."""
        state.colours |= set(colours)
        state.balance = float("nan")
        return len(state.colours)

    @tool
    def pay(self, state: Desk, amount: float) -> None:
        """Pay."""
        state.balance = amount

    @tool(effect="read")
    def last(self, state: Desk) -> str:
        """What was written last."""
        return state.notes[-1]

    @tool(effect="external")
    def send(self, state: Desk) -> int:
        """Send what was written."""
        self.sent.append(state.notes[-1])
        state.notes.append("sent")
        return len(self.sent)

    @tool
    def praise(self, state: Desk, user: Fame) -> int:
        """Praise."""
        user.points += 1
        return user.points

    def verify(self, state: Desk) -> float:
        return 1.0


SILENT = DeskEnvironment(written=lambda state, clock: state.notes.pop())
SLOW = DeskEnvironment(written=lambda state, clock: clock.advance(1))


SCRIPT: list[list[Item]] = [
    [function_call("note", "c", text="one"), function_call("last", "c")],
    [function_call("note", "c", text="")],
    [function_call("paint", "c", colours=["red", "blue", "green"])],
    [function_call("nothing_like_it", "c")],
    [function_call("note", "c", text="two")],
    [function_call("last", "c")],
]


def scripted(*answers: list[Item]) -> ModelSource:
    """A model with these answers."""
    return ModelSource("own", lambda seed: Scripted([*answers, "done"]))


@pytest.fixture
def collect(tmp_path: Path, url: str) -> Callable[..., Any]:
    """Run two episodes; gives the rollouts file."""

    async def collect(environment: Any, *asked: Item, **settings: Any) -> Path:
        model = scripted(*([[call] for call in asked] or SCRIPT))
        files = RunFiles(tmp_path / "out.jsonl")
        plan: dict[str, Any] = {"tasks": [{}, {"first": "other"}], "store": url} | settings
        report = await run(make_run(environment=environment, model=model, files=files, **plan))
        assert report.failed == 0
        return files.rollouts

    return collect


def total(replays: list[Replay], what: Literal["calls", "reads", "taken", "left_out"]) -> int:
    assert [each.refused for each in replays] == [None] * len(replays)
    return sum(getattr(each, what) for each in replays)


# Sessions.


async def played(store: Store, *calls: tuple[str, dict[str, Any]]) -> Any:
    """A session of the desk with these calls."""
    session = await Sessions[Any](DeskEnvironment(), store).seed({"first": "a"}, seed=7, began=1000.0)
    for name, arguments in calls:
        await session.call(name, arguments)
    return session


async def agrees(store: Store, session: Any, calls: int) -> None:
    """The session replays, with so many calls."""
    found = await replay_session(DeskEnvironment(), store, session.id)
    assert (found.refused, found.differences, found.calls) == (None, [], calls)


async def test_a_session_replays_whatever_it_has_been_through(store: Store) -> None:
    session = await played(store)
    await session.record("bell", {"floor": 3})
    await session.call("note", {"text": "b"}, call_id="mine")
    await session.call("note", {"text": ""})
    await session.checkpoint("here")
    await session.edit([{"place": ["balance"], "value": 2.0}], by="ann")
    await session.call("paint", {"colours": ["red"]})
    await session.rewind(to=5)
    await session.call("paint", {"colours": ["red", "blue"]})
    await session.rewind("here")
    await session.call("note", {"text": "c"})
    await session.verify()
    await session.close()
    await agrees(store, session, 4)


async def test_a_fork_replays_with_what_it_shares(store: Store) -> None:
    session = await played(store, ("paint", {"colours": ["red"]}))
    await session.checkpoint("here")
    await session.verify()
    await session.close()
    fork = await session.fork()
    await fork.call("paint", {"colours": ["blue"]})
    await fork.checkpoint("here")
    await fork.rewind(to=2)
    await fork.call("paint", {"colours": ["green"]})
    await agrees(store, fork, 3)


async def test_nothing_is_written_to_the_store(store: Store) -> None:
    session = await played(store, ("note", {"text": "b"}))
    before = await store.maintenance.export(session.id)
    await replay_session(DeskEnvironment(), store, session.id)
    assert await store.maintenance.export(session.id) == before
    assert (await store.maintenance.sizes())["sessions"].rows == 1


@pytest.mark.usefixtures("snapshot_every_commit")
async def test_snapshots_make_no_difference(store: Store) -> None:
    session = await played(store, *(("note", {"text": str(number)}) for number in range(30)))
    await session.rewind(to=4)
    await session.call("note", {"text": "x" * 100_000})
    await agrees(store, session, 31)


async def test_another_output_is_shown_beside_the_recorded_and_lenient_goes_on(store: Store) -> None:
    session = await played(store, *(("note", {"text": text}) for text in ("one", "two", "three")))
    found = await replay_session(DeskEnvironment(in_capitals), store, session.id)
    assert found.calls == 2  # and there it ended
    [difference] = found.differences
    assert (difference.number, difference.name, difference.input) == (2, "note", {"text": "two"})
    assert difference.recorded.startswith("two ")
    assert difference.now.startswith("TWO ")
    [line] = difference.states
    assert line.startswith('notes[2]: "two ')
    assert '→ "TWO ' in line
    found = await replay_session(DeskEnvironment(in_capitals), store, session.id, lenient=True)
    assert (found.calls, [each.number for each in found.differences]) == (3, [2, 3])


def desk(**parts: Any) -> Any:
    """A desk some parts of which are others."""
    return type("OtherDesk", (DeskEnvironment,), {"name": "desk", **parts})()


@tool
def paint_twice(self: Any, state: Desk, colours: list[str]) -> int:
    """Paint."""
    return DeskEnvironment.paint(self, state, colours) * 2


@tool(effect="read")
def paint_nothing(self: Any, state: Desk, colours: list[str]) -> int:
    """Paint."""
    return len(colours)


@tool
def paint_nothing_red(self: Any, state: Desk, colours: list[str]) -> int:
    """Paint."""
    if "red" in colours:
        raise ToolError("not red")
    return DeskEnvironment.paint(self, state, colours)


@tool(effect="read")
def first(self: Any, state: Desk) -> str:
    """Not what was written last."""
    return state.notes[0]


@pytest.mark.parametrize(
    ("other", "number", "same_output", "state"),
    [
        (desk(paint=paint_twice), 1, False, None),
        (desk(paint=paint_nothing), 1, True, "colours"),
        (SILENT, 2, True, "gone"),
        (SLOW, 2, True, "the clock was advanced by: 5 s → 6 s"),
        (desk(seed=lambda self, task: Desk(notes=["x"])), 0, True, "notes[0]"),
    ],
    ids=["output", "read", "state", "time", "seed"],
)
async def test_a_difference_is_seen_in_the_output_the_state_and_the_time(
    store: Store, other: DeskEnvironment, number: int, same_output: bool, state: str | None
) -> None:
    session = await played(store, ("paint", {"colours": ["red"]}), ("note", {"text": "one"}))
    [difference] = (await replay_session(other, store, session.id)).differences
    assert (difference.number, difference.recorded == difference.now) == (number, same_output)
    assert state in difference.states[0] if state else difference.states == []


async def test_a_call_that_fails_now_is_a_difference_and_rewinds_still_find_their_place(store: Store) -> None:
    session = await played(
        store, ("paint", {"colours": ["red"]}), ("note", {"text": "one"}), ("paint", {"colours": ["blue"]})
    )
    await session.rewind(to=3)
    await session.call("paint", {"colours": ["green"]})
    found = await replay_session(desk(paint=paint_nothing_red), store, session.id, lenient=True)
    assert found.refused is None
    assert [each.number for each in found.differences] == [1, 2, 3, 4]  # the second tells its revision
    assert found.differences[0].now == {"error": {"code": "tool_error", "message": "not red"}}
    assert (found.differences[3].recorded, found.differences[3].now) == (2, 1)


async def test_external_tools_are_not_run_again(store: Store) -> None:
    session = await played(store, ("note", {"text": "one"}), ("send", {}), ("note", {"text": "two"}))
    await session.call("send", call_id="mine")
    await session.call("note", {"text": "three"})
    environment = DeskEnvironment()
    found = await replay_session(environment, store, session.id)
    assert (found.refused, found.differences, found.calls, found.taken) == (None, [], 3, 2)
    assert environment.sent == []


@pytest.mark.usefixtures("snapshot_every_commit")
async def test_a_session_that_cannot_be_replayed_is_refused(store: Store) -> None:
    same, other = DeskEnvironment(), desk(name="other")
    shared = await played(store, ("praise", {}))
    pruned = await played(store, *[("note", {"text": "x"})] * 3)
    await store.prune(pruned.id, 3)
    for environment, session in ((same, shared), (same, pruned), (other, shared)):
        found = await replay_session(environment, store, session.id)
        assert found.calls == 0
        says(str(found.refused))


class NewDesk(State, version=2):
    lines: list[str] = []
    colours: set[str] = set()
    cents: float = 0.0


@NewDesk.migration(1)
def _in_cents(data: dict[str, Any]) -> dict[str, Any]:
    return {"lines": data["notes"], "colours": data["colours"], "cents": data["balance"] * 100}


class NewDeskEnvironment(Environment[NewDesk, DeskTask]):
    """What became of the desk: it should count in cents, but pays in the old money."""

    name = "desk"
    colour = ""

    def seed(self, task: DeskTask, rng: Random, new_id: Any) -> NewDesk:
        return NewDesk(lines=[f"{task.first} {rng.random()} {new_id()}"])

    @tool
    def paint(self, state: NewDesk, colours: list[str]) -> int:
        """Paint."""
        state.colours |= {self.colour or colour for colour in colours}
        state.cents = float("nan")
        return len(state.colours)

    @tool
    def pay(self, state: NewDesk, amount: float) -> None:
        """Pay."""
        state.cents = amount

    def verify(self, state: NewDesk) -> float:
        return 1.0


async def test_a_session_of_an_older_schema_replays_on_the_newest(store: Store) -> None:
    session = await played(store, ("paint", {"colours": ["red"]}))
    newer = await Sessions[Any](NewDeskEnvironment(), store).open(session.id)
    await newer.call("paint", {"colours": ["blue"]})
    await newer.rewind(to=2)
    await newer.call("paint", {"colours": ["green"]})
    found = await replay_session(NewDeskEnvironment(), store, session.id)
    assert (found.refused, found.differences, found.calls) == (None, [], 3)
    other = NewDeskEnvironment()
    other.colour = "grey"
    [difference] = (await replay_session(other, store, session.id)).differences
    assert difference.number == 1


async def test_the_same_change_in_an_older_schema_may_be_another(store: Store) -> None:
    session = await played(store, ("pay", {"amount": 5}))
    [difference] = (await replay_session(NewDeskEnvironment(), store, session.id)).differences
    assert difference.states == ["cents: 500.0 → 5.0"]


# Rollouts.


@pytest.mark.parametrize("stored", [True, False])
async def test_rollouts_replay_with_their_reads_and_failed_calls(collect: Any, store: Store, stored: bool) -> None:
    path, kept = await collect(DeskEnvironment()), store if stored else None
    found = await replay_rollouts(DeskEnvironment(), path, kept, reads="check")
    assert not any(each.differences for each in found)
    assert (total(found, "calls"), total(found, "reads"), total(found, "left_out")) == (8, 6, 0)
    found = await replay_rollouts(DeskEnvironment(), path, kept)
    calls = 6 if stored else 8  # of a stored session, what failed has changed nothing
    assert (total(found, "calls"), total(found, "reads"), total(found, "left_out")) == (calls, 0, 14 - calls)


async def test_a_row_whose_session_is_gone_replays_from_its_response(collect: Any, store: Store) -> None:
    path = await collect(DeskEnvironment())
    await store.delete(rows(path)[0]["_stateroom_session"])
    found = await replay_rollouts(DeskEnvironment(), path, store)
    assert not any(each.differences for each in found)
    assert sorted(each.calls for each in found) == [3, 4]


@pytest.mark.parametrize("stored", [True, False])
async def test_a_read_that_says_something_else_is_a_difference(collect: Any, store: Store, stored: bool) -> None:
    misreading = desk(last=first)
    path = await collect(DeskEnvironment())
    kept = store if stored else None
    found = await replay_rollouts(misreading, path, kept, reads="check", lenient=True)
    assert [[each.number for each in one.differences] for one in found] == [[2, 7], [2, 7]]
    assert not any(each.differences for each in await replay_rollouts(misreading, path, kept, lenient=True))


@pytest.mark.parametrize("stored", [True, False])
async def test_a_failed_call_that_succeeds_now_is_a_difference(collect: Any, store: Store, stored: bool) -> None:
    path, generous = await collect(DeskEnvironment()), DeskEnvironment(lambda state, text: text or "?")
    [found] = await replay_rollouts(generous, path, store if stored else None, reads="check")
    [difference] = found.differences
    assert (difference.number, difference.recorded["error"]["code"]) == (3, "tool_error")


async def test_a_failed_call_after_a_users_answer_is_not_taken_for_an_earlier_one(
    tmp_path: Path, store: Store, url: str
) -> None:
    talkative = desk(reply=lambda self, state, message: "Write." if message == "What?" else None)
    answers = [[function_call("note", "c", text="one")], [function_call("note", "c", text="")]]
    model = scripted([message("What?")], *answers)
    files = RunFiles(tmp_path / "out.jsonl")
    await run(make_run(environment=talkative, model=model, files=files, tasks=[{}], store=url))
    [found] = await replay_rollouts(talkative, files.rollouts, store, reads="check")
    assert (found.refused, found.calls, found.differences) == (None, 2, [])


async def test_a_replay_that_agrees_reads_no_world(collect: Any, store: Store) -> None:
    def furnished(colour: str) -> Any:
        world = Desk(colours={colour})
        return desk(world=lambda self: world, seed=lambda self, state, task: state.notes.append(task.first))

    class Watched(WrappedStore):
        loaded: list[str | None] = []

        def around(self, operation: str, session: str | None, work: Any, /, *args: Any, **kwargs: Any) -> Any:
            if operation == "load":
                self.loaded.append(session)
            return work(*args, **kwargs)

    path = await collect(furnished("grey"), function_call("note", "c", text="one"))
    sessions = {row["_stateroom_session"] for row in rows(path)}
    assert not any(each.differences for each in await replay_rollouts(furnished("grey"), path, Watched(store)))
    assert {*Watched.loaded} == sessions
    assert [each.differences[0].number for each in await replay_rollouts(furnished("green"), path, store)] == [0]


async def test_two_rows_may_be_of_one_session(collect: Any, store: Store) -> None:
    path = await collect(DeskEnvironment())
    twins = path.parent / "twins.jsonl"
    write_rows(twins, [*rows(path), *rows(path)])
    found = await replay_rollouts(DeskEnvironment(), twins, store)
    assert total(found, "calls") == 12


async def test_external_calls_of_rollouts_are_taken_from_their_logs(collect: Any, store: Store) -> None:
    calls = [function_call("note", "c", text="x"), function_call("send", "c"), function_call("last", "c")]
    path = await collect(DeskEnvironment(), *calls)
    environment = DeskEnvironment()
    found = await replay_rollouts(environment, path, store, reads="check")
    assert not any(each.differences for each in found)
    assert (total(found, "calls"), total(found, "reads"), total(found, "taken")) == (2, 2, 2)
    found = await replay_rollouts(environment, path, None)
    says(str(found[0].refused))
    assert environment.sent == []


async def test_what_depends_on_others_or_on_chance_is_refused_without_a_session(collect: Any, tmp_path: Path) -> None:
    path = await collect(DeskEnvironment(), function_call("praise", "c"))
    says(str((await replay_rollouts(DeskEnvironment(), path, None))[0].refused))
    other = tmp_path / "other.jsonl"
    without_seed = [{**row, "response": {"output": [], "id": "resp_abc"}} for row in rows(path)]
    write_rows(other, without_seed)
    says(str((await replay_rollouts(DeskEnvironment(), other, None))[0].refused))


async def test_half_a_row_is_refused(collect: Any, store: Store) -> None:
    path = await collect(DeskEnvironment())
    with path.open("ab") as file:
        file.write(b'{"_ng_')
    found = await replay_rollouts(DeskEnvironment(), path, store)
    assert [each.refused is None for each in found] == [True, True, False]


async def test_without_a_state_the_responses_replay(tmp_path: Path) -> None:
    class Dice(Environment):
        """Throws dice."""

        sides = 6

        @tool
        def throw(self, rng: Random, new_id: Any) -> str:
            """Throw."""
            return f"{rng.randint(1, self.sides)} {new_id()}"

        def verify(self) -> float:
            return 1.0

    throw = function_call("throw", "c")
    files = RunFiles(tmp_path / "dice.jsonl")
    await run(make_run(environment=Dice(), model=scripted([throw, throw], [throw]), files=files, tasks=[{}] * 3))
    found = await replay_rollouts(Dice(), files.rollouts)
    assert not any(each.differences for each in found)
    assert total(found, "calls") == 9
    loaded = Dice()
    loaded.sides = 10**9
    [first] = await replay_rollouts(loaded, files.rollouts)
    assert len(first.differences) == 1


# What is on record.


def test_calls_are_known_by_where_they_stand() -> None:
    call, output = function_call, function_call_output
    items = [call("a", "x"), call("b", "y"), output("y", "1"), output("x", "2"), message("hm")]
    items += [call("server__a", "x"), output("x", "plain text"), message("what?")]
    items += [
        {"type": "message", "role": "user", "content": "that"},
        call("a", "z"),
        output("z", "3"),
        call("a", "open"),
    ]
    found = [(call.name, call.id, call.output) for call in recorded_calls({"output": items}, {"a", "b"})]
    assert found == [("b", "0.0.1", 1), ("a", "0.0.0", 2), ("a", "0.1.0", "plain text"), ("a", "0.3.0", 3)]


def test_what_has_left_no_entry_stands_between_those_that_have() -> None:
    def said(name: str, text: str) -> list[Item]:
        return [function_call(name, "c", n=1), function_call_output("c", text)]

    items = [*said("look", "0"), *said("put", '{"error":{"code":"tool_error","message":""}}'), *said("put", "1")]
    items += [*said("look", "1"), *said("put", "1"), *said("look", "2")]
    entries = [LogEntry(n, "call", 0.0, facts={"name": "put", "input": {"n": 1}, "output": 1}) for n in (2, 3)]
    found = [
        step.revision if isinstance(step, LogEntry) else step.output
        for step in merged(entries, list(recorded_calls({"output": items}, {"look", "put"})))
    ]
    assert found == [0, {"error": {"code": "tool_error", "message": ""}}, 2, 1, 3, 2]

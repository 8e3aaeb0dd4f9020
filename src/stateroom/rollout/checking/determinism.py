"""The checks `seed` and `determinism`: the same task, luck and calls come to the same, each time."""

from __future__ import annotations

from stateroom.rollout.checking.bench import Bench
from stateroom.rollout.checking.finding import SHOWN, Fault, Finding, finding, listed, skipped
from stateroom.rollout.checking.sameness import apart
from stateroom.rollout.checking.stage import Stage
from stateroom.rollout.world import Row
from stateroom.session.containment import contained
from stateroom.state import decode, encode
from stateroom.state.describe import differences, readable

SEED = "seed"
DETERMINISM = "determinism"

CHANCE = "let chance, time and ids come from `rng`, `clock` and `new_id`, and keep nothing in a module or class"


async def check_seed(bench: Bench) -> Finding:
    """Each task gives the same first state in two instances; so does the world, if there is one."""
    if bench.environment.state_type is None:
        return skipped(SEED, "stateless: there is nothing to seed")
    faults = []
    for task, row in bench.rows.items():
        try:
            with contained:
                first, again = await _seeded(bench.stage, task, row), await _seeded(bench.other, task, row)
        except Exception as error:  # noqa: BLE001 - whatever an author's own code raises
            place = bench.stage.watched.place_of(error)
            faults.append(Fault(f"task {task}: seed failed: {type(error).__name__}: {error}{place}"))
            continue
        if first != again and (lines := await _apart(bench, task, row)):
            faults.append(Fault(f"task {task}: its first state differs each time: {listed(lines, 1)}; {CHANCE}"))
    how = "the world and each seed are" if bench.stage.environment.founding is not None else "each seed is"
    return finding(SEED, faults, f"{how} the same twice")


async def _seeded(stage: Stage, task: int, row: Row) -> bytes:
    """What is stored of a task's first state: of a large world, only which it is."""
    async with stage.seat(task, row) as seated:
        snapshot = (await seated.store.load(seated.session.id)).snapshot
        return b"" if snapshot is None else snapshot.body


async def _apart(bench: Bench, task: int, row: Row) -> list[str]:
    """What differs between the first states of a task."""
    states = []
    for stage in (bench.stage, bench.other):
        async with stage.seat(task, row) as seated:
            states.append(readable(decode(encode(seated.session.state))))
    return differences(*states)


async def check_determinism(bench: Bench) -> Finding:
    """Each episode, played again, gives the same outputs, states and reward."""
    faults = []
    differing = [first for first, again in zip(bench.shown, bench.again, strict=True) if apart(first, again)]
    for first in differing[:SHOWN]:
        fresh = await bench.new_stage(), await bench.new_stage()  # or is it what was played there before?
        one, other = [await bench.play_again(stage, first) for stage in fresh]
        if difference := apart(one, other):
            faults.append(Fault(f"task {first.task}, by {first.actor.name}: {difference}; {CHANCE}"))
    calls = sum(len(play.steps) for play in bench.shown)
    return finding(DETERMINISM, faults, f"{len(bench.shown)} episodes, {calls} calls: the same when played again")

"""The checks `isolation`, `hidden state` and `read back`: episodes know nothing but what is stored of them."""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AsyncExitStack
from itertools import cycle
from typing import Any

from stateroom.rollout.checking.bench import Bench
from stateroom.rollout.checking.finding import Fault, Finding, finding, skipped
from stateroom.rollout.checking.hidden import changes, held_by
from stateroom.rollout.checking.playing import Play, repeat
from stateroom.rollout.checking.sameness import apart, written
from stateroom.rollout.checking.stage import Stage
from stateroom.rollout.recorded import same
from stateroom.session import Session
from stateroom.session.containment import contained
from stateroom.state.describe import brief

ISOLATION = "isolation"
HIDDEN = "hidden state"
READ_BACK = "read back"

OWN = "change it by its own fields and methods only"
KEEP = "keep what belongs to an episode in the state"


async def check_isolation(bench: Bench) -> Finding:
    """Sessions that take turns come to the same as each alone, on one instance and on two."""
    if len(bench.rows) < 2:
        return skipped(ISOLATION, "there is only one task: give two or more")
    faults = []
    for first, again in zip(bench.shown, bench.again, strict=True):
        if difference := apart(first, again):
            faults.append(Fault(f"task {first.task} comes out otherwise after other episodes: {difference}; {KEEP}"))
    one, other = bench.other, await bench.new_stage()
    for plays in (bench.reference, bench.wandered):
        whole = [play for play in plays if play.broke is None and play.waits is None]
        faults += await _take_turns(bench, whole, [one], "one instance")
        faults += await _take_turns(bench, whole, [one, other], "two instances")
    said = f"{len(bench.shown)} episodes in turns, on one instance and on two: the same as alone"
    return finding(ISOLATION, faults, said)


async def _take_turns(bench: Bench, plays: list[Play], stages: list[Stage], where: str) -> list[Fault]:
    """Make the calls of episodes again, one of each in turn; what differs, once for each episode."""
    async with AsyncExitStack() as stack:
        turns = []
        for play, stage in zip(plays, cycle(stages), strict=False):
            seated = await stack.enter_async_context(stage.seat(play.task, bench.rows[play.task]))
            turns.append(_Turns(play, seated.session))
        for number in range(max((len(play.steps) for play in plays), default=0)):
            for each in turns:
                await each.take(number)
        for each in turns:
            await each.end()
    return [
        Fault(f"task {each.play.task}, among others on {where}: {each.apart}; {KEEP}") for each in turns if each.apart
    ]


class _Turns:
    """An episode that is played again, step by step, between others."""

    def __init__(self, play: Play, session: Session[Any]) -> None:
        self.play = play
        self.apart: str | None = None
        """The first thing in which it is not as it was alone."""
        self._session = session

    async def take(self, number: int) -> None:
        """Make a step again, if there are so many."""
        if self.apart is None and number < len(self.play.steps):
            step = self.play.steps[number]
            await self._compare(written(step), step.content, repeat(self._session, step))

    async def end(self) -> None:
        """Have it judged again."""
        if self.apart is None and self.play.verdict is not None:
            await self._compare("verify", self.play.verdict.reward, self._judged())

    async def _judged(self) -> float:
        return (await self._session.verify(self.play.response)).reward

    async def _compare(self, what: str, alone: Any, coming: Awaitable[Any]) -> None:
        try:
            with contained:
                now = await coming
        except Exception as error:  # noqa: BLE001 - whatever an author's own code raises
            self.apart = f"{what} broke down: {type(error).__name__}: {error}"
            return
        if not same(alone, now):
            self.apart = f"{what} gives {brief(now)}, and alone {brief(alone)}"


def check_hidden_state(bench: Bench) -> Finding:
    """Nothing was set, or has changed, on the environment, its class or its module."""
    stage = bench.stage
    faults = changes(stage.before, held_by(stage.environment))
    return finding(HIDDEN, faults, "nothing is kept on self, on the class or in the module")


def check_read_back(bench: Bench) -> Finding:
    """After each call, who reads the state from the store has the one that the session goes on with."""
    if bench.environment.state_type is None:
        return skipped(READ_BACK, "stateless: there is nothing to read")
    faults = [
        Fault(
            f"task {play.task}, by {play.actor.name}: in memory the state is not what is stored, {play.strayed}; {OWN}"
        )
        for play in bench.shown
        if play.strayed is not None
    ]
    return finding(READ_BACK, faults, "after each call the state in the store is the one in memory")

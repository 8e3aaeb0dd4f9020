"""The checks `seed`, `determinism`, `isolation`, `hidden state` and `read back`.

An episode must depend only on its task, its random state and its calls.
"""

from __future__ import annotations

from collections.abc import Awaitable
from contextlib import AsyncExitStack
from itertools import cycle
from typing import Any

from stateroom.rollout.check.episodes import Episodes, Play
from stateroom.rollout.check.findings import (
    DETERMINISM,
    HIDDEN_STATE,
    ISOLATION,
    MAX_LISTED,
    READ_BACK,
    SEED,
    Fault,
    Finding,
    finding,
    listed,
    plural,
    skipped,
)
from stateroom.rollout.check.instance import Instance
from stateroom.rollout.rows import Row
from stateroom.session import Session, contained, same
from stateroom.state import brief_pair, decode, diff, encode, readable

USE_RNG = "take randomness, time and ids from `rng`, `clock` and `new_id`, and keep nothing in a module or class"
USE_METHODS = "change it only through its fields and methods"
USE_STATE = "keep the data of an episode in the state"


async def check_seed(episodes: Episodes) -> Finding:
    """Each task, and the world if any, has the same initial state in two instances."""
    if episodes.environment.state_type is None:
        return skipped(SEED, "stateless: nothing to seed")
    faults = []
    for task, row in episodes.rows.items():
        try:
            with contained:
                first = await _seeded(episodes.instance, task, row)
                again = await _seeded(episodes.other, task, row)
        except Exception as error:  # noqa: BLE001 - the author's code may raise anything
            place = episodes.instance.watched.place_of(error)
            faults.append(Fault(f"task {task}: seed failed: {type(error).__name__}: {error}{place}"))
            continue
        if first != again and (lines := await _first_differences(episodes, task, row)):
            faults.append(Fault(f"task {task}: its initial state differs each time: {listed(lines, 1)}; {USE_RNG}"))
    has_world = episodes.instance.environment.world_function is not None
    return finding(SEED, faults, f"{'the world and each seed are' if has_world else 'each seed is'} reproducible")


async def _seeded(instance: Instance, task: int, row: Row) -> bytes:
    """The stored initial state of a task; for a large world, only its id."""
    async with instance.seed(task, row) as seeded:
        snapshot = (await seeded.store.load(seeded.session.id)).snapshot
        return b"" if snapshot is None else snapshot.body


async def _first_differences(episodes: Episodes, task: int, row: Row) -> list[str]:
    """The differences between the initial states of a task."""
    states = []
    for instance in (episodes.instance, episodes.other):
        async with instance.seed(task, row) as seeded:
            states.append(readable(decode(encode(seeded.session.state))))
    return [str(difference) for difference in diff(*states)]


async def check_determinism(episodes: Episodes) -> Finding:
    """A repeated episode has the same outputs, states and reward."""
    faults = []
    pairs = zip(episodes.active, episodes.again, strict=True)
    differing = [first for first, again in pairs if first.difference(again)]
    for play in differing[:MAX_LISTED]:
        fresh = await episodes.new_instance(), await episodes.new_instance()  # to exclude effects of earlier episodes
        one, other = [await episodes.play_again(instance, play) for instance in fresh]
        if difference := one.difference(other):
            faults.append(Fault(f"task {play.task}, by {play.policy.name}: {difference}; {USE_RNG}"))
    calls = plural(sum(len(play.steps) for play in episodes.active), "call")
    played = plural(len(episodes.active), "episode")
    return finding(DETERMINISM, faults, f"{played}, {calls}: identical when repeated")


async def check_isolation(episodes: Episodes) -> Finding:
    """Interleaved episodes have the same results as each alone, on one instance and on two."""
    if len(episodes.rows) < 2:
        return skipped(ISOLATION, "needs at least two tasks")
    faults = []
    for first, again in zip(episodes.active, episodes.again, strict=True):
        if difference := first.difference(again):
            faults.append(Fault(f"task {first.task} differs after other episodes: {difference}; {USE_STATE}"))
    one, other = episodes.other, await episodes.new_instance()
    for plays in (episodes.reference, episodes.random):
        whole = [play for play in plays if play.failure is None and play.question is None]
        faults += await _take_turns(episodes, whole, [one], "one instance")
        faults += await _take_turns(episodes, whole, [one, other], "two instances")
    played = plural(len(episodes.active), "episode")
    return finding(ISOLATION, faults, f"{played} interleaved, on one instance and on two: identical to each alone")


async def _take_turns(episodes: Episodes, plays: list[Play], instances: list[Instance], where: str) -> list[Fault]:
    """Repeat the steps of episodes in turn; returns the first difference of each episode."""
    async with AsyncExitStack() as stack:
        repeats = []
        for play, instance in zip(plays, cycle(instances), strict=False):
            seeded = await stack.enter_async_context(instance.seed(play.task, episodes.rows[play.task]))
            repeats.append(_Repeat(play, seeded.session))
        for number in range(max((len(play.steps) for play in plays), default=0)):
            for each in repeats:
                await each.step(number)
        for each in repeats:
            await each.verify()
    return [
        Fault(f"task {each.play.task}, interleaved on {where}: {each.difference}; {USE_STATE}")
        for each in repeats
        if each.difference
    ]


class _Repeat:
    """An episode that is repeated step by step, interleaved with others."""

    def __init__(self, play: Play, session: Session[Any]) -> None:
        self.play = play
        self.difference: str | None = None
        """The first difference from the episode alone."""
        self._session = session

    async def step(self, number: int) -> None:
        """Repeat a step, unless the episode is shorter."""
        if self.difference is None and number < len(self.play.steps):
            step = self.play.steps[number]
            await self._compare(str(step), step.content, step.repeat(self._session))

    async def verify(self) -> None:
        if self.difference is None and self.play.verdict is not None:
            await self._compare("verify", self.play.verdict.reward, self._reward())

    async def _reward(self) -> float:
        return (await self._session.verify(self.play.response)).reward

    async def _compare(self, what: str, alone: Any, result: Awaitable[Any]) -> None:
        try:
            with contained:
                now = await result
        except Exception as error:  # noqa: BLE001 - the author's code may raise anything
            self.difference = f"{what} failed: {type(error).__name__}: {error}"
            return
        if not same(alone, now):
            self.difference = f"{what} returns {', but alone '.join(brief_pair(now, alone))}"


def check_hidden_state(episodes: Episodes) -> Finding:
    """No attribute of the environment, its class or its module was set or changed."""
    faults = episodes.instance.hidden_state()
    return finding(HIDDEN_STATE, faults, "nothing is kept on self, on the class or in the module")


def check_read_back(episodes: Episodes) -> Finding:
    """After each call, the stored state equals the one in memory."""
    if episodes.environment.state_type is None:
        return skipped(READ_BACK, "stateless: nothing to read")
    faults = [
        Fault(
            f"task {play.task}, by {play.policy.name}: the state in memory is not the stored one, {play.unstored}; "
            f"{USE_METHODS}"
        )
        for play in episodes.active
        if play.unstored is not None
    ]
    return finding(READ_BACK, faults, "the stored state equals the one in memory after each call")

"""The episodes that the checks look at: each is played as often as it takes, and no more."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from stateroom.environment import Environment
from stateroom.errors import EnvironmentFailed
from stateroom.rollout.checking.actors import Actor, idler, reference, wanderer
from stateroom.rollout.checking.playing import Play, play
from stateroom.rollout.checking.stage import Stage
from stateroom.rollout.world import Row
from stateroom.session.containment import contained


class Bench:
    """An environment, some of its tasks by number, and the episodes that were played of them.

    All is played on one instance, in order, and again on another, in the reverse order.
    """

    stage: Stage
    other: Stage

    def __init__(
        self,
        environment: type[Environment[Any, Any]],
        rows: Mapping[int, Row],
        on_play: Callable[[], None],
        open_stages: AsyncExitStack,
    ) -> None:
        self.environment = environment
        self.rows = rows
        self.reference: list[Play] = []
        """By the reference policy; none if there is no such policy."""
        self.wandered: list[Play] = []
        """By one that calls all tools by chance, but for those that reach outside."""
        self.idle: list[Play] = []
        """By one that does nothing."""
        self.again: list[Play] = []
        """The episodes of `shown` once more."""
        self.stuck: Play | None = None
        """The one that did not end; none is played after it."""
        self._on_play = on_play
        self._open = open_stages

    @property
    def shown(self) -> list[Play]:
        """The episodes that show what the environment does: of the reference policy, and of the one by chance."""
        return [*self.reference, *self.wandered]

    async def play(self) -> None:
        """Play all that the checks look at."""
        self.stage, self.other = await self.new_stage(), await self.new_stage()
        best = reference(self.environment)
        if best is not None:
            self.reference = await self._play_all(best, closely=True)
        self.wandered = await self._play_all(wanderer(), closely=best is None)
        self.idle = await self._play_all(idler())
        if self.stuck is None:
            self.again = [await self.play_again(self.other, each) for each in reversed(self.shown)][::-1]

    async def new_stage(self) -> Stage:
        """A new instance to play on, for as long as this lasts."""
        try:
            with contained:
                instance = self.environment()
        except Exception as error:
            told = f"another {self.environment.__name__}() cannot be made: {type(error).__name__}: {error}"
            raise EnvironmentFailed(told) from error
        return await self._open.enter_async_context(Stage(instance))

    async def play_again(self, stage: Stage, played: Play) -> Play:
        """An episode that was played before, on another instance."""
        self._on_play()
        return await play(stage, played.actor, played.task, self.rows[played.task])

    async def _play_all(self, actor: Actor, *, closely: bool = False) -> list[Play]:
        plays: list[Play] = []
        for task, row in self.rows.items():
            if self.stuck is None:
                plays.append(await play(self.stage, actor, task, row, closely=closely))
                self._on_play()
                broke = plays[-1].broke
                self.stuck = plays[-1] if broke is not None and broke.is_stuck else None
        return plays


@asynccontextmanager
async def played(
    environment: type[Environment[Any, Any]], rows: Mapping[int, Row], on_play: Callable[[], None]
) -> AsyncIterator[Bench]:
    """The episodes of an environment's tasks, and the instances on which they were played."""
    async with AsyncExitStack() as stack:
        bench = Bench(environment, rows, on_play, stack)
        await bench.play()
        yield bench

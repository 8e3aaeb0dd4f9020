"""A branch: what one policy does, from a node on."""

from __future__ import annotations

from stateroom.agent import Trajectory, act
from stateroom.errors import ModelFailed
from stateroom.model import Item
from stateroom.rollout.branching.node import Node
from stateroom.rollout.plan import Plan
from stateroom.rollout.runner import failure_fields, let_go, measured_fields
from stateroom.rollout.world import Row
from stateroom.session import AgentInMemory


class Branch:
    """Goes on from a node, in a fork of its session, and adds a node for each answer of its policy."""

    def __init__(self, plan: Plan, row: Row, start: Node, order: int) -> None:
        self.start = start
        self.tip = start
        """How far it has come."""
        self._plan = plan
        self._row = row
        self._order = order
        self._name = f"{start.id}.{order}"
        self._seat = start.seat
        self.length = 0
        """How many nodes it has added."""
        self._items = 0

    async def grow(self, steps: int | None) -> None:
        """Go on for so many answers, or to the end; where the episode ends it is judged."""
        plan = self._plan
        (self._seat,) = await self.start.seat.fork(1, self.start.revision)
        seed, tools = plan.seed_of(self._row["_ng_task_index"], self._name), plan.tools_for(self._row)
        left = plan.max_steps - self.start.depth
        trajectory = await act(
            self._seat,
            AgentInMemory(
                f"@{self._name}", plan.environment.lifecycle
            ),  # no other's: a fork has the calls of its past too
            plan.new_agent(self._row, seed, left if steps is None else min(steps, left)),
            tools,
            [*plan.items_of(self._row), *self.start.trajectory()],
            on_step=self._on_step,
        )
        if trajectory.status == "waiting":
            raise ModelFailed(f"nobody answers in a tree of episodes, and it was asked: {trajectory.question}")
        rest = trajectory.output[self._items :]
        if rest or self.tip is self.start:  # the deadline has passed in the middle of an answer
            await self._on_step(rest)
        if trajectory.status == "completed" or trajectory.reason == "deadline" or self.tip.depth >= plan.max_steps:
            await self._judge(Trajectory(self.tip.trajectory(), trajectory.status, trajectory.reason), tools, seed)
        await self._seat.close()  # it can be forked, and no more is to be done in it

    async def _judge(self, trajectory: Trajectory, tools: list[Item], seed: int) -> None:
        response = self._plan.response(trajectory, tools, seed)
        verdict = await self._seat.verify(self._row, response)
        self.tip.outcome = measured_fields(verdict, trajectory, self._row, self._seat) | {"response": response}
        self.tip.status = "completed" if trajectory.status == "completed" else "incomplete"

    async def fail(self, error: BaseException) -> None:
        """Say where and why it broke down, and end."""
        self._add([], self.tip.revision)
        self.tip.status, self.tip.failure = "failed", failure_fields(self._plan, error)
        if self._seat is not self.start.seat:  # which is another's
            await let_go(self._seat)

    async def _on_step(self, items: list[Item]) -> None:
        self._add(items, await self._seat.revision())

    def _add(self, items: list[Item], revision: int | None) -> None:
        first = self.length == 0
        added = Node(
            id=self._name if first else f"{self._name}+{self.length}",
            parent=self.tip,
            seat=self._seat,
            revision=revision,
            items=items,
            order=self._order if first else 0,
        )
        self.tip.children.append(added)
        self.tip = added
        self.length += 1
        self._items += len(items)

"""`open_engine`: workers in this process, in processes of this machine, or on a Ray cluster."""

from __future__ import annotations

from stateroom.errors import InvalidOption, needs
from stateroom.rollout.engines.engine import Engine, Worker
from stateroom.rollout.engines.heartbeat import Heartbeat
from stateroom.rollout.engines.worker import Link, open_worker
from stateroom.rollout.plan import Run


class LocalEngine(Engine):
    """One worker, in this process."""

    def __init__(self, plan: Run) -> None:
        super().__init__(plan, 1)

    async def start(self) -> Worker:
        return await self.resources.enter_async_context(open_worker(self.plan, self.slots, Link(Heartbeat())))


def open_engine(plan: Run) -> Engine:
    """The engine that a plan names."""
    kind, _, rest = plan.options.engine.partition(":")
    match kind:
        case "local" if not rest:
            return LocalEngine(plan)
        case "processes" if not rest or (rest.isdecimal() and int(rest)):
            from stateroom.rollout.engines.processes import ProcessEngine  # noqa: PLC0415 - not for a local run

            return ProcessEngine(plan, int(rest) if rest else None)
        case "ray":
            with needs("the engine ray", "ray"):
                from stateroom.rollout.engines.ray import RayEngine  # noqa: PLC0415 - an extra
            return RayEngine(plan, rest or None)
    raise InvalidOption(
        "engine", f"there is no {plan.options.engine!r}, but local, processes, processes:N, ray and ray:ADDRESS"
    )

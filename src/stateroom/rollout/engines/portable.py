"""A plan on its way to another process, where its environment and model are made anew."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from stateroom.errors import InvalidArguments
from stateroom.model import Limiter
from stateroom.rollout.plan import Origin, Run

MADE_ANEW = ("environment", "model", "tasks", "origin")


class Portable:
    """A plan as bytes."""

    def __init__(self, plan: Run, dump: Callable[[Any], bytes] = pickle.dumps) -> None:
        """Raises `InvalidArguments` if another process could not make the plan's environment or model."""
        given = {each.name: getattr(plan, each.name) for each in fields(plan) if each.name not in MADE_ANEW}
        if plan.origin is None:
            raise InvalidArguments("--engine: only a plan that `plan_run` has made can run in other processes")
        try:
            self._plan = dump((plan.origin, given))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InvalidArguments(
                f"--engine: another process cannot have this environment or model: {error}; name them as "
                "module:Class or path.py:Class"
            ) from error
        self._path = [*sys.path]
        self.lease = plan.lease

    def open(self, limiter: Limiter) -> Run:
        """The plan, in another process, whose requests to models pass this limiter."""
        sys.path += [each for each in self._path if each not in sys.path]
        origin: Origin
        try:
            origin, given = pickle.loads(self._plan)
        except (AttributeError, ModuleNotFoundError) as error:
            raise InvalidArguments(
                f"--engine: a worker cannot find what it is to run: {error}; put the class into a module, and not "
                "into a notebook or the program that is started"
            ) from error
        environment = origin.make_environment()
        return Run(environment, origin.open_model(environment, limiter), [], **given)

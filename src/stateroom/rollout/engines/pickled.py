"""A plan on its way to another process, where its environment and model are made anew."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

from stateroom.errors import InvalidOption
from stateroom.model import Limiter
from stateroom.rollout.plan import Run


class PickledPlan:
    """A plan as bytes."""

    def __init__(self, plan: Run, dump: Callable[[Any], bytes] = pickle.dumps) -> None:
        """Raises `InvalidOption` if another process could not make the plan's environment or model."""
        if plan.options.environment is None or plan.options.model is None:
            raise InvalidOption("engine", "only a plan that `plan_run` has made can run in other processes")
        try:
            self._parts = dump((plan.options, plan.files, plan.lease))
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise InvalidOption(
                "engine",
                f"another process cannot have this environment or model: {error}; name them as module:Class or "
                "path.py:Class",
            ) from error
        self._path = [*sys.path]
        self.lease = plan.lease

    def open(self, limiter: Limiter) -> Run:
        """The plan, in another process, whose requests to models pass this limiter."""
        sys.path += [each for each in self._path if each not in sys.path]
        try:
            options, files, lease = pickle.loads(self._parts)
        except (AttributeError, ModuleNotFoundError) as error:
            raise InvalidOption(
                "engine",
                f"a worker cannot find what it is to run: {error}; put the class into a module, and not into a "
                "notebook or the program that is started",
            ) from error
        environment = options.make_environment()
        return Run(environment, options.open_model(environment, limiter), options, [], files, lease)

"""An environment whose tool fails, a model whose process dies, and an environment that kills its worker once."""

import os
import signal
from pathlib import Path

from stateroom import Environment, Episode, State, tool
from stateroom.model import Answer, Model, Request, function_call, message


class Flaky(State):
    value: int = 0


class FlakyEnvironment(Environment[Flaky]):
    """Falls."""

    @tool
    def fall(self, state: Flaky) -> None:
        """Fall."""
        raise ValueError("I fell")

    def verify(self, state: Flaky) -> float:
        return 1.0


class Caller(Model):
    """Calls the tool once."""

    async def answer(self, request: Request) -> Answer:
        return Answer([message("I fell.")] if request.step else [function_call("fall", "c0")])


class Killer(Model):
    """Kills its own process."""

    async def answer(self, request: Request) -> Answer:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class DyingEnvironment(Environment[Flaky]):
    """Kills the first worker that verifies an episode."""

    def verify(self, state: Flaky, episode: Episode) -> float:
        mark = Path(episode.task.mark)
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 1.0

"""Who answers in a server's threads: the model that it was started with."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, Self
from zlib import crc32

from stateroom.agent import Agent, Context
from stateroom.environment import Environment
from stateroom.errors import NotFound
from stateroom.model import ModelSource, open_model
from stateroom.server.options import Options


class Answering:
    """Makes the agents that run threads, as long as it is entered."""

    def __init__(self, options: Options, environments: Sequence[Environment[Any, Any]]) -> None:
        self.options = options
        self.environments = environments
        self._sources: dict[str, ModelSource] = {}
        """Where models come from, by environment."""
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> Self:
        spec = self.options.model
        if spec is None:
            return self
        having = [each for each in self.environments if spec in each.policies]
        for each in having:
            self._sources[each.name] = await self._opened.enter_async_context(open_model(spec, each.policies))
        if not having:  # it is nobody's own, and so everybody's
            known = {name: policy for each in self.environments for name, policy in each.policies.items()}
            shared = await self._opened.enter_async_context(open_model(spec, known))
            self._sources = {each.name: shared for each in self.environments}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._opened.aclose()

    def agent(self, environment: str, thread: str) -> Agent:
        """Who answers in a thread of an environment; `NotFound` if nobody does."""
        source = self._sources.get(environment)
        if source is None:
            spec = self.options.model
            why = "without --model" if spec is None else f"with --model {spec}, which does not know {environment}"
            raise NotFound(f"nobody answers in threads of {environment} here: the server was started {why}")
        seed = crc32(thread.encode("utf-8", "surrogatepass"))
        return Agent(source.for_episode(seed), context=Context(self.options.context_tokens), seed=seed)

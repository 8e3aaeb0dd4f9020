"""A model for those who need it now and then, and have nobody who would close it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from stateroom.model.model import Model
from stateroom.model.url import ModelSource, open_model


class Lent:
    """A model, or what a spec stands for. Those who use that at the same time share its connections and limits.

    In between it holds none, so that it may outlive event loops.
    """

    def __init__(self, model: Model | str) -> None:
        self._open: Callable[[], ModelSource] = (
            partial(open_model, model, {})
            if isinstance(model, str)
            else partial(ModelSource, model.name, lambda seed: model)
        )
        self._source: ModelSource | None = self._open()  # at once, so that a mistake shows before it costs
        self.name = self._source.name
        self._users = 0

    @asynccontextmanager
    async def lend(self) -> AsyncIterator[Model]:
        """The model, for a block."""
        source = self._source = self._source or self._open()
        self._users += 1
        try:
            yield source.for_episode(0)
        finally:
            self._users -= 1
            if not self._users:
                self._source = None
                await source.close()

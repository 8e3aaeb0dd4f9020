"""Policies: scripted stand-ins for a model, so that environments can be run, tested and measured without one."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Awaitable
from random import Random
from typing import ClassVar

from stateroom.model.items import Item
from stateroom.model.model import Answer, Model, Request


class Policy(Model):
    """Answers a conversation by a rule. One instance acts in one episode; `seed` decides all its chance.

    It sees what a model would see, and no more: the conversation so far, and the tools. An episode may be taken over by
    another process, where a new instance goes on: so it remembers nothing but what it was made with, and its `rng` is a
    fresh one for each answer.
    """

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.rng = Random(seed)

    @abstractmethod
    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item] | Awaitable[list[Item]]:
        """The next items: tool calls, or a message without any, which ends the turn. May be async."""

    async def answer(self, request: Request) -> Answer:
        self.rng.seed(self.seed * 1_000_003 + request.step)
        answer = self.respond([*request.items], [*request.tools])
        return Answer(await answer if inspect.isawaitable(answer) else answer)


class Noisy(Policy):
    """Does what a better policy does, but errs in a set share of the episodes.

    Subclasses name the better policy and say what an error looks like.
    """

    better: ClassVar[type[Policy]]
    rate: ClassVar[float] = 0.4
    """The share of episodes in which it errs."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.inner = self.better(seed)
        self.errs = self.rng.random() < self.rate

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item] | Awaitable[list[Item]]:
        answer = self.inner.respond(conversation, tools)
        if not self.errs:
            return answer
        return self.err(answer) if isinstance(answer, list) else self._err_later(answer)

    async def _err_later(self, answer: Awaitable[list[Item]]) -> list[Item]:
        return self.err(await answer)

    @abstractmethod
    def err(self, items: list[Item]) -> list[Item]:
        """The items, with something wrong."""

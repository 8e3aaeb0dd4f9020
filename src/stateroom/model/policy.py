"""Policies: models that follow a rule or a script, to run and test environments without a real model."""

from __future__ import annotations

import inspect
import json
from abc import abstractmethod
from collections.abc import Awaitable, Iterable, Mapping
from random import Random
from typing import Any, ClassVar

from stateroom.errors import BadTask, ModelFailed
from stateroom.model.items import Item, function_call, message
from stateroom.model.model import Answer, Model, Request

Line = Answer | list[Item] | str | Exception
"""An answer, its items or its text, or an exception to raise."""


class Policy(Model):
    """A model that answers by a rule. One instance acts in one episode and takes all randomness from its `seed`.

    A policy sees what a model sees: the conversation so far, the tools and the `instructions`. Another process may
    continue an episode with a new instance, so a policy must keep nothing between answers, and its `rng` is seeded
    again for each answer.
    """

    instructions: str = ""
    """The instructions of the agent or the task, and of the environment."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.rng = Random(seed)

    @abstractmethod
    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item] | Awaitable[list[Item]]:
        """Return the next items: tool calls, or a message without calls, which ends the turn. May be async."""

    async def answer(self, request: Request) -> Answer:
        self.prepare(request)
        answer = self.respond([*request.items], [*request.tools])
        return Answer(await answer if inspect.isawaitable(answer) else answer)

    def prepare(self, request: Request) -> None:
        """Set the attributes that `respond` may use besides its arguments."""
        self.rng.seed(self.seed * 1_000_003 + request.step)
        self.instructions = str(request.settings.get("instructions") or "")


class Noisy(Policy):
    """Acts like a better policy, but makes errors in a fixed share of the episodes.

    A subclass sets the better policy in `better`, and adds the errors in `err`.
    """

    better: ClassVar[type[Policy]]
    rate: ClassVar[float] = 0.4
    """The share of episodes with errors."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.inner = self.better(seed)
        self.errs = self.rng.random() < self.rate

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item] | Awaitable[list[Item]]:
        answer = self.inner.respond(conversation, tools)
        if not self.errs:
            return answer
        return self.err(answer) if isinstance(answer, list) else self._err_later(answer)

    def prepare(self, request: Request) -> None:
        super().prepare(request)
        self.inner.prepare(request)

    async def _err_later(self, answer: Awaitable[list[Item]]) -> list[Item]:
        return self.err(await answer)

    @abstractmethod
    def err(self, items: list[Item]) -> list[Item]:
        """Return the items with an error."""


class Gold(Model):
    """Plays the gold actions of a task, one per answer, and ends with a message.

    A task row lists them in the field `gold`, or `ground_truth` as in NeMo Gym. An action is a call,
    `{"name": "pay", "arguments": {"amount": 3}}`, whose arguments may also be a JSON text, or a message to the
    environment's user, `{"message": "May I?"}`. Raises `BadTask` if the row has none.
    """

    name = "gold"

    def __init__(self, row: Mapping[str, Any]) -> None:
        self._actions = gold_actions(row)

    async def answer(self, request: Request) -> Answer:
        if request.step >= len(self._actions):
            return Answer([message("That is all.")])
        action = self._actions[request.step]
        if "message" in action:
            return Answer([message(action["message"])])
        call = function_call(action["name"], f"call_{request.step}")
        arguments = action.get("arguments") or {}
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return Answer([{**call, "arguments": text}])


GOLD_FIELDS = ("gold", "ground_truth")
"""The fields in which a task row may list its gold actions."""


def gold_actions(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The gold actions of a task row. Raises `BadTask` if they are missing or invalid."""
    actions = next((row[field] for field in GOLD_FIELDS if field in row), None)
    if not isinstance(actions, list):
        raise BadTask("gold: the task has no gold actions; list them in the field `gold`, or use another model")
    for number, action in enumerate(actions, 1):
        if not (isinstance(action, dict) and any(isinstance(action.get(name), str) for name in ("name", "message"))):
            raise BadTask(f"gold: action {number} must be a call with a name, or a message: {action!r:.100}")
    return actions


class Scripted(Model):
    """Returns the answers of a list in order, one for each request of an episode."""

    name = "scripted"

    def __init__(self, answers: Iterable[Line]) -> None:
        self.answers = tuple(answers)

    async def answer(self, request: Request) -> Answer:
        if request.step >= len(self.answers):
            raise ModelFailed(f"the script has no answer {request.step + 1}; its last is answer {len(self.answers)}")
        match self.answers[request.step]:
            case Exception() as error:
                raise error
            case str() as text:
                return Answer([message(text)])
            case list() as items:
                return Answer(items)
            case answer:
                return answer

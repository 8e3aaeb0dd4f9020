"""Teachers: policies whose episodes a model learns to imitate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stateroom.model import NO_ROW, TOKEN_LISTS, Answer, Model, ModelSource, Request, TransformersModel


class Teacher(ModelSource):
    """Gives each episode a policy whose answers have tokens, as if a student had written them."""

    def __init__(self, policies: ModelSource, student: TransformersModel) -> None:
        super().__init__(policies.name, policies.for_episode, policies.close)
        self._policies = policies
        self._student = student

    def check_task(self, row: Mapping[str, Any]) -> None:
        self._policies.check_task(row)

    def for_episode(self, seed: int, row: Mapping[str, Any] = NO_ROW) -> Model:
        return _Taught(self._policies.for_episode(seed, row), self._student)


class _Taught(Model):
    def __init__(self, policy: Model, student: TransformersModel) -> None:
        self.name = policy.name
        self._policy = policy
        self._student = student

    async def answer(self, request: Request) -> Answer:
        answer = await self._policy.answer(request)
        written = self._student.render_answer(answer.items)
        tokens = (self._student.prompt_of(request), written, [0.0] * len(written))
        return Answer([*answer.items[:-1], answer.items[-1] | dict(zip(TOKEN_LISTS, tokens, strict=True))])

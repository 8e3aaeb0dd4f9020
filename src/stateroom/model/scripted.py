"""A model that says what it was told to, for tests and examples."""

from __future__ import annotations

from collections.abc import Iterable

from stateroom.errors import ModelFailed
from stateroom.model.items import Item, message
from stateroom.model.model import Answer, Model, Request

Line = Answer | list[Item] | str | Exception
"""What to answer: an answer, its items, or what it says; an exception is raised."""


class Scripted(Model):
    """Gives the answers of a list: to the first request of an episode the first, and so on, in whichever process."""

    name = "scripted"

    def __init__(self, answers: Iterable[Line]) -> None:
        self.answers = tuple(answers)

    async def answer(self, request: Request) -> Answer:
        if request.step >= len(self.answers):
            raise ModelFailed(f"the script has {len(self.answers)} answers, and is asked for number {request.step + 1}")
        match self.answers[request.step]:
            case Exception() as error:
                raise error
            case str() as text:
                return Answer([message(text)])
            case list() as items:
                return Answer(items)
            case answer:
                return answer

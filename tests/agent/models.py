"""Models that several tests use."""

from typing import Any

from stateroom.model import Answer, Model, Request, Scripted


class Remembers(Model):
    """Gives the answers of a script, and remembers what it was asked."""

    def __init__(self, *answers: Any) -> None:
        self.script = Scripted(answers)
        self.asked: list[Request] = []

    async def answer(self, request: Request) -> Answer:
        self.asked.append(request)
        return await self.script.answer(request)

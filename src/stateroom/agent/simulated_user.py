"""`SimulatedUser`: a user that a model plays, for an environment's `reply`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import NonNegativeInt

from stateroom.agent.agent import function_tool
from stateroom.agent.calls import StateTools, call_tool, output_text
from stateroom.agent.context import Context, Conversation
from stateroom.errors import DefinitionError, ModelFailed
from stateroom.model import (
    NO_SETTINGS,
    Answer,
    Item,
    Model,
    Request,
    SharedModel,
    answer_of,
    function_call_output,
    input_items,
    message_text,
)

MAX_STEPS = 10
"""Answers of a user's model before the user says something, by default."""

GREETING = "Hello! How can I help you?"
"""The message for a user who speaks first, since a model can only answer."""

END = function_tool("end_conversation", "End the conversation: you have what you wanted, or will not get it.")
"""The tool with which a user's model ends the conversation."""


class UserSide(Conversation):
    """A conversation from the perspective of its simulated user; any `State` can have a field of this type.

    Here the agent's messages have the role `user`, and the user's messages are the answers of a model.
    """

    answers: NonNegativeInt = 0
    """The number of answers of the model."""
    ended: bool = False
    """Whether the user ended it."""
    input_tokens: NonNegativeInt = 0
    output_tokens: NonNegativeInt = 0
    """The tokens of the answers, as far as reported."""


class SimulatedUser:
    """A user played by a model. It stores nothing itself: the state holds the conversation, as a `UserSide`.

    The model is a `Model`, or a spec as for `--model`: `"openai:NAME"`, `"local"` and so on. The user opens and closes
    the model of a spec itself.

    The user ends the conversation with the tool `end_conversation`, or, if `stop` is given, by saying that text.
    `tools` are functions with which the user acts on the state: `def pay(state, amount: float) -> str`, with a
    docstring for the model. The model sees a `ToolError` that a tool raises; the tool must not have changed the state.
    """

    def __init__(
        self,
        model: Model | str,
        instructions: str,
        *,
        tools: Iterable[Callable[..., Any]] = (),
        stop: str | None = None,
        context: Context | None = None,
        settings: Mapping[str, Any] = NO_SETTINGS,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self._model = SharedModel(model)
        self._stop = stop
        parts = [instructions, *([] if stop is None else [f"When you have nothing more to say, say only {stop}"])]
        self._instructions = "\n\n".join(parts)
        self._tools = StateTools("the user's tool", tools)
        if END["name"] in self._tools:
            raise DefinitionError(
                f"the user's tool {END['name']!r} clashes with the tool that ends the conversation; rename it"
            )
        self._definitions = self._tools.definitions + ([END] if stop is None else [])
        self._context = context or Context()
        self._settings = settings
        self._max_steps = max_steps

    async def reply(
        self, side: UserSide, message: str, *, about: str = "", state: Any = None, seed: int = 0
    ) -> str | None:
        """Answer a message of the agent; None if the conversation is over. After an empty one, the user speaks first.

        `about` describes this episode to the user's model: what the user wants, and said first. The user's tools act on
        `state`, and `seed` is the seed of the answer. Raises `ModelUnavailable` or `ModelFailed` if the model does.
        """
        if side.ended:
            return None
        self._hear(side, input_items(message or GREETING))
        for _ in range(self._max_steps):
            answer = await self._answer(side, about, seed)
            calls = [item for item in answer.items if item["type"] == "function_call"]
            if not calls:
                return self._said(side, answer)
            tools = self._tools.on(state)
            for call in calls:
                if self._stop is None and call["name"] == END["name"]:
                    side.ended = True
                    return None
                outcome = await call_tool(tools, call, None)
                self._hear(side, [function_call_output(call["call_id"], output_text(outcome))])
        raise ModelFailed(
            f"{self._model.name}, as the simulated user, gave {self._max_steps} answers with tool calls only"
        )

    async def _answer(self, side: UserSide, about: str, seed: int) -> Answer:
        """Let the model answer, and keep its answer."""
        instructions = f"{self._instructions}\n\n{about}" if about else self._instructions
        items = await self._shown(side, instructions)
        settings = {**self._settings, "instructions": instructions}
        request = Request(items, self._definitions, settings, seed, side.answers)
        async with self._model.use() as model:
            answer = await answer_of(model, request)
        side.answers += 1
        if answer.usage is not None:
            side.input_tokens += answer.usage.input_tokens
            side.output_tokens += answer.usage.output_tokens
        self._hear(side, answer.items)
        return answer

    async def _shown(self, side: UserSide, instructions: str) -> list[Item]:
        context = self._context
        window = side.window(0 if context.budget is None else context.beside(self._definitions, instructions))
        if not context.fits(window):
            window = await context.fit(window)
            side.compact(window)
        return window.items

    def _hear(self, side: UserSide, items: Sequence[Item]) -> None:
        side.add(items, counter=self._context.counter)

    def _said(self, side: UserSide, answer: Answer) -> str | None:
        text = message_text(answer.items).strip()
        if self._stop is not None and self._stop in text:
            side.ended = True
            return None
        if not text:
            raise ModelFailed(f"{self._model.name}, as the simulated user, gave an empty answer")
        return text

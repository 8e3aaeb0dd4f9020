"""`SimulatedUser`: a user whom a model plays, for an environment's `reply`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, get_type_hints

from pydantic import NonNegativeInt
from pydantic_core import to_jsonable_python

from stateroom.agent.calls import call_tool, output_text
from stateroom.agent.context import Context
from stateroom.agent.conversation import Conversation
from stateroom.environment.tool import Kept, Tool, make_tool, tool
from stateroom.errors import DefinitionError, InvalidArguments, ModelFailed, ToolError
from stateroom.model import NO_SETTINGS, Answer, Item, Model, Request, answer_of, function_call_output, text_of
from stateroom.session import Result

MAX_STEPS = 10
"""How often a user's model may answer before the user has said something."""

END: Item = {
    "type": "function",
    "name": "end_conversation",
    "description": "End the conversation: you have what you wanted, or will not get it.",
    "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
    "strict": True,
}
"""The tool by which a user's model ends the conversation."""


class UserSide(Conversation):
    """A conversation as its simulated user has it; a field of this type can be in any `State`.

    The agent's messages are those of the `user` here, and what the user says are the answers of a model.
    """

    answers: NonNegativeInt = 0
    """How often the model has answered."""
    ended: bool = False
    """Whether the user has ended it."""
    input_tokens: NonNegativeInt = 0
    output_tokens: NonNegativeInt = 0
    """What the answers took, as far as the model told."""


class SimulatedUser:
    """A user whom a model plays. It keeps nothing itself: what was said is in the state, as a `UserSide`.

    The user ends the conversation by a tool, `end_conversation`, or, if a `stop` mark is given, by saying that. `tools`
    are functions by which the user acts on the state: `def pay(state, amount: float) -> str`, with a docstring that the
    model reads. One that raises `ToolError` tells the model why, and should have changed nothing by then.
    """

    def __init__(
        self,
        model: Model,
        instructions: str,
        *,
        tools: Iterable[Callable[..., Any]] = (),
        stop: str | None = None,
        context: Context | None = None,
        settings: Mapping[str, Any] = NO_SETTINGS,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self._model = model
        self._stop = stop
        told = [instructions, *([] if stop is None else [f"When you have nothing more to say, say only {stop}"])]
        self._instructions = "\n\n".join(told)
        self._tools = {each.name: each for each in map(_tool_of, tools)}
        self._definitions = [each.definition for each in self._tools.values()] + ([END] if stop is None else [])
        self._context = context or Context()
        self._settings = settings
        self._max_steps = max_steps

    async def reply(
        self, side: UserSide, message: str, *, about: str = "", state: Any = None, seed: int = 0
    ) -> str | None:
        """What the user answers to a message of the agent's; None if the conversation is over.

        `about` is what the user is told of this episode besides: what they want, and how they have begun. Its tools act
        on `state`, and `seed` decides the chance in the answer, as far as the model lets itself be told. A model that
        cannot be reached, or talks nonsense, raises `ModelUnavailable` or `ModelFailed`.
        """
        if side.ended:
            return None
        self._hear(side, [{"type": "message", "role": "user", "content": message}])
        for _ in range(self._max_steps):
            answer = await self._answer(side, about, seed)
            calls = [item for item in answer.items if item["type"] == "function_call"]
            if not calls:
                return self._said(side, answer)
            hands = _Hands(self._tools, state)
            for call in calls:
                if self._stop is None and call["name"] == END["name"]:
                    side.ended = True
                    return None
                outcome = await call_tool(hands, call, None)
                self._hear(side, [function_call_output(call["call_id"], output_text(outcome))])
        raise ModelFailed(f"{self._model.name}, as a user, called tools {self._max_steps} times and said nothing")

    async def _answer(self, side: UserSide, about: str, seed: int) -> Answer:
        """Let the model answer what it is shown of the conversation, and keep that."""
        instructions = f"{self._instructions}\n\n{about}" if about else self._instructions
        items = await self._shown(side, instructions)
        settings = {**self._settings, "instructions": instructions}
        answer = await answer_of(self._model, Request(items, self._definitions, settings, seed, side.answers))
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
        text = "".join(text_of(item) for item in answer.items if item["type"] == "message").strip()
        if self._stop is not None and self._stop in text:
            side.ended = True
            return None
        if not text:
            raise ModelFailed(f"{self._model.name}, as a user, said nothing")
        return text


class _Hands:
    """A user's own tools, on a state."""

    def __init__(self, tools: Mapping[str, Tool], state: Any) -> None:
        self._tools = tools
        self._state = state

    async def call(self, name: str, arguments: Mapping[str, Any], *, call_id: str | None) -> Result:
        found = self._tools.get(name)
        if found is None:
            known = ", ".join(sorted(self._tools)) or "none"
            return Result(False, None, f"there is no tool named {name!r}; there are: {known}", "unknown_tool")
        try:
            output = found.procedure.function(self._state, **found.bind(dict(arguments)))
            return Result(True, to_jsonable_python(await output if inspect.isawaitable(output) else output))
        except InvalidArguments as error:
            return Result(False, None, str(error), "invalid_arguments", error.fields)
        except ToolError as error:
            return Result(False, None, str(error) or f"{name} failed", "tool_error")


def _tool_of(function: Callable[..., Any]) -> Tool:
    """The tool that a function of the author's is."""
    name = getattr(function, "__name__", repr(function))
    where = f"the user's tool {name!r}"
    if not inspect.isfunction(function) or [*inspect.signature(function).parameters][:1] != ["state"]:
        raise DefinitionError(f"{where} must be a function whose first parameter is the state: def {name}(state, …)")
    if name == END["name"]:
        raise DefinitionError(f"{where}: the name is taken by the tool that ends the conversation; give it another")
    try:
        hints = get_type_hints(function, include_extras=True)
    except (NameError, TypeError) as error:
        raise DefinitionError(f"{where}: its annotations cannot be read: {error}") from None
    made = make_tool(where, name, tool(function), hints, Kept(True, frozenset()))
    if made.procedure.needs:
        asked = ", ".join(sorted(made.procedure.needs))
        raise DefinitionError(f"{where} asks for {asked}; it can have the state, and what the model fills in")
    return made

"""`Agent`: who acts, and within what limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from stateroom.agent.context import Context
from stateroom.model import Item, Model

MAX_STEPS = 50
"""How often a model may answer in one turn."""

MAX_STRIKES = 10
"""How many tool calls in a row may be such that they cannot even be tried."""

ASK_USER: Item = {
    "type": "function",
    "name": "ask_user",
    "description": "Ask the user something that you need to know before you can go on.",
    "parameters": {
        "type": "object",
        "properties": {"question": {"type": "string", "description": "What to ask."}},
        "required": ["question"],
        "additionalProperties": False,
    },
    "strict": True,
}
"""The tool by which a model asks for input."""


@dataclass(frozen=True)
class Agent:
    """A model, what it is told, and within what limits it works. It keeps nothing of any conversation."""

    model: Model
    instructions: str = ""
    """What the model is told before all else, in every conversation."""
    context: Context = field(default_factory=Context)
    """How much of a conversation the model is shown."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Other parameters of the Responses API, such as `temperature`."""
    seed: int = 0
    """Decides the chance in its model's answers, as far as that lets itself be told."""
    max_steps: int = MAX_STEPS
    """How often its model may answer in one turn."""
    deadline: float | None = None
    """Seconds that a turn may take, of those that a process works on it."""
    max_strikes: int = MAX_STRIKES
    """How many tool calls in a row may be such that they cannot even be tried: of unknown tools, or with bad
    arguments."""
    asks: bool = False
    """Whether the model can ask for input: with a tool, `ask_user`."""

"""What thinks: policies, and the items that a conversation is made of."""

from stateroom.model.items import (
    Item,
    function_call,
    function_call_output,
    input_items,
    last_user_text,
    message,
    outputs_of,
    text_of,
)
from stateroom.model.policy import Faltering, Policy

__all__ = [
    "Faltering",
    "Item",
    "Policy",
    "function_call",
    "function_call_output",
    "input_items",
    "last_user_text",
    "message",
    "outputs_of",
    "text_of",
]

"""Models, policies that act as one, and the items of a conversation."""

from stateroom.model.address import Limits
from stateroom.model.chat import completion_message as completion_message
from stateroom.model.chat import items_of as items_of
from stateroom.model.chat import responses_tools as responses_tools
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
from stateroom.model.items import checked_items as checked_items
from stateroom.model.items import is_content as is_content
from stateroom.model.items import kind_of as kind_of
from stateroom.model.items import message_text as message_text
from stateroom.model.judge import Judge, Judgement, Reading, Vote, majority, read_score
from stateroom.model.model import NO_SETTINGS, Answer, Model, Request, Usage, answer_of
from stateroom.model.policy import Noisy, Policy, Scripted
from stateroom.model.replay import Replayed
from stateroom.model.settings import chat_usage as chat_usage
from stateroom.model.settings import responses_settings as responses_settings
from stateroom.model.source import ModelSource, open_model

__all__ = [
    "NO_SETTINGS",
    "Answer",
    "Item",
    "Judge",
    "Judgement",
    "Limits",
    "Model",
    "ModelSource",
    "Noisy",
    "Policy",
    "Reading",
    "Replayed",
    "Request",
    "Scripted",
    "Usage",
    "Vote",
    "answer_of",
    "function_call",
    "function_call_output",
    "input_items",
    "last_user_text",
    "majority",
    "message",
    "open_model",
    "outputs_of",
    "read_score",
    "text_of",
]

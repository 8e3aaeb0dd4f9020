"""What thinks: models, policies that stand for one, and the items that a conversation is made of."""

from stateroom.model.endpoint import Limits
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
from stateroom.model.judge import Judge, Judgement
from stateroom.model.model import NO_SETTINGS, Answer, Model, Request, Usage, answer_of
from stateroom.model.policy import Noisy, Policy
from stateroom.model.replay import Replayed
from stateroom.model.scripted import Scripted
from stateroom.model.url import ModelSource, open_model
from stateroom.model.votes import Reading, Vote, majority, read_score

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

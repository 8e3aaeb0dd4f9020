"""Responses items: what a policy reads of a conversation."""

import json

from stateroom.model import function_call, input_items, last_user_text, message, outputs_of, text_of


def test_input_is_a_text_or_items() -> None:
    assert input_items("hi") == [{"type": "message", "role": "user", "content": "hi"}]
    items = [{"role": "user", "content": "hi"}]
    assert input_items(items) == items
    assert input_items(items) is not items
    assert input_items(None) == []


def test_text_of_a_message_in_each_of_its_forms() -> None:
    assert text_of({"role": "user", "content": "a"}) == "a"
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "u"}, {"text": None}]
    assert text_of({"role": "user", "content": parts}) == "a"
    assert text_of({"role": "assistant", "content": None}) == ""
    assert text_of(message("b")) == "b"


def test_the_last_thing_that_the_user_said() -> None:
    conversation = [*input_items("first"), message("no"), *input_items("second"), message("yes")]
    assert last_user_text(conversation) == "second"
    assert last_user_text([message("alone")]) == ""


def test_outputs_are_decoded_and_what_is_not_json_stays_text() -> None:
    items = [{"type": "function_call_output", "call_id": "c", "output": text} for text in ('{"a":1}', "Not found", "")]
    assert outputs_of(items) == [{"a": 1}, "Not found", ""]


def test_a_call_carries_its_arguments_as_json() -> None:
    call = function_call("greet", "c", whom="Zoë")
    assert json.loads(call["arguments"]) == {"whom": "Zoë"}
    assert json.loads(function_call("greet", "c")["arguments"]) == {}

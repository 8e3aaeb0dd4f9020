"""Responses items: what a policy reads of a conversation."""

import json

from stateroom.model import (
    calls_of,
    function_call,
    input_items,
    last_user_text,
    message,
    newest_turn,
    outputs_of,
    text_of,
)


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


def test_a_turn_begins_after_what_the_user_said() -> None:
    conversation = [*input_items("first"), message("no"), *input_items("second"), message("yes")]
    assert newest_turn(conversation) == [message("yes")]
    assert newest_turn(conversation[:3]) == []
    assert newest_turn([message("alone")]) == [message("alone")]


def test_the_calls_of_a_tool_by_its_own_name_or_an_mcp_clients() -> None:
    calls = [
        function_call(name, "c") for name in ("greet", "mcp__a__greet", "mcp__a_b__c__greet", "regreet", "a__greet")
    ]
    assert calls_of({"output": [message("greet"), *calls]}, "greet") == calls[:3]
    assert calls_of(None, "greet") == calls_of({}, "greet") == []


def test_outputs_may_come_as_parts_and_are_decoded_or_stay_text() -> None:
    parts = [{"type": "input_text", "text": '{"count":'}, {"type": "input_text", "text": " 3}"}]
    image = [{"type": "input_image", "image_url": "u"}]
    given = ['{"a":1}', "Not found", "", "3", parts, image]
    items = [{"type": "function_call_output", "call_id": "c", "output": output} for output in given]
    assert outputs_of(items) == [{"a": 1}, "Not found", "", 3, {"count": 3}, image]


def test_a_call_carries_its_arguments_as_json() -> None:
    call = function_call("greet", "c", whom="Zoë")
    assert json.loads(call["arguments"]) == {"whom": "Zoë"}
    assert json.loads(function_call("greet", "c")["arguments"]) == {}
    own = function_call("greet", "c", name="Zoë", call_id="x")
    assert (own["name"], own["call_id"]) == ("greet", "c")
    assert json.loads(own["arguments"]) == {"name": "Zoë", "call_id": "x"}

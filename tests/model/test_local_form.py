"""How a model that knows nothing of tools is told of them, and what is made of its answers."""

import json
from typing import Any

import pytest

from stateroom.errors import ModelFailed
from stateroom.gallery import CounterEnvironment
from stateroom.model import function_call, function_call_output, message
from stateroom.model.local_prompt import AnswerFormat, messages_for
from tests.messages import raises

TOOLS = CounterEnvironment().tool_definitions()


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


def test_the_prompt_tells_the_tools_their_parameters_and_the_form_of_an_answer() -> None:
    told = AnswerFormat(TOOLS).instructions()
    assert "- increment_counter: Add `count` to the counter." in told
    assert "  count: How much to add." in told
    assert '{"tool": "increment_counter", "arguments": {"count": "<integer>"}}' in told
    assert '{"message": "<string>"}' in told


def test_the_conversation_is_told_in_turns_of_user_and_assistant() -> None:
    items = [
        {"type": "message", "role": "developer", "content": "Be brief."},
        user("Add 5."),
        user("Now."),
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        function_call("increment_counter", "a", count=5),
        function_call_output("a", '{"success": true}'),
        message("Done."),
    ]
    system, *turns = messages_for(items, AnswerFormat(TOOLS), "You count.")
    assert system["content"].startswith("You count.\n\nYou solve")
    assert system["content"].endswith("\n\nBe brief.")
    assert turns == [
        {"role": "user", "content": "Add 5.\nNow."},
        {"role": "assistant", "content": '{"tool": "increment_counter", "arguments": {"count": 5}}'},
        {"role": "user", "content": 'Result: {"success": true}'},
        {"role": "assistant", "content": '{"message": "Done."}'},
    ]


def test_without_tools_there_is_no_form() -> None:
    form = AnswerFormat([])
    assert form.free
    assert messages_for([user("Hello."), message("Hi.")], form) == [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": "Hi."},
    ]
    assert form.items('{"tool": "none"}', "a") == [message('{"tool": "none"}')]


def test_arguments_that_are_no_json_are_told_as_they_are() -> None:
    broken = {**function_call("increment_counter", "a"), "arguments": '{"count": '}
    (_, turn) = messages_for([broken], AnswerFormat(TOOLS))
    assert turn["content"] == '{"tool": "increment_counter", "arguments": "{\\"count\\": "}'


@pytest.mark.parametrize(
    ("choice", "names", "may_speak"),
    [
        (None, ["increment_counter", "get_counter_value"], True),
        ("auto", ["increment_counter", "get_counter_value"], True),
        ("none", [], True),
        ("required", ["increment_counter", "get_counter_value"], False),
        ({"type": "function", "name": "get_counter_value"}, ["get_counter_value"], False),
    ],
)
def test_a_tool_choice_narrows_the_form(choice: Any, names: list[str], may_speak: bool) -> None:
    form = AnswerFormat(TOOLS, choice)
    assert [tool["name"] for tool in form.tools] == names
    ways = form.schema()["anyOf"]
    assert ({"message": {"type": "string"}} in [way["properties"] for way in ways]) is may_speak
    assert len(ways) == len(names) + may_speak
    assert form.instructions() == AnswerFormat(TOOLS).instructions()  # the prompt stays the same


@pytest.mark.parametrize("choice", ["sometimes", {"type": "function", "name": "nope"}, {"type": "web_search"}])
def test_a_tool_choice_that_cannot_be_met_is_refused(choice: Any) -> None:
    with raises(ModelFailed):
        AnswerFormat(TOOLS, choice)


def test_definitions_of_two_tools_do_not_meet() -> None:
    tools = [
        {
            "type": "function",
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {"what": {"$ref": "#/$defs/Kind"}},
                "$defs": {"Kind": {"enum": [name]}},
            },
        }
        for name in ("red", "blue")
    ]
    schema = AnswerFormat(tools).schema()
    assert schema["$defs"] == {"red.Kind": {"enum": ["red"]}, "blue.Kind": {"enum": ["blue"]}}
    arguments = schema["anyOf"][1]["properties"]["arguments"]
    assert arguments == {"type": "object", "properties": {"what": {"$ref": "#/$defs/blue.Kind"}}}
    assert tools[1]["parameters"]["$defs"] == {"Kind": {"enum": ["blue"]}}  # type: ignore[index]


@pytest.mark.parametrize(
    ("schema", "outline"),
    [
        ({"type": "array", "items": {"type": "number"}}, ["<number>"]),
        ({"enum": ["a", "b"]}, "<a or b>"),
        ({"const": 3}, 3),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, "<string>"),
        ({"$ref": "#/$defs/Kind"}, "<Kind>"),
        ({"type": "object", "properties": {"x": {"type": "boolean"}}}, {"x": "<boolean>"}),
        ({}, "<value>"),
    ],
)
def test_parameters_are_shown_in_outline(schema: Any, outline: Any) -> None:
    tool = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"p": schema}}}
    assert json.dumps({"tool": "f", "arguments": {"p": outline}}) in AnswerFormat([tool]).instructions()


@pytest.mark.parametrize(
    "text", ["", "{", '{"tool": "f"}', '{"message": 3}', "[]", "3", '{"tool": 1, "arguments": {}}']
)
def test_what_does_not_keep_to_the_form_is_no_answer(text: str) -> None:
    assert AnswerFormat(TOOLS).items(text, "a") is None

"""The parameters of a request in the words of both APIs."""

from typing import Any

import pytest

from stateroom.model import Usage, chat_usage, responses_settings
from stateroom.model.settings import chat_settings, usage_of

SCHEMA = {"type": "object", "properties": {}}

BOTH: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"temperature": 0.5, "top_p": 0.9}, {"temperature": 0.5, "top_p": 0.9}),
    ({"max_output_tokens": 100}, {"max_tokens": 100}),
    ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
    (
        {"reasoning": {"effort": "low", "summary": "auto"}},
        {"reasoning_effort": "low", "reasoning": {"summary": "auto"}},
    ),
    ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
    ({"text": {"verbosity": "low"}}, {"verbosity": "low"}),
    (
        {
            "text": {
                "format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True},
                "verbosity": "low",
            }
        },
        {
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
            "verbosity": "low",
        },
    ),
    ({"tool_choice": "required"}, {"tool_choice": "required"}),
    (
        {"tool_choice": {"type": "function", "name": "add"}},
        {"tool_choice": {"type": "function", "function": {"name": "add"}}},
    ),
    (
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]}},
        {
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "add"}}]},
            }
        },
    ),
    ({"top_logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
    ({"parallel_tool_calls": False, "top_k": 7}, {"parallel_tool_calls": False, "top_k": 7}),
]


@pytest.mark.parametrize(("responses", "chat"), BOTH)
def test_settings_have_a_form_in_both(responses: dict[str, Any], chat: dict[str, Any]) -> None:
    assert chat_settings(responses) == chat
    assert responses_settings(chat) == responses


def test_what_has_no_meaning_in_chat_is_left_out() -> None:
    assert chat_settings({"include": ["reasoning.encrypted_content"], "truncation": "auto"}) == {}


def test_the_newer_name_of_the_limit_is_known_too() -> None:
    assert responses_settings({"max_completion_tokens": 9}) == {"max_output_tokens": 9}


def test_settings_that_were_given_are_not_changed() -> None:
    choice = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "add"}]}
    settings = {"tool_choice": choice, "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}}
    before = repr(settings)
    responses_settings(chat_settings(settings))
    assert repr(settings) == before


def test_usage_in_both_forms() -> None:
    usage = Usage(10, 5, 4, 3)
    assert chat_usage(usage)["total_tokens"] == usage.plain()["total_tokens"] == 15
    assert usage_of(chat_usage(usage)) == usage_of(usage.plain()) == usage


@pytest.mark.parametrize(
    ("told", "usage"),
    [
        (None, None),
        ("many", None),
        ({"prompt_tokens": 7, "completion_tokens": None}, Usage(7)),
        ({"input_tokens": 7, "output_tokens": 2, "input_tokens_details": None}, Usage(7, 2)),
        ({"prompt_tokens": 7, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 5}}, Usage(7, 2, 5)),
        ({"prompt_tokens": "7"}, Usage()),
    ],
)
def test_usage_is_read_as_far_as_it_is_told(told: Any, usage: Usage | None) -> None:
    assert usage_of(told) == usage


def test_a_choice_that_makes_no_sense_is_passed_on() -> None:
    allowed = {"mode": "auto", "tools": 7}
    assert responses_settings({"tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}}) == {
        "tool_choice": {"type": "allowed_tools", **allowed}
    }
    assert chat_settings({"tool_choice": {"type": "allowed_tools", **allowed}}) == {
        "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}
    }

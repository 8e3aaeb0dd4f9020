"""Conversations in the words of Responses and of Chat Completions, there and back."""

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from stateroom.errors import ModelFailed
from stateroom.model import (
    TOKEN_LISTS,
    Item,
    chat_tools,
    completion_message,
    function_call,
    function_call_output,
    items_of,
    message,
    messages_of,
    responses_tools,
    template_messages,
)
from stateroom.model.chat import completion_items
from tests.messages import raises

USER = {"type": "message", "role": "user", "content": "Add 3."}


def reasoning(text: str) -> Item:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def tool_call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_whole_episode_in_both_forms() -> None:
    items = [
        {"type": "message", "role": "system", "content": "Be exact."},
        USER,
        reasoning("Two calls will do."),
        message("I add."),
        function_call("add", "c1", number=1),
        function_call("add", "c2", number=2),
        function_call_output("c1", '{"ok":true}'),
        function_call_output("c2", "failed"),
        message("Done."),
    ]
    messages: list[Any] = [
        {"role": "system", "content": "Be exact."},
        {"role": "user", "content": "Add 3."},
        {
            "role": "assistant",
            "content": "I add.",
            "reasoning_content": "Two calls will do.",
            "tool_calls": [tool_call("c1", "add", '{"number": 1}'), tool_call("c2", "add", '{"number": 2}')],
        },
        {"role": "tool", "tool_call_id": "c1", "content": '{"ok":true}'},
        {"role": "tool", "tool_call_id": "c2", "content": "failed"},
        {"role": "assistant", "content": "Done."},
    ]
    assert messages_of(items) == messages
    assert items_of(messages) == items


def test_what_is_said_twice_is_two_messages() -> None:
    items = [message("One."), message("Two."), reasoning("Hm."), reasoning("So."), message("Three.")]
    assert [found["content"] for found in messages_of(items)] == ["One.", "Two.", "", "Three."]
    assert items_of(messages_of(items)) == items


def test_images_and_files_pass_through() -> None:
    parts = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"},
        {"type": "input_file", "filename": "a.pdf", "file_data": "AA=="},
        {"type": "video_url", "video_url": {"url": "http://h/v"}},
    ]
    item = {"type": "message", "role": "user", "content": parts}
    (found,) = messages_of([item])
    assert found["content"] == [
        {"type": "text", "text": "What is this?"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
        {"type": "file", "file": {"filename": "a.pdf", "file_data": "AA=="}},
        {"type": "video_url", "video_url": {"url": "http://h/v"}},
    ]
    assert items_of([found]) == [item]
    output = {"type": "function_call_output", "call_id": "c", "output": parts}
    assert items_of(messages_of([output])) == [output]


def test_a_refusal_is_kept() -> None:
    item = {
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "refusal", "refusal": "I won't."}],
    }
    assert messages_of([item]) == [{"role": "assistant", "content": None, "refusal": "I won't."}]
    assert items_of(messages_of([item])) == [item]
    assert completion_items({"role": "assistant", "content": None, "refusal": "I won't."}) == [item]


def test_reasoning_is_read_from_its_summary_if_there_is_nothing_else() -> None:
    summary = {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "In short."}]}
    sealed = {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": "gAAA"}
    assert messages_of([summary, message("Yes.")])[0]["reasoning_content"] == "In short."
    assert messages_of([sealed, message("Yes.")]) == [{"role": "assistant", "content": "Yes."}]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
def test_reasoning_goes_back_under_the_name_that_it_came_with(name: str) -> None:
    said = {"role": "assistant", "content": "Yes.", name: "Hm."}
    items = completion_items(said)
    assert items[0]["content"] == reasoning("Hm.")["content"]
    assert messages_of(items) == [said]
    assert completion_message(items) == said
    assert template_messages(items) == [{"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}]


def test_a_template_gets_a_result_of_several_texts_as_one() -> None:
    parts = [{"type": "input_text", "text": '{"ok":'}, {"type": "input_text", "text": "true}"}]
    assert template_messages([{**function_call_output("c", ""), "output": parts}])[0]["content"] == '{"ok":true}'


def test_what_trainers_need_is_on_the_last_item_of_a_turn() -> None:
    tokens = {"prompt_token_ids": [1, 2], "generation_token_ids": [3], "generation_log_probs": [-0.5]}
    items = completion_items({"content": "So.", "tool_calls": [tool_call("c", "add", "{}")], **tokens})
    assert [TOKEN_LISTS[0] in item for item in items] == [False, True]
    assert {name: items[-1][name] for name in TOKEN_LISTS} == tokens
    assert items_of(messages_of(items)) == items
    assert {name: completion_message(items)[name] for name in TOKEN_LISTS} == tokens


def test_a_completion_is_one_message() -> None:
    items = [reasoning("Hm."), message("One, "), message("two."), function_call("add", "c", number=1)]
    assert completion_message(items) == {
        "role": "assistant",
        "content": "One, two.",
        "reasoning_content": "Hm.",
        "tool_calls": [tool_call("c", "add", '{"number": 1}')],
    }
    assert completion_message([]) == {"role": "assistant", "content": ""}


def test_servers_that_leave_something_out_are_understood() -> None:
    calls = [{"function": {"name": "add", "arguments": {"number": 1}}}, tool_call("", "add", "")]
    one, two = completion_items({"role": "assistant", "content": "", "tool_calls": calls})
    assert json.loads(one["arguments"]) == {"number": 1}
    assert two["arguments"] == ""
    assert one["call_id"] != two["call_id"]
    assert one["call_id"].startswith("call_")


def test_an_empty_answer_is_an_empty_message() -> None:
    assert completion_items({"role": "assistant", "content": None}) == [message("")]
    assert completion_items({"content": "", "reasoning_content": "Hm."}) == [reasoning("Hm.")]


@pytest.mark.parametrize("wrong", [{"type": "web_search_call"}, {"type": "item_reference", "id": "x"}])
def test_an_item_without_a_form_in_chat_is_named(wrong: Item) -> None:
    with raises(ModelFailed):
        messages_of([USER, wrong])
    with raises(ModelFailed):
        completion_message([wrong])


@pytest.mark.parametrize(
    "wrong", [{"role": "function", "content": "x"}, {"content": "x"}, "x", {"role": "tool", "content": "x"}]
)
def test_a_message_of_nobody_is_named(wrong: Any) -> None:
    with raises(ModelFailed):
        items_of([{"role": "user", "content": "hi"}, wrong])


def test_tools_in_both_forms() -> None:
    parameters = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    tool = {"type": "function", "name": "add", "description": "Adds.", "parameters": parameters, "strict": True}
    function = {"name": "add", "description": "Adds.", "parameters": parameters, "strict": True}
    assert chat_tools([tool]) == [{"type": "function", "function": function}]
    assert responses_tools(chat_tools([tool])) == [tool]
    for convert in (chat_tools, responses_tools):
        with raises(ModelFailed):
            convert([{"type": "web_search"}])


texts = st.text(max_size=8)
words = st.text(min_size=1, max_size=8)
call_ids = st.sampled_from(["c1", "c2", "c3"])
tokens = st.fixed_dictionaries({}, optional={name: st.lists(st.integers(0, 9), max_size=3) for name in TOKEN_LISTS})
other_parts = st.one_of(
    st.builds(lambda text: {"type": "input_text", "text": text}, texts),
    st.builds(lambda url, detail: {"type": "input_image", "image_url": url, "detail": detail}, words, words),
    st.builds(lambda data: {"type": "input_file", "file_data": data}, words),
)
contents = texts | st.lists(other_parts, min_size=2, max_size=3)


def named(items: list[Item], more: Item) -> list[Item]:
    return [*items[:-1], items[-1] | more]


@st.composite
def normal_turns(draw: st.DrawFn) -> list[Item]:
    """A turn in normal form, and what comes after it."""
    items = [reasoning(text) for text in draw(st.lists(words, max_size=1))]
    said = [{"type": "output_text", "text": text, "annotations": []} for text in draw(st.lists(words, max_size=2))]
    said += [{"type": "refusal", "refusal": text} for text in draw(st.lists(words, max_size=1))]
    calls = [function_call("add", call_id, text=draw(texts)) for call_id in draw(st.lists(call_ids, max_size=3))]
    if said:
        items.append(message("") | {"content": said})
    elif not items and not calls:
        items.append(message(""))
    after = [function_call_output(call["call_id"], "") | {"output": draw(contents)} for call in calls]
    user = {"type": "message", "role": draw(st.sampled_from(["user", "developer"])), "content": draw(contents)}
    return [*named([*items, *calls], draw(tokens)), *(after or [user])]


@st.composite
def any_items(draw: st.DrawFn) -> Item:
    """An item of any kind, with all that servers put into one."""
    text = draw(texts)
    names = draw(st.fixed_dictionaries({}, optional={"id": words, "status": st.just("in_progress")})) | draw(tokens)
    match draw(st.integers(0, 5)):
        case 0:
            return {"role": draw(st.sampled_from(["user", "system"])), "content": draw(contents), **names}
        case 1:
            return {"type": "message", "role": "assistant", "content": draw(st.sampled_from([text, [], None])), **names}
        case 2:
            parts = [{"type": "output_text", "text": draw(texts), "logprobs": []}, {"type": "refusal", "refusal": text}]
            return {"type": "message", "role": "assistant", "content": parts, **names}
        case 3:
            summary = [{"type": "summary_text", "text": text}]
            return {"type": "reasoning", "summary": draw(st.sampled_from([summary, []])), **names}
        case 4:
            return function_call("add", draw(call_ids), text=text) | names
    return function_call_output(draw(call_ids), text)


@given(st.lists(normal_turns(), max_size=4))
def test_there_and_back_is_the_same_conversation(turns: list[list[Item]]) -> None:
    items = [item for turn in turns for item in turn]
    assert items_of(messages_of(items)) == items


@given(st.lists(any_items(), max_size=8))
def test_any_conversation_comes_to_its_normal_form_at_once(items: list[Item]) -> None:
    messages = messages_of(items)
    normal = items_of(messages)
    assert messages_of(normal) == messages
    assert items_of(messages_of(normal)) == normal


@given(st.lists(any_items(), max_size=8))
def test_no_word_call_or_result_is_lost_on_the_way(items: list[Item]) -> None:
    normal = items_of(messages_of(items))
    assert told(normal) == told(items)


def told(items: list[Item]) -> dict[str, Any]:
    """What is said by whom, and what is called with which results."""
    found: dict[str, Any] = {"user": "", "system": "", "assistant": "", "thoughts": "", "calls": [], "results": []}
    for item in items:
        kind = item.get("type", "message")
        content = item.get("content") or ""
        parts = [{"text": content}] if isinstance(content, str) else content
        if kind == "message":
            found[item["role"]] += "".join(part.get("text") or part.get("image_url") or "" for part in parts)
        elif kind == "reasoning":
            found["thoughts"] += "".join(part["text"] for part in [*parts, *item["summary"]] if part).strip()
        elif kind == "function_call":
            found["calls"].append((item["call_id"], item["name"], item["arguments"]))
        else:
            found["results"].append((item["call_id"], item["output"]))
    found["thoughts"] = "".join(found["thoughts"].split())
    return found


def is_the_assistants(item: Item) -> bool:
    return item.get("role", "assistant") == "assistant" and item.get("type") != "function_call_output"


@given(st.lists(any_items().filter(is_the_assistants), max_size=8))
def test_all_calls_of_a_turn_are_in_the_message_before_their_results(turn: list[Item]) -> None:
    """Chat refuses anything else."""
    calls = [item["call_id"] for item in turn if item.get("type") == "function_call"]
    messages = messages_of([*turn, *(function_call_output(call_id, "1") for call_id in calls)])
    before = messages[: len(messages) - len(calls)]
    assert [message["tool_call_id"] for message in messages[len(before) :]] == calls
    assert [[call["id"] for call in message["tool_calls"]] for message in before if "tool_calls" in message] == (
        [calls] if calls else []
    )
    assert not calls or "tool_calls" in before[-1]

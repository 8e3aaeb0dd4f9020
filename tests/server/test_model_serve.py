"""A served model, as OpenAI's own client sees it, by both APIs; and whole episodes that it plays."""

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from stateroom.agent import Estimate
from stateroom.gallery import CounterEnvironment
from stateroom.model import chat_tools, message
from tests.cli.conftest import Command, stateroom
from tests.rows import rows
from tests.server.serving_models import Served, serving

__all__ = ["stateroom"]  # a fixture

TOOLS: Any = CounterEnvironment().tool_definitions()
ADD = "Use the tools to change the counter: add 5, then add 2. Then read it and tell me its value."

READ: Any = [
    {"role": "user", "content": "add 3"},
    {"type": "function_call", "call_id": "a", "name": "increment_counter", "arguments": '{"count": 3}'},
    {"type": "function_call_output", "call_id": "a", "output": '{"success": true}'},
    {"type": "function_call", "call_id": "b", "name": "get_counter_value", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "b", "output": '{"count": 9}'},
]
"""A conversation that is about to end."""

READ_CHAT: Any = [
    {"role": "user", "content": "add 3"},
    {
        "role": "assistant",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "increment_counter", "arguments": '{"count": 3}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "a", "content": '{"success": true}'},
    {
        "role": "assistant",
        "tool_calls": [{"id": "b", "type": "function", "function": {"name": "get_counter_value", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "b", "content": '{"count": 9}'},
]

Ask = Callable[..., Any]
Run = Callable[[str, str, str], list[tuple[float, int]]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving("reference:counter", tmp_path_factory.mktemp("served")) as started:
        yield started


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def responses(served: Served, client: openai.OpenAI) -> Ask:
    """Asks by the Responses API: the final response, and the types of the events before it."""

    def ask(*, stream: bool = False, **body: Any) -> Any:
        if not stream:
            return client.responses.create(model=served.name, **body), []
        with client.responses.stream(model=served.name, **body) as events:
            types = [event.type for event in events]
            return events.get_final_response(), types

    return ask


@pytest.fixture
def chat(served: Served, client: openai.OpenAI) -> Ask:
    """Asks by Chat Completions: the completion."""

    def ask(*, stream: bool = False, **body: Any) -> Any:
        if not stream:
            return client.chat.completions.create(model=served.name, **body)
        with client.chat.completions.stream(model=served.name, **body) as chunks:
            return chunks.get_final_completion()

    return ask


def test_a_response_with_a_call(responses: Ask) -> None:
    response, _ = responses(input=ADD, tools=TOOLS)
    (call,) = response.output
    assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "increment_counter", {"count": 5})
    assert (response.status, response.object, response.model) == ("completed", "response", "reference:counter")
    assert response.usage.input_tokens > 100  # the tools count
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_a_response_with_a_message_whether_results_of_tools_are_texts_or_parts(responses: Ask) -> None:
    as_parts = [
        {**item, "output": [{"type": "input_text", "text": item["output"]}]} if "output" in item else item
        for item in READ
    ]
    for items in (READ, as_parts):
        response, _ = responses(input=items, tools=TOOLS)
        assert response.output_text == "The counter is at 9."


def test_a_streamed_call(responses: Ask) -> None:
    response, types = responses(input=ADD, tools=TOOLS, stream=True)
    assert json.loads(response.output[0].arguments) == {"count": 5}
    assert types == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert response.usage.output_tokens > 0


def test_a_streamed_message(responses: Ask) -> None:
    response, types = responses(input=READ, tools=TOOLS, stream=True)
    assert response.output_text == "The counter is at 9."
    assert types[2:-1] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_completion_with_a_call(chat: Ask, stream: bool) -> None:
    completion = chat(messages=[{"role": "user", "content": ADD}], tools=chat_tools(TOOLS), stream=stream)
    (choice,) = completion.choices
    (call,) = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls"
    assert (call.function.name, json.loads(call.function.arguments)) == ("increment_counter", {"count": 5})
    assert choice.message.content is None


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_completion_with_a_message(chat: Ask, stream: bool) -> None:
    options: Any = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    completion = chat(messages=READ_CHAT, tools=chat_tools(TOOLS), **options)
    assert completion.choices[0].message.content == "The counter is at 9."
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage.prompt_tokens > 100
    assert completion.usage.completion_tokens == Estimate().count(message("The counter is at 9."))


def test_the_chunks_of_a_stream_have_usage_only_if_it_is_asked_for(served: Served, client: openai.OpenAI) -> None:
    chunks = [*client.chat.completions.create(model=served.name, messages=READ_CHAT, stream=True)]
    assert all(chunk.usage is None for chunk in chunks)
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_model_is_listed(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["reference:counter"]
    assert client.models.retrieve("reference:counter").owned_by == "stateroom"
    with pytest.raises(openai.NotFoundError, match="unknown model 'gpt'"):
        client.models.retrieve("gpt")


@pytest.fixture
def run(stateroom: Command) -> Run:
    """Runs an environment with a model; gives the reward of each episode, and how many items it took."""

    def run(environment: str, model: str, name: str) -> list[tuple[float, int]]:
        options = ("--model", model, "--repeats", 3, "--store", "memory://", "--output", f"{name}.jsonl")
        done = stateroom("run", environment, *options)
        assert done.code == 0, done.err
        return [(row["reward"], len(row["response"]["output"])) for row in rows(f"{name}.jsonl")]

    return run


@pytest.mark.parametrize(("api", "environment"), [("chat", "counter"), ("responses", "extraction")])
def test_a_policy_acts_as_it_does_without_a_server_luck_and_all(
    run: Run, api: str, environment: str, tmp_path: Path
) -> None:
    here = run(environment, "noisy", "here")
    with serving(f"noisy:{environment}", tmp_path) as served:
        assert run(environment, f"{api}:{served.name}@{served.url}", "there") == here
    assert {reward for reward, _ in here} == {0.0, 1.0}


@pytest.mark.parametrize(("api", "how"), [("chat", signal.SIGINT), ("responses", signal.SIGTERM)])
def test_rollouts_are_served_again_until_a_signal(run: Run, api: str, how: signal.Signals, tmp_path: Path) -> None:
    first = run("counter", "noisy", "first")
    with serving("replay:first.jsonl", tmp_path) as served:
        assert run("counter", f"{api}:{served.name}@{served.url}", "again") == first
        assert served.stop(how) == (0, "")


@pytest.mark.more("a local model")
def test_a_local_model_is_served(tmp_path: Path) -> None:
    with serving("local", tmp_path) as served, openai.OpenAI(base_url=served.url, api_key="none") as client:
        messages: Any = [{"role": "user", "content": "Tell a story."}]
        completion = client.chat.completions.create(model="local", messages=messages, max_tokens=4)
        assert completion.choices[0].finish_reason == "length"
        assert completion.usage is not None
        assert completion.usage.completion_tokens == 4
        assert served.stop() == (0, "")

"""What models behind an address are asked, and how their answers are read."""

from pathlib import Path
from typing import Any

import pytest

from stateroom.errors import ModelFailed, ModelUnavailable
from stateroom.model import Item, Request, Usage, answer_of, function_call, function_call_output, input_items, message
from stateroom.rollout import plan_run, run
from tests.messages import raises
from tests.model.endpoints import KEY, Reply, Server, answered, asking, completion, response, says
from tests.servers.vllm import VLLM, by_policy, serving

TOOL: Item = {
    "type": "function",
    "name": "add",
    "description": "Adds.",
    "parameters": {"type": "object"},
    "strict": True,
}
CALLS = [function_call("add", "c1", number=1), function_call("add", "c2", number=2)]
CONVERSATION = [*input_items("Add 3."), *CALLS, function_call_output("c1", "1"), function_call_output("c2", "3")]


async def test_a_request_of_responses(server: Server) -> None:
    server.replies = [says("responses", "Done.")]
    settings = {"temperature": 0.5, "top_k": 7, "model": "another", "stream": True, "top_p": None}
    await answered("responses", server, Request(CONVERSATION, [TOOL], settings, seed=11))
    (asked,) = server.asked
    assert asked.path.endswith("/v1/responses")
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.body == {
        "model": "m",
        "input": CONVERSATION,
        "tools": [TOOL],
        "temperature": 0.5,
        "top_k": 7,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "metadata": {"seed": "11"},
    }


async def test_a_request_of_chat(server: Server) -> None:
    server.replies = [says("chat", "Done.")]
    settings = {"max_output_tokens": 9, "top_k": 7, "instructions": "Be exact.", "stream": True, "n": 4}
    await answered("chat", server, Request(CONVERSATION, [TOOL], settings, seed=11))
    (asked,) = server.asked
    assert asked.path.endswith("/v1/chat/completions")
    assert asked.headers["authorization"] == f"Bearer {KEY}"
    assert asked.body["messages"][0] == {"role": "system", "content": "Be exact."}
    assert [found["role"] for found in asked.body["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    assert [call["id"] for call in asked.body["messages"][2]["tool_calls"]] == ["c1", "c2"]
    assert asked.body["tools"] == [{"type": "function", "function": {key: TOOL[key] for key in TOOL if key != "type"}}]
    del asked.body["messages"], asked.body["tools"]
    assert asked.body == {"model": "m", "seed": 11, "max_tokens": 9, "top_k": 7}


async def test_a_user_is_named_in_the_text_and_no_tools_are_not_mentioned(server: Server, kind: str) -> None:
    server.replies = [says(kind, "Hi.")]
    await answered(kind, server, Request([{"type": "message", "role": "user", "name": "ann", "content": "Hello."}]))
    [said] = server.asked[0].body["input" if kind == "responses" else "messages"]
    assert (said["content"], "name" in said) == ("ann: Hello.", False)
    assert "tools" not in server.asked[0].body


async def test_settings_have_the_last_word(server: Server) -> None:
    server.replies = [says("responses", "Hi."), says("chat", "Hi.")]
    hello = input_items("Hello.")
    await answered(
        "responses", server, Request(hello, settings={"store": True, "include": [], "metadata": {"seed": "5"}})
    )
    await answered("chat", server, Request(hello, settings={"seed": 5}, seed=11))
    one, two = (asked.body for asked in server.asked)
    assert (one["store"], one["include"], one["metadata"]) == (True, [], {"seed": "5"})
    assert two["seed"] == 5


async def test_parallel_calls_are_read(server: Server, kind: str) -> None:
    calls = [
        {"id": call["call_id"], "type": "function", "function": {"name": "add", "arguments": call["arguments"]}}
        for call in CALLS
    ]
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
    told = {"input_tokens": 10, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 4}}
    server.replies = [
        completion({"content": None, "tool_calls": calls}, "tool_calls", usage=usage)
        if kind == "chat"
        else response(*CALLS, usage=told)
    ]
    answer = await answered(kind, server, Request(input_items("Add 3."), [TOOL]))
    assert answer.items == CALLS
    assert answer.usage == Usage(10, 5, 4)
    assert not answer.truncated


async def test_reasoning_goes_back_as_it_came(server: Server) -> None:
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
    server.replies = [response(thought, *CALLS)]
    async with asking("responses", server.url) as model:
        answer = await answer_of(model, Request(input_items("Add 3.")))
        assert answer.items == [thought, *CALLS]
        await answer_of(model, Request([*input_items("Add 3."), *answer.items]))
    assert server.asked[1].body["input"][1:] == answer.items


async def test_reasoning_of_chat_has_no_foreign_field_in_responses(server: Server) -> None:
    server.replies = [completion({"content": "Yes.", "reasoning": "Hm."}), says("responses", "Hi.")]
    answer = await answered("chat", server, Request(input_items("Really?")))
    await answered("responses", server, Request(answer.items))
    content = [{"type": "reasoning_text", "text": "Hm."}]
    assert server.asked[1].body["input"][0] == {"type": "reasoning", "summary": [], "content": content}


async def test_a_model_that_does_not_reason_is_not_asked_for_its_reasoning_again(server: Server) -> None:
    said = {"error": {"message": "Encrypted content is not supported with this model."}}
    server.replies = [Reply(said, 400), says("responses", "Hi.")]
    async with asking("responses", server.url) as model:
        await answer_of(model, Request(input_items("Hello.")))
        await answer_of(model, Request(input_items("Hello.")))
    assert ["include" in asked.body for asked in server.asked] == [True, False, False]


async def test_what_vllm_tells_of_tokens_is_kept(server: Server) -> None:
    reply = completion({"content": "Hi."}, prompt_token_ids=[1, 2])
    reply.body["choices"][0]["token_ids"] = [3]
    server.replies = [reply]
    (item,) = (await answered("chat", server)).items
    assert item == message("Hi.") | {"prompt_token_ids": [1, 2], "generation_token_ids": [3]}


async def test_an_answer_that_is_cut_off_is_marked(server: Server, kind: str) -> None:
    cut = message("Hi, I a")
    details = {"reason": "max_output_tokens"}
    server.replies = [
        completion({"content": "Hi, I a"}, "length")
        if kind == "chat"
        else response(cut, status="incomplete", incomplete_details=details)
    ]
    answer = await answered(kind, server)
    assert answer.truncated
    assert answer.items == [cut]


async def test_an_answer_that_is_held_back_is_a_failure(server: Server, kind: str) -> None:
    server.replies = [
        completion({"content": ""}, "content_filter")
        if kind == "chat"
        else response(status="incomplete", incomplete_details={"reason": "content_filter"})
    ]
    with raises(ModelFailed):
        await answered(kind, server)


@pytest.mark.parametrize(
    ("code", "error"), [("server_error", ModelUnavailable), ("invalid_prompt", ModelFailed), (None, ModelFailed)]
)
async def test_a_response_that_failed_says_why(server: Server, code: str | None, error: type[Exception]) -> None:
    server.replies = [response(status="failed", error={"code": code, "message": "it broke"})]
    with raises(error):
        await answered("responses", server)


SHAPES: list[Any] = [
    {"choices": []},
    {"choices": None},
    {"choices": {}},
    {"choices": ["x"]},
    {"choices": [{"message": "text"}]},
    {"choices": [{"message": {"role": "user", "content": "x"}}]},
    {"choices": [{"message": {"role": "assistant", "content": 7}}]},
    {"choices": [{"message": {"role": "assistant", "tool_calls": [{"id": "c"}]}}]},
    {"choices": [{"message": {"role": "assistant", "tool_calls": 7}}]},
    {"choices": [{"message": {"role": "assistant", "tool_calls": [{"id": 7, "function": {"name": "add"}}]}}]},
    {"output": None},
    {"output": "text"},
    {"output": ["text"]},
    {"choices": [{"message": {"role": "assistant", "content": [{"type": "text", "text": 7}]}}]},
    {"output": [{"role": "assistant"}]},
    {"output": [{"type": "message", "role": "assistant", "content": ["text"]}]},
    {"output": [{"type": "function_call", "name": "add"}]},
    {"output": [], "status": "in_progress"},
]


@pytest.mark.parametrize("body", SHAPES)
async def test_an_answer_of_a_wrong_shape_is_a_failure(server: Server, body: dict[str, Any]) -> None:
    kind = "chat" if "choices" in body else "responses"
    server.replies = [Reply(body)]
    with raises(ModelFailed):
        await answered(kind, server)


@pytest.mark.parametrize("env", ["counter", "extraction"])
async def test_episodes_are_solved_through_it(env: str, tmp_path: Path) -> None:
    server = VLLM(by_policy(f"{env}:reference"))
    async with serving(server) as url:
        plan = plan_run(env, model=f"chat:m@{url}", output=tmp_path / "r.jsonl", limit=3, model_concurrency=2)
        report = await run(plan)
    assert [row["reward"] for row in report.rows] == [1.0] * 3
    assert max(each.running for each in server.recorded) <= 2
    assert server.paid == len(server.recorded) == len({each.key for each in server.recorded})

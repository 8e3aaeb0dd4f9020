"""The server in vLLM's shape does what tests rely on."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from stateroom.rollout import plan_run, run
from tests.servers.vllm import BLOCK, VLLM, VLLMProcess, by_policy, serving, tokens_of, written

HELLO = {"role": "user", "content": "Add 3, then add 4. " * 5}


@pytest.mark.parametrize("env", ["counter", "extraction"])
async def test_episodes_are_solved_through_it(env: str, tmp_path: Path) -> None:
    server = VLLM(by_policy(f"{env}:reference"))
    async with serving(server) as url:
        plan = plan_run(env, model=f"chat:m@{url}", output=tmp_path / "r.jsonl", limit=3, model_concurrency=2)
        report = await run(plan)
    assert [row["reward"] for row in report.rows] == [1.0] * 3
    assert max(each.running for each in server.recorded) <= 2
    assert server.paid == len(server.recorded) == len({each.key for each in server.recorded})


@pytest.fixture(scope="module")
def process() -> Iterator[VLLMProcess]:
    options = ("--answers", "counter:reference", "--fail", "1", "--per-minute", "3", "--honour-keys")
    with VLLMProcess(*options) as started:
        yield started


def test_a_process_answers_fails_refuses_and_says_what_it_saw(process: VLLMProcess) -> None:
    def ask(key: str, **more: Any) -> Any:
        body = json.dumps({"model": "m", "seed": 7, "messages": [HELLO], **more}).encode()
        headers = {"content-type": "application/json", "idempotency-key": key}
        request = urllib.request.Request(f"{process.url}/chat/completions", body, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return json.loads(reply.read())
        except HTTPError as error:
            return error.code, error.headers.get("retry-after")

    assert ask("a") == (500, None)
    first = ask("a", return_token_ids=True, logprobs=True, top_logprobs=2)
    (choice,) = first["choices"]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "increment_counter"
    assert choice["token_ids"] == tokens_of(written(choice["message"]))
    assert len(choice["logprobs"]["content"]) == len(choice["token_ids"]) == first["usage"]["completion_tokens"]
    assert len(choice["logprobs"]["content"][0]["top_logprobs"]) == 2
    assert len(first["prompt_token_ids"]) == first["usage"]["prompt_tokens"]
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert ask("a") == first
    second = ask("b")
    assert second["choices"][0]["message"] == choice["message"]
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > first["usage"]["prompt_tokens"] - 2 * BLOCK
    assert ask("c") == (429, "1")
    recorded = process.recorded()
    assert recorded["paid"] == 2
    assert [each["key"] for each in recorded["requests"]] == ["a", "a", "a", "b", "c"]
    assert [each["status"] for each in recorded["requests"]] == [500, 200, 200, 200, 429]
    assert {(each["seed"], each["messages"]) for each in recorded["requests"]} == {(7, 1)}
    figures = dict(line.rsplit(" ", 1) for line in process.get("metrics").decode().splitlines())
    assert figures['vllm:prefix_cache_hits_total{model_name="m"}'] != "0"
    assert figures['vllm:num_requests_running{model_name="m"}'] == "0"
    assert json.loads(process.get("v1/models"))["data"][0]["id"] == "m"

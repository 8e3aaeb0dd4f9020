"""Make a small model from scratch: `python examples/training/small_model.py counter FOLDER`.

It has about a million parameters with random weights, and a vocabulary of its own, from episodes of the reference
policy: what never changes in them is one token, and each digit is one. So it learns the format of tool calls in
seconds, on a CPU.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

import stateroom
from stateroom.environment import find_environment
from stateroom.model import template_messages
from stateroom.rollout import generate_tasks

END, PAD = "<|end|>", "<|pad|>"
ROLES = ["<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"]

SEPARATORS = re.compile(r"\d|<\|\w+\|>")
"""What stands between pieces: digits, and the tokens above."""

OFTEN = 20
"""How often a piece must occur to become a token."""

TEMPLATE = """\
{%- for message in messages %}
{{- '<|' + message.role + '|>' + message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) + '</tool_call>' }}
{%- endfor %}
{{- '<|end|>' }}
{%- endfor %}
{{- '<|assistant|>' if add_generation_prompt }}"""
"""As short as can be, without the schemas of tools: a model of one environment knows them."""


def make(environment: str, folder: Path, seed: int = 0, tasks: int = 200) -> None:
    """Write a new model for an environment to a folder."""
    rows = generate_tasks(find_environment(environment), tasks, seed=0)
    result = stateroom.run(environment, input=rows, store="memory://", output=folder / "reference.jsonl", force=True)
    conversations = [template_messages(episode.conversation) for episode in result.episodes]
    tokenizer = make_tokenizer(conversations)
    torch.manual_seed(seed)
    make_network(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_tokenizer(conversations: list[list[dict[str, Any]]]) -> PreTrainedTokenizerFast:
    """A tokenizer of bytes, and of the pieces between digits that some conversations often have."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, eos_token=END, pad_token=PAD, additional_special_tokens=ROLES, chat_template=TEMPLATE
    )
    texts = (tokenizer.apply_chat_template(each, tokenize=False) for each in conversations)
    pieces = Counter(piece for text in texts for piece in re.split(SEPARATORS, text) if len(piece) > 1)
    tokenizer.add_tokens([piece for piece, times in pieces.most_common() if times >= OFTEN])
    return tokenizer


def make_network(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """Two layers with random weights."""
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=192,
            intermediate_size=576,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=6,
            max_position_embeddings=512,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))

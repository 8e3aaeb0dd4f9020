"""A tokenizer and a model for tests of trainers: made in code, without a download.

Each tool call of `CALLS` is one token. The model may write nothing but one of these at the end of its turn, and two
other tokens before. So a model with random weights calls tools.
"""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, set_seed
from trl import GRPOConfig
from trl.chat_template_utils import qwen2_5_chat_template

torch.set_num_threads(1)  # threads that wait for a busy core take many times as long

START, END, PAD = "<|im_start|>", "<|im_end|>", "<|pad|>"

CALLS = (
    '<tool_call>\n{"name": "increment_counter", "arguments": {"count": 2}}\n</tool_call>',
    '<tool_call>\n{"name": "increment_counter", "arguments": {"count": "much"}}\n</tool_call>',
    '<tool_call>\n{"name": "get_counter_value", "arguments": {}}\n</tool_call>',
)

WORD = ("do", "ne")
"""Two tokens that a tokenizer would write as one."""


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes, some merges, and ChatML with tools."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    made.train_from_iterator([qwen2_5_chat_template, "done done done done"], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END, pad_token=PAD)
    tokenizer.add_tokens([START, END, PAD], special_tokens=True)
    tokenizer.add_tokens([*CALLS, *WORD, "done"])
    tokenizer.chat_template = qwen2_5_chat_template
    return tokenizer


def make_model(tokenizer: PreTrainedTokenizerFast) -> Qwen2ForCausalLM:
    """Two tiny layers with random weights, the same each time."""
    set_seed(1)
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def settings(folder: Path, tokenizer: PreTrainedTokenizerFast, **others: Any) -> GRPOConfig:
    """Two steps of training on the CPU, with eight rollouts each."""
    calls, words, end = (tokenizer.convert_tokens_to_ids(each) for each in ([*CALLS], [*WORD], END))
    unwanted = {*range(len(tokenizer))} - {*calls, *words, end}
    return GRPOConfig(
        **{
            "output_dir": str(folder),
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "report_to": "none",
            "save_strategy": "no",
            "logging_strategy": "no",
            "disable_tqdm": True,
            "max_steps": 2,
            "per_device_train_batch_size": 8,
            "num_generations": 4,
            "max_completion_length": 200,
            "max_tool_calling_iterations": 4,
            "generation_kwargs": {
                "suppress_tokens": sorted(unwanted),
                "sequence_bias": [[[call, end], 100.0] for call in calls],
            },
            "seed": 1,
            **others,
        }
    )

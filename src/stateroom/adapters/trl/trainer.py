"""The trainer: its model as one of ours, and a loss with an advantage for each token."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from trl import GRPOTrainer
from trl.chat_template_utils import (
    add_response_schema,
    get_training_chat_template,
    is_chat_template_prefix_preserving,
    parse_response,
)
from trl.trainer.utils import pad

from stateroom.model import (
    BatchModel,
    Generated,
    Item,
    Message,
    Prompt,
    Request,
    chat_tools,
    messages_of,
    template_messages,
)


class TrainerModel(BatchModel):
    """The model in training, which generates on the trainer's thread."""

    name = "trl"

    def __init__(self, trainer: Any, most: int, *, calls_tools: bool) -> None:
        """`most` is the number of prompts that are generated at a time."""
        self.trainer = trainer
        ends = getattr(trainer, "eos_token_ids", [trainer._tokenizer.eos_token_id])  # new in TRL 1.16
        super().__init__(most, trainer.max_completion_length, ends)
        if calls_tools and not self._has_parser:
            add_response_schema(trainer.processing_class)
        if calls_tools and not is_chat_template_prefix_preserving(trainer.processing_class):
            trainer.chat_template = get_training_chat_template(trainer.processing_class)

    @property
    def _has_parser(self) -> bool:
        """Whether the tokenizer can parse what the model writes."""
        return any(getattr(self.trainer._tokenizer, f"response_{each}", None) for each in ("template", "schema"))

    def render(self, request: Request) -> list[int]:
        messages = template_messages(request.items, request.settings.get("instructions"))
        found: list[int] = self.trainer.processing_class.apply_chat_template(
            [messages],
            tools=chat_tools(request.tools) or None,
            chat_template=self.trainer.chat_template,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            **self.trainer.chat_template_kwargs,
        )["input_ids"][0]
        return found

    def render_reply(self, items: Sequence[Item]) -> list[int]:
        names = {item["call_id"]: item["name"] for item in items if item.get("type") == "function_call"}
        last = max(place for place, item in enumerate(items) if item.get("generation_token_ids"))
        messages = messages_of(items[last + 1 :])
        named = [{"name": names.get(each.get("tool_call_id", ""), each["role"]), **each} for each in messages]
        found: list[int] = self.trainer._get_tool_suffix_ids(named)
        return found

    def parse(self, request: Request, prompt: Prompt, written: list[int]) -> Message:
        if not written or not self._has_parser:
            return {"content": self.trainer._tokenizer.decode(written, skip_special_tokens=True)}
        tools = {"tools": chat_tools(request.tools)} if _takes(parse_response, "tools") else {}
        found: Message = parse_response(self.trainer._tokenizer, written, prefix=prompt.ids, **tools)
        return found

    def generate(self, prompts: Sequence[Prompt]) -> list[Generated]:
        ids = [prompt.ids for prompt in prompts]
        once = {"num_generations": 1} if _takes(GRPOTrainer._generate_single_turn, "num_generations") else {}
        written, log_probs = self.trainer._generate_single_turn(ids, None, {}, **once)
        return [*map(Generated, written, log_probs or self._log_probs(ids, written))]

    def _log_probs(self, prompts: list[list[int]], written: list[list[int]]) -> list[list[float]]:
        """The log-probabilities of tokens, which transformers does not tell when it generates."""
        trainer, device = self.trainer, self.trainer.accelerator.device
        ids, mask = [], []
        for lists, side in ((prompts, "left"), (written, "right")):
            rows = [torch.tensor(each) for each in lists]
            ids.append(pad(rows, padding_value=trainer._tokenizer.pad_token_id, padding_side=side))
            mask.append(pad([torch.ones_like(each) for each in rows], padding_value=0, padding_side=side))
        with torch.no_grad():
            found = trainer._get_per_token_logps_and_entropies(
                trainer.model,
                torch.cat(ids, dim=1).to(device),
                torch.cat(mask, dim=1).to(device),
                ids[1].size(1),
                batch_size=trainer.args.per_device_train_batch_size,
            )[0]
        return [row[: len(each)].tolist() for row, each in zip(found, written, strict=True)]


def _takes(function: Callable[..., Any], parameter: str) -> bool:
    """Whether a function of TRL has a parameter that is not in all of its versions."""
    return parameter in inspect.signature(function).parameters


def rollout_reward(reward: Sequence[float], **_: Any) -> list[float]:
    """A reward function of TRL: gives the rewards that a `RolloutFunction` has returned."""
    return [*reward]


class StateroomTrainer(GRPOTrainer):  # type: ignore[misc]  # mypy does not see TRL
    """A GRPOTrainer that learns from the advantages of single tokens, which a `RolloutFunction` returns.

    By default it takes the rewards from there too.
    """

    def __init__(self, model: Any, reward_funcs: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(model, reward_funcs or [rollout_reward], *args, **kwargs)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        completions = output["completion_ids"]
        found = torch.zeros(completions.shape, device=completions.device)
        for row, each in zip(found, inputs, strict=True):
            row[: len(each["token_advantages"])] = torch.tensor(each["token_advantages"])
        return {**output, "advantages": found}

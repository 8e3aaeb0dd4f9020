"""Rollouts by Stateroom's agent loop with the model of a trainer, and a loss with an advantage for each token."""

from __future__ import annotations

import inspect
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch
from trl import GRPOTrainer
from trl.chat_template_utils import (
    add_response_schema,
    get_training_chat_template,
    is_chat_template_prefix_preserving,
    parse_response,
)
from trl.trainer.utils import pad

from stateroom.adapters.trl.environment import Source, background_loop, seed_of
from stateroom.agent import MAX_STEPS
from stateroom.errors import BadTask, EnvironmentFailed, InvalidArguments
from stateroom.model import (
    BatchModel,
    GeneratedTokens,
    Item,
    Message,
    Prompt,
    Request,
    chat_tools,
    messages_of,
    template_messages,
)
from stateroom.training import Collected, Collector, Rollout, sequences, token_advantages

Method = Literal["grpo", "rloo", "vine"]
"""The estimator of the advantages; see `stateroom.training.advantages`."""


class TrainerModel(BatchModel):
    """The trained model, which generates on the trainer's thread."""

    name = "trl"

    def __init__(self, trainer: Any, most: int, *, calls_tools: bool) -> None:
        """`most` is the number of prompts per batch."""
        self.trainer = trainer
        ends = getattr(trainer, "eos_token_ids", [trainer._tokenizer.eos_token_id])  # new in TRL 1.16
        super().__init__(most, trainer.max_completion_length, ends)
        if calls_tools and not self._has_parser:
            add_response_schema(trainer.processing_class)
        if calls_tools and not is_chat_template_prefix_preserving(trainer.processing_class):
            trainer.chat_template = get_training_chat_template(trainer.processing_class)

    @property
    def _has_parser(self) -> bool:
        """Whether the tokenizer can parse the model's output."""
        return any(getattr(self.trainer._tokenizer, f"response_{each}", None) for each in ("template", "schema"))

    def render(self, request: Request) -> list[int]:
        messages = template_messages(request.items, request.settings.get("instructions"))
        ids: list[int] = self.trainer.processing_class.apply_chat_template(
            [messages],
            tools=chat_tools(request.tools) or None,
            chat_template=self.trainer.chat_template,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            **self.trainer.chat_template_kwargs,
        )["input_ids"][0]
        return ids

    def render_reply(self, items: Sequence[Item]) -> list[int]:
        names = {item["call_id"]: item["name"] for item in items if item.get("type") == "function_call"}
        last = max(place for place, item in enumerate(items) if item.get("generation_token_ids"))
        messages = messages_of(items[last + 1 :])
        named = [{"name": names.get(each.get("tool_call_id", ""), each["role"]), **each} for each in messages]
        ids: list[int] = self.trainer._get_tool_suffix_ids(named)
        return ids

    def parse(self, request: Request, prompt: Prompt, written: list[int]) -> Message:
        if not written or not self._has_parser:
            return {"content": self.trainer._tokenizer.decode(written, skip_special_tokens=True)}
        tools = {"tools": chat_tools(request.tools)} if _takes(parse_response, "tools") else {}
        parsed: Message = parse_response(self.trainer._tokenizer, written, prefix=prompt.ids, **tools)
        return parsed

    def generate(self, prompts: Sequence[Prompt]) -> list[GeneratedTokens]:
        ids = [prompt.ids for prompt in prompts]
        once = {"num_generations": 1} if _takes(GRPOTrainer._generate_single_turn, "num_generations") else {}
        written, log_probs = self.trainer._generate_single_turn(ids, None, {}, **once)
        return [*map(GeneratedTokens, written, log_probs or self._log_probs(ids, written))]

    def _log_probs(self, prompts: list[list[int]], written: list[list[int]]) -> list[list[float]]:
        """The log-probabilities of tokens, which transformers does not report when it generates."""
        trainer, device = self.trainer, self.trainer.accelerator.device
        ids, mask = [], []
        for lists, side in ((prompts, "left"), (written, "right")):
            rows = [torch.tensor(each) for each in lists]
            ids.append(pad(rows, padding_value=trainer._tokenizer.pad_token_id, padding_side=side))
            mask.append(pad([torch.ones_like(each) for each in rows], padding_value=0, padding_side=side))
        with torch.no_grad():
            log_probs = trainer._get_per_token_logps_and_entropies(
                trainer.model,
                torch.cat(ids, dim=1).to(device),
                torch.cat(mask, dim=1).to(device),
                ids[1].size(1),
                batch_size=trainer.args.per_device_train_batch_size,
            )[0]
        return [row[: len(each)].tolist() for row, each in zip(log_probs, written, strict=True)]


def _takes(function: Callable[..., Any], parameter: str) -> bool:
    """Whether a function of TRL has a parameter that exists only in some versions."""
    return parameter in inspect.signature(function).parameters


def rollout_reward(reward: Sequence[float], **_: Any) -> list[float]:
    """A reward function for TRL that returns the rewards of a `RolloutFunction`."""
    return [*reward]


class StateroomTrainer(GRPOTrainer):  # type: ignore[misc]  # mypy does not see TRL
    """A GRPOTrainer that learns from the per-token advantages of a `RolloutFunction`.

    By default, it also takes the rewards from there.
    """

    def __init__(self, model: Any, reward_funcs: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__(model, reward_funcs or [rollout_reward], *args, **kwargs)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        completions = output["completion_ids"]
        advantages = torch.zeros(completions.shape, device=completions.device)
        for row, each in zip(advantages, inputs, strict=True):
            row[: len(each["token_advantages"])] = torch.tensor(each["token_advantages"])
        return {**output, "advantages": advantages}


class RolloutFunction:
    """A `rollout_func` for TRL that runs an episode for each prompt and returns its tokens as generated.

    `max_completion_length` limits the tokens after the prompt, and `max_tool_calling_iterations` the answers. Only the
    first segment of an episode is used for training.
    """

    def __init__(self, source: Source, dataset: Any, how: Method, n: int) -> None:
        if how not in ("grpo", "rloo", "vine"):
            raise InvalidArguments(f"how: unknown method {how!r}; choose grpo, rloo or vine")
        self._source = source
        self._how: Method = how
        self._n = n
        self._calls = 0
        self._rows: dict[str, str] = {}
        for prompt, row in zip(dataset["prompt"], dataset["row"], strict=True):
            if self._rows.setdefault(_key(prompt), row) != row:
                raise BadTask(f"two different tasks have the same prompt, which must be unique: {prompt}")

    def __call__(self, prompts: Sequence[list[Message]], trainer: Any) -> dict[str, list[Any]]:
        self._calls += 1
        rows = [self._row(prompt) for prompt in prompts]
        source, most = self._source, trainer.args.max_tool_calling_iterations
        environment = source.make_environment()
        model = TrainerModel(trainer, len(rows), calls_tools=bool(environment.tools))
        max_steps = MAX_STEPS if most is None else most + 1
        collector = Collector(source.environment, source.env_args, source.store, model, max_steps)
        seed = seed_of(environment.name, source.seed, self._calls)
        collect = self._vines if self._how == "vine" else self._groups
        with TemporaryDirectory(prefix="stateroom-") as folder:
            work = collect(rows, collector, Path(folder) / "rollouts.jsonl", seed)
            return _columns(model.serve(background_loop(), work))

    def _row(self, prompt: list[Message]) -> str:
        row = self._rows.get(_key(prompt))
        if row is None:
            raise BadTask(f"no task has this prompt; train on the train_dataset of the spec: {prompt}")
        return row

    async def _groups(self, rows: list[str], collector: Collector, output: Path, seed: int) -> list[Rollout]:
        """A group of forks for each task."""
        trainer, counts = collector.model.trainer, Counter(rows)  # type: ignore[attr-defined]
        for count in counts.values():
            if trainer.model.training and count % trainer.num_generations:
                problem = f"this process has only {count} rollouts of a group of {trainer.num_generations}"
                raise InvalidArguments(f"{problem}; set per_device_train_batch_size so each process has whole groups")
        rollouts: dict[str, list[Rollout]] = {}
        for count in {*counts.values()}:
            tasks = [row for row in counts if counts[row] == count]
            collected = await collector.groups([*map(json.loads, tasks)], count, self._how, output, seed)
            for place, rollout in enumerate(_checked(collected)):
                rollouts.setdefault(tasks[place // count], []).append(rollout)
        return [rollouts[row].pop(0) for row in rows]

    async def _vines(self, rows: list[str], collector: Collector, output: Path, seed: int) -> list[Rollout]:
        """A tree for each rollout, which is its trunk."""
        return _checked(await collector.vines([*map(json.loads, rows)], self._n, output, seed))


def _key(prompt: Sequence[Message]) -> str:
    """A prompt as text; Arrow adds empty fields to messages."""
    messages = [{name: value for name, value in message.items() if value is not None} for message in prompt]
    return json.dumps(messages, sort_keys=True)


def _checked(collected: Collected) -> list[Rollout]:
    if collected.failed:
        why = collected.error or "an agent waits for input, which is not possible in training"
        wanted = len(collected.rollouts) + collected.failed
        raise EnvironmentFailed(f"{collected.failed} of {wanted} rollouts have no reward: {why}")
    return collected.rollouts


def _columns(rollouts: Sequence[Rollout]) -> dict[str, list[Any]]:
    """Rollouts in TRL's format, up to the last token that the model wrote."""
    columns: dict[str, list[Any]] = {}
    for row, steps, _ in rollouts:
        sequence = sequences(row)[0]
        places = slice(sequence.completion.start, max(step.stop for step in sequence.steps if step.stop > step.start))
        values = {
            "prompt_ids": sequence.prompt,
            "completion_ids": sequence.ids[places],
            "env_mask": sequence.mask[places],
            "logprobs": sequence.log_probs[places],
            "token_advantages": token_advantages(sequence, steps)[places],
            "reward": float(row["reward"]),
        }
        for name, value in values.items():
            columns.setdefault(name, []).append(value)
    return columns

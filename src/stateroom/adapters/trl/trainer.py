"""The trainer: its model as one of ours, and a loss with an advantage for each token."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import Any, NamedTuple, TypeVar

import torch
from trl import GRPOTrainer
from trl.chat_template_utils import (
    add_response_schema,
    get_training_chat_template,
    is_chat_template_prefix_preserving,
    parse_response,
)
from trl.trainer.utils import pad

from stateroom.errors import ModelFailed
from stateroom.model import (
    TOKEN_LISTS,
    Answer,
    Item,
    Message,
    Model,
    Request,
    Segment,
    chat_tools,
    items_of,
    messages_of,
    without_tokens,
)
from stateroom.session import BackgroundLoop

T = TypeVar("T")

LINGER = 5.0
"""Seconds that a batch of requests waits at most for episodes that are still busy with their tools."""


def conversation(items: Iterable[Item], instructions: str | None) -> list[Message]:
    """The messages of a conversation, with the instructions before it."""
    system = [{"role": "system", "content": instructions}] if instructions else []
    return [*system, *messages_of(items)]


class TrainerModel(Model):
    """The model in training: what episodes ask at the same time is generated in one batch, on the trainer's thread.

    A conversation is rendered once. From then on each prompt is the tokens before and those of the new messages, so
    that what the model has written is never tokenised again.
    """

    name = "trl"

    def __init__(self, trainer: Any, most: int, *, calls_tools: bool) -> None:
        """`most` is the number of prompts that are generated at a time."""
        self.trainer = trainer
        self._most = most
        self._running = 0
        """Episodes that will ask, or end."""
        self._waiting: list[_Asked] = []
        self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()
        if calls_tools and not self._has_parser:
            add_response_schema(trainer.processing_class)
        if calls_tools and not is_chat_template_prefix_preserving(trainer.processing_class):
            trainer.chat_template = get_training_chat_template(trainer.processing_class)

    @property
    def _has_parser(self) -> bool:
        """Whether the tokenizer can parse what the model writes."""
        return any(getattr(self.trainer._tokenizer, f"response_{each}", None) for each in ("template", "schema"))

    def begin(self, episodes: int) -> None:
        """Wait for so many more episodes."""
        with self._changed:
            self._running += episodes

    def end(self) -> None:
        """Wait for one episode less."""
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    async def answer(self, request: Request) -> Answer:
        seen = Segment()
        seen.recall(request.items)
        prompt = [*seen.ids, *self._suffix(request.items)] if seen.ids else self._rendered(request)
        starts = [len(item["prompt_token_ids"]) for item in request.items if item.get("prompt_is_delta") is False]
        left = self.trainer.max_completion_length - (len(prompt) - starts[-1] if starts else 0)
        written, log_probs = await self._generated(request, prompt) if left > 0 else ([], [])
        written, log_probs = written[:left], log_probs[:left]
        tokens = dict(zip(TOKEN_LISTS, (prompt, written, log_probs), strict=True))
        items = items_of([{**self._parsed(request, prompt, written), **tokens}])
        ends = getattr(self.trainer, "eos_token_ids", [self.trainer._tokenizer.eos_token_id])  # new in TRL 1.16
        return Answer(items, truncated=not written or written[-1] not in ends)

    def _rendered(self, request: Request) -> list[int]:
        """The tokens of a conversation by the chat template."""
        messages = conversation(without_tokens(request.items), request.settings.get("instructions"))
        found: list[int] = self.trainer.processing_class.apply_chat_template(
            [[*map(_with_decoded_calls, messages)]],
            tools=chat_tools(request.tools) or None,
            chat_template=self.trainer.chat_template,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=True,
            **self.trainer.chat_template_kwargs,
        )["input_ids"][0]
        return found

    def _suffix(self, items: Sequence[Item]) -> list[int]:
        """The tokens of the messages since the last answer, and of the start of the next."""
        names = {item["call_id"]: item["name"] for item in items if item.get("type") == "function_call"}
        last = max(place for place, item in enumerate(items) if item.get("generation_token_ids"))
        messages = messages_of(items[last + 1 :])
        named = [{"name": names.get(each.get("tool_call_id", ""), each["role"]), **each} for each in messages]
        found: list[int] = self.trainer._get_tool_suffix_ids(named)
        return found

    def _parsed(self, request: Request, prompt: list[int], written: list[int]) -> Message:
        if not written or not self._has_parser:
            text = self.trainer._tokenizer.decode(written, skip_special_tokens=True)
            return {"role": "assistant", "content": text}
        tools = {"tools": chat_tools(request.tools)} if _takes(parse_response, "tools") else {}
        message = parse_response(self.trainer._tokenizer, written, prefix=prompt, **tools)
        calls = message.get("tool_calls") or ()
        named = [{**call, "id": f"call_{request.step}_{number}"} for number, call in enumerate(calls)]
        return {**message, "role": "assistant", "tool_calls": named}

    async def _generated(self, request: Request, prompt: list[int]) -> Generated:
        asked = _Asked((request.seed, request.step), prompt, Future())
        with self._changed:
            if self._error is not None:
                raise ModelFailed(f"the trainer cannot generate: {self._error!r}")
            self._waiting.append(asked)
            self._changed.notify_all()
        return await asyncio.wrap_future(asked.answer)

    # On the trainer's thread.

    def serve(self, loop: BackgroundLoop, work: Coroutine[Any, Any, T]) -> T:
        """Generate what is asked while some work runs on a loop; gives its result."""
        with ThreadPoolExecutor(1, thread_name_prefix="stateroom-rollouts") as pool:
            running = pool.submit(loop.run, work)
            running.add_done_callback(lambda _: self._end())
            batch: list[_Asked] = []
            try:
                while batch := self._next_batch():
                    prompts = [asked.prompt for asked in batch]
                    parts = (prompts[start : start + self._most] for start in range(0, len(batch), self._most))
                    for asked, found in zip(batch, chain.from_iterable(map(self._generate, parts)), strict=True):
                        asked.answer.set_result(found)
            except BaseException as error:
                self._fail(batch, error)  # so that all episodes end
                raise
            return running.result()

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _next_batch(self) -> list[_Asked]:
        """What is asked, when all running episodes have asked, or it has waited long enough; nothing after the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self._waiting)
            self._changed.wait_for(lambda: self._ended or len(self._waiting) >= self._running, timeout=LINGER)
            waiting, self._waiting = sorted(self._waiting, key=lambda asked: asked.place), []
        return [asked for asked in waiting if asked.answer.set_running_or_notify_cancel()]

    def _fail(self, batch: Sequence[_Asked], error: BaseException) -> None:
        with self._changed:
            self._error = error
            waiting = [asked for asked in self._waiting if asked.answer.set_running_or_notify_cancel()]
        for asked in [*batch, *waiting]:
            if not asked.answer.done():
                asked.answer.set_exception(ModelFailed(f"the trainer cannot generate: {error!r}"))

    def _generate(self, prompts: list[list[int]]) -> list[Generated]:
        once = {"num_generations": 1} if _takes(GRPOTrainer._generate_single_turn, "num_generations") else {}
        written, log_probs = self.trainer._generate_single_turn(prompts, None, {}, **once)
        return [*zip(written, log_probs or self._log_probs(prompts, written), strict=True)]

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


Generated = tuple[list[int], list[float]]
"""Tokens, and the log-probability of each."""


class _Asked(NamedTuple):
    """A prompt for which an episode waits."""

    place: tuple[int, int]
    """The episode's seed and step, by which a batch is in the same order each time."""
    prompt: list[int]
    answer: Future[Generated]


def _takes(function: Callable[..., Any], parameter: str) -> bool:
    """Whether a function of TRL has a parameter that is not in all of its versions."""
    return parameter in inspect.signature(function).parameters


def _with_decoded_calls(message: Message) -> Message:
    """A message whose tool calls have their arguments as data, as chat templates take them."""
    if not message.get("tool_calls"):
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    calls = [
        {"type": "function", "function": {**each, "arguments": json.loads(each["arguments"])}} for each in functions
    ]
    return {**message, "tool_calls": calls}


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

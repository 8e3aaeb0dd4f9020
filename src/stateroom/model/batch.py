"""Batches: models in this process that manage their tokens and answer many episodes at a time."""

from __future__ import annotations

import asyncio
import sys
import threading
from abc import abstractmethod
from collections.abc import Collection, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from stateroom.errors import ModelFailed
from stateroom.model.chat import Message, items_of
from stateroom.model.items import Item
from stateroom.model.model import Answer, Model, Request, Usage
from stateroom.model.segments import TOKEN_LISTS, Segment
from stateroom.session import BackgroundLoop

T = TypeVar("T")


class Prompt(NamedTuple):
    """The tokens that a model continues."""

    seed: int
    """The seed of the episode."""
    step: int
    """The number of earlier answers."""
    ids: list[int]
    room: int
    """The maximum number of new tokens."""
    temperature: float | None
    """The setting of the request, if any."""


class GeneratedTokens(NamedTuple):
    """The tokens that a model wrote."""

    ids: list[int]
    log_probs: list[float]


class BatchModel(Model):
    """A model in this process that generates concurrent requests of episodes in one batch.

    If the requests ask for tokens, a conversation is rendered only once: each further prompt is the earlier tokens plus
    those of the new messages, so text that the model wrote is never tokenised again. Otherwise the conversation is
    rendered for each answer.
    """

    def __init__(self, most: int, length: int, ends: Collection[int], context: int = sys.maxsize) -> None:
        """Generate at most `most` prompts at a time.

        `length` is the maximum number of tokens after the first prompt of a conversation, `ends` are the tokens that
        end an answer, and `context` is the context length of the model.
        """
        self._most = most
        self._length = length
        self._ends = ends
        self._context = context
        self._running = 0
        """The number of running episodes that a batch waits for."""
        self._waiting: list[_PendingPrompt] = []
        self._ended = False
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    @abstractmethod
    def render(self, request: Request) -> list[int]:
        """The tokens of a whole conversation and of the start of an answer."""

    @abstractmethod
    def render_reply(self, items: Sequence[Item]) -> list[int]:
        """The tokens of the messages after an answer, and of the start of the next; the answer includes its end.

        `items` is the whole conversation.
        """

    @abstractmethod
    def parse(self, request: Request, prompt: Prompt, written: list[int]) -> Message:
        """Parse the written tokens into a message; its tool calls need not have ids."""

    @abstractmethod
    def generate(self, prompts: Sequence[Prompt]) -> Iterable[GeneratedTokens]:
        """Continue prompts. Called by the worker thread."""

    def prompt_of(self, request: Request) -> list[int]:
        """The tokens that the answer to a request continues."""
        seen = Segment()
        seen.recall(request.items)
        if seen.ids:
            return [*seen.ids, *self.render_reply(request.items)]
        ids = self.render(request)
        if len(ids) >= self._context:
            raise ModelFailed(f"the prompt has {len(ids)} tokens, but {self.name} supports only {self._context}")
        return ids

    async def answer(self, request: Request) -> Answer:
        ids = self.prompt_of(request)
        starts = [len(item["prompt_token_ids"]) for item in request.items if item.get("prompt_is_delta") is False]
        used = len(ids) - starts[-1] if starts else 0
        limit = request.settings.get("max_output_tokens")
        room = min(self._length - used, self._context - len(ids), *([] if limit is None else [limit]))
        prompt = Prompt(request.seed, request.step, ids, room, request.settings.get("temperature"))
        written, log_probs = await self._generated(prompt) if room > 0 else GeneratedTokens([], [])
        written, log_probs = written[:room], log_probs[:room]
        message = {**self.parse(request, prompt, written), "role": "assistant"}
        calls = enumerate(message.get("tool_calls") or ())
        message["tool_calls"] = [{**call, "id": f"call_{request.step}_{number}"} for number, call in calls]
        tokens = dict(zip(TOKEN_LISTS, (ids, written, log_probs), strict=True)) if request.tokens else {}
        truncated = not written or written[-1] not in self._ends
        return Answer(items_of([{**message, **tokens}]), Usage(len(ids), len(written)), truncated)

    async def _generated(self, prompt: Prompt) -> GeneratedTokens:
        pending = _PendingPrompt(prompt, Future())
        with self._changed:
            if self._error is not None:
                raise ModelFailed(f"{self.name} cannot generate: {self._error!r}")
            self._waiting.append(pending)
            self._changed.notify_all()
        return await asyncio.wrap_future(pending.answer)

    def begin(self, episodes: int) -> None:
        """Add episodes that batches wait for."""
        with self._changed:
            self._running += episodes

    def end(self) -> None:
        """Remove an episode that batches wait for."""
        with self._changed:
            self._running -= 1
            self._changed.notify_all()

    # On the worker thread.

    def serve(self, loop: BackgroundLoop, collecting: Coroutine[Any, Any, T]) -> T:
        """Generate on this thread while a coroutine runs on a loop; returns its result."""
        self._ended = False
        with ThreadPoolExecutor(1, thread_name_prefix="stateroom-rollouts") as pool:
            running = pool.submit(loop.run, collecting)
            running.add_done_callback(lambda _: self.stop())
            self.work()
            return running.result()

    def work(self) -> None:
        """Generate for requests until `stop`."""
        batch: list[_PendingPrompt] = []
        try:
            while batch := self._next_batch():
                parts = (batch[start : start + self._most] for start in range(0, len(batch), self._most))
                answers = chain.from_iterable(self.generate([pending.prompt for pending in part]) for part in parts)
                for pending, generated in zip(batch, answers, strict=True):
                    pending.answer.set_result(generated)
        except BaseException as error:
            self._fail(batch, error)  # so all episodes end
            raise

    def stop(self) -> None:
        """Stop the worker thread."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _next_batch(self) -> list[_PendingPrompt]:
        """The prompts once all running episodes have asked; empty after the end."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._ended or len(self._waiting) >= max(self._running, 1))
                if self._ended:
                    return []
                waiting, self._waiting = sorted(self._waiting, key=lambda pending: pending.prompt[:2]), []
            if batch := [pending for pending in waiting if pending.answer.set_running_or_notify_cancel()]:
                return batch

    def _fail(self, batch: Sequence[_PendingPrompt], error: BaseException) -> None:
        with self._changed:
            self._error = error
            waiting = [pending for pending in self._waiting if pending.answer.set_running_or_notify_cancel()]
        for pending in [*batch, *waiting]:
            if not pending.answer.done():
                pending.answer.set_exception(ModelFailed(f"{self.name} cannot generate: {error!r}"))


class _PendingPrompt(NamedTuple):
    """A prompt that waits for the model."""

    prompt: Prompt
    answer: Future[GeneratedTokens]

"""Exact tokens: the tokens that a model read and wrote, as reported by its server, on the last item of each answer.

| field | content |
|---|---|
| `prompt_token_ids` | the tokens that the model read: all, or only those since its last answer if `prompt_is_delta` |
| `generation_token_ids` | the tokens that it wrote |
| `generation_log_probs` | the log-probability of each of these |
| `prompt_is_delta` | false at the start of a **segment**; missing if a server's report is stored unchanged |

A trainer can use a conversation as one sequence only if each prompt begins with the prompt and the answer of the
previous step. A segment is a part of a conversation for which this holds. A conversation is one segment, unless its
view was compacted or its server tokenised earlier answers again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Literal

import msgspec

from stateroom.errors import ModelFailed
from stateroom.model.items import Item

TOKEN_LISTS = ("prompt_token_ids", "generation_token_ids", "generation_log_probs")

TOKEN_FIELDS = (*TOKEN_LISTS, "prompt_is_delta")

Exactness = Literal["exact", "split"]
"""The effect of a prompt that does not begin with all earlier tokens: a failed episode, or a new segment."""


class Segment:
    """The tokens of a conversation since its last segment began."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def recall(self, items: Iterable[Item]) -> None:
        """Add the tokens of items in the log."""
        for item in items:
            if item.get("generation_token_ids"):
                if not item.get("prompt_is_delta"):
                    self.ids = []
                self.ids += [*item["prompt_token_ids"], *item["generation_token_ids"]]

    def extend(self, items: Sequence[Item], model: str, exactness: Exactness) -> list[Item]:
        """Add the tokens of an answer; returns its items with the tokens since the previous answer.

        Raises `ModelFailed` if the answer has no tokens or, with `exact`, if they do not continue the earlier ones.
        """
        place = _place_of_tokens(items, model)
        try:
            tokens = AnswerTokens.of(items[place])
        except ValueError as error:
            raise ModelFailed(f"{model} reported inconsistent tokens: {error}") from None
        prompt, written = tokens.prompt_token_ids, tokens.generation_token_ids
        is_delta = bool(self.ids)
        if is_delta and prompt[: len(self.ids)] != self.ids:
            if exactness == "exact":
                raise ModelFailed(self._difference(prompt, model))
            is_delta, self.ids = False, []
        added = prompt[len(self.ids) :]
        self.ids += [*added, *written]
        return [
            {**item, "prompt_token_ids": added, "prompt_is_delta": is_delta} if number == place else item
            for number, item in enumerate(items)
        ]

    def _difference(self, prompt: list[int], model: str) -> str:
        both = zip(prompt, self.ids, strict=False)
        place = next((place for place, (new, old) in enumerate(both) if new != old), len(prompt))
        return (
            f"{model} tokenised earlier answers again: its prompt differs at token {place} from the {len(self.ids)} "
            "earlier tokens, so they are not one sequence for a trainer. Use a chat template that keeps earlier turns "
            "unchanged, or split the episode into segments (`record_tokens`: split)"
        )


def without_tokens(items: Iterable[Item]) -> list[Item]:
    """Items without their token fields; items without tokens are returned unchanged."""
    return [
        {name: value for name, value in item.items() if name not in TOKEN_FIELDS}
        if "generation_token_ids" in item
        else item
        for item in items
    ]


def with_whole_prompts(items: Iterable[Item]) -> list[Item]:
    """Items in which each answer has its whole prompt, as NeMo RL reads them."""
    segment = Segment()
    whole_items = []
    for item in items:
        if item.get("prompt_is_delta") is None:
            whole_items.append(item)
            continue
        before = segment.ids if item["prompt_is_delta"] else []
        whole = {**item, "prompt_token_ids": [*before, *item["prompt_token_ids"]]}
        segment.recall([item])
        whole_items.append({name: value for name, value in whole.items() if name != "prompt_is_delta"})
    return whole_items


def _place_of_tokens(items: Sequence[Item], model: str) -> int:
    places = [place for place, item in enumerate(items) if item.get("generation_token_ids") is not None]
    if len(places) != 1:
        what = "no tokens" if not places else f"the tokens of {len(places)} answers"
        raise ModelFailed(
            f"{model} reported {what} with its answer; to record tokens, use a server that reports them for each "
            "answer, as vLLM does with return_token_ids"
        )
    return places[0]


TokenID = Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]

LogProbability = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
"""A finite number."""


class AnswerTokens(msgspec.Struct):
    """The tokens of an answer, as stored on its item."""

    prompt_token_ids: list[TokenID]
    generation_token_ids: list[TokenID]
    generation_log_probs: list[LogProbability]

    @classmethod
    def of(cls, item: Item) -> AnswerTokens:
        """The tokens on an item. Raises `ValueError` if they are invalid."""
        tokens = msgspec.convert(item, cls)
        written, log_probs = len(tokens.generation_token_ids), len(tokens.generation_log_probs)
        if written != log_probs:
            raise ValueError(f"{written} tokens, but {log_probs} log-probabilities")
        return tokens

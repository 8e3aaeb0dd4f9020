"""Token sequences: episodes for trainers, with the tokens that the model read and wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from stateroom.errors import BadData
from stateroom.model import AnswerTokens, Item, answers_in


class Step(NamedTuple):
    """The tokens of one answer in a sequence."""

    answer: int
    """The index of the answer in the episode."""
    start: int
    """The position of its first token."""
    stop: int
    """The position after its last token."""


class TokenSequence(msgspec.Struct, frozen=True):
    """A segment of an episode as tokens. The tokens before the first answer are the prompt."""

    ids: list[int]
    mask: list[int]
    """1 for tokens that the model wrote, 0 for all others."""
    log_probs: list[float]
    """The log-probability of each token that the model wrote; 0 for all others."""
    steps: list[Step]

    @property
    def prompt(self) -> list[int]:
        """The tokens before the first answer."""
        return self.ids[: self.steps[0].start]

    @property
    def completion(self) -> slice:
        """The positions of all tokens after the prompt: answers and the messages between them."""
        return slice(self.steps[0].start, len(self.ids))


def sequences(row: Mapping[str, Any]) -> list[TokenSequence]:
    """The segments of an episode, from its row in a rollouts file: one, unless its tokens were split.

    A row may have whole prompts, as written by NeMo Gym. Then a prompt that does not begin with all earlier tokens
    starts a segment. Raises `BadData` if an answer has no tokens, or if they are inconsistent.
    """
    output: Sequence[Item] = (row.get("response") or {}).get("output") or []
    made: list[TokenSequence] = []
    for number, places in enumerate(answers_in(output)):
        items = [output[place] for place in places if output[place].get("generation_token_ids") is not None]
        if len(items) != 1:
            raise BadData(
                f"answer {number} of {_name(row)} has {'no tokens' if not items else 'the tokens of several answers'}; "
                "collect it with `record_tokens`"
            )
        try:
            tokens = AnswerTokens.of(items[0])
        except ValueError as error:
            raise BadData(f"answer {number} of {_name(row)} has inconsistent tokens: {error}") from None
        prompt = tokens.prompt_token_ids
        seen = made[-1].ids if made else []
        if items[0].get("prompt_is_delta") is None and seen and prompt[: len(seen)] == seen:
            prompt = prompt[len(seen) :]
        elif not items[0].get("prompt_is_delta"):
            made.append(TokenSequence([], [], [], []))
        elif not made:
            raise BadData(f"the first answer of {_name(row)} does not have a whole prompt")
        _add(made[-1], number, prompt, tokens.generation_token_ids, tokens.generation_log_probs)
    return made


def token_advantages(sequence: TokenSequence, steps: Sequence[float]) -> list[float]:
    """The advantage of each token of a sequence, from those of the episode's answers; 0 for tokens of others."""
    values = [0.0] * len(sequence.ids)
    for answer, start, stop in sequence.steps:
        values[start:stop] = [steps[answer]] * (stop - start)
    return values


def _add(sequence: TokenSequence, number: int, prompt: list[int], written: list[int], log_probs: list[float]) -> None:
    sequence.ids.extend([*prompt, *written])
    sequence.mask.extend([0] * len(prompt) + [1] * len(written))
    sequence.log_probs.extend([0.0] * len(prompt) + log_probs)
    sequence.steps.append(Step(number, len(sequence.ids) - len(written), len(sequence.ids)))


def _name(row: Mapping[str, Any]) -> str:
    return f"task {row.get('_ng_task_index', '?')}, rollout {row.get('_ng_rollout_index', '?')}"

"""Words have values; the task is to look up a list of words and submit their values in the same order.

Each list has synonyms of a term. The term itself is a trap: its value must not be in the answer.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from pydantic import TypeAdapter

from stateroom import Environment, Episode, State, Task, Verdict, tool
from stateroom.gallery.extraction.policies import NoisyPolicy, ReferencePolicy
from stateroom.model import calls_of

SYNONYMS = {
    "big": ("large", "huge", "vast", "great", "sizable"),
    "small": ("little", "tiny", "minute", "slight", "compact"),
    "quick": ("fast", "rapid", "swift", "brisk", "speedy"),
    "happy": ("glad", "cheerful", "content", "merry", "pleased"),
    "calm": ("still", "quiet", "placid", "serene", "tranquil"),
    "brave": ("bold", "daring", "valiant", "gallant", "fearless"),
    "clever": ("bright", "smart", "astute", "shrewd", "ingenious"),
    "cold": ("chilly", "icy", "frosty", "freezing", "wintry"),
}


def value_of(word: str) -> int:
    """The sum of the code points of a word."""
    return sum(map(ord, word))


class Extraction(State):
    looked_up: dict[str, int] = {}
    answer: list[int] | None = None


class ExtractionTask(Task):
    id: int | str
    expected_synonym_values: list[int]
    expected_synonyms: list[str]
    minefield_label: str
    minefield_label_value: int


INTEGERS = TypeAdapter(list[int])


def last_answer(state: Extraction, response: Any) -> list[Any]:
    """The values of the last submission as the model wrote them ("5" is not 5); empty unless it is a list of integers.

    The state has only submissions that the tool accepted, not refused ones, so it counts only if the response has no
    submission.
    """
    calls = calls_of(response, "extract_synonym_values")
    if not calls:
        return list(state.answer or [])
    try:
        answer = json.loads(calls[-1]["arguments"])["synonym_values"]
        INTEGERS.validate_python(answer)
    except (ValueError, TypeError, LookupError, RecursionError):
        return []
    return answer  # type: ignore[no-any-return]


class ExtractionEnvironment(Environment[Extraction, ExtractionTask]):
    """Look up the values of several words and hand them in."""

    examples = "tasks.jsonl"
    policies = {"reference": ReferencePolicy, "noisy": NoisyPolicy}

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        """Whether the reward requires looking up each word."""

    @tool
    def get_synonym_value(self, state: Extraction, synonym: str) -> dict[str, int]:
        """The value of a word.

        Args:
            synonym: The word.
        """
        state.looked_up[synonym] = value_of(synonym)
        return {"synonym_value": state.looked_up[synonym]}

    @tool
    def extract_synonym_values(self, state: Extraction, synonym_values: list[int]) -> dict[str, bool]:
        """Hand in the values of all words. The last call counts.

        Args:
            synonym_values: The values, in the order of the words.
        """
        state.answer = synonym_values
        return {"success": True}

    def verify(self, state: Extraction, episode: Episode) -> Verdict:
        """1 for the exact values in order; `strict` also asks that each word was looked up."""
        task: ExtractionTask = episode.task
        expected, answer = task.expected_synonym_values, last_answer(state, episode.response)
        accuracy = answer == expected
        found = len(set(answer) & set(expected))
        overlap = found / max(len(expected), 1)
        words = {*task.expected_synonyms}
        looked_up = len(words & {*state.looked_up}) / max(len(words), 1)
        return Verdict(
            reward=float(accuracy and (not self.strict or looked_up == 1.0)),
            components={"looked_up": looked_up},
            metrics={
                "accuracy": float(accuracy),
                "set_overlap": overlap,
                "original_term_minefield_hit": float(
                    task.minefield_label in answer or task.minefield_label_value in answer
                ),
                "order_instruction_following_failure": float(not accuracy and overlap == 1.0),
            },
            reason="the exact values, in order" if accuracy else f"{found} of {len(expected)} values found",
            details={"parsed_synonym_values": INTEGERS.validate_python(answer)},
        )

    @classmethod
    def generate(cls, rng: Random) -> dict[str, Any]:
        """A new task: two to five synonyms of one term."""
        term = rng.choice(sorted(SYNONYMS))
        words = rng.sample(SYNONYMS[term], rng.randint(2, 5))
        return {
            "id": rng.randint(0, 999_999),
            "responses_create_params": {
                "input": f"Look up the value of each of these synonyms of '{term}', one at a time: {', '.join(words)}. "
                f"Then hand in the values in that order. Leave out the value of '{term}' itself."
            },
            "expected_synonyms": words,
            "expected_synonym_values": [value_of(word) for word in words],
            "minefield_label": term,
            "minefield_label_value": value_of(term),
        }

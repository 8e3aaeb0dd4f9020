"""Votes: what a judge's model says of an answer, how that is read, and what several of them come to."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from stateroom.errors import JudgeFailed


class Reading(NamedTuple):
    """What a text says of an answer."""

    score: float
    reason: str = ""


class Vote(msgspec.Struct, frozen=True, omit_defaults=True):
    """One try to have an answer judged."""

    score: float | None = None
    """None when it has failed."""
    reason: str = ""
    error: str = ""
    """Why it has failed, and what the model said."""


def read_score(text: str) -> Reading:
    """The score and the reason in the one JSON object that a text has; there may be words, or a fence, around it.

    Raises `ValueError` wherever it is not clear which score is meant: no number is guessed from words, nor chosen from
    several objects, of which one may only be quoted.
    """
    start = text.find("{")
    if start < 0:
        raise ValueError("there is no JSON object in it")
    try:
        found, end = _DECODER.raw_decode(text, start)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its JSON object cannot be read ({error})") from None
    if "{" in text[end:]:
        raise ValueError("there is more than one JSON object in it")
    score, reason = found.get("score"), found.get("reason", "")
    if type(score) not in (int, float):
        raise ValueError('its JSON object has no number as "score"')
    if not isinstance(reason, str):
        raise ValueError('the "reason" in its JSON object is not a text')
    return Reading(_float(score), reason)


def majority(scores: Sequence[float]) -> float:
    """The score that more than half of the votes give; `JudgeFailed` if there is none."""
    [(score, count)] = Counter(scores).most_common(1)
    if 2 * count <= len(scores):
        raise JudgeFailed(f"no score has more than half of the votes, which are {', '.join(map(str, scores))}")
    return score


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _float(score: float) -> float:
    try:
        return float(score)
    except OverflowError:
        raise ValueError("its score is out of all bounds") from None


_DECODER = json.JSONDecoder(object_pairs_hook=_distinct, strict=False)  # a reason may have line breaks in it

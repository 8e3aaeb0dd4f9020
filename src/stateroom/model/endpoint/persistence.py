"""Asking again: a bounded number of attempts, with random pauses, as the server wishes, and never beyond a deadline."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from itertools import count
from math import isfinite
from random import uniform
from time import monotonic, time
from typing import Any, NamedTuple

from stateroom.errors import ModelFailed, ModelUnavailable
from stateroom.model.endpoint.limits import Limits

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Timing:
    """Where time and chance come from."""

    sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep
    now: Callable[[], float] = monotonic
    today: Callable[[], float] = time
    """The time of day, as servers know it."""
    between: Callable[[float, float], float] = uniform


class Trouble(NamedTuple):
    """Why an attempt gave no answer."""

    message: str
    passing: bool
    """Whether another attempt may do."""
    after: float | None = None
    """Seconds before which the server does not want to be asked again."""


async def persist(
    attempt: Callable[[float], Awaitable[str | Trouble]], limits: Limits, timing: Timing, name: str
) -> str:
    """What an attempt brings, which is told how many seconds it may take; it is repeated while its trouble may pass."""
    began = timing.now()
    end = began + limits.deadline
    for attempts in count(1):
        found = await attempt(min(limits.timeout, end - timing.now()))
        if isinstance(found, str):
            return found
        if not found.passing:
            raise ModelFailed(f"{name} {found.message}")
        pause = _pause(attempts, found.after, limits, timing)
        if attempts >= limits.attempts or timing.now() + pause >= end:
            passed = timing.now() - began
            raise ModelUnavailable(f"{name} {found.message} (attempts: {attempts}, in {passed:.1f} s)")
        logger.info("%s %s; it is asked again in %.1f s", name, found.message, pause)
        await timing.sleep(pause)
    raise AssertionError


def _pause(attempts: int, after: float | None, limits: Limits, timing: Timing) -> float:
    """Any time up to a bound that doubles, so that those who failed together do not come back together."""
    longest = min(limits.longest_pause, limits.first_pause * 2 ** min(attempts - 1, 30))
    return (after or 0.0) + timing.between(0.0, longest)


def retry_after(headers: Mapping[str, str], today: float) -> float | None:
    """For how many seconds a server's reply says that it is not to be asked again; None if it says nothing of it."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    seconds = _number(text)
    if seconds is not None or text is None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - today)
    except (ValueError, OverflowError):
        return None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return max(0.0, number) if isfinite(number) else None

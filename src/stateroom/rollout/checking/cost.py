"""The check `cost`: what a call, a seed and a verdict take, and whether a call pays for all of the state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from statistics import median

from stateroom.rollout.checking.bench import Bench
from stateroom.rollout.checking.finding import Fault, Finding, finding

NAME = "cost"

SLOW_CALL = 0.1
"""Seconds from which a call is slow."""

SLOW_HOOK = 1.0
"""Seconds from which a seed or a verdict is slow."""

REWRITES = 0.5
"""The share of the state from which a call counts as writing all of it."""


def check_cost(bench: Bench) -> Finding:
    """Median times, and calls that write again what they have not changed."""
    calls: Mapping[str, list[float]] = defaultdict(list)
    for step in (step for play in bench.shown for step in play.steps):
        calls[step.name].append(step.seconds)
    times = {name: median(seconds) for name, seconds in calls.items()}
    hooks = {hook: median(seconds) for hook in ("seed", "verify") if (seconds := _hook_times(bench, hook))}
    faults = [*_slow(times, SLOW_CALL), *_slow(hooks, SLOW_HOOK), *_rewrites(bench)]
    return finding(NAME, faults, _told(bench, times, hooks))


def _hook_times(bench: Bench, hook: str) -> list[float]:
    return [play.seconds[hook] for play in bench.shown if hook in play.seconds]


def _slow(times: Mapping[str, float], limit: float) -> Iterator[Fault]:
    for name, seconds in times.items():
        if seconds > limit:
            yield Fault(f"{name} takes {_shown(seconds)}: an episode waits for it each time", False)


def _rewrites(bench: Bench) -> Iterator[Fault]:
    worst = {change.name: change for play in bench.shown for change in play.changes if change.rewritten >= REWRITES}
    for name, change in worst.items():
        yield Fault(
            f"{name} writes {change.size:,} bytes, {change.rewritten:.0%} of the state, so each call costs more as it "
            "grows: change what is there, instead of putting a copy in its place",
            False,
        )


def _told(bench: Bench, times: Mapping[str, float], hooks: Mapping[str, float]) -> str:
    slowest = sorted(times.items(), key=lambda each: -each[1])[:3]
    told = [f"{name} {_shown(seconds)}" for name, seconds in [*slowest, *hooks.items()]]
    sizes = [change.size for play in bench.shown for change in play.changes]
    if sizes:
        told.append(f"{median(sizes):.0f} bytes of patch a commit")
    return ", ".join(told)


def _shown(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"

"""The checks `reference`, `idle` and `verifier`: a reward says whether the task was done."""

from __future__ import annotations

from collections.abc import Iterator

from stateroom.rollout.checking.actors import REFERENCE
from stateroom.rollout.checking.bench import Bench
from stateroom.rollout.checking.finding import Fault, Finding, finding, listed, skipped
from stateroom.rollout.checking.playing import Play
from stateroom.rollout.recorded import same
from stateroom.state.describe import brief

IDLE = "idle"
VERIFIER = "verifier"

SOLVED = 1.0
"""From this reward on, an episode counts as solved."""

MADE = 10
"""So many calls of an episode are told."""


def check_reference(bench: Bench) -> Finding:
    """The reference policy gets the full reward for each task."""
    if not bench.reference:
        why = "there is no reference policy, so nothing shows that a task can be solved: policies = {'reference': …}"
        return skipped(REFERENCE, why)
    faults = [fault for play in bench.reference for fault in _unsolved(play)]
    return finding(REFERENCE, faults, f"it gets the full reward for each of {len(bench.reference)} tasks")


def _unsolved(play: Play) -> Iterator[Fault]:
    if play.waits is not None:
        yield Fault(f"task {play.task}: it waits for a person to answer {play.waits!r}, who is not here", False)
    elif play.broke is not None and play.broke.where == "play":
        yield Fault(f"task {play.task}: it broke down: {play.broke.why}")
    elif play.verdict is not None and play.verdict.reward < SOLVED:
        why = f": {play.verdict.reason}" if play.verdict.reason else ""
        made = listed([step.name for step in play.steps], MADE) or "nothing"
        yield Fault(
            f"task {play.task}: it called {made}, and got {play.verdict.reward:g}{why}; "
            "the policy, the task or the verifier is wrong"
        )


def check_idle(bench: Bench) -> Finding:
    """One that does nothing does not get the full reward."""
    paid = [play for play in bench.idle if play.verdict is not None and play.verdict.reward >= SOLVED]
    tellable = [play.task for play in paid if _metrics_differ(bench, play)]
    untold = [play.task for play in paid if play.task not in tellable]
    faults = []
    if untold:
        advice = "let verify ask for what was done, or the task for more"
        faults.append(Fault(f"task {listed(untold)}: doing nothing gets the full reward; {advice}"))
    if tellable:
        told = "doing nothing gets the full reward, and only the metrics tell"
        faults.append(Fault(f"task {listed(tellable)}: {told}", serious=False))
    return finding(IDLE, faults, f"doing nothing solves none of {len(bench.idle)} tasks")


def _metrics_differ(bench: Bench, idle: Play) -> bool:
    """Whether something else in the verdict tells the idle one from the reference."""
    best = next((play for play in bench.reference if play.task == idle.task), None)
    if best is None or best.verdict is None or idle.verdict is None:
        return False
    return best.verdict.metrics != idle.verdict.metrics or best.verdict.components != idle.verdict.components


def check_verifier(bench: Bench) -> Finding:
    """It gives each episode a finite reward between 0 and 1, the same each time, and does not try to write."""
    plays = [*bench.shown, *bench.idle]
    faults = [fault for play in plays for fault in _verifier_faults(play)]
    judged = [play.verdict.reward for play in plays if play.verdict is not None]
    lowest, highest = min(judged, default=0.0), max(judged, default=0.0)
    return finding(
        VERIFIER, faults, f"{len(judged)} verdicts, from {lowest:g} to {highest:g}; the same when asked again"
    )


def _verifier_faults(play: Play) -> Iterator[Fault]:
    who = f"task {play.task}, by {play.actor.name}"
    if play.broke is not None and play.broke.where == "verify":
        yield Fault(f"{who}: verify broke down: {play.broke.why}")
    if play.verdict is None:
        return
    if play.again is not None and not same(vars(play.verdict), vars(play.again)):
        then, now = vars(play.verdict), vars(play.again)
        name = next(name for name in then if not same(then[name], now[name]))
        yield Fault(f"{who}: asked again, verify says {name} {brief(now[name])}, not {brief(then[name])}")
    if not 0 <= play.verdict.reward <= SOLVED:
        reward = f"{play.verdict.reward:g}"
        yield Fault(f"{who}: the reward is {reward}; from 0 to 1 is usual, and from 1 a task counts as solved", False)

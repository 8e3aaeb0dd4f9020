"""The checks `reference`, `idle`, `shortcut` and `verifier`: rewards show whether the task was solved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stateroom.rollout.check.episodes import Episodes, Play
from stateroom.rollout.check.findings import (
    IDLE,
    REFERENCE,
    SHORTCUT,
    VERIFIER,
    Fault,
    Finding,
    TaskOutcome,
    finding,
    listed,
    plural,
    skipped,
)
from stateroom.rollout.metrics import SOLVED
from stateroom.session import same
from stateroom.state import brief_pair

MAX_CALLS_LISTED = 10
"""The most calls of an episode that a message lists."""


def check_reference(episodes: Episodes) -> Finding:
    """The reference policy, or a task's gold actions, get the full reward for each task."""
    if not episodes.reference:
        why = "cannot show that tasks are solvable: add policies = {'reference': …}, or `gold` actions to each task"
        return skipped(REFERENCE, why)
    faults = [fault for play in episodes.reference for fault in _unsolved(play)]
    unjudged = [play.task for play in episodes.reference if play.failure is not None and play.failure.phase == "verify"]
    if unjudged:
        faults.append(Fault(f"task {listed(unjudged)}: verify failed, so it has no verdict", serious=False))
    tasks = plural(len(episodes.reference), "task")
    who = "the policy gets" if episodes.reference[0].policy.name == REFERENCE else "the gold actions get"
    return finding(REFERENCE, faults, f"{who} the full reward for each of {tasks}")


def outcomes(episodes: Episodes, tasks: int) -> list[TaskOutcome]:
    """The outcome of the reference policy, or of the gold actions, for each task."""
    plays = {play.task: play for play in episodes.reference}
    return [_outcome(plays[task]) if task in plays else TaskOutcome(task, "not_played") for task in range(tasks)]


def _outcome(play: Play) -> TaskOutcome:
    if play.failure is not None:
        return TaskOutcome(play.task, "failed", None, play.failure.why)
    if play.verdict is None:
        return TaskOutcome(play.task, "waiting", None, play.question or "")
    solved = play.verdict.reward >= SOLVED
    return TaskOutcome(play.task, "solved" if solved else "unsolved", play.verdict.reward, play.verdict.reason)


def _unsolved(play: Play) -> Iterator[Fault]:
    if play.question is not None:
        yield Fault(
            f"task {play.task}: it waits for a person to answer {play.question!r}, which a check cannot do", False
        )
    elif play.failure is not None and play.failure.phase == "play":
        yield Fault(f"task {play.task}: the episode failed: {play.failure.why}")
    elif play.verdict is not None and play.verdict.reward < SOLVED:
        why = f": {play.verdict.reason}" if play.verdict.reason else ""
        called = listed([step.name for step in play.steps], MAX_CALLS_LISTED) or "nothing"
        yield Fault(
            f"task {play.task}: it called {called}, and got {play.verdict.reward:g}{why}; "
            "the policy, the task or the verifier is wrong"
        )


def check_idle(episodes: Episodes) -> Finding:
    """A policy that does nothing does not get the full reward."""
    paid = _paid(episodes.idle)
    by_metrics = [play.task for play in paid if _metrics_differ(episodes, play)]
    not_at_all = [play.task for play in paid if play.task not in by_metrics]
    faults = []
    if not_at_all:
        advice = "make verify check what was done, or change the task"
        faults.append(Fault(f"task {listed(not_at_all)}: doing nothing gets the full reward; {advice}"))
    if by_metrics:
        problem = "doing nothing gets the full reward; only the metrics differ"
        faults.append(Fault(f"task {listed(by_metrics)}: {problem}", serious=False))
    return finding(IDLE, faults, f"doing nothing solves none of {plural(len(episodes.idle), 'task')}")


def _paid(plays: Sequence[Play]) -> list[Play]:
    """The episodes with the full reward."""
    return [play for play in plays if play.verdict is not None and play.verdict.reward >= SOLVED]


def _metrics_differ(episodes: Episodes, idle: Play) -> bool:
    """Whether other parts of the verdict differ between the idle policy and the reference."""
    best = next((play for play in episodes.reference if play.task == idle.task), None)
    if best is None or best.verdict is None or idle.verdict is None:
        return False
    return best.verdict.metrics != idle.verdict.metrics or best.verdict.components != idle.verdict.components


def check_shortcuts(episodes: Episodes) -> Finding:
    """If the reference ends with reads and a message, the full reward requires one of them.

    A read after the last write can only serve the answer. Without both, the agent did not answer the task's question.
    """
    paid = {play.task for play in _paid(episodes.shortcuts)} - {play.task for play in _paid(episodes.idle)}
    plays = [play for play in episodes.reference if play.task in paid]
    names = dict.fromkeys(step.name for play in plays for step in episodes.last_reads(play))
    without = f"the full reward does not require the last {listed([*names])} or an answer"
    advice = "if the task asks for them, check them in episode.response"
    faults = [Fault(f"task {listed([play.task for play in plays])}: {without}; {advice}", False)] if plays else []
    tried = plural(len(episodes.shortcuts), "task")
    otherwise = (
        f"none of {tried} is solved without the last reads"
        if episodes.shortcuts
        else "no task ends with reads after a change"
    )
    return finding(SHORTCUT, faults, otherwise)


def check_verifier(episodes: Episodes) -> Finding:
    """The verifier returns a finite reward from 0 to 1, is deterministic, and does not write."""
    plays = [*episodes.active, *episodes.idle]
    faults = [fault for play in plays for fault in _verifier_faults(play)]
    rewards = [play.verdict.reward for play in plays if play.verdict is not None]
    lowest, highest = min(rewards, default=0.0), max(rewards, default=0.0)
    summary = f"{plural(len(rewards), 'verdict')}, from {lowest:g} to {highest:g}; identical when repeated"
    return finding(VERIFIER, faults, summary)


def _verifier_faults(play: Play) -> Iterator[Fault]:
    where = f"task {play.task}, by {play.policy.name}"
    if play.failure is not None and play.failure.phase == "verify":
        yield Fault(f"{where}: verify failed: {play.failure.why}")
    if play.verdict is None:
        return
    if play.second_verdict is not None and not same(vars(play.verdict), vars(play.second_verdict)):
        first, again = vars(play.verdict), vars(play.second_verdict)
        name = next(name for name in first if not same(first[name], again[name]))
        yield Fault(
            f"{where}: when repeated, verify returns {name} {', not '.join(brief_pair(again[name], first[name]))}"
        )
    if not 0 <= play.verdict.reward <= SOLVED:
        reward = f"{play.verdict.reward:g}"
        yield Fault(f"{where}: the reward is {reward}; use 0 to 1, where 1 counts as solved", False)

"""In what two episodes differ that should be the same."""

from __future__ import annotations

from itertools import zip_longest

from stateroom.rollout.checking.playing import Play, Step
from stateroom.rollout.recorded import same
from stateroom.state.describe import brief
from stateroom.state.sameness import Sameness


def apart(one: Play, other: Play) -> str | None:
    """The first thing in which an episode is not the same as another of its task; None if there is nothing."""
    broke, equal = one.broke or other.broke, Sameness()
    if broke is not None and (one.broke is None or other.broke is None):
        return f"one broke down ({broke.why}), the other did not"
    for number, (step, again) in enumerate(zip_longest(one.steps, other.steps), 1):
        if step is None or again is None or not equal((step.name, step.input), (again.name, again.input)):
            return f"at step {number} the policy does something else"
        if not same(step.content, again.content):
            return f"{written(step)} gives {brief(step.content)}, and {brief(again.content)}"
    for change, again_change in zip(one.changes, other.changes, strict=False):
        if not equal(change.patch, again_change.patch):
            return f"{change.name} changes the state by {brief(change.patch)}, and by {brief(again_change.patch)}"
    if one.verdict != other.verdict and not same(verdict_of(one), verdict_of(other)):
        return f"the verdict is {brief(verdict_of(one))}, and {brief(verdict_of(other))}"
    return None


def verdict_of(play: Play) -> object:
    """An episode's verdict as data."""
    return None if play.verdict is None else vars(play.verdict)


def written(step: Step) -> str:
    """A step, as one would write it."""
    if step.is_reply or not isinstance(step.input, dict):
        return f"{step.name}({brief(step.input)})"
    return f"{step.name}({', '.join(f'{name}={brief(value)}' for name, value in step.input.items())})"

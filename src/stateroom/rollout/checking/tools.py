"""The check `tools`: each works, keeps to what it is declared as, and fails in words."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from stateroom.rollout.checking.bench import Bench
from stateroom.rollout.checking.finding import Fault, Finding, finding, listed
from stateroom.rollout.checking.playing import Step
from stateroom.rollout.checking.sameness import written
from stateroom.rollout.checking.watching import Raised

NAME = "tools"


def check_tools(bench: Bench) -> Finding:
    """Tools that went wrong in the episodes, and those that never went well."""
    steps = [step for play in bench.shown for step in play.steps if not step.is_reply]
    worked = {step.name for step in steps if step.code in (None, "needs_input")}
    faults = [*_raised(bench, worked), *_never_worked(bench, steps, worked), *_too_slow(steps), *_broke(bench)]
    tools = bench.stage.environment.tools
    unseen = [name for name in tools if name not in worked]
    beside = f"; not seen at work: {listed(unseen)}" if unseen else ""
    return finding(NAME, faults, f"{len(worked)} of {len(tools)} went well, in {len(steps)} calls{beside}")


def _raised(bench: Bench, worked: set[str]) -> Iterator[Fault]:
    kinds: dict[tuple[str, bool], list[Raised]] = defaultdict(list)
    for each in bench.stage.watched.raised:
        kinds[each.tool, each.is_wrong].append(each)
    for (tool, is_wrong), raised in kinds.items():
        often = f", in {len(raised)} calls" if len(raised) > 1 else ""
        advice = "" if is_wrong else "; raise ToolError, and tell the model in words"
        yield Fault(f"{raised[0].call} {raised[0].what}{often}{advice}", is_wrong or tool not in worked)


def _never_worked(bench: Bench, steps: list[Step], worked: set[str]) -> Iterator[Fault]:
    """Tools that refuse even what the reference policy asks for, or that ask for nothing. By chance others may, too."""
    meant = {step.name for play in bench.reference for step in play.steps}
    raised = {each.tool for each in bench.stage.watched.raised}
    refused = {step.name: step for step in steps if step.name not in worked | raised}
    for name, step in refused.items():
        if name in meant or not step.input:
            calls = sum(each.name == name for each in steps)
            told = f"{written(step)}: {step.content['error']['message']}"
            yield Fault(f"{name} failed in each of {calls} calls, such as {told}", name in meant)


def _too_slow(steps: list[Step]) -> Iterator[Fault]:
    for name in dict.fromkeys(step.name for step in steps if step.code == "timeout"):
        yield Fault(f"{name} ran out of time; give it a timeout= that it keeps")


def _broke(bench: Bench) -> Iterator[Fault]:
    for play in bench.wandered:
        if play.broke is not None and play.broke.where == "play":
            yield Fault(f"task {play.task}: an episode of calls by chance broke down: {play.broke.why}")

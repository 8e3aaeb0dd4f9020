"""The checks `schema`, `tools` and `cost`: tools are documented, work as declared, and are fast."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from statistics import median
from typing import Any

from stateroom.agent import request_of
from stateroom.environment import Environment, Tool
from stateroom.errors import InvalidModel, NotFound, ReadOnlyState
from stateroom.model import open_model
from stateroom.rollout.check.episodes import Episodes, PlayedStep
from stateroom.rollout.check.findings import COST, SCHEMA, TOOLS, Fault, Finding, finding, listed, plural
from stateroom.rollout.check.instance import ToolFault
from stateroom.rollout.rows import Row

SLOW_CALL_SECONDS = 0.1
"""The time from which a call is slow, in seconds."""

SLOW_HOOK_SECONDS = 1.0
"""The time from which a seed or a verifier is slow, in seconds."""

READ_ONLY = f"{ReadOnlyState.__name__}:"
"""The prefix of the error of a read that changed something."""

REWRITTEN_SHARE = 0.5
"""The share of the state from which a call counts as rewriting it."""


# Schema.


def check_schema(environment: Environment[Any, Any], rows: Iterable[Row]) -> Finding:
    """Every tool and parameter has a strict schema and a description, from the environment or the rows."""
    tools = environment.tools.values()
    described = {place for row in rows for place in _described(row)}
    faults = [fault for tool in tools for fault in _schema_faults(tool, described)]
    if not tools:
        faults.append(Fault("the environment has no tools; mark methods with @tool"))
    faults += _missing_policies(type(environment))
    if not type(environment).__doc__:
        faults.append(Fault(f"{type(environment).__name__} has no docstring, which lists and servers show", False))
    state = type(environment).state_type
    kept = f"the state is {state.__name__}" if state is not None else "stateless"
    return finding(SCHEMA, faults, f"{listed([tool.name for tool in tools])}: described and strict; {kept}")


def _missing_policies(environment: type[Environment[Any, Any]]) -> Iterator[Fault]:
    for name in environment.policies:
        try:
            open_model(name, environment.policies)
        except (NotFound, InvalidModel) as error:
            yield Fault(f"policies: {error}")


def _described(row: Row) -> Iterator[tuple[str, str]]:
    """The tools and parameters that the schemas in a row describe."""
    for tool in request_of(row).get("tools") or ():
        for name, schema in (tool.get("parameters") or {}).get("properties", {}).items():
            if schema.get("description"):
                yield tool["name"], name


def _schema_faults(tool: Tool, described: Collection[tuple[str, str]]) -> Iterator[Fault]:
    parameters = tool.definition["parameters"]
    for name, schema in parameters["properties"].items():
        if not schema.get("description") and (tool.name, name) not in described:
            yield Fault(f"{tool.name}: `{name}` has no description; add it to the docstring, under Args:", False)
    if not tool.definition["strict"]:
        definitions = parameters.get("$defs", {})
        loose = {name: _looseness(part, definitions) for name, part in parameters["properties"].items()}
        whys = [f"`{name}` is {why}" for name, why in loose.items() if why]
        yield Fault(
            f"{tool.name} has no strict schema, so a model may pass wrong arguments: "
            f"{listed(whys) or 'of its parameters'}; use a model with fields instead",
            False,
        )


def _looseness(schema: Any, definitions: Mapping[str, Any], depth: int = 0) -> str | None:
    """The part of a schema that cannot be strict."""
    if not isinstance(schema, dict) or depth > 20:
        return None
    if "$ref" in schema:
        return _looseness(definitions.get(schema["$ref"].rpartition("/")[2]), definitions, depth + 1)
    if "prefixItems" in schema:
        return "a tuple"
    if schema.get("type") == "object" and ("properties" not in schema or schema.get("additionalProperties")):
        return "a dict with any keys"
    if not schema.keys() & {"type", "anyOf", "oneOf", "enum", "const"}:
        return "of any type"
    parts = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("properties", {}).values()]
    parts += [schema["items"]] if "items" in schema else []
    return next((why for part in parts if (why := _looseness(part, definitions, depth + 1))), None)


# Tools.


def check_tools(episodes: Episodes) -> Finding:
    """No tool failed unexpectedly, and each succeeded."""
    steps = [step for play in episodes.active for step in play.steps if not step.is_reply]
    worked = {step.name for step in steps if step.code in (None, "needs_input")}
    faults = [
        *_raised(episodes, worked),
        *_resources_changed(episodes, steps),
        *_never_worked(episodes, steps, worked),
        *_too_slow(steps),
        *_random_failures(episodes),
    ]
    tools = episodes.instance.environment.tools
    unseen = [name for name in tools if name not in worked]
    untested = f"; not tested: {listed(unseen)}" if unseen else ""
    summary = f"{len(worked)} of {len(tools)} succeeded, in {plural(len(steps), 'call')}{untested}"
    return finding(TOOLS, faults, summary)


def _raised(episodes: Episodes, worked: set[str]) -> Iterator[Fault]:
    kinds: dict[tuple[str, bool], list[ToolFault]] = defaultdict(list)
    for fault in episodes.instance.watched.faults:
        kinds[fault.tool, fault.is_certain].append(fault)
    for (tool, is_certain), faults in kinds.items():
        often = f", in {len(faults)} calls" if len(faults) > 1 else ""
        advice = "" if is_certain else "; raise ToolError with a message for the model"
        yield Fault(f"{faults[0].call} {faults[0].what}{often}{advice}", is_certain or tool not in worked)


def _resources_changed(episodes: Episodes, steps: list[PlayedStep]) -> Iterator[Fault]:
    """Reads that change a resource, which is detected when they have returned."""
    raised = {fault.tool for fault in episodes.instance.watched.faults if fault.is_certain}
    changed = {step.name: step for step in steps if step.cause is not None and step.cause.error.startswith(READ_ONLY)}
    for step in (step for name, step in changed.items() if name not in raised):
        yield Fault(f"{step}: {step.content['error']['message']}")


def _never_worked(episodes: Episodes, steps: list[PlayedStep], worked: set[str]) -> Iterator[Fault]:
    """Tools that always fail for the reference policy or without arguments; random arguments may be invalid."""
    used = {step.name for play in episodes.reference for step in play.steps}
    raised = {fault.tool for fault in episodes.instance.watched.faults}
    refused = {step.name: step for step in steps if step.name not in worked | raised}
    for name, step in refused.items():
        if name in used or not step.input:
            calls = sum(each.name == name for each in steps)
            answer = f"{step}: {step.content['error']['message']}"
            how = "its only call," if calls == 1 else f"each of {calls} calls, such as"
            yield Fault(f"{name} failed in {how} {answer}", name in used)


def _too_slow(steps: list[PlayedStep]) -> Iterator[Fault]:
    for name in dict.fromkeys(step.name for step in steps if step.code == "timeout"):
        yield Fault(f"{name} timed out; give it a longer timeout=")


def _random_failures(episodes: Episodes) -> Iterator[Fault]:
    for play in episodes.random:
        if play.failure is not None and play.failure.phase == "play":
            yield Fault(f"task {play.task}: an episode of random calls failed: {play.failure.why}")


# Cost.


def check_cost(episodes: Episodes) -> Finding:
    """Median times, and calls that rewrite unchanged data."""
    calls: Mapping[str, list[float]] = defaultdict(list)
    for step in (step for play in episodes.active for step in play.steps):
        calls[step.name].append(step.seconds)
    times = {name: median(seconds) for name, seconds in calls.items()}
    hooks = {hook: median(seconds) for hook in ("seed", "verify") if (seconds := _hook_times(episodes, hook))}
    faults = [*_slow(times, SLOW_CALL_SECONDS), *_slow(hooks, SLOW_HOOK_SECONDS), *_rewrites(episodes)]
    return finding(COST, faults, _summary(episodes, times, hooks))


def _hook_times(episodes: Episodes, hook: str) -> list[float]:
    return [play.seconds[hook] for play in episodes.active if hook in play.seconds]


def _slow(times: Mapping[str, float], limit: float) -> Iterator[Fault]:
    for name, seconds in times.items():
        if seconds > limit:
            yield Fault(f"{name} takes {_milliseconds(seconds)}, which every episode waits for", False)


def _rewrites(episodes: Episodes) -> Iterator[Fault]:
    changes = (change for play in episodes.active for change in play.changes)
    worst = {change.name: change for change in changes if change.rewritten >= REWRITTEN_SHARE}
    for name, change in worst.items():
        yield Fault(
            f"{name} writes {change.size:,} bytes, {change.rewritten:.0%} of the state, so calls get slower as it "
            "grows; change the data in place instead of replacing it with a copy",
            False,
        )


def _summary(episodes: Episodes, times: Mapping[str, float], hooks: Mapping[str, float]) -> str:
    slowest = sorted(times.items(), key=lambda each: -each[1])[:3]
    parts = [f"{name} {_milliseconds(seconds)}" for name, seconds in [*slowest, *hooks.items()]]
    sizes = [change.size for play in episodes.active for change in play.changes]
    if sizes:
        parts.append(f"{median(sizes):.0f} bytes of patch per commit")
    return ", ".join(parts)


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"

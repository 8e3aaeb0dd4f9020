"""A counter that the model reads and increments."""

from __future__ import annotations

import re
from random import Random
from typing import Any

from stateroom import Environment, Episode, State, Task, Verdict, tool
from stateroom.gallery.counter.policies import NoisyPolicy, ReferencePolicy
from stateroom.model import Item, text_of

NUMBER = re.compile(r"(?<![\w.])-?\d+(?!\.?\d)")


class Counter(State):
    value: int = 0


class CounterTask(Task):
    initial_count: int
    expected_count: int


def was_read_back(output: list[Item]) -> bool:
    """Whether the counter was read after the last addition. MCP clients add a prefix to tool names."""
    calls = (str(item.get("name")) for item in output if item.get("type") == "function_call")
    last = [name for name in calls if name.endswith(("increment_counter", "get_counter_value"))][-1:]
    return any(name.endswith("get_counter_value") for name in last)


def has_reported(output: list[Item], value: int) -> bool:
    """Whether the last message has a value."""
    messages = [text_of(item) for item in output if item.get("type") == "message"]
    return any(str(value) in NUMBER.findall(text) for text in messages[-1:])


class CounterEnvironment(Environment[Counter, CounterTask]):
    """Increment a counter and report its value."""

    examples = "tasks.jsonl"
    policies = {"reference": ReferencePolicy, "noisy": NoisyPolicy}

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        """Whether the reward requires reading the counter after the last addition and reporting its value."""

    def seed(self, task: CounterTask) -> Counter:
        return Counter(value=task.initial_count)

    @tool
    def increment_counter(self, state: Counter, count: int) -> dict[str, bool]:
        """Add `count` to the counter.

        Args:
            count: How much to add.
        """
        state.value += count
        return {"success": True}

    @tool(effect="read")
    def get_counter_value(self, state: Counter) -> dict[str, int]:
        """The counter's value."""
        return {"count": state.value}

    def verify(self, state: Counter, episode: Episode) -> Verdict:
        """1 if the counter has the expected value; `strict` also asks that it was read back and reported."""
        output = (episode.response or {}).get("output", [])
        steps = {"read_back": was_read_back(output), "reported": has_reported(output, state.value)}
        reached = state.value == episode.task.expected_count
        reward = reached and (not self.strict or all(steps.values()))
        return Verdict(float(reward), {name: float(done) for name, done in steps.items()})

    @classmethod
    def generate(cls, rng: Random) -> dict[str, Any]:
        """A new task: one to four additions."""
        start = rng.randint(0, 20)
        additions = [rng.randint(1, 9) for _ in range(rng.randint(1, 4))]
        steps = ", then ".join(f"add {addition}" for addition in additions)
        return {
            "responses_create_params": {
                "input": f"Use the tools to change the counter: {steps}. Then read it and tell me its value."
            },
            "initial_count": start,
            "expected_count": start + sum(additions),
        }

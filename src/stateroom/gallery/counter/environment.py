"""A counter that the model reads and increments."""

from __future__ import annotations

from random import Random
from typing import Any

from stateroom import Environment, Episode, State, Task, tool
from stateroom.gallery.counter.policies import NoisyPolicy, ReferencePolicy


class Counter(State):
    value: int = 0


class CounterTask(Task):
    initial_count: int
    expected_count: int


class CounterEnvironment(Environment[Counter, CounterTask]):
    """Increment a counter and report its value."""

    examples = "tasks.jsonl"
    policies = {"reference": ReferencePolicy, "noisy": NoisyPolicy}

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

    def verify(self, state: Counter, episode: Episode) -> float:
        return float(state.value == episode.task.expected_count)

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

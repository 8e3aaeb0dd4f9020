"""A ledger with hidden quantities: the model computes with their names, one operation at a time."""

from __future__ import annotations

from random import Random
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from stateroom import Environment, Episode, State, Task, ToolError, Verdict, tool
from stateroom.gallery.math.policies import NoisyPolicy, ReferencePolicy
from stateroom.gallery.math.problem import OPERATIONS, RULES, Operation, Step, draw, solve

LARGEST = 10**12
"""The largest result; repeated products would otherwise exhaust the memory."""


class Ledger(State):
    quantities: dict[str, int] = {}
    results: dict[str, int] = {}
    answer: int | None = None


class MathTask(Task):
    quantities: dict[str, int]
    steps: list[Step] = Field(min_length=1)
    """The results to compute, in a possible order; the last one is the answer."""

    @field_validator("steps")
    @classmethod
    def _can_be_computed(cls, steps: list[Step], info: ValidationInfo) -> list[Step]:
        try:
            solve(steps, info.data.get("quantities", {}))
        except KeyError as error:
            raise ValueError(f"unknown quantity or earlier result {error}") from None
        return steps


class MathEnvironment(Environment[Ledger, MathTask]):
    """Solve a word problem step by step, on quantities that only the tool knows."""

    examples = "tasks.jsonl"
    policies = {"reference": ReferencePolicy, "noisy": NoisyPolicy}

    def seed(self, task: MathTask) -> Ledger:
        return Ledger(quantities=task.quantities)

    @tool
    def compute(self, state: Ledger, result: str, operation: Operation, left: str, right: str) -> dict[str, int]:
        """Compute a result, and store it under a name, replacing an earlier result with that name.

        Args:
            result: The name of the result.
            operation: The operation on left and right, in this order; divide rounds down.
            left: The name of a quantity or of an earlier result.
            right: The name of a quantity or of an earlier result.
        """
        if result in state.quantities:
            raise ToolError(f"{result} is a quantity in the ledger; give the result another name")
        values = {**state.quantities, **state.results}
        for name in (left, right):
            if name not in values:
                raise ToolError(f"unknown name {name!r}; available: {', '.join(values)}")
        if operation == "divide" and not values[right]:
            raise ToolError(f"cannot divide by {right}, which is 0")
        value = OPERATIONS[operation](values[left], values[right])
        if abs(value) > LARGEST:
            raise ToolError(f"{result} would be larger than {LARGEST:,}")
        state.results[result] = value
        return {result: value}

    @tool
    def submit_answer(self, state: Ledger, answer: int) -> dict[str, bool]:
        """Submit the requested value. The last call counts.

        Args:
            answer: The value.
        """
        state.answer = answer
        return {"success": True}

    def verify(self, state: Ledger, episode: Episode) -> Verdict:
        """1 if every result and the submitted answer are right, else 0."""
        task: MathTask = episode.task
        expected = solve(task.steps, task.quantities)
        right = sum(state.results.get(name) == value for name, value in expected.items())
        answered = state.answer == expected[task.steps[-1].result]
        return Verdict(
            reward=float(right == len(expected) and answered),
            components={"steps": right / len(expected), "answer": float(answered)},
            reason=f"{right} of {len(expected)} results are right; the answer is {'right' if answered else 'wrong'}",
        )

    @classmethod
    def generate(cls, rng: Random) -> dict[str, Any]:
        """A new task: two to six results of a story."""
        prompt, quantities, steps = draw(rng)
        return {
            "responses_create_params": {
                "input": [{"role": "system", "content": RULES}, {"role": "user", "content": prompt}]
            },
            "quantities": quantities,
            "steps": [step.model_dump(exclude_defaults=True) for step in steps],
        }

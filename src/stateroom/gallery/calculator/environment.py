"""A calculator: four tools, no state. The model passes each result to the next call."""

from __future__ import annotations

from random import Random
from typing import Any

from stateroom import Environment, Episode, Task, ToolError, tool
from stateroom.gallery.calculator.policies import NUMBER, NoisyPolicy, ReferencePolicy
from stateroom.model import calls_of, text_of

WORDS = {"add": "add", "subtract": "subtract", "multiply": "multiply by", "divide": "divide by"}
"""The words for each tool in a prompt."""


class CalculatorTask(Task):
    answer: float


class CalculatorEnvironment(Environment[None, CalculatorTask]):
    """Compute a result with a calculator, and report it."""

    examples = "tasks.jsonl"
    policies = {"reference": ReferencePolicy, "noisy": NoisyPolicy}

    @tool(effect="read")
    def add(self, a: float, b: float) -> float:
        """Add b to a.

        Args:
            a: A number.
            b: The number to add to it.
        """
        return a + b

    @tool(effect="read")
    def subtract(self, a: float, b: float) -> float:
        """Subtract b from a.

        Args:
            a: A number.
            b: The number to subtract from it.
        """
        return a - b

    @tool(effect="read")
    def multiply(self, a: float, b: float) -> float:
        """Multiply a by b.

        Args:
            a: A number.
            b: The number to multiply it by.
        """
        return a * b

    @tool(effect="read")
    def divide(self, a: float, b: float) -> float:
        """Divide a by b.

        Args:
            a: A number.
            b: The number to divide it by.
        """
        if not b:
            raise ToolError("cannot divide by 0")
        return a / b

    def verify(self, episode: Episode) -> float:
        """1 if the last message has the right result and the calculator was used, else 0."""
        output = (episode.response or {}).get("output", [])
        last = [text_of(item) for item in output if item.get("type") == "message"][-1:]
        reported = any(float(number) == episode.task.answer for text in last for number in NUMBER.findall(text))
        return float(reported and any(calls_of(episode.response, name) for name in self.tools))

    @classmethod
    def generate(cls, rng: Random) -> dict[str, Any]:
        """A new task: two to four operations, each on the previous result. All results are whole numbers."""
        value = start = rng.randint(2, 20)
        steps = []
        for _ in range(rng.randint(2, 4)):
            by = rng.randint(2, 9)
            names = ["add", "subtract", "multiply", *(["divide"] if value % by == 0 else [])]
            name = rng.choice(names)
            value = {"add": value + by, "subtract": value - by, "multiply": value * by, "divide": value // by}[name]
            steps.append(f"{WORDS[name]} {by}")
        prompt = f"Start with {start}; {', '.join(steps)}. Use the calculator for each step, and tell me the result."
        return {"responses_create_params": {"input": prompt}, "answer": value}

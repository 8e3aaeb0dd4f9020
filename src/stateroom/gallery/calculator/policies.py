"""Policies for the calculator."""

from __future__ import annotations

import re

from stateroom.model import Item, Noisy, Policy, function_call, last_user_text, message, newest_turn, outputs_of

NUMBER = re.compile(r"-?\d+(?:\.\d+)?")

STEP = re.compile(rf"(add|subtract|multiply|divide)(?: by)? ({NUMBER.pattern})")


class ReferencePolicy(Policy):
    """Makes each step of the prompt on the previous result, and reports the last one."""

    def respond(self, conversation: list[Item], tools: list[Item]) -> list[Item]:
        prompt, results = last_user_text(conversation), outputs_of(newest_turn(conversation))
        steps = STEP.findall(prompt)
        value = results[-1] if results else float(next(iter(NUMBER.findall(prompt)), 0))
        if not isinstance(value, int | float):
            return [message("There is no result.")]
        if len(results) >= len(steps):
            return [message(f"The result is {value:.12g}.")]
        name, by = steps[len(results)]
        return [function_call(name, f"call_{len(outputs_of(conversation))}", a=value, b=float(by))]


class NoisyPolicy(Noisy):
    """Guesses in some episodes, without the calculator."""

    better = ReferencePolicy

    def err(self, items: list[Item]) -> list[Item]:
        return [message("The result is about 42.")]
